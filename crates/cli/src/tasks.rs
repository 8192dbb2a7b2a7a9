use crate::flows::{Flows, Runner};
use crate::jq::Jq;
use everbeat_engine::{Settings, Tasks};
use everbeat_model::schedule::FLOW;
use std::num::NonZero;
use std::thread::available_parallelism;

/// The tasks that a server performs by itself.
pub(crate) fn tasks(flows: &Flows) -> Tasks {
    let mut tasks = everbeat::tasks();
    tasks.add_builtin(JQ, Jq);
    tasks.add_builtin(FLOW, Runner(flows.clone()));
    tasks
}

const JQ: &str = "jq";

/// Each evaluation may take much memory and a whole core: unless the configuration says otherwise, no
/// more of them at once than there are cores. The others wait in the store.
pub(crate) fn limit(settings: &mut Settings) {
    settings.tasks.entry(JQ.to_string()).or_insert_with(|| available_parallelism().map_or(1, NonZero::get));
}
