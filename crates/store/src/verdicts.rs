use crate::Result;
use async_trait::async_trait;
use everbeat_model::{RunId, Verdict, VerdictId};
use std::time::Duration;

#[async_trait]
pub trait Verdicts {
    /// Records verdicts that go with no other change. Their time is the store's.
    async fn record(&self, verdicts: Vec<Verdict>) -> Result<()>;

    async fn verdict(&self, id: VerdictId) -> Result<Option<Verdict>>;

    /// Newest first.
    async fn verdicts(&self, filter: VerdictFilter) -> Result<Vec<Verdict>>;

    async fn forget_verdicts(&self, keep: Duration, limit: usize) -> Result<usize>;
}

#[derive(Clone, Debug, Default)]
pub struct VerdictFilter {
    pub run_id: Option<RunId>,
    /// The id of the subject, whatever its kind.
    pub subject: Option<String>,
    pub before: Option<VerdictId>,
    pub limit: usize,
}
