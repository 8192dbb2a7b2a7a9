//! The performer of tasks in this process: each attempt is a future of its handler.

use super::conclusion::Conclusion;
use super::ctx::MOST_VALUE_BYTES;
use super::perform::panic_message;
use super::performer::{Capacity, Line, Offer, Performer, Post, Terms};
use super::work::Work;
use crate::{Failure, Stop, Tasks};
use async_trait::async_trait;
use everbeat_model::run::Spec;
use everbeat_model::{Ending, Json, Outcome, Reason};
use futures_util::FutureExt;
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

pub(crate) struct InProcess {
    pub(crate) tasks: Tasks,
    pub(crate) slots: usize,
}

#[async_trait]
impl Performer for InProcess {
    fn name(&self) -> &'static str {
        "tasks"
    }

    fn tasks(&self) -> BTreeSet<String> {
        self.tasks.names()
    }

    fn knows(&self, task: &str) -> bool {
        self.tasks.contains(task)
    }

    fn performs(&self, spec: &Spec) -> bool {
        self.tasks.contains(&spec.task)
    }

    fn terms(&self, spec: &Spec) -> Terms {
        Terms::of(&spec.policy)
    }

    fn capacity(&self) -> Capacity {
        Capacity { slots: self.slots, setting: "replica.slots" }
    }

    async fn offer(&self, _post: &Post) -> Offer {
        let lines = self.tasks.names().into_iter().map(Line::of).collect();
        Offer { most: usize::MAX, lines, queues: None, pause: Duration::ZERO }
    }

    async fn perform(&self, post: &Post, work: &Arc<Work>) -> Option<Conclusion> {
        let spec = &work.claimed.spec;
        let Some(handler) = self.tasks.get(&spec.task) else {
            let why = "this replica does not perform the task";
            return Some(Ending::because(Outcome::Released, Reason::TaskUnknown, why).into());
        };
        let ctx = post.ctx(work);
        let ending = match AssertUnwindSafe(handler.perform(ctx, spec.input.clone())).catch_unwind().await {
            Ok(Ok(result)) => bounded(result),
            Ok(Err(failure)) => stopped_or_failed(&failure),
            Err(panic) => Ending::because(Outcome::Failed, Reason::Panicked, &panic_message(&*panic)),
        };
        Some(ending.into())
    }
}

/// Work that stopped because it was told to did not fail; everything else it says did happen.
fn stopped_or_failed(failure: &Failure) -> Ending {
    match failure.stopped {
        Some(Stop::Cancelled) => Ending::because(Outcome::Cancelled, Reason::Cancelled, "cancelled on request"),
        Some(Stop::Draining) => Ending::because(Outcome::Released, Reason::Draining, "the replica drains"),
        Some(Stop::TooLarge | Stop::TooDeep | Stop::Unstorable) => Ending::failed(&failure.message, true),
        Some(Stop::Fenced | Stop::Judged) | None => Ending::failed(&failure.message, failure.permanent),
    }
}

fn bounded(result: Json) -> Ending {
    if result.as_str().len() > MOST_VALUE_BYTES {
        return Ending::failed("the result is larger than 4 MiB; store it elsewhere and return where", true);
    }
    match result.check() {
        Ok(()) => Ending::succeeded(result),
        Err(beyond) => Ending::failed(&format!("the result {}: {}", beyond.problem(), beyond.hint()), true),
    }
}
