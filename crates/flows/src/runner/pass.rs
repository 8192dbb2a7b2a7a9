//! From opening source and sink to their end, or to the first trouble.

use super::dead_letters::DeadLetters;
use super::standing::{Envelope, Standing};
use super::{Attempt, Halt};
use crate::transform::{Transformed, apply};
use crate::{Counts, Promise, Rejected, Room, Sink, Source, Surroundings, Trouble};
use serde_json::Value;

/// What is read, and what is written, together at most. Two batches are in memory at a time.
pub(super) const MOST_BATCH_BYTES: usize = 8 << 20;

/// A batch that was read and transformed.
struct Prepared {
    transformed: Transformed,
    /// By the source and by transforms.
    rejected: Vec<Rejected>,
    read: u64,
    cursor: Value,
    last: bool,
}

pub(super) async fn pass(attempt: &Attempt<'_>, standing: &mut Standing) -> Result<(), Halt> {
    let around = own_place(&attempt.around);
    attempt.ledger.check()?;
    let mut sink = attempt.configuration.sink.open(&around).await.map_err(|trouble| about("sink", trouble))?;
    let mut letters = DeadLetters::open(attempt.configuration, &around).await?;
    let cursor = begin(attempt, standing, &mut *sink, &mut letters).await?;
    let source = &attempt.configuration.source;
    let opened = source.open(&attempt.around, cursor.as_ref()).await;
    let mut source = opened.map_err(|trouble| about("source", trouble))?;
    // A sink that keeps the cursor beside its records knows best what is written: others may hear of it a little later.
    let keeps = attempt.configuration.sink.promise() == Promise::ExactlyOnce;
    let mut untold: Option<Told> = None;
    let mut next = Some(prepare(attempt, &mut *source).await?);
    while let Some(batch) = next.take() {
        let Prepared { transformed, rejected, read, cursor, last } = batch;
        if let Err(stop) = attempt.ledger.check() {
            if let Some(Told { checkpoint, counts, .. }) = untold.take() {
                let _it_stops_anyway = attempt.ledger.committed(&checkpoint, &counts).await;
            }
            return Err(stop.into());
        }
        let before = standing.counts;
        let counts = Counts {
            read: before.read + read,
            rejected: before.rejected + rejected.len() as u64,
            dropped: before.dropped + transformed.dropped,
            ..before
        };
        // Before the batch is committed: a crash in between rejects these records twice, but loses none.
        letters.write(&rejected, &cursor, attempt.ledger.now()).await?;
        let envelope = Envelope::seal(&cursor, &counts);
        let nothing = transformed.records.is_empty() && standing.cursor.as_ref() == Some(&cursor);
        let write =
            async { if nothing { Ok(Default::default()) } else { sink.write(transformed.records, &envelope).await } };
        // Meanwhile the source and the engine hear of the batch before, and the next one is read.
        let told = untold.take();
        let ahead = async {
            if let Some(told) = &told {
                told.acknowledge(&mut *source).await?;
            }
            if last { Ok(None) } else { prepare(attempt, &mut *source).await.map(Some) }
        };
        let tell = async {
            match &told {
                Some(told) => attempt.ledger.committed(&told.checkpoint, &told.counts).await,
                None => Ok(()),
            }
        };
        let (written, ahead, heard) = tokio::join!(write, ahead, tell);
        let written = written.map_err(|trouble| about("sink", trouble))?;
        letters.write(&written.rejected, &cursor, attempt.ledger.now()).await?;
        standing.counts = counts.with(&written);
        standing.batches += 1;
        if !letters.are_written() {
            standing.keep(&rejected);
            standing.keep(&written.rejected);
        }
        // The batch is in the sink, whether or not the source hears of it: a source that is opened with the cursor does.
        standing.cursor = Some(cursor.clone());
        heard?;
        let now = Told { cursor, checkpoint: standing.checkpoint(), counts: standing.counts };
        let refused = check_rejected(attempt, standing, last);
        if keeps && !last && refused.is_ok() {
            untold = Some(now);
        } else {
            now.acknowledge(&mut *source).await?;
            attempt.ledger.committed(&now.checkpoint, &now.counts).await?;
        }
        refused?;
        next = ahead?;
    }
    sink.finish().await.map_err(|trouble| about("sink", trouble))?;
    letters.finish().await?;
    Ok(())
}

