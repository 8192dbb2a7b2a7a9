//! What the code of an attempt may ask and say: heartbeats, progress, checkpoints, whether to stop.

use super::outputs::Outbox;
use super::sign::Signer;
use super::work::Work;
use everbeat_model::output::{Item, OutputKind};
use everbeat_model::policy::HeartbeatMode;
use everbeat_model::{Json, Parent, RunId, StoreTime};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;

/// What a task's code holds of its attempt.
#[derive(Clone)]
pub struct Ctx {
    pub(crate) work: Arc<Work>,
    pub(crate) signer: Signer,
    pub(crate) outbox: Arc<Outbox>,
}

/// A sign of progress. Everything is optional: an empty one says "alive".
#[derive(Clone, Debug, Default, Serialize)]
pub struct Beat {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Promises silence: the next sign may take this long. It extends the heartbeat timeout once,
    /// never the deadline, and excuses no stall.
    #[serde(skip)]
    pub next_within: Option<Duration>,
}

/// Why an attempt should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    #[error("the run was cancelled")]
    Cancelled,
    #[error("the replica drains")]
    Draining,
    #[error("the attempt was fenced: its lease is no longer its own")]
    Fenced,
    #[error("the attempt was judged: its time is over")]
    Judged,
    #[error("the value is too large: a checkpoint may have 4 MiB, an item of output 1 MiB")]
    TooLarge,
    #[error("the store cannot hold the value")]
    Unstorable,
    #[error("the value is nested too deeply; nest at most 100 levels")]
    TooDeep,
}

/// Larger checkpoints and results are refused: they belong into a file or an object store.
pub(crate) const MOST_VALUE_BYTES: usize = 4 << 20;

/// Larger items of output are refused: they belong into a file or an object store.
pub(crate) const MOST_ITEM_BYTES: usize = 1 << 20;
/// Longer lines of a log are cut.
const MOST_LINE_BYTES: usize = 16 << 10;

impl Ctx {
    pub fn run_id(&self) -> RunId {
        self.work.claimed.lease.run_id
    }

    pub fn attempt(&self) -> u32 {
        self.work.claimed.lease.attempt
    }

    /// Rises with every attempt of the run. Hand it to external systems, which then refuse writes with
    /// a lower one.
    pub fn fence(&self) -> u64 {
        u64::from(self.attempt())
    }

    pub fn task(&self) -> &str {
        &self.work.claimed.spec.task
    }

    /// What is said besides the input, by the definition of the node or by the schedule; none of other shapes or of other
    /// runs.
    pub fn args<T: DeserializeOwned>(&self) -> Option<T> {
        self.work.claimed.spec.args.as_ref().and_then(|args| args.read().ok())
    }

    /// The node of an execution that this attempt computes, if it does.
    pub fn parent(&self) -> Option<&Parent> {
        self.work.claimed.spec.parent.as_ref()
    }

    /// What a task that is told how to work reads: the arguments of its node, or else its input.
    pub fn orders(&self) -> &Json {
        self.work.claimed.spec.orders()
    }

    /// The store's time, as far as known: that of the grant, carried on by this machine's boot clock.
    pub fn now(&self) -> StoreTime {
        self.work.claimed.lease.granted_at.plus(self.signer.now().since(self.work.started))
    }

    /// Says that the work advances. The answer tells whether to go on.
    pub fn heartbeat(&self, beat: Beat) -> Result<(), Stop> {
        let progress = (beat.done.is_some() || beat.total.is_some() || beat.note.is_some()).then(|| Json::of(&beat));
        self.work.beat(self.signer.now(), progress, beat.next_within);
        self.signer.nudge(&self.work);
        self.check()
    }

    /// Shorthand for a heartbeat with `done` of `total`.
    pub fn progress(&self, done: u64, total: u64) -> Result<(), Stop> {
        self.heartbeat(Beat { done: Some(done), total: Some(total), ..Beat::default() })
    }

    /// Stores what the next attempt should continue from. Returns after it is committed. At most 4 MiB.
    pub async fn checkpoint<T: Serialize>(&self, value: &T) -> Result<(), Stop> {
        self.checkpoint_json(Json::of(value)).await
    }

    async fn checkpoint_json(&self, value: Json) -> Result<(), Stop> {
        self.work.beat(self.signer.now(), None, None);
        self.store_checkpoint(value).await?;
        self.check()
    }

