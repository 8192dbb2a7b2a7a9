use serde_json::Value;
use std::sync::Arc;

/// What surrounds one attempt of a flow's run.
#[derive(Clone, Debug)]
pub struct Surroundings {
    pub flow: Arc<str>,
    /// The run, the same for all its attempts.
    pub run: Arc<str>,
    /// Rises with each attempt of the run.
    pub fence: u64,
    /// Somebody asked for a part of what the source has.
    pub range: Option<Range>,
}

/// From the first value of the cursor's column on, up to but without the second.
#[derive(Clone, Debug, PartialEq)]
pub struct Range {
    pub from: Option<Value>,
    pub to: Option<Value>,
}
