//! What both databases select alike. The order of columns is that of `decode::RunCells` and its
//! neighbours.

use everbeat_model::RunState;
use everbeat_store::Noun;

/// The lane that a run stands in while it is ready, from its row: what `Spec::lane` says.
macro_rules! lane {
    ($run:literal) => {
        concat!(
            "case when ",
            $run,
            ".host is null then ",
            $run,
            ".task else ",
            $run,
            ".task || '@' || ",
            $run,
            ".host end"
        )
    };
}
pub(crate) use lane;

/// The columns of a spec; `r` is the run's row.
macro_rules! spec_columns {
    () => {
        "r.kind, r.task, r.queue, r.priority, r.input, r.policy, r.unique_key, r.args, r.execution_id, r.node, r.host, \
         r.session, r.schedule_id, r.due_at"
    };
}
pub(crate) use spec_columns;

/// How many those are.
pub(crate) const SPEC_COLUMNS: usize = 14;

/// A run put together from the four tables; `r` is its row.
pub(crate) const RUN_COLUMNS: &str = concat!(
    "r.id, ",
    spec_columns!(),
    ", r.created_at, \
  coalesce(c.run_at, r.run_at), \
  case when l.run_id is not null then 'running' when d.run_id is not null then d.state \
    when q.run_id is null and c.run_id is not null then 'scheduled' else 'ready' end, \
  coalesce(l.attempt, d.attempt, q.attempt, c.attempt, 0), \
  coalesce(l.granted_at, d.started_at), d.finished_at, \
  coalesce(l.replica_id, d.replica_id), coalesce(l.worker_id, d.worker_id), \
  coalesce(l.last_heartbeat_at, d.last_heartbeat_at), p.last_heartbeat_at, \
  l.cancel_requested_at, d.result, \
  case when l.run_id is not null then null when d.run_id is null then a.error \
    when d.state <> 'succeeded' then d.error end, \
  s.progress, s.checkpoint, coalesce(l.tenure, 0), coalesce(l.tries, d.tries, q.tries, c.tries, 0)"
);

/// Joins each of a run's rows by primary key.
pub(crate) const RUN_JOINS: &str = concat!(
    "left join lease l on l.run_id = r.id \
  left join replica p on p.id = l.replica_id \
  left join done d on d.run_id = r.id \
  left join ready q on q.queue = r.queue and q.task = ",
    lane!("r"),
    " and q.rank = -r.priority and q.run_id = r.id \
  left join scheduled c on c.run_id = r.id \
  left join attempt a on a.run_id = r.id and a.attempt = coalesce(q.attempt, c.attempt) \
  left join run_sign s on s.run_id = r.id"
);

/// Where a page of runs is found, and the key that orders it: through the table that is the state, before the rest is
/// joined to it. The runs of one schedule are found by their own index; `schedule` is the parameter that names it.
/// `join` is how the database is told to keep the order of the tables.
pub(crate) fn run_page(state: Option<RunState>, schedule: Option<&str>, join: &str) -> (String, &'static str) {
    let of = |table: &str| match schedule {
        Some(_) => format!("exists (select 1 from {table} x where x.run_id = r.id)"),
        None => format!("{table} x {join} run r on r.id = x.run_id where true"),
    };
    let ended = |state: &str| match schedule {
        Some(_) => format!("exists (select 1 from done x where x.run_id = r.id and x.state = '{state}')"),
        None => format!("done x {join} run r on r.id = x.run_id where x.state = '{state}'"),
    };
    let found = match (state, schedule) {
        (None, Some(_)) => "true".to_string(),
        (None, None) => "run r where true".to_string(),
        (Some(RunState::Scheduled), _) => of("scheduled"),
        // A lane is found by its key only: what stands nowhere else is ready.
        (Some(RunState::Ready), Some(_)) => {
            ["scheduled", "lease", "done"].map(|table| format!("not {}", of(table))).join(" and ")
        }
        (Some(RunState::Ready), None) => of("ready"),
        (Some(RunState::Running), _) => of("lease"),
        (Some(RunState::Succeeded), _) => ended("succeeded"),
        (Some(RunState::Failed), _) => ended("failed"),
        (Some(RunState::Cancelled), _) => ended("cancelled"),
    };
    match schedule {
        Some(schedule) => (format!("run r where r.schedule_id = {schedule} and {found}"), "r.id"),
        None if state.is_some() => (found, "x.run_id"),
        None => (found, "r.id"),
    }
}

pub(crate) const REPLICA_COLUMNS: &str = "\
  p.id, p.host, p.version, p.state, p.beat, p.started_at, p.last_heartbeat_at, p.heartbeat_interval_us, \
  p.heartbeat_timeout_us, p.clock_skew_ms, p.machine";

