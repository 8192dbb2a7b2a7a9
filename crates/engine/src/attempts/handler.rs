//! Tasks of this process: a handler for each name, and how one fails.

use crate::{Ctx, Stop};
use async_trait::async_trait;
use everbeat_model::Json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The code of a task in this process.
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
    /// The work did not fail: it stopped because it was told to.
    pub stopped: Option<Stop>,
}

impl Failure {
    pub fn new(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), permanent: false, stopped: None }
    }

    pub fn permanent(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), permanent: true, stopped: None }
    }
}

/// Any error of user code, so that `?` works in a task.
impl<E: std::error::Error + 'static> From<E> for Failure {
    fn from(error: E) -> Failure {
        let mut message = error.to_string();
        let mut stopped = (&error as &dyn std::any::Any).downcast_ref::<Stop>().copied();
        let mut source = error.source();
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            stopped = stopped.or_else(|| cause.downcast_ref::<Stop>().copied());
            source = cause.source();
        }
        Failure { message, permanent: false, stopped }
    }
}

/// The tasks that this replica performs, by name.
#[derive(Clone, Default)]
pub struct Tasks {
    handlers: BTreeMap<String, Arc<dyn Handler>>,
    /// Those that every server performs by itself.
    builtin: BTreeSet<String>,
}

impl Tasks {
    pub fn add(&mut self, name: impl Into<String>, handler: impl Handler) {
        let name = name.into();
        self.builtin.remove(&name);
        self.handlers.insert(name, Arc::new(handler));
    }

    /// A task whose name means the same on every server: no worker may offer another one of that name.
    pub fn add_builtin(&mut self, name: impl Into<String>, handler: impl Handler) {
        let name = name.into();
        self.builtin.insert(name.clone());
        self.handlers.insert(name, Arc::new(handler));
    }

    /// Takes in all of another set; of two with one name the later counts.
    pub fn extend(&mut self, others: Tasks) {
        self.builtin.retain(|name| !others.handlers.contains_key(name));
        self.builtin.extend(others.builtin);
        self.handlers.extend(others.handlers);
    }

    pub fn get(&self, name: &str) -> Option<&Arc<dyn Handler>> {
        self.handlers.get(name)
    }

    pub fn names(&self) -> BTreeSet<String> {
        self.handlers.keys().cloned().collect()
    }

    /// The names that no worker may use for tasks of its own.
    pub(crate) fn builtin(&self) -> &BTreeSet<String> {
        &self.builtin
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.handlers.contains_key(name)
    }
}
