//! New runs, and requests that are the same as before.

use super::Postgres;
use super::arrays::{arrays, insert, numbered};
use super::chunk::chunks;
use super::fault::{Fault, Outcome};
use super::link::again;
use super::sql::{append_event, now};
use super::transaction::Transaction;
use crate::columns::lane;
use everbeat_model::event::{EventKind, line};
use everbeat_model::{Json, NewRun, Policy, RunId, Sent};
use everbeat_store::{Enqueue, Enqueued, Error, Idempotency, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};
use uuid::Uuid;

arrays! {
    /// Runs as one array per column.
    Rows of Row<'a> {
        id: Uuid as "uuid",
        kind: &'static str as "text",
        task: &'a str as "text",
        queue: &'a str as "text",
        priority: i32 as "int",
        input: &'a str as "text",
        policy: String as "text",
        run_at: Option<i64> as "bigint",
        unique_key: Option<&'a str> as "text",
        args: Option<&'a str> as "text",
        execution_id: Option<Uuid> as "uuid",
        node: Option<&'a str> as "text",
        host: Option<&'a str> as "text",
    }
}

/// The runs that are given, in their order.
fn given_runs() -> String {
    format!("given as materialized ({})", numbered(Rows::COLUMNS))
}

const MAKE: &str = "\
    insert into run (id, kind, task, queue, priority, input, policy, unique_key, created_at, run_at, args, \
      execution_id, node, host) \
    select g.id, g.kind, g.task, g.queue, g.priority, g.input, g.policy, g.unique_key, t.now, g.run_at, g.args, \
      g.execution_id, g.node, g.host from given g, t";

/// For runs without keys, all of them new: one statement, without a transaction around it.
static ENQUEUE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "with {now}, {given}, made as ({MAKE}), \
         waiting as (insert into scheduled (run_id, run_at, attempt, tries, losses, host) \
           select g.id, g.run_at, 0, 0, 0, g.host from given g, t where g.run_at > t.now), \
         open as (insert into ready (queue, task, rank, run_id, attempt, tries, losses) \
           select g.queue, {lane}, -g.priority, g.id, 0, 0, 0 from given g, t \
           where g.run_at is null or g.run_at <= t.now), \
         logged as ({append} t.now, string_agg('run.created ' || g.id || ' -', e'\\n' order by g.nth) \
           from given g, t group by t.now) \
         select 1",
        now = now!(),
        given = given_runs(),
        lane = lane!("g"),
        append = append_event!(),
    )
});

/// For a transaction: runs that are stored already stay as they are.
pub(super) static INSERT: LazyLock<String> = LazyLock::new(|| {
    format!(
        "with {now}, {given}, \
         made as ({MAKE} on conflict (id) do nothing returning id, queue, task, priority, run_at, host), \
         waiting as (insert into scheduled (run_id, run_at, attempt, tries, losses, host) \
           select m.id, m.run_at, 0, 0, 0, m.host from made m, t where m.run_at > t.now), \
         open as (insert into ready (queue, task, rank, run_id, attempt, tries, losses) \
           select m.queue, {lane}, -m.priority, m.id, 0, 0, 0 from made m, t \
           where m.run_at is null or m.run_at <= t.now) \
         select id from made",
        now = now!(),
        given = given_runs(),
        lane = lane!("m"),
    )
});

arrays! {
    /// Unique keys, and the runs that want them.
    Keys of Key<'a> {
        key: &'a str as "text",
        run_id: Uuid as "uuid",
    }
}

/// Takes keys in their order, so that two requests lock in one order.
static TAKE_KEYS: LazyLock<String> =
    LazyLock::new(|| insert("unique_key", Keys::COLUMNS) + " order by 1 on conflict (key) do nothing returning key");

const KEY_HOLDERS: &str = "select key, run_id from unique_key where key = any($1::text[])";

/// Which of these runs are stored.
const STORED: &str = "select id from run where id = any($1::uuid[])";

/// Takes a key. Waits for another request with the same key to end.
pub(super) const TAKE_IDEMPOTENCY: &str = concat!(
    "with ",
    now!(),
    " insert into idempotency (key, fingerprint, run_ids, created_at) select $1, $2, '{}', now from t \
      on conflict (key) do nothing returning 1"
);

pub(super) const APPEND: &str = concat!("with ", now!(), " ", append_event!(), "t.now, $1 from t");

