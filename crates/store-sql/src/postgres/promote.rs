//! Scheduled runs that are due become ready.

use super::link::Link;
use super::sql::now;
use crate::columns::lane;
use crate::decode::whole;
use crate::encode::limit;
use everbeat_store::{Promoted, Result};
use std::time::Duration;

/// Passes over what another server is promoting. Where a run belongs is said by the row that is taken out, as it
/// is by then: `run` is read as it was when the statement began, and the run may have been unbound since.
const PROMOTE: &str = concat!(
    "with ",
    now!(),
    ", due as materialized (select s.run_id from scheduled s where s.run_at <= (select now from t) \
       order by s.run_at, s.run_id limit $1 for update skip locked), \
     gone as (delete from scheduled s where s.run_id = any(array(select run_id from due)) \
       returning s.run_id, s.attempt, s.tries, s.losses, s.host), \
     open as (insert into ready (queue, task, rank, run_id, attempt, tries, losses) \
       select r.queue, ",
    lane!("r"),
    ", -r.priority, g.run_id, g.attempt, g.tries, g.losses from gone g cross join lateral (\
         select r.queue, r.task, g.host, r.priority from run r where r.id = g.run_id offset 0) r) \
     select count(*) from gone"
);

const NEXT: &str = "\
    select greatest(run_at - (extract(epoch from clock_timestamp()) * 1000000)::bigint, 0) \
    from scheduled order by run_at, run_id limit 1";

pub(super) async fn promote(link: &Link, most: usize) -> Result<Promoted> {
    let rows = link.query(PROMOTE, &[&limit(most)]).await?;
    let moved = rows.first().map_or(0, |row| usize::try_from(row.get::<_, i64>(0)).unwrap_or(0));
    let next = link.query(NEXT, &[]).await?;
    Ok(Promoted { moved, next_in: next.first().map(|row| Duration::from_micros(whole(row.get(0)))) })
}
