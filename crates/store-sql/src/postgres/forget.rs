//! Finished runs and old idempotency keys are forgotten.

use super::link::Link;
use super::sql::now;
use crate::cells::stored;
use crate::encode::{limit, micros};
use everbeat_model::{RunId, idempotency};
use everbeat_store::{FORGET_ITEMS, Result};
use std::time::Duration;

/// All that is kept of a run besides its end.
macro_rules! rest {
    () => {
        "runs as (delete from run r where r.id = any(array(select run_id from gone))), \
         signs as (delete from run_sign s where s.run_id = any(array(select run_id from gone))), \
         outputs as (delete from output o where o.run_id = any(array(select run_id from gone))), \
         tallies as (delete from output_tally o where o.run_id = any(array(select run_id from gone))), \
         attempts as (delete from attempt a where a.run_id = any(array(select run_id from gone)))"
    };
}

/// What `done` gives up is forgotten elsewhere too; a run that is being reopened is not given up, nor one
/// whose end its execution has not taken note of yet.
const FORGET: &str = concat!(
    "with ",
    now!(),
    ", finished as materialized (select d.run_id from done d where d.finished_at < (select now from t) - $1 \
         and not exists (select 1 from computation c where c.run_id = d.run_id and c.status = 'running' offset 0) \
       order by d.run_id limit $2), \
     old as materialized (select f.run_id from (\
         select d.run_id, sum(o.last - o.first + 1) over (\
           order by d.run_id rows between unbounded preceding and 1 preceding) as items_before \
         from finished d left join output_tally o on o.run_id = d.run_id) f \
       where coalesce(f.items_before, 0) < $4::bigint), \
     gone as (delete from done d where d.run_id = any(array(select run_id from old)) returning d.run_id), ",
    rest!(),
    ", keys as (delete from idempotency i using t where i.created_at < t.now - $3) \
     select count(*) from gone"
);

const FORGET_ONE: &str = concat!(
    "with gone as (delete from done d where d.run_id = $1 \
       and not exists (select 1 from computation c where c.run_id = d.run_id and c.status = 'running') \
       returning d.run_id), ",
    rest!(),
    " select count(*) from gone"
);

pub(super) async fn forget(link: &Link, run: RunId) -> Result<bool> {
    let rows = link.query(FORGET_ONE, &[&run.0]).await?;
    Ok(rows.first().is_some_and(|row| row.get::<_, i64>(0) > 0))
}

pub(super) async fn forget_runs(link: &Link, keep: Duration, most: usize) -> Result<usize> {
    let rows =
        link.query(FORGET, &[&micros(keep), &limit(most), &micros(idempotency::KEEP), &stored(FORGET_ITEMS)]).await?;
    Ok(rows.first().map_or(0, |row| usize::try_from(row.get::<_, i64>(0)).unwrap_or(0)))
}
