//! One attempt of a flow's run: read, transform, write, acknowledge, tell; batch by batch.

mod dead_letters;
mod dry_run;
mod pass;
mod standing;

pub use dry_run::{DryRun, dry_run};

use crate::ledger::{Ledger, Stop};
use crate::{Class, Configuration, Counts, Ports, Rejected, Surroundings, Trouble};
use everbeat_model::StoreTime;
use serde_json::Value;
use standing::Standing;
use std::time::Duration;

/// One attempt, and what it is given.
pub struct Attempt<'a> {
    pub configuration: &'a Configuration,
    pub around: Surroundings,
    pub ports: Ports,
    pub ledger: &'a dyn Ledger,
    /// The last checkpoint of this run.
    pub checkpoint: Option<Value>,
    /// The last checkpoint of the flow's run before, for sources that go on where that one ended.
    pub previous: Option<Value>,
    /// So long an attempt tries again by itself while nothing advances.
    pub patience: Duration,
}

/// The default of [`Attempt::patience`].
pub const PATIENCE: Duration = Duration::from_secs(600);

/// A run that is finished.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub counts: Counts,
    pub cursor: Option<Value>,
    /// The first ones, where no dead-letter sink takes them all.
    pub rejected: Vec<Rejected>,
}

/// Why an attempt is over before its run is.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Halt {
    #[error("{0}")]
    Stopped(Stop),
    #[error("{0}")]
    Failed(Trouble),
}

impl From<Trouble> for Halt {
    fn from(trouble: Trouble) -> Halt {
        Halt::Failed(trouble)
    }
}

impl From<Stop> for Halt {
    fn from(stop: Stop) -> Halt {
        Halt::Stopped(stop)
    }
}

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Performs an attempt. Dropping the future is its crash: the next attempt goes on after the last batch that the sink
/// has committed.
pub async fn run(attempt: &Attempt<'_>) -> Result<Report, Halt> {
    let mut standing = Standing::of(attempt.checkpoint.as_ref());
    let ledger = attempt.ledger;
    let mut pause = FIRST_PAUSE;
    let (mut advanced_at, mut batches): (StoreTime, u64) = (ledger.now(), 0);
    loop {
        let trouble = match pass::pass(attempt, &mut standing).await {
            Ok(()) => break,
            Err(Halt::Failed(trouble)) if trouble.class == Class::Transient => trouble,
            Err(halt) => return Err(halt),
        };
        if standing.batches > batches {
            (advanced_at, batches, pause) = (ledger.now(), standing.batches, FIRST_PAUSE);
        }
        if ledger.now().since(advanced_at) >= attempt.patience {
            return Err(Halt::Failed(trouble));
        }
        ledger.beat(&format!("tries again in {} s: {trouble}", pause.as_secs()));
        ledger.sleep(pause).await?;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    Ok(Report { counts: standing.counts, cursor: standing.cursor, rejected: standing.kept })
}
