//! Statements that make runs.

use crate::columns::lane;
use crate::postgres::arrays::{arrays, numbered};
use crate::postgres::sql::{append_event, now};
use everbeat_model::{Json, NewRun, Policy, Session};
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
        session: Option<String> as "text",
        schedule_id: Option<Uuid> as "uuid",
        due_at: Option<i64> as "bigint",
    }
}

arrays! {
    /// Idempotency keys of the requests that want the runs, one for each run.
    Requests of Request<'a> {
        key: Option<&'a str> as "text",
        fingerprint: Option<&'a str> as "text",
    }
}

const MAKE: &str = "\
    insert into run (id, kind, task, queue, priority, input, policy, unique_key, created_at, run_at, args, \
      execution_id, node, host, session, schedule_id, due_at) \
    select g.id, g.kind, g.task, g.queue, g.priority, g.input, g.policy, g.unique_key, t.now, g.run_at, g.args, \
      g.execution_id, g.node, g.host, g.session, g.schedule_id, g.due_at from given g, t";

/// Makes the runs of `given`, all of them new: one statement, without a transaction around it.
fn enqueue(given: &str, answer: &str) -> String {
    format!(
        "with {now}, {given}, made as ({MAKE}), \
         waiting as (insert into scheduled (run_id, run_at, attempt, tries, losses, host) \
           select g.id, g.run_at, 0, 0, 0, g.host from given g, t where g.run_at > t.now), \
         open as (insert into ready (queue, task, rank, run_id, attempt, tries, losses) \
           select g.queue, {lane}, -g.priority, g.id, 0, 0, 0 from given g, t \
           where g.run_at is null or g.run_at <= t.now), \
         logged as ({append} t.now, string_agg('run.created ' || g.id || ' -', e'\\n' order by g.nth) \
           from given g, t group by t.now) \
         {answer}",
        now = now!(),
        lane = lane!("g"),
        append = append_event!(),
    )
}

/// For runs without keys.
pub(super) static ENQUEUE: LazyLock<String> =
    LazyLock::new(|| enqueue(&format!("given as materialized ({})", numbered(Rows::COLUMNS)), "select 1"));

/// For runs of requests of which some have idempotency keys, each key used by one request. Takes the keys that are free,
/// in one order, and makes the runs of their requests and of those without a key; answers the keys that it took.
pub(super) static ENQUEUE_KEYED: LazyLock<String> = LazyLock::new(|| {
    let columns = [Rows::COLUMNS, Requests::COLUMNS].concat();
    let given = format!(
        "asked as materialized ({asked}), \
         taken as (insert into idempotency (key, fingerprint, run_ids, created_at) \
           select a.key, min(a.fingerprint), array_agg(a.id order by a.nth), t.now from asked a, t \
             where a.key is not null group by a.key, t.now order by a.key \
           on conflict (key) do nothing returning key), \
         given as materialized (\
           select a.* from asked a where a.key is null or a.key in (select taken.key from taken))",
        asked = numbered(&columns),
    );
    enqueue(&given, "select key from taken")
});

/// For a transaction: runs that are stored already stay as they are.
pub(in crate::postgres) static INSERT: LazyLock<String> = LazyLock::new(|| {
    format!(
        "with {now}, given as materialized ({given}), \
         made as ({MAKE} on conflict (id) do nothing returning id, queue, task, priority, run_at, host), \
         waiting as (insert into scheduled (run_id, run_at, attempt, tries, losses, host) \
           select m.id, m.run_at, 0, 0, 0, m.host from made m, t where m.run_at > t.now), \
         open as (insert into ready (queue, task, rank, run_id, attempt, tries, losses) \
           select m.queue, {lane}, -m.priority, m.id, 0, 0, 0 from made m, t \
           where m.run_at is null or m.run_at <= t.now) \
         select id from made",
        now = now!(),
        given = numbered(Rows::COLUMNS),
        lane = lane!("m"),
    )
});

pub(in crate::postgres) fn rows<'a>(runs: impl Iterator<Item = &'a NewRun>) -> Rows<'a> {
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
            session: spec.session.as_ref().map(Session::to_stored),
            schedule_id: spec.occurrence.map(|of| of.schedule.0),
            due_at: spec.occurrence.map(|of| of.due.0),
        });
    }
    rows
}
