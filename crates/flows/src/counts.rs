use crate::Written;
use serde::{Deserialize, Serialize};

/// What became of the records of a run, over all its attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// By the source, rejected ones included.
    pub read: u64,
    /// New or changed in the sink.
    pub written: u64,
    /// Of these: replaced what was there.
    #[serde(default)]
    pub updated: u64,
    /// Were in the sink already, exactly so.
    pub unchanged: u64,
    pub rejected: u64,
    /// A transform made nothing of them, on purpose.
    #[serde(default)]
    pub dropped: u64,
}

impl Counts {
    /// With what became of a batch in the sink.
    pub(crate) fn with(self, written: &Written) -> Counts {
        Counts {
            written: self.written + written.written,
            updated: self.updated + written.updated,
            unchanged: self.unchanged + written.unchanged,
            rejected: self.rejected + written.rejected.len() as u64,
            ..self
        }
    }
}