/// A lease with all that settling it needs; `l` is its row, `r` its run's, `p` its owner's, which may
/// be missing.
pub(crate) const HELD_COLUMNS: &str = concat!(
    "l.run_id, l.replica_id, l.attempt, l.tries, l.losses, l.token, l.granted_at, l.last_heartbeat_at, \
  l.cancel_requested_at, l.tenure, ",
    spec_columns!()
);

/// Where the spec of a held lease begins among its columns.
pub(crate) const HELD_SPEC: usize = 10;

pub(crate) const VERDICT_COLUMNS: &str =
    "id, at, subject_kind, subject_id, judgement, reason, evidence, judged_by, run_id, attempt, followed_by";

/// The attempts of one run, oldest first: those before the last, the one that ended it, the running
/// one. `{}` is the parameter.
pub(crate) fn attempts_sql(run: &str) -> String {
    format!(
        "select attempt, outcome, replica_id, worker_id, started_at, ended_at, last_heartbeat_at, error, verdict_id \
           from attempt where run_id = {run} \
         union all \
         select attempt, outcome, replica_id, worker_id, started_at, finished_at, last_heartbeat_at, error, verdict_id \
           from done where run_id = {run} and outcome is not null \
         union all \
         select attempt, null, replica_id, worker_id, granted_at, null, last_heartbeat_at, null, null \
           from lease where run_id = {run} \
         order by 1"
    )
}

/// What `AUDIT_COUNTS_SQL` counts, in its order.
pub(crate) const AUDIT_COUNTS: [&str; 12] = [
    "runs",
    "scheduled",
    "ready",
    "running",
    "leases",
    "succeeded",
    "failed",
    "cancelled",
    "replicas",
    "attempts",
    "executions",
    "computing",
];

/// One statement, so that every run is counted in one state only.
pub(crate) const AUDIT_COUNTS_SQL: &str = "\
  select (select count(*) from run), (select count(*) from scheduled), (select count(*) from ready), \
    (select count(*) from lease), (select count(*) from lease), \
    (select count(*) from done where state = 'succeeded'), (select count(*) from done where state = 'failed'), \
    (select count(*) from done where state = 'cancelled'), (select count(*) from replica), \
    (select count(*) from attempt) + (select count(*) from done where outcome is not null), \
    (select count(*) from execution), (select count(*) from computation where status = 'running')";

/// At most so many violations of each sort are looked for; the audit names no more than this.
pub(crate) const VIOLATION_LIMIT: usize = 100;

/// Runs that are in none of the four places, or in several, and in how many.
pub(crate) const AUDIT_PLACES_SQL: &str = "\
  select r.id, count(x.run_id) from run r left join (\
    select run_id from scheduled union all select run_id from ready \
    union all select run_id from lease union all select run_id from done) x on x.run_id = r.id \
  group by r.id having count(x.run_id) <> 1 order by r.id limit 100";

/// Leases whose replica has no row, and that replica.
pub(crate) const AUDIT_OWNERLESS_SQL: &str = "\
  select l.run_id, l.replica_id from lease l \
  where not exists (select 1 from replica p where p.id = l.replica_id) order by l.run_id limit 100";

/// Computations that wait for a run which is over or unknown, although nobody will look: the execution,
/// the node and the run.
pub(crate) const AUDIT_STRANDED_SQL: &str = "\
  select c.execution_id, c.node, c.run_id from computation c \
  where c.status = 'running' \
    and not exists (select 1 from run r where r.id = c.run_id \
      and not exists (select 1 from done d where d.run_id = r.id)) \
    and not exists (select 1 from agenda a where a.execution_id = c.execution_id) \
  order by c.execution_id, c.node limit 100";

/// Attempts that ended although an earlier one counts.
pub(crate) const AUDIT_G1_SQL: &str = "\
  select a.run_id, a.attempt from attempt a \
  left join done d on d.run_id = a.run_id left join lease l on l.run_id = a.run_id \
  where d.attempt < a.attempt or l.attempt <= a.attempt order by a.run_id, a.attempt limit 100";

/// The table that lists things of a kind, and its primary key.
pub(crate) fn id_column(of: Noun) -> (&'static str, &'static str) {
    match of {
        Noun::Run => ("run", "id"),
        Noun::RunningRun => ("lease", "run_id"),
        Noun::Execution => ("execution", "id"),
        Noun::Verdict => ("verdict", "id"),
        Noun::Worker => ("worker", "id"),
    }
}

/// Jobs of which `position`, that of a text in their input, is above 0: among the newest `window` runs and among the
/// detached ones that run. The window is found by the primary key before any input is looked at.
pub(crate) fn jobs_with_sql(position: &str, window: &str) -> String {
    format!(
        "select r.id from (\
           select id, kind, input from run order by id desc limit {window}) r \
         where r.kind = 'job' and {position} > 0 \
         union \
         select r.id from lease l join run r on r.id = l.run_id \
         where l.detached and r.kind = 'job' and {position} > 0 \
         order by 1 desc"
    )
}
