//! What clients ask of graphs: they apply, start, set, unset, wait, and believe what they are told.

use crate::agenda::Action;
use crate::executor::Owner;
use crate::graphs::{PULSING, SINGLE, WIDE, pulsing, single, wide};
use crate::shared::Shared;
use crate::truth::{Truth, Window, WindowKind};
use crate::world::World;
use everbeat_engine::{Engine, Error, Got, StartExecution, Wait, within};
use everbeat_model::ExecutionId;
use everbeat_model::graph::{Cell, Graph};
use everbeat_store::Idempotency;
use everbeat_store::memory::State;
use futures_util::FutureExt;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const MS: u64 = 1000;

/// Nodes that a client may have computed again, or give up. Not those whose runs count firings of a tick.
const COMPUTED: [&str; 11] = ["a", "b", "join", "note", "echo", "spin", "picky", "doomed", "either", "once", "dawn"];

/// A value that has stood for so long, while its replica had no trouble, was told to whoever waits for it.
const TOLD_WITHIN: u64 = 1_500 * MS;

/// A wait ends by itself, at the latest so much later than it should.
const LATENESS: Duration = Duration::from_secs(2);

impl World {
    pub(crate) fn plan_graphs(&mut self) {
        let trouble = self.plan.trouble;
        for at in [350, 700] {
            self.agenda.plan(at * MS, Action::Apply(1));
        }
        let middle = self.rng.between(trouble / 3, trouble * 2 / 3);
        self.agenda.plan(middle, Action::Apply(2));
        for at in 0..self.plan.starts {
            let latest = 1500 * MS + at * 700 * MS;
            let at = self.rng.between(800 * MS, latest.min(trouble));
            self.agenda.plan(at, Action::Start);
        }
        for _ in 0..self.plan.requests {
            let at = self.rng.between(1000 * MS, trouble);
            self.agenda.plan(at, Action::Request);
        }
    }

    pub(crate) fn apply(&mut self, version: u32) {
        self.ask("apply graphs", move |engine| async move {
            for graph in definitions(version) {
                engine.apply_graph(graph, false, None).await.ok();
            }
        });
    }

    pub(crate) fn start(&mut self) {
        let (graph, node) = *self.rng.pick(&[(WIDE, "x"), (WIDE, "x"), (PULSING, "go"), (SINGLE, "x")]);
        let serial = self.shared.truth().next_value();
        let values =
            if self.rng.chance(0.8) { BTreeMap::from([(node.to_string(), json!(serial))]) } else { BTreeMap::new() };
        let key = self.rng.chance(0.4).then(|| format!("start {serial}"));
        let clients = if graph == SINGLE || key.is_some() { 3 } else { 1 };
        for _ in 0..clients {
            let (shared, key, values) = (self.shared.clone(), key.clone(), values.clone());
            self.ask("start", move |engine| async move {
                let epoch = shared.network().epoch;
                let start = StartExecution { graph: graph.to_string(), values, ..StartExecution::default() };
                let idempotency = key.clone().map(|key| Idempotency { key, fingerprint: format!("{serial}") });
                match engine.start_execution(start, idempotency).await {
                    Ok((id, _)) => started(&shared, id, key, epoch),
                    // A failover may have taken the definition.
                    Err(Error::Invalid(_)) => {
                        for graph in definitions(1) {
                            engine.apply_graph(graph, false, None).await.ok();
                        }
                    }
                    Err(_) => {}
                }
            });
        }
    }

