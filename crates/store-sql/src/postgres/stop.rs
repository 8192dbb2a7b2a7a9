//! Runs that their executions no longer want are stopped.

use super::fault::{Fault, Outcome};
use super::sql::now;
use super::transaction::Transaction;
use crate::columns::lane;
use everbeat_model::RunId;
use everbeat_store::superseded;
use std::collections::BTreeSet;
use uuid::Uuid;

/// A run may move between the snapshot and the write; then it is looked for again.
const LOOKS: usize = 20;

/// Ends what waits, asks what runs to end. Nobody looks for the end of these runs any more, so nothing is
/// noted; and runs of nodes have no unique keys that could be freed.
const STOP: &str = concat!(
    "with ",
    now!(),
    ", lane as materialized (select r.id, r.queue, ",
    lane!("r"),
    " as task, -r.priority as rank from unnest($1::uuid[]) as g(id) \
       cross join lateral (select * from run r where r.id = g.id offset 0) r), \
     asked as (update lease l set cancel_requested_at = coalesce(l.cancel_requested_at, t.now) from t \
       where l.run_id = any($1::uuid[]) returning l.run_id), \
     unready as (delete from ready r where r.ctid = any(array(\
         select x.at from lane l cross join lateral (select r.ctid as at from ready r where r.queue = l.queue \
           and r.task = l.task and r.rank = l.rank and r.run_id = l.id offset 0) x)) \
       returning r.run_id, r.attempt, r.tries, r.losses), \
     unscheduled as (delete from scheduled s where s.run_id = any($1::uuid[]) \
       returning s.run_id, s.attempt, s.tries, s.losses), \
     waited as materialized (select * from unready union all select * from unscheduled), \
     ended as (insert into done (run_id, state, finished_at, attempt, tries, losses, error) \
       select w.run_id, 'cancelled', t.now, w.attempt, w.tries, w.losses, $2 from waited w, t returning run_id) \
     select run_id, true from ended \
     union all select run_id, false from asked \
     union all select g.id, false from unnest($1::uuid[]) as g(id) \
       where exists (select 1 from done d where d.run_id = g.id offset 0) \
         or not exists (select 1 from run r where r.id = g.id offset 0)"
);

/// Answers which of these runs ended at once.
pub(super) async fn stop(transaction: &Transaction<'_>, runs: &[RunId]) -> Outcome<BTreeSet<RunId>> {
    let mut open: BTreeSet<Uuid> = runs.iter().map(|run| run.0).collect();
    let mut ended = BTreeSet::new();
    let why = superseded();
    for _ in 0..LOOKS {
        if open.is_empty() {
            return Ok(ended);
        }
        let runs: Vec<Uuid> = open.iter().copied().collect();
        for row in transaction.query(STOP, &[&runs, &why.as_str()]).await? {
            let run: Uuid = row.get(0);
            open.remove(&run);
            if row.get(1) {
                ended.insert(RunId(run));
            }
        }
    }
    Err(Fault::Bug(format!("{open:?} are in none of scheduled, ready, running and finished")))
}
