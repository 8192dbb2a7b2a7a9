//! Starts of executions: a whole batch in one transaction.

use super::Postgres;
use super::advance::STANDING;
use super::arrays::{after, arrays, given, numbered};
use super::carry_out::{Decided, Write, carry_out, note};
use super::fault::{Fault, Outcome};
use super::graphs::{Hold, hold};
use super::idempotency::{Given, GivenKey, KEPT_KEYS, TAKE_KEYS, expired};
use super::link::again;
use super::snapshot::{Read, definition, definitions};
use super::transaction::Transaction;
use crate::cells::number;
use crate::encode::unstorable_change;
use crate::halves::Halves;
use everbeat_model::graph::{Course, Execution, Graph, Opening, Snapshot, opening, repeated};
use everbeat_model::{ExecutionId, StoreTime};
use everbeat_store::{Planner, Result, Start, Started};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};
use tokio_postgres::Row;
use uuid::Uuid;

arrays! {
    /// Idempotency keys and the executions that they stand for from now on.
    Answered of AnsweredKey<'a> {
        key: &'a str as "text",
        fingerprint: &'a str as "text",
        id: Uuid as "uuid",
    }
}

/// The time follows the arrays.
static KEEP_KEYS: LazyLock<String> = LazyLock::new(|| {
    let columns = Answered::COLUMNS;
    format!(
        "insert into idempotency (key, fingerprint, run_ids, created_at) \
           select g.key, g.fingerprint, array[g.id], {now}::bigint from ({given}) g \
         on conflict (key) do update set fingerprint = excluded.fingerprint, run_ids = excluded.run_ids",
        now = after(columns),
        given = given(columns),
    )
});

const DROP_KEYS: &str = "delete from idempotency where key = any($1::text[])";

const THERE: &str = "select e.id from execution e where e.id = any($1::uuid[])";

arrays! {
    /// The definitions that starts ask for.
    Asked of Ask<'a> {
        name: &'a str as "text",
        version: Option<&'a str> as "text",
    }
}

/// The definition asked for and the newest one of that name.
static RESOLVE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "select \
           (select max(d.serial) from graph d where d.name = g.name and (g.version is null or d.version = g.version)), \
           (select max(d.serial) from graph d where d.name = g.name), \
           (extract(epoch from clock_timestamp()) * 1000000)::bigint \
         from ({}) g order by g.nth",
        numbered(Asked::COLUMNS)
    )
});

pub(super) async fn start(store: &Postgres, starts: &[Start], planner: &dyn Planner) -> Result<Vec<Started>> {
    let mut answers = vec![Started::NoGraph; starts.len()];
    let mut open = Halves::of((0..starts.len()).collect());
    while let Some(places) = open.next() {
        let batch: Vec<&Start> = places.iter().map(|place| &starts[*place]).collect();
        match start_batch(store, &batch, planner).await {
            Ok(started) => places.iter().zip(started).for_each(|(place, started)| answers[*place] = started),
            Err(Fault::Data(reason)) => {
                if let Some(place) = open.halve(places) {
                    answers[place] = Started::Refused(unstorable_change(starts[place].id, &reason));
                }
            }
            Err(fault) => return Err(fault.into()),
        }
    }
    Ok(answers)
}

async fn start_batch(store: &Postgres, batch: &[&Start], planner: &dyn Planner) -> Outcome<Vec<Started>> {
    again!(async {
        let transaction = store.advance.begin().await?;
        let answer = try_start(&transaction, store, batch, planner).await;
        transaction.close(answer).await
    })
}

async fn try_start(
    transaction: &Transaction<'_>,
    store: &Postgres,
    batch: &[&Start],
    planner: &dyn Planner,
) -> Outcome<Vec<Started>> {
    let mut keys = Keys::take(transaction, batch).await?;
    let mut asked = Asked::default();
    batch.iter().for_each(|start| asked.push(Ask { name: &start.graph, version: start.version.as_deref() }));
    hold(transaction, &asked.name, Hold::Shared).await?;
    let ids: Vec<Uuid> = batch.iter().map(|start| start.id.0).collect();
    let rows = transaction.all(&[(THERE, &[&ids]), (STANDING, &[&asked.name]), (&RESOLVE, &asked.params())]).await?;
    let resolved: Vec<Resolved> = rows[2]
        .iter()
        .map(|row| Resolved {
            definition: row.get::<_, Option<i64>>(0).map(number),
            latest: row.get::<_, Option<i64>>(1).map(number),
            now: StoreTime(row.get(2)),
        })
        .collect();
    let serials: BTreeSet<u64> = resolved.iter().filter_map(|resolved| resolved.definition).collect();
    let mut starting = Starting {
        planner,
        graphs: definitions(transaction, &store.definitions, &serials).await?,
        there: rows[0].iter().map(|row| row.get(0)).collect(),
        standing: rows[1].iter().map(|row| (row.get(0), ExecutionId(row.get(1)))).collect(),
        begun: Vec::new(),
        ticks: Vec::new(),
    };
    let mut answers = Vec::with_capacity(batch.len());
    for (start, resolved) in batch.iter().zip(&resolved) {
        answers.push(starting.start(start, resolved, &mut keys)?);
    }
    note(transaction, &starting.ticks).await?;
    keys.keep(transaction, resolved.first().map_or(StoreTime(0), |resolved| resolved.now)).await?;
    carry_out(transaction, &starting.begun, Write::Begun).await?;
    Ok(answers)
}