pub(super) async fn enqueue(store: &Postgres, request: &Enqueue) -> Result<Vec<Enqueued>> {
    let plain = request.idempotency.is_none() && request.runs.iter().all(|run| run.spec.unique_key.is_none());
    if request.runs.is_empty() && request.idempotency.is_none() {
        return Ok(Vec::new());
    }
    if plain && chunks(&request.runs, NewRun::bytes).len() == 1 {
        match store.command.query(&ENQUEUE, &rows(request.runs.iter()).params()).await {
            Ok(_) => return Ok(request.runs.iter().map(|run| Enqueued::Created(run.id)).collect()),
            // Perhaps some of them were enqueued before; the slow way tells.
            Err(Fault::Data(_)) => {}
            Err(fault) => return Err(fault.into()),
        }
    }
    again!(async {
        let transaction = store.exclusive.begin().await?;
        let answer = try_enqueue(&transaction, request).await;
        transaction.close(answer).await
    })?
}

/// The inner result is the request's; the outer one is the transaction's.
async fn try_enqueue(transaction: &Transaction<'_>, request: &Enqueue) -> Outcome<Result<Vec<Enqueued>>> {
    if let Some(idempotency) = &request.idempotency {
        let taken = transaction.query(TAKE_IDEMPOTENCY, &[&idempotency.key, &idempotency.fingerprint]).await?;
        if taken.is_empty() {
            let seen = seen(transaction, idempotency).await?;
            return Ok(seen.map(|ids| ids.into_iter().map(|id| Enqueued::Exists(RunId(id))).collect()));
        }
    }
    let holders = Holders::take(transaction, &request.runs).await?;
    let fresh: Vec<&NewRun> = request.runs.iter().filter(|run| holders.stands_for(run).is_none()).collect();
    let mut made = BTreeSet::new();
    for chunk in chunks(&fresh, |run| run.bytes()) {
        let inserted = transaction.query(&INSERT, &rows(chunk.iter().copied()).params()).await?;
        made.extend(inserted.iter().map(|row| row.get::<_, Uuid>(0)));
    }
    holders.give_back(transaction, &request.runs, &made).await?;
    let answers: Vec<Enqueued> = request
        .runs
        .iter()
        .map(|run| {
            let other = holders.stands_for(run);
            other
                .or_else(|| run.stood_for(!made.remove(&run.id.0), None))
                .map_or(Enqueued::Created(run.id), Enqueued::Exists)
        })
        .collect();
    if let Some(idempotency) = &request.idempotency {
        let ids: Vec<Uuid> = answers.iter().map(|answer| answer.id().0).collect();
        transaction.query("update idempotency set run_ids = $2 where key = $1", &[&idempotency.key, &ids]).await?;
    }
    let created = answers.iter().filter_map(|answer| match answer {
        Enqueued::Created(id) => Some(line(EventKind::RunCreated, &id.to_string(), None, None)),
        Enqueued::Exists(_) => None,
    });
    let body = created.collect::<Vec<_>>().join("\n");
    if !body.is_empty() {
        transaction.query(APPEND, &[&body]).await?;
    }
    Ok(Ok(answers))
}

/// What an earlier request with this key made.
pub(super) async fn seen(transaction: &Transaction<'_>, idempotency: &Idempotency) -> Outcome<Result<Vec<Uuid>>> {
    let sql = "select fingerprint, run_ids from idempotency where key = $1";
    let rows = transaction.query(sql, &[&idempotency.key]).await?;
    // The key was forgotten between the two statements: it is ours after all.
    let Some(row) = rows.first() else { return Err(Fault::Again("an idempotency key just expired".to_string())) };
    match idempotency.sent(Some((row.get(0), row.get(1)))) {
        Sent::Again(ids) => Ok(Ok(ids)),
        Sent::First | Sent::Reused => Ok(Err(Error::KeyReused { key: idempotency.key.clone() })),
    }
}

/// Who holds the unique keys of a request.
#[derive(Default)]
struct Holders<'a> {
    by_key: BTreeMap<&'a str, RunId>,
    /// Keys that were free.
    taken: Vec<&'a str>,
    /// Of the runs that share a key with another one, of the request or before it, those that are stored already.
    stored: BTreeSet<RunId>,
}

