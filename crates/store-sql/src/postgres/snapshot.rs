//! An execution with all that belongs to it, read by one statement and so as of one moment: a row for
//! each, with its values and computations as arrays.

use super::fault::{Fault, Outcome};
use super::transaction::Transaction;
use crate::cells::{ComputationCells, Definitions, cell, number};
use crate::decode::count;
use everbeat_model::graph::{Course, Ended, Execution, Graph, NodeState, Snapshot};
use everbeat_model::{ExecutionId, Json, RunId, RunState, StoreTime};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio_postgres::Row;
use uuid::Uuid;

pub(super) const EXECUTION_COLUMNS: &str = "\
    e.id, e.graph, e.definition, e.seen, e.singleton, e.revision, e.archived_at, e.stamp, e.place, e.created_at, \
    e.updated_at, v.node, v.value, v.revision, v.set_at, v.metadata, v.changes, \
    c.node, c.status, c.run_id, c.computed_with, c.iterations, c.state, c.error";

/// A cleared value has a row too, with no value.
pub(super) const VALUES: &str = "\
    left join lateral (\
      select array_agg(v.node) as node, array_agg(v.value) as value, array_agg(v.revision) as revision, \
        array_agg(v.set_at) as set_at, array_agg(v.metadata) as metadata, array_agg(v.changes) as changes \
      from value v where v.execution_id = e.id) v on true";

/// The arrays of computations; what else is asked of each follows.
pub(super) const COMPUTATIONS: &str = "\
    array_agg(c.node) as node, array_agg(c.status) as status, array_agg(c.run_id) as run_id, \
    array_agg(c.computed_with) as computed_with, array_agg(c.iterations) as iterations, \
    array_agg(c.state) as state, array_agg(c.error) as error";

/// Column after `EXECUTION_COLUMNS`.
pub(super) const NEXT_COLUMN: usize = 24;

/// Reads executions, how the runs of running computations ended, the newest definition of their graph, and the time.
/// Whoever asks holds the locks of these executions.
pub(super) fn locked_sql() -> String {
    format!(
        "select {EXECUTION_COLUMNS}, c.ended, c.result, c.reason, \
           (select max(g.serial) from graph g where g.name = e.graph), \
           (extract(epoch from clock_timestamp()) * 1000000)::bigint \
         from unnest($1::uuid[]) as i(id) cross join lateral (select * from execution e where e.id = i.id offset 0) e \
         {VALUES} \
         left join lateral (\
           select {COMPUTATIONS}, \
             array_agg(case when c.status <> 'running' then null when d.run_id is not null then d.state \
               when not exists (select 1 from run r where r.id = c.run_id offset 0) then 'unknown' end) as ended, \
             array_agg(d.result) as result, array_agg(case when d.state <> 'succeeded' then d.error end) as reason \
           from computation c left join lateral (\
             select d.run_id, d.state, d.result, d.error from done d \
             where c.status = 'running' and d.run_id = c.run_id offset 0) d on true \
           where c.execution_id = e.id) c on true"
    )
}

/// What the tables say of an execution.
pub(super) struct Read {
    pub(super) id: ExecutionId,
    pub(super) graph: String,
    pub(super) course: Course,
    pub(super) singleton: bool,
    pub(super) execution: Execution,
    pub(super) stamp: u64,
    pub(super) place: u64,
    pub(super) created_at: StoreTime,
    pub(super) updated_at: StoreTime,
    /// How often each value was changed.
    pub(super) changes: BTreeMap<String, u64>,
}

impl Read {
    pub(super) fn of(row: &Row) -> Read {
        let mut nodes: BTreeMap<String, NodeState> = BTreeMap::new();
        let changes = read_values(row, &mut nodes);
        read_computations(row, &mut nodes);
        let archived_at = row.get::<_, Option<i64>>(6).map(StoreTime);
        Read {
            id: ExecutionId(row.get(0)),
            graph: row.get(1),
            course: Course { definition: number(row.get(2)), seen: number(row.get(3)) },
            singleton: row.get(4),
            execution: Execution { revision: number(row.get(5)), archived_at, nodes },
            stamp: number(row.get(7)),
            place: number(row.get(8)),
            created_at: StoreTime(row.get(9)),
            updated_at: StoreTime(row.get(10)),
            changes,
        }
    }
}

fn read_values(row: &Row, nodes: &mut BTreeMap<String, NodeState>) -> BTreeMap<String, u64> {
    let Some(names) = row.get::<_, Option<Vec<&str>>>(11) else { return BTreeMap::new() };
    let values: Vec<Option<&str>> = row.get(12);
    let revisions: Vec<i64> = row.get(13);
    let set_at: Vec<i64> = row.get(14);
    let metadata: Vec<Option<&str>> = row.get(15);
    let changes: Vec<i64> = row.get(16);
    for (at, node) in names.iter().enumerate() {
        if let Some(value) = values[at] {
            let cell = cell(value, revisions[at], set_at[at], metadata[at]);
            nodes.entry(node.to_string()).or_default().cell = Some(cell);
        }
    }
    names.into_iter().zip(changes).map(|(node, changes)| (node.to_string(), number(changes))).collect()
}

