use crate::Trouble;
use async_trait::async_trait;
use serde_json::Value;
use std::sync::Arc;

/// What transforms need of their surroundings. One that is missing makes a flow that needs it fail, and say so.
#[derive(Clone, Default)]
pub struct Ports {
    pub evaluate: Option<Arc<dyn Evaluate>>,
    pub tasks: Option<Arc<dyn PerformTask>>,
}

/// Evaluates jq programs, which are strangers' code, where they can do no harm.
#[async_trait]
pub trait Evaluate: Send + Sync {
    /// For each record the outputs of the program, or what went wrong with this record. A trouble concerns the program
    /// or the evaluator itself.
    async fn evaluate(&self, program: &str, records: &[&Value]) -> Result<Vec<Result<Vec<Value>, String>>, Trouble>;
}

/// Performs a task with a batch of records.
#[async_trait]
pub trait PerformTask: Send + Sync {
    /// The task gets `{"records": […]}` and gives a list of the same length. In it, null drops a record and
    /// `{"rejected": "why"}` rejects it; anything else takes its place.
    async fn perform(&self, task: &str, records: Vec<Value>) -> Result<Vec<Value>, Trouble>;
}
