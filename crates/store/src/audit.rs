use crate::Result;
use async_trait::async_trait;
use std::collections::BTreeMap;

/// A check of the guarantees over all that is stored.
#[async_trait]
pub trait Audits {
    async fn audit(&self) -> Result<Audit>;
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// How many of each thing were looked at: `runs`, `scheduled`, `ready`, `running`, `succeeded`,
    /// `failed`, `cancelled`, `leases`, `replicas`, `attempts`, `executions`, `computing`.
    pub checked: BTreeMap<String, u64>,
    pub violations: Vec<Violation>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// `G1`, `G2`, …
    pub guarantee: String,
    pub subject: String,
    pub detail: String,
}

/// At most so many violations are named; the rest are as broken.
pub(crate) const VIOLATION_LIMIT: usize = 100;
