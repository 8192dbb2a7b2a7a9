use serde::{Deserialize, Serialize};

/// A named line of runs, with what stands in it now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    pub name: String,
    pub paused: bool,
    pub scheduled: u64,
    pub ready: u64,
    pub running: u64,
}