struct Resolved {
    definition: Option<u64>,
    latest: Option<u64>,
    now: StoreTime,
}

/// The executions that are stored, with those that this batch adds.
struct Starting<'a> {
    planner: &'a dyn Planner,
    graphs: BTreeMap<u64, Arc<Graph>>,
    there: BTreeSet<Uuid>,
    standing: BTreeMap<String, ExecutionId>,
    begun: Vec<Decided>,
    ticks: Vec<(Uuid, i64)>,
}

impl Starting<'_> {
    fn start<'k>(&mut self, start: &'k Start, resolved: &Resolved, keys: &mut Keys<'k>) -> Outcome<Started> {
        let stored = self.there.contains(&start.id.0);
        let sent = repeated(start.id, stored, start.idempotency.as_ref(), keys.kept(start));
        if let Some(earlier) = Started::earlier(sent) {
            return Ok(earlier);
        }
        let Some(serial) = resolved.definition else { return Ok(Started::NoGraph) };
        let graph = definition(&self.graphs, serial)?;
        let answer = match opening(&graph, self.standing.get(&start.graph).copied()) {
            Opening::Stands(id) => Started::Exists(id),
            Opening::Begin => self.begin(start, serial, resolved, graph),
        };
        if let Some(id) = answer.kept() {
            keys.remember(start, id);
        }
        Ok(answer)
    }

    fn begin(&mut self, start: &Start, serial: u64, resolved: &Resolved, graph: Arc<Graph>) -> Started {
        let (id, now) = (start.id, resolved.now);
        let plan = self.planner.plan(Snapshot::before(id, graph.clone(), now), start.commands());
        if let Some(refusal) = plan.refused_start() {
            return Started::Refused(refusal);
        }
        let read = Read {
            id,
            graph: start.graph.clone(),
            course: Course::begin(serial, resolved.latest),
            singleton: graph.singleton,
            execution: Execution::default(),
            stamp: 0,
            place: 0,
            created_at: now,
            updated_at: now,
            changes: BTreeMap::new(),
        };
        let revision = plan.changes.execution.revision;
        self.there.insert(id.0);
        if graph.singleton {
            self.standing.insert(start.graph.clone(), id);
        }
        self.ticks.extend(plan.changes.next_look().map(|due| (id.0, due.0)));
        self.begun.push(Decided { read, graph, plan, now });
        Started::Created { id, revision }
    }
}

/// The idempotency keys of a batch. Keys that nobody had are this transaction's.
#[derive(Default)]
struct Keys<'a> {
    taken: BTreeMap<&'a str, Option<(&'a str, ExecutionId)>>,
    kept: BTreeMap<String, (String, Option<ExecutionId>)>,
}

impl<'a> Keys<'a> {
    async fn take(transaction: &Transaction<'_>, batch: &[&'a Start]) -> Outcome<Keys<'a>> {
        let first: BTreeMap<&str, &str> = batch
            .iter()
            .filter_map(|start| start.idempotency.as_ref())
            .map(|idempotency| (idempotency.key.as_str(), idempotency.fingerprint.as_str()))
            .collect();
        let mut keys = Keys::default();
        if first.is_empty() {
            return Ok(keys);
        }
        let mut wanted = Given::default();
        first.into_iter().for_each(|(key, fingerprint)| wanted.push(GivenKey { key, fingerprint }));
        let rows = transaction.query(&TAKE_KEYS, &wanted.params()).await?;
        let taken: BTreeSet<&str> = rows.iter().map(|row| row.get(0)).collect();
        let (taken, held): (Vec<&str>, Vec<&str>) = wanted.key.into_iter().partition(|key| taken.contains(key));
        keys.taken = taken.into_iter().map(|name| (name, None)).collect();
        if !held.is_empty() {
            let rows = transaction.query(KEPT_KEYS, &[&held]).await?;
            let made = |row: &Row| row.get::<_, Vec<Uuid>>(2).first().copied().map(ExecutionId);
            keys.kept = rows.iter().map(|row| (row.get(0), (row.get(1), made(row)))).collect();
        }
        if keys.kept.len() < held.len() {
            return Err(expired());
        }
        Ok(keys)
    }

    /// What an earlier request with the same key, in this batch or before it, was answered.
    fn kept(&self, start: &Start) -> Option<(&str, Option<ExecutionId>)> {
        let key = &start.idempotency.as_ref()?.key;
        match self.taken.get(key.as_str()) {
            Some(answered) => answered.map(|(fingerprint, id)| (fingerprint, Some(id))),
            None => self.kept.get(key).map(|(fingerprint, id)| (fingerprint.as_str(), *id)),
        }
    }

    fn remember(&mut self, start: &'a Start, id: ExecutionId) {
        if let Some(given) = &start.idempotency {
            self.taken.insert(&given.key, Some((&given.fingerprint, id)));
        }
    }

    async fn keep(&self, transaction: &Transaction<'_>, now: StoreTime) -> Outcome<()> {
        let (mut kept, mut unused) = (Answered::default(), Vec::new());
        for (key, answered) in &self.taken {
            match answered {
                None => unused.push(*key),
                Some((fingerprint, id)) => kept.push(AnsweredKey { key, fingerprint, id: id.0 }),
            }
        }
        if let Some((sql, mut params)) = kept.statement(&KEEP_KEYS) {
            params.push(&now.0);
            transaction.query(sql, &params).await?;
        }
        if !unused.is_empty() {
            transaction.query(DROP_KEYS, &[&unused]).await?;
        }
        Ok(())
    }
}