impl<'a> Holders<'a> {
    /// Takes each key that is free. Of several runs with one key the first that is not stored takes it.
    async fn take(transaction: &Transaction<'_>, runs: &'a [NewRun]) -> Outcome<Holders<'a>> {
        let mut holders = Holders::default();
        let mut by_key: BTreeMap<&str, Vec<RunId>> = BTreeMap::new();
        for run in runs {
            if let Some(key) = &run.spec.unique_key {
                by_key.entry(key).or_default().push(run.id);
            }
        }
        let sharing: Vec<Uuid> = by_key.values().filter(|runs| runs.len() > 1).flatten().map(|run| run.0).collect();
        if !sharing.is_empty() {
            let rows = transaction.query(STORED, &[&sharing]).await?;
            holders.stored.extend(rows.iter().map(|row| RunId(row.get(0))));
        }
        for (key, runs) in &by_key {
            let first = runs.iter().find(|run| !holders.stored.contains(run));
            holders.by_key.extend(first.map(|run| (*key, *run)));
        }
        if holders.by_key.is_empty() {
            return Ok(holders);
        }
        let mut given = Keys::default();
        holders.by_key.iter().for_each(|(key, run)| given.push(Key { key, run_id: run.0 }));
        let rows = transaction.query(&TAKE_KEYS, &given.params()).await?;
        let free: BTreeSet<&str> = rows.iter().map(|row| row.get(0)).collect();
        let (taken, held): (Vec<&str>, Vec<&str>) = given.key.into_iter().partition(|key| free.contains(key));
        holders.taken = taken;
        if !held.is_empty() {
            holders.read(transaction, &held, runs).await?;
        }
        Ok(holders)
    }

    async fn read(&mut self, transaction: &Transaction<'_>, held: &[&'a str], runs: &[NewRun]) -> Outcome<()> {
        let with_key = runs.iter().filter(|run| run.spec.unique_key.is_some());
        let ids: Vec<Uuid> = with_key.map(|run| run.id.0).collect();
        let rows = transaction.all(&[(KEY_HOLDERS, &[&held]), (STORED, &[&ids])]).await?;
        let found: BTreeMap<&str, RunId> = rows[0].iter().map(|row| (row.get(0), RunId(row.get(1)))).collect();
        self.stored.extend(rows[1].iter().map(|row| RunId(row.get(0))));
        for key in held {
            // The run that held the key has just finished: the key is free after all.
            let free = || Fault::Again(format!("the key {key:?} became free"));
            self.by_key.insert(key, *found.get(key).ok_or_else(free)?);
        }
        Ok(())
    }

    /// Gives back the keys of runs that were not made: each was stored before, and has finished, since its key was free.
    async fn give_back(&self, transaction: &Transaction<'_>, runs: &[NewRun], made: &BTreeSet<Uuid>) -> Outcome<()> {
        let is_made = |key: &&str| self.by_key.get(key).is_some_and(|run| made.contains(&run.0));
        let unused: Vec<&str> = self.taken.iter().copied().filter(|key| !is_made(key)).collect();
        if unused.is_empty() {
            return Ok(());
        }
        let relies = |run: &&NewRun| {
            let key = run.spec.unique_key.as_deref().filter(|key| unused.contains(key));
            key.is_some() && self.stands_for(run).is_some_and(|other| other != run.id)
        };
        if let Some(run) = runs.iter().find(relies) {
            // Another run of the request has the key by right, now that the first is known to be over.
            return Err(Fault::Again(format!("the run that was to stand for {} has just finished", run.id)));
        }
        transaction.query("delete from unique_key where key = any($1::text[])", &[&unused]).await.map(|_| ())
    }

    /// Which run stands for this one, as far as that is known before it is inserted.
    fn stands_for(&self, run: &NewRun) -> Option<RunId> {
        let holder = self.by_key.get(run.spec.unique_key.as_deref()?).copied().filter(|holder| *holder != run.id);
        run.stood_for(self.stored.contains(&run.id), holder)
    }
}

pub(super) fn rows<'a>(runs: impl Iterator<Item = &'a NewRun>) -> Rows<'a> {
    let mut rows = Rows::default();
    // Runs enqueued together mostly share one policy; writing it out once is enough.
    let mut written: Option<(&Arc<Policy>, String)> = None;
    for run in runs {
        let spec = &run.spec;
        let policy = match &written {
            Some((policy, text)) if Arc::ptr_eq(policy, &spec.policy) => text.clone(),
            _ => spec.policy.to_stored(),
        };
        written = Some((&spec.policy, policy.clone()));
        rows.push(Row {
            id: run.id.0,
            kind: spec.kind.as_str(),
            task: &spec.task,
            queue: &spec.queue,
            priority: i32::from(spec.priority),
            input: spec.input.as_str(),
            policy,
            run_at: run.run_at.map(|at| at.0),
            unique_key: spec.unique_key.as_deref(),
            args: spec.args.as_ref().map(Json::as_str),
            execution_id: spec.parent.as_ref().map(|parent| parent.execution.0),
            node: spec.parent.as_ref().map(|parent| parent.node.as_str()),
            host: spec.host.as_deref(),
        });
    }
    rows
}