    /// One request about one execution, whatever comes to the client's mind.
    pub(crate) fn request(&mut self) {
        let known: Vec<ExecutionId> = self.shared.truth().executions.iter().copied().collect();
        if known.is_empty() {
            return;
        }
        let id = *self.rng.pick(&known);
        let graph = self.shared.memory.inspect(|state| graph_of(state, id).map(|graph| graph.name.clone()));
        let Some(graph) = graph else { return };
        match self.rng.below(20) {
            0..=9 => self.set_something(id, &graph),
            10 => {
                let node = if graph == PULSING { "go" } else { *self.rng.pick(&["x", "flag"]) };
                let nodes = BTreeSet::from([node.to_string()]);
                self.command("unset", move |engine| async move { engine.unset(id, nodes).await });
            }
            11 => {
                let node = *self.rng.pick(&COMPUTED);
                self.command("retry a node", move |engine| async move { engine.retry_node(id, node).await });
            }
            12 => {
                let node = *self.rng.pick(&COMPUTED);
                self.command("abandon a node", move |engine| async move { engine.abandon_node(id, node).await });
            }
            13 => self.command("archive", move |engine| async move { engine.archive(id).await }),
            14 | 15 => self.command("unarchive", move |engine| async move { engine.unarchive(id).await }),
            16 => self.cancel_node_run(),
            _ => self.wait_for_something(id, &graph),
        }
    }

