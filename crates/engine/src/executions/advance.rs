//! Carries executions on: what users ask of them, and what is due for them.

use crate::batch::{Batched, Outcome};
use crate::engine::{Core, StoreClock};
use crate::env::Env;
use crate::replica::{Life, Phase};
use crate::runs::Awaited;
use crate::within;
use everbeat_model::graph::{Command, Defaults, Plan, Refusal, Snapshot, plan};
use everbeat_model::id::Sequence;
use everbeat_model::{ExecutionId, RunId};
use everbeat_store::{Advance, Advanced, Error as StoreError, Planner, Start, Started};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Executions that one look takes.
const LOOK_BATCH: usize = 200;
/// A start that failed sooner is repeated once; whoever waited longer is told.
const REPEAT_WITHIN: Duration = Duration::from_secs(2);
/// After a failed look, so that a store that refuses at once is not asked without end.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Looks at executions that are due: a run of theirs ended, a tick fired, their graph changed. Whoever
/// causes that looks at once; others find it by looking now and then.
pub(crate) async fn run(life: Arc<Life>) {
    let core = life.core.clone();
    // What breaks a look is found by looking at fewer: one execution must not stop all others.
    let mut most = LOOK_BATCH;
    loop {
        if matches!(life.phase(), Phase::Fenced | Phase::Left) {
            return;
        }
        let next_in = match life.call(core.store.advance_due(most, core.planner.clone())).await {
            Ok(looked) => {
                metrics::counter!("everbeat_execution_looks_total").increment(looked.executions.len() as u64);
                if !looked.executions.is_empty() {
                    core.changed(&looked.executions);
                }
                core.waiters.news(looked.news);
                most = (most * 2).min(LOOK_BATCH);
                // Executions are due, but somebody else looks at them.
                let busy = looked.executions.is_empty() && looked.next_in == Some(Duration::ZERO);
                if busy { Some(LOOK_PAUSE) } else { looked.next_in }
            }
            Err(error) => {
                tracing::debug!(%error, most, "cannot look at due executions");
                most = (most / 8).max(1);
                core.env.sleep(LOOK_PAUSE).await;
                None
            }
        };
        let idle = core.settings.idle_limit();
        let look_again = core.env.sleep(next_in.map_or(idle, |next| next.min(idle)));
        tokio::select! {
            biased;
            () = core.noted.notified() => {}
            () = look_again => {}
        }
    }
}

/// Makes plans with ids of this replica. A planner owns nothing but what that takes: stores call it from
/// threads of their own.
pub(crate) struct ReplicaPlanner {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) clock: Arc<StoreClock>,
    pub(crate) ids: Arc<Sequence>,
    pub(crate) defaults: Defaults,
}

impl Planner for ReplicaPlanner {
    fn plan(&self, snapshot: Snapshot, commands: Vec<Command>) -> Plan {
        let mut new_run =
            || RunId(self.ids.next(self.clock.at(self.env.boot(), &*self.env).millis(), self.env.random()));
        plan(snapshot, commands, &self.defaults, &mut new_run)
    }
}

/// One command for one execution.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) execution: ExecutionId,
    pub(crate) command: Command,
}

/// The revision of the execution afterwards; none if there is no such execution.
pub(crate) type Answer = Option<Result<u64, Refusal>>;

impl Batched for Ask {
    type Answer = Answer;
    const MOST: usize = LOOK_BATCH;

    fn write(core: &Arc<Core>, requests: Vec<Ask>) -> BoxFuture<'_, Vec<Outcome<Ask>>> {
        write(core, requests).boxed()
    }
}

/// Commands for one execution are carried out together, in the order in which they came.
async fn write(core: &Core, requests: Vec<Ask>) -> Vec<Outcome<Ask>> {
    let mut advances: Vec<Advance> = Vec::new();
    let mut places: BTreeMap<ExecutionId, usize> = BTreeMap::new();
    let mut seats = Vec::with_capacity(requests.len());
    for Ask { execution, command } in requests {
        let place = *places.entry(execution).or_insert_with(|| {
            advances.push(Advance { execution, commands: Vec::new() });
            advances.len() - 1
        });
        seats.push((place, advances[place].commands.len()));
        advances[place].commands.push(command);
    }
    let executions: Vec<ExecutionId> = places.into_keys().collect();
    let answers = core.bounded(core.store.advance(advances, core.planner.clone())).await;
    core.advanced(&executions);
    let answer = |(place, seat): (usize, usize)| match &answers {
        Err(error) => Err(error.clone()),
        Ok(answers) => match answers.get(place) {
            Some(Advanced::NotFound) => Ok(None),
            Some(Advanced::Done(revisions)) => Ok(revisions.get(seat).cloned()),
            None => Err(StoreError::Bug("an advance was not answered".to_string())),
        },
    };
    seats.into_iter().map(answer).collect()
}

impl Batched for Start {
    type Answer = Started;
    const MOST: usize = LOOK_BATCH;

    fn write(core: &Arc<Core>, requests: Vec<Start>) -> BoxFuture<'_, Vec<Outcome<Start>>> {
        start(core, requests).boxed()
    }
}

async fn start(core: &Core, starts: Vec<Start>) -> Vec<Outcome<Start>> {
    let size = starts.len();
    let begun = core.env.boot();
    let mut answers = core.bounded(core.store.start(starts.clone(), core.planner.clone())).await;
    if matches!(answers, Err(StoreError::Unavailable { .. })) && core.env.boot().since(begun) < REPEAT_WITHIN {
        // The connection broke, and perhaps after the commit: the same starts again tell.
        let own: BTreeSet<ExecutionId> = starts.iter().map(|start| start.id).collect();
        let made = |answer| match answer {
            Started::Exists(id) if own.contains(&id) => Started::Created { id, revision: 0 },
            other => other,
        };
        let again = core.bounded(core.store.start(starts, core.planner.clone())).await;
        answers = again.map(|answers| answers.into_iter().map(made).collect());
    }
    core.advanced(&[]);
    match answers {
        Err(error) => vec![Err(error); size],
        Ok(answers) => answers.into_iter().map(Ok).collect(),
    }
}

impl Core {
    /// Carries out what is due for one execution, now.
    pub(crate) async fn look_at(&self, execution: ExecutionId) -> Result<(), StoreError> {
        let look = vec![Advance { execution, commands: Vec::new() }];
        self.bounded(self.store.advance(look, self.planner.clone())).await?;
        self.advanced(&[execution]);
        Ok(())
    }

    /// Tells everybody whom a command for these executions may concern, `run` included.
    fn advanced(&self, executions: &[ExecutionId]) {
        self.changed(executions);
        self.noted.notify_one();
    }

    /// Tells everybody whom a change of these executions may concern. Does not notify `noted`: `run` would wake itself
    /// for ever.
    fn changed(&self, executions: &[ExecutionId]) {
        executions.iter().for_each(|id| self.waiters.tell(Awaited::Execution(*id)));
        self.store.wake();
    }

    /// Whoever asked for this is answered in time, whatever becomes of the store.
    pub(crate) async fn bounded<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let late = || Err(StoreError::no_answer());
        within(&*self.env, self.settings.call_limit(), call).await.unwrap_or_else(late)
    }
}