/// A batch that is in the sink: who hears of it.
struct Told {
    cursor: Value,
    checkpoint: Value,
    counts: Counts,
}

impl Told {
    async fn acknowledge(&self, source: &mut dyn Source) -> Result<(), Trouble> {
        source.acknowledge(&self.cursor).await.map_err(|trouble| about("source", trouble))
    }
}

/// Runs of a range keep their cursors apart: the next ordinary run does not go on after them.
fn own_place(around: &Surroundings) -> Surroundings {
    match around.range {
        Some(_) => Surroundings { flow: format!("{}/range", around.flow).into(), ..around.clone() },
        None => around.clone(),
    }
}

/// The cursor to begin after. The sink knows best: it may hold a batch that nobody has heard of.
async fn begin(
    attempt: &Attempt<'_>,
    standing: &mut Standing,
    sink: &mut dyn Sink,
    letters: &mut DeadLetters,
) -> Result<Option<Value>, Halt> {
    let committed = sink.committed().await.map_err(|trouble| about("sink", trouble))?;
    let envelope = committed.as_ref().and_then(|committed| Envelope::open(&committed.cursor));
    let own = committed.as_ref().is_some_and(|committed| *committed.run == *attempt.around.run);
    match envelope {
        Some(Envelope { cursor, counts }) if own => {
            if standing.cursor.as_ref() != Some(&cursor) {
                let written = sink.outcome().await.map_err(|trouble| about("sink", trouble))?.unwrap_or_default();
                letters.write(&written.rejected, &cursor, attempt.ledger.now()).await?;
                standing.counts = counts.with(&written);
                if !letters.are_written() {
                    standing.keep(&written.rejected);
                }
                standing.cursor = Some(cursor);
                attempt.ledger.committed(&standing.checkpoint(), &standing.counts).await?;
            }
            Ok(standing.cursor.clone())
        }
        _ if standing.cursor.is_some() => Ok(standing.cursor.clone()),
        envelope if attempt.configuration.source.goes_on() && attempt.around.range.is_none() => {
            let previous = attempt.previous.as_ref().and_then(|previous| previous.get("cursor")).cloned();
            Ok(envelope.map(|envelope| envelope.cursor).or(previous).filter(|cursor| !cursor.is_null()))
        }
        _ => Ok(None),
    }
}

async fn prepare(attempt: &Attempt<'_>, source: &mut dyn Source) -> Result<Prepared, Trouble> {
    let room = Room { records: attempt.configuration.batch_size, bytes: MOST_BATCH_BYTES };
    let batch = source.read(room).await.map_err(|trouble| about("source", trouble))?;
    let read = (batch.records.len() + batch.rejected.len()) as u64;
    let steps = &attempt.configuration.transforms;
    let mut transformed = apply(steps, batch.records, attempt.ledger.now(), &attempt.ports).await?;
    let mut rejected = batch.rejected;
    rejected.append(&mut transformed.rejected);
    Ok(Prepared { transformed, rejected, read, cursor: batch.cursor, last: batch.last })
}

fn check_rejected(attempt: &Attempt<'_>, standing: &Standing, at_end: bool) -> Result<(), Halt> {
    let Some(most) = attempt.configuration.max_rejected else { return Ok(()) };
    let Counts { rejected, read, .. } = standing.counts;
    if !most.is_exceeded(rejected, read, at_end) {
        return Ok(());
    }
    let first = standing.kept.first().map(|kept| format!("; the first is {}, which {}", kept.position, kept.reason));
    let first = first.unwrap_or_default();
    let said = format!("{rejected} of {read} records were rejected, more than max_rejected allows ({most}){first}");
    Err(Halt::Failed(Trouble::permanent(said)))
}

fn about(end: &str, trouble: Trouble) -> Trouble {
    Trouble { message: format!("{end}: {}", trouble.message), ..trouble }
}