    fn command<F>(&mut self, name: &'static str, request: impl FnOnce(Engine) -> F)
    where
        F: Future<Output = Result<u64, Error>> + Send + 'static,
    {
        let shared = self.shared.clone();
        self.ask(name, move |engine| {
            let request = request(engine);
            async move {
                if request.await.is_ok() {
                    shared.truth().report.commands += 1;
                }
            }
        });
    }

    fn set_something(&mut self, id: ExecutionId, graph: &str) {
        let nodes: &[&str] = match graph {
            PULSING => &["go"],
            SINGLE => &["x", "x", "x", "x", "flag"],
            _ => &["x", "x", "x", "y", "y", "flag", "memo"],
        };
        let mut values = BTreeMap::new();
        for _ in 0..self.rng.between(1, 2) {
            let node = *self.rng.pick(nodes);
            let value = match (graph, node) {
                (SINGLE, "flag") => json!(self.rng.chance(0.7)),
                _ => json!(self.shared.truth().next_value()),
            };
            values.insert(node.to_string(), value);
        }
        // Sometimes two clients say the same, and sometimes one says it twice.
        for _ in 0..if self.rng.chance(0.2) { 2 } else { 1 } {
            let (shared, values) = (self.shared.clone(), values.clone());
            self.command("set", move |engine| async move {
                let epoch = shared.network().epoch;
                let revision = engine.set(id, values.clone(), None).await?;
                was_set(&shared, id, &values, epoch);
                Ok(revision)
            });
        }
    }

    fn cancel_node_run(&mut self) {
        let runs: Vec<_> = self.shared.memory.inspect(|state| {
            let open = state.runs.iter().filter(|(id, row)| row.spec.parent.is_some() && !state.done.contains_key(id));
            open.map(|(id, _)| *id).collect()
        });
        if !runs.is_empty() {
            let run = *self.rng.pick(&runs);
            self.ask("cancel the run of a node", move |engine| async move {
                engine.cancel(run).await.ok();
            });
        }
    }

    fn wait_for_something(&mut self, id: ExecutionId, graph: &str) {
        let node = match graph {
            PULSING => "counted",
            SINGLE => *self.rng.pick(&["a", "d"]),
            _ => *self.rng.pick(&["a", "join", "spin", "doomed", "rung", "seen"]),
        };
        let revision = self.shared.memory.inspect(|state| state.executions.get(&id).map(|row| row.execution.revision));
        let wait = match self.rng.below(3) {
            0 => Wait::Any,
            1 => Wait::Newer,
            _ => Wait::NewerThan(revision.unwrap_or(0).saturating_sub(self.rng.below(3))),
        };
        let timeout = Duration::from_millis(self.rng.between(100, 5000));
        let up: Vec<(Owner, Engine)> = self.hosts.iter().filter_map(|host| host.boot.clone()).collect();
        if up.is_empty() {
            return;
        }
        let (owner, engine) = self.rng.pick(&up).clone();
        let shared = self.shared.clone();
        let waits = async move {
            wait_for(&shared, owner, &engine, id, node, wait, timeout).await;
        };
        self.shared.executor.spawn(owner, "client", waits.boxed());
    }

    /// Once all is mended, every replica must carry an execution to its end, and say so.
    pub(crate) fn execute_healed(&mut self, host: usize) {
        let Some((owner, engine)) = self.hosts[host].boot.clone() else { return };
        let standing: Vec<ExecutionId> = self.shared.memory.inspect(|state| {
            let rows = state.executions.iter().filter(|(_, row)| row.execution.archived_at.is_none());
            rows.map(|(id, _)| *id).filter(|id| graph_of(state, *id).is_some_and(|graph| graph.name == WIDE)).collect()
        });
        let known = (!standing.is_empty()).then(|| *self.rng.pick(&standing));
        let shared = self.shared.clone();
        let asks = Asks::begin(&shared);
        let request = async move {
            let _until_done = asks;
            if let Err(problem) = executes(&shared, owner, &engine, known).await {
                let mut truth = shared.truth();
                let detail = format!("{} is healed, and {problem}", truth.label(owner));
                truth.violate("liveness", detail);
            }
        };
        self.shared.executor.spawn(owner, "client", request.boxed());
    }
}

/// A client asks: the world does not end before it is done.
pub(crate) struct Asks(Arc<Shared>);

impl Asks {
    pub(crate) fn begin(shared: &Arc<Shared>) -> Asks {
        shared.truth().clients += 1;
        Asks(shared.clone())
    }
}

impl Drop for Asks {
    fn drop(&mut self) {
        self.0.truth().clients -= 1;
    }
}

async fn executes(
    shared: &Arc<Shared>,
    owner: Owner,
    engine: &Engine,
    known: Option<ExecutionId>,
) -> Result<(), String> {
    let said = |what: &'static str| move |error: Error| format!("does not {what}: {error}");
    let fresh = || BTreeMap::from([("x".to_string(), json!(shared.truth().next_value()))]);
    let epoch = shared.network().epoch;
    let defined = engine.graph(WIDE, None).await.is_ok();
    if !defined {
        for graph in definitions(1) {
            engine.apply_graph(graph, false, None).await.map_err(said("apply a graph"))?;
        }
    }
    let start = StartExecution { graph: WIDE.to_string(), values: fresh(), ..StartExecution::default() };
    let (id, _) = engine.start_execution(start, None).await.map_err(said("start an execution"))?;
    started(shared, id, None, epoch);
    for id in [Some(id), known].into_iter().flatten() {
        let values = fresh();
        let revision = engine.set(id, values.clone(), None).await.map_err(said("set a value"))?;
        was_set(shared, id, &values, epoch);
        match wait_for(shared, owner, engine, id, "join", Wait::NewerThan(revision), PATIENT).await {
            Some(Got::Value(_) | Got::Failed(_)) => {}
            other => return Err(format!("gives no join within {PATIENT:?}: {other:?}")),
        }
    }
    Ok(())
}

/// After the healing everything comes within this time.
const PATIENT: Duration = Duration::from_secs(30);

async fn wait_for(
    shared: &Arc<Shared>,
    owner: Owner,
    engine: &Engine,
    id: ExecutionId,
    node: &'static str,
    wait: Wait,
    timeout: Duration,
) -> Option<Got> {
    let began = shared.now();
    let env = engine.env().clone();
    let got = within(&*env, timeout + LATENESS, engine.value(id, node, wait, timeout)).await;
    let now = shared.now();
    let stood = shared.memory.inspect(|state| {
        let cell = state.executions.get(&id).and_then(|row| row.execution.cell(node)).cloned();
        cell.filter(|cell| fits(cell, wait))
    });
    let mut truth = shared.truth();
    match &got {
        None if truth.awake(owner, began, now) => {
            truth.violate("liveness", format!("a wait for {node} of {timeout:?} took {} us", now - began));
        }
        Some(Ok(Got::Value(cell))) if !fits(cell, wait) => {
            truth.violate("graph", format!("{wait:?} of {node} was answered with revision {}", cell.revision));
        }
        Some(Ok(Got::Value(_))) => truth.report.awaited += 1,
        Some(Ok(Got::TimedOut(_))) => {
            let since = truth.value_since.get(&(id, node.to_string())).copied().unwrap_or(now).max(began);
            let told_by = since + TOLD_WITHIN;
            // One that leaves looks no more: its clients go elsewhere.
            if wait != Wait::Newer
                && engine.readiness().ready()
                && stood.is_some()
                && now > told_by
                && truth.untroubled(owner, told_by - TOLD_WITHIN / 2, now)
            {
                let detail = format!(
                    "a client waited for {node} ({wait:?}), which was there for {} us, and was not told",
                    now - since
                );
                truth.violate("liveness", detail);
            }
        }
        _ => {}
    }
    drop(truth);
    got.and_then(Result::ok)
}

fn fits(cell: &Cell, wait: Wait) -> bool {
    match wait {
        Wait::NewerThan(revision) => cell.revision > revision,
        _ => true,
    }
}

fn definitions(version: u32) -> Vec<Graph> {
    [wide(version), pulsing(), single()].into_iter().filter_map(Result::ok).collect()
}

/// The definition that an execution goes by.
pub(crate) fn graph_of(state: &State, id: ExecutionId) -> Option<&Graph> {
    let row = state.executions.get(&id)?;
    state.graphs.get(&row.course.definition).map(|definition| &*definition.graph)
}

/// From now on the execution may not be lost, unless a failover took it before the answer arrived.
fn started(shared: &Shared, id: ExecutionId, key: Option<String>, epoch: u64) {
    let kept = shared.memory.inspect(|state| state.executions.contains_key(&id));
    let same_store = shared.network().epoch == epoch;
    let mut truth = shared.truth();
    if !kept && !same_store {
        return;
    }
    truth.executions.insert(id);
    if let Some(key) = key.filter(|_| same_store)
        && let Some(other) = truth.started.insert(key.clone(), id)
        && other != id
    {
        truth.violate("graph", format!("two executions were started for the idempotency key {key:?}"));
    }
}

/// An acknowledged change stands in the history, unless a failover took it.
fn was_set(shared: &Shared, id: ExecutionId, values: &BTreeMap<String, Value>, epoch: u64) {
    if shared.network().epoch != epoch {
        return;
    }
    let missing = shared.memory.inspect(|state| {
        let history = state.executions.get(&id).map(|row| &row.history);
        let stands = |node: &String, value: &Value| {
            let mut entries = history.into_iter().flatten();
            entries.any(|entry| entry.node == *node && entry.value.as_ref().is_some_and(|it| it.value() == *value))
        };
        values.iter().find(|(node, value)| !stands(node, value)).map(|(node, _)| node.clone())
    });
    if let Some(node) = missing {
        shared.truth().violate("graph", format!("a set of {node} was acknowledged, and is not in the history"));
    }
}

impl Truth {
    /// A number that nobody has used before.
    fn next_value(&mut self) -> u64 {
        self.last_value += 1;
        self.last_value
    }

    fn awake(&self, owner: Owner, from: u64, to: u64) -> bool {
        let frozen = |window: &Window| window.kind == WindowKind::Frozen && window.overlaps(from, to);
        self.boots.get(&owner).is_some_and(|boot| !boot.windows.iter().any(frozen))
    }

    /// Whether a replica was awake and reached the store all the time between.
    fn untroubled(&self, owner: Owner, from: u64, to: u64) -> bool {
        let Some(boot) = self.boots.get(&owner) else { return false };
        let overlaps = |window: &Window| window.overlaps(from, to);
        boot.troubled_at < from
            && self.unsure_until < from
            && !boot.windows.iter().any(overlaps)
            && !self.common.iter().any(overlaps)
    }
}
