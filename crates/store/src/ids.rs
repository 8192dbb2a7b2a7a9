use crate::Result;
use async_trait::async_trait;
use everbeat_model::RunId;
use std::ops::RangeInclusive;
use uuid::Uuid;

/// Finding things by a part of their id. Neither call looks at more than it is told to, however much is stored.
#[async_trait]
pub trait Ids {
    /// The ids in this range, newest first, at most `limit`.
    async fn ids(&self, of: Noun, within: RangeInclusive<Uuid>, limit: usize) -> Result<Vec<Uuid>>;

    /// Jobs whose input has this text in it, newest first: among the newest `window` runs, and among those that
    /// run.
    async fn jobs_with(&self, text: String, window: usize) -> Result<Vec<RunId>>;
}

/// What has an id. Replicas are few, and listed by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noun {
    /// Jobs are runs too.
    Run,
    /// Only those that run: a job may run for long while many others come after it.
    RunningRun,
    Execution,
    Verdict,
    /// Those of which replicas have told.
    Worker,
}

impl Noun {
    pub const ALL: [Noun; 5] = [Noun::Run, Noun::RunningRun, Noun::Execution, Noun::Verdict, Noun::Worker];
}
