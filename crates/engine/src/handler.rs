use crate::Ctx;
use async_trait::async_trait;
use everbeat_model::Json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What performs a task. In this process today; workers and jobs implement the same port.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    async fn perform(&self, ctx: Ctx, input: Json) -> Result<Json, Failure>;
}

/// User code failed. Not an error of the engine: an outcome of the attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub message: String,
    /// Trying again will not help.
    pub permanent: bool,
}

impl Failure {
    pub fn new(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), permanent: false }
    }

    pub fn permanent(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), permanent: true }
    }
}

/// Any error of user code, so that `?` works in a task.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        Failure::new(message)
    }
}

/// The tasks that this replica performs, by name.
#[derive(Clone, Default)]
pub struct Tasks(BTreeMap<String, Arc<dyn Handler>>);

impl Tasks {
    pub fn add(&mut self, name: impl Into<String>, handler: impl Handler) {
        self.0.insert(name.into(), Arc::new(handler));
    }

    pub fn get(&self, name: &str) -> Option<&Arc<dyn Handler>> {
        self.0.get(name)
    }

    pub fn names(&self) -> BTreeSet<String> {
        self.0.keys().cloned().collect()
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}
