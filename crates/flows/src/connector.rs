use crate::{Batch, Record, Room, Surroundings, Trouble, Written};
use async_trait::async_trait;
use serde_json::Value;

/// What a flow says of its source, checked. One is kept for as long as the flow's configuration stays the same.
#[async_trait]
pub trait OpenSource: Send + Sync + 'static {
    /// Whether a run goes on where the last run of the flow ended; otherwise each run reads everything.
    fn goes_on(&self) -> bool;

    /// Connects. With a cursor the source goes on after it; a source that remembers by itself what it handed over
    /// (consumer groups) acknowledges first what the cursor stands for.
    async fn open(&self, around: &Surroundings, cursor: Option<&Value>) -> Result<Box<dyn Source>, Trouble>;

    /// The first records, for somebody who wants to see some: nothing is taken away from runs, and nothing is made.
    async fn look(&self, around: &Surroundings, room: Room) -> Result<Batch, Trouble> {
        let mut source = self.open(around, None).await?;
        let mut seen = Batch::default();
        loop {
            let found = seen.records.len() + seen.rejected.len();
            let Some(records) = room.records.checked_sub(found).filter(|left| *left > 0) else { return Ok(seen) };
            let batch = source.read(Room { records, ..room }).await?;
            seen.records.extend(batch.records);
            seen.rejected.extend(batch.rejected);
            if batch.last {
                return Ok(seen);
            }
        }
    }
}

/// Records of one run.
#[async_trait]
pub trait Source: Send {
    /// The next records. Called again without an acknowledgement in between: one batch may be read while the one before
    /// is written. Dropping the future loses nothing that was not handed over.
    async fn read(&mut self, room: Room) -> Result<Batch, Trouble>;

    /// Everything up to this cursor is in the sink for good.
    async fn acknowledge(&mut self, _cursor: &Value) -> Result<(), Trouble> {
        Ok(())
    }
}

/// What a flow says of its sink, checked.
#[async_trait]
pub trait OpenSink: Send + Sync + 'static {
    fn promise(&self) -> Promise;

    /// Connects. From then on no attempt of this run with a lower fence can write, if the sink keeps cursors.
    async fn open(&self, around: &Surroundings) -> Result<Box<dyn Sink>, Trouble>;
}

/// What a sink can promise when attempts are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Records and cursor are committed together: each record once.
    ExactlyOnce,
    /// Records of a lost batch may be there twice. Each carries what tells repeats.
    AtLeastOnce,
}

/// Where records of one run go.
#[async_trait]
pub trait Sink: Send {
    /// What was committed last: by this run, else by the run of the flow before. None if there is nothing, or if the
    /// sink keeps no cursors.
    async fn committed(&mut self) -> Result<Option<Committed>, Trouble> {
        Ok(None)
    }

    /// What became of the batch that this run's committed cursor stands for, if the sink remembers: whoever wrote the
    /// batch may not have heard.
    async fn outcome(&mut self) -> Result<Option<Written>, Trouble> {
        Ok(None)
    }

    /// Writes a batch, and the cursor with it if the sink keeps cursors. All records of a batch may have been rejected
    /// or dropped before: then there is only the cursor to keep. When it has returned, all of it is there for
    /// good. After an error nothing is known; the run is tried again from its last cursor.
    async fn write(&mut self, records: Vec<Record>, cursor: &Value) -> Result<Written, Trouble>;

    /// The run is over, and everything was written.
    async fn finish(&mut self) -> Result<(), Trouble> {
        Ok(())
    }
}

/// A cursor that a sink keeps beside its records.
#[derive(Clone, Debug, PartialEq)]
pub struct Committed {
    /// The run that committed it.
    pub run: String,
    pub cursor: Value,
}