    /// Stores a checkpoint, and beats not. An error means that it is not stored; whether to go on is another question.
    pub(crate) async fn store_checkpoint(&self, value: Json) -> Result<(), Stop> {
        if value.as_str().len() > MOST_VALUE_BYTES {
            return Err(Stop::TooLarge);
        }
        // What was made here has no other bound to break.
        value.check().map_err(|_beyond| Stop::TooDeep)?;
        self.signer.checkpoint(&self.work, value).await
    }

    /// Streams a piece of the result. Whoever follows the run sees it at once, on any replica, and it stays with the run
    /// beside the result; of much the newest is kept (`runs.output_limit`). At most 1 MiB. It counts as progress.
    ///
    /// Returns when the item is taken, not when it is stored; all items are stored before the attempt ends. While the
    /// store takes less than is streamed this waits. The answer tells whether to go on; an item that is not taken, since
    /// the attempt should stop and there is no room, is the last: nothing is taken after it.
    ///
    /// The next attempt begins anew: what an earlier one streamed stays, under that attempt's number.
    pub async fn output<T: Serialize>(&self, item: &T) -> Result<(), Stop> {
        self.output_json(&Json::of(item)).await
    }

    pub(crate) async fn output_json(&self, item: &Json) -> Result<(), Stop> {
        self.take_output(item).await?;
        self.check()
    }

    /// Streams an item. An error means that the item is not taken; whether to go on is another question.
    pub(crate) async fn take_output(&self, item: &Json) -> Result<(), Stop> {
        if item.as_str().len() > MOST_ITEM_BYTES {
            return Err(Stop::TooLarge);
        }
        // What was made here has no other bound to break.
        item.check().map_err(|_beyond| Stop::TooDeep)?;
        self.say(OutputKind::Output, item.as_str()).await
    }

    /// How many items and lines of its log were taken of this attempt so far.
    pub(crate) fn streamed(&self) -> u64 {
        self.work.said().taken()
    }

    /// Resolves when the store holds so many of them. Until then the attempt may wait for it: that is not its silence.
    pub(crate) async fn stores(&self, items: u64) {
        let _waits = self.work.awaits_room();
        self.work.stores(items).await;
        self.work.begins(self.signer.now());
    }

    /// Writes into the log of the run, each line as one. Long lines are cut. Otherwise like [`output`](Ctx::output).
    pub async fn log(&self, text: &str) -> Result<(), Stop> {
        for line in text.lines() {
            let cut = &line[..line.floor_char_boundary(MOST_LINE_BYTES)];
            // Not every database holds NUL in text.
            let line = if cut.len() < line.len() { format!("{cut} …") } else { cut.to_string() };
            self.say(OutputKind::Log, &line.replace('\0', "\u{fffd}")).await?;
        }
        self.check()
    }

    async fn say(&self, kind: OutputKind, text: &str) -> Result<(), Stop> {
        self.work.advanced(self.signer.now());
        self.outbox.take(&self.work, Item { kind, text: text.into() }).await?;
        self.work.advanced(self.signer.now());
        Ok(())
    }

    /// The last checkpoint of this run, of whichever attempt. One of another shape reads as none.
    pub fn resume<T: DeserializeOwned>(&self) -> Option<T> {
        self.work.claimed.checkpoint.as_ref().and_then(|checkpoint| checkpoint.read().ok())
    }

    /// Whether the work should go on.
    pub fn check(&self) -> Result<(), Stop> {
        self.work.stop().map_or(Ok(()), Err)
    }

    /// Resolves when the work should stop. A draining replica asks too: what can stop early may.
    pub async fn stopped(&self) -> Stop {
        self.work.stopped().await
    }

    /// Sleeps by the engine's clock, beating, and ends early when the work should stop for good.
    pub async fn sleep(&self, span: Duration) -> Result<(), Stop> {
        let policy = &self.work.claimed.spec.policy;
        let ends = self.signer.now() + span;
        loop {
            let now = self.signer.now();
            // Where the runtime beats by itself there is nothing to wake up for.
            let slice = match policy.heartbeat {
                HeartbeatMode::Auto => ends.since(now),
                HeartbeatMode::Manual => ends.since(now).min(policy.heartbeat_interval),
            };
            tokio::select! {
                biased;
                stop = self.work.cancelled() => return Err(stop),
                () = self.signer.sleep(slice) => {}
            }
            if self.signer.now() >= ends {
                return Ok(());
            }
            if policy.heartbeat == HeartbeatMode::Manual {
                self.heartbeat(Beat::default())?;
            }
        }
    }
}