fn read_computations(row: &Row, nodes: &mut BTreeMap<String, NodeState>) {
    let Some(names) = row.get::<_, Option<Vec<&str>>>(17) else { return };
    let statuses: Vec<String> = row.get(18);
    let runs: Vec<Option<Uuid>> = row.get(19);
    let computed_with: Vec<String> = row.get(20);
    let iterations: Vec<i32> = row.get(21);
    let states: Vec<Option<String>> = row.get(22);
    let errors: Vec<Option<String>> = row.get(23);
    let rest = statuses.into_iter().zip(computed_with).zip(states).zip(errors);
    for (at, (((status, computed_with), state), error)) in rest.enumerate() {
        let iterations = count(i64::from(iterations[at]));
        let cells = ComputationCells { status, run_id: runs[at], computed_with, iterations, state, error };
        nodes.entry(names[at].to_string()).or_default().computation = Some(cells.read());
    }
}

/// An execution whose lock is held.
pub(super) struct Locked {
    pub(super) read: Read,
    pub(super) ended: Vec<Ended>,
    /// The newest definition of its graph.
    pub(super) latest: Option<u64>,
    pub(super) now: StoreTime,
}

impl Locked {
    pub(super) fn of(row: &Row) -> Locked {
        let read = Read::of(row);
        let latest = row.get::<_, Option<i64>>(NEXT_COLUMN + 3).map(number);
        Locked { ended: ended(row, &read), latest, now: StoreTime(row.get(NEXT_COLUMN + 4)), read }
    }

    pub(super) fn snapshot(&mut self, graph: Arc<Graph>) -> Snapshot {
        Snapshot {
            id: self.read.id,
            graph,
            execution: self.read.execution.clone(),
            ended: std::mem::take(&mut self.ended),
            now: self.now,
        }
    }
}

/// How runs of the execution ended, by node, as every store hands them over.
fn ended(row: &Row, read: &Read) -> Vec<Ended> {
    let Some(states) = row.get::<_, Option<Vec<Option<&str>>>>(NEXT_COLUMN) else { return Vec::new() };
    let names: Vec<&str> = row.get(17);
    let results: Vec<Option<&str>> = row.get(NEXT_COLUMN + 1);
    let reasons: Vec<Option<&str>> = row.get(NEXT_COLUMN + 2);
    let mut found: BTreeMap<&str, Ended> = BTreeMap::new();
    for (at, name) in names.iter().enumerate() {
        let (Some(state), Some(run)) = (states[at], read.execution.running(name)) else { continue };
        found.insert(name, over(name, run, state, results[at], reasons[at]));
    }
    found.into_values().collect()
}

fn over(node: &str, run: RunId, state: &str, result: Option<&str>, error: Option<&str>) -> Ended {
    let node = node.to_string();
    match RunState::parse(state) {
        Some(state) => Ended { node, run, state, result: result.map(Json::stored), error: error.map(Json::stored) },
        None => Ended::unknown(node, run),
    }
}

/// Definitions that are not known here yet are read from this statement's answer.
pub(super) const DEFINITIONS: &str = "select serial, definition from graph where serial = any($1::bigint[])";

/// The definitions with these serials.
pub(super) async fn definitions(
    transaction: &Transaction<'_>,
    known: &Definitions,
    serials: &BTreeSet<u64>,
) -> Outcome<BTreeMap<u64, Arc<Graph>>> {
    let (mut found, unknown) = already(known, serials);
    if !unknown.is_empty() {
        for row in transaction.query(DEFINITIONS, &[&unknown]).await? {
            let serial = number(row.get(0));
            let graph = known.read(serial, row.get(1)).map_err(|error| Fault::Data(error.to_string()))?;
            found.insert(serial, graph);
        }
    }
    Ok(found)
}

/// The definitions in memory, and the serials of those that are not.
pub(super) fn already(known: &Definitions, serials: &BTreeSet<u64>) -> (BTreeMap<u64, Arc<Graph>>, Vec<i64>) {
    let mut found = BTreeMap::new();
    let mut unknown = Vec::new();
    for serial in serials {
        match known.get(*serial) {
            Some(graph) => _ = found.insert(*serial, graph),
            None => unknown.push(crate::cells::stored(*serial)),
        }
    }
    (found, unknown)
}

/// A definition that must be there: rows of `graph` are never removed.
pub(super) fn definition(found: &BTreeMap<u64, Arc<Graph>>, serial: u64) -> Outcome<Arc<Graph>> {
    found.get(&serial).cloned().ok_or_else(|| Fault::Data(format!("definition {serial} is missing")))
}
