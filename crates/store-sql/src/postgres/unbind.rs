//! Runs that belong to a host and wait: which hosts there are, and letting their runs begin anywhere.

use super::link::Link;
use super::sql::lanes;
use crate::encode::limit;
use everbeat_store::Result;

/// From lane to lane, and from host to host among what waits for its time.
const BOUND_HOSTS: &str = concat!(
    "with recursive ",
    lanes!(),
    ", waiting as (\
       (select host from scheduled where host is not null order by host limit 1) \
       union all \
       select n.host from waiting w cross join lateral (\
         select s.host from scheduled s where s.host is not null and s.host > w.host order by s.host limit 1) n) \
     select substr(l.task, length('command@') + 1) from lane l where starts_with(l.task, 'command@') \
     union select substr(l.task, strpos(l.task, '@session ') + 1) from lane l \
       where strpos(l.task, '@session ') > 0 and not starts_with(l.task, 'command@') \
     union select w.host from waiting w order by 1"
);

/// Whoever has locked the row in `ready` or `scheduled` has the run, and only then is the run's own row written; what
/// somebody else is claiming, promoting or cancelling is passed over. A row of `ready` is put anew, not changed: who
/// has seen it in its old lane finds it gone, and looks again.
const UNBIND: &str = concat!(
    "with recursive ",
    lanes!(),
    ", bound as materialized (select * from (\
         (select r.* from lane l cross join lateral (\
            select r.queue, r.task, r.rank, r.run_id from ready r where r.queue = l.queue and r.task = l.task \
            offset 0) r \
          where l.task = 'command@' || $1::text \
            or (starts_with($1, 'session ') and right(l.task, length($1) + 1) = '@' || $1) \
          order by r.run_id limit $2) \
         union all \
         (select null, null, null, s.run_id from scheduled s where s.host = $1 order by s.run_id limit $2)) b \
       order by b.run_id limit $2), \
     locked as materialized (select r.at from bound b cross join lateral (\
       select r.ctid as at from ready r where r.queue = b.queue and r.task = b.task and r.rank = b.rank \
         and r.run_id = b.run_id for update skip locked) r), \
     gone as (delete from ready r where r.ctid = any(array(select at from locked)) \
       returning r.queue, r.task, r.rank, r.run_id, r.attempt, r.tries, r.losses), \
     open as (insert into ready (queue, task, rank, run_id, attempt, tries, losses) \
       select g.queue, left(g.task, -(length($1) + 1)), g.rank, g.run_id, g.attempt, g.tries, g.losses from gone g), \
     waiting as materialized (select s.run_id from scheduled s \
       where s.run_id = any(array(select run_id from bound where queue is null)) and s.host = $1 \
       order by s.run_id for update skip locked), \
     later as (update scheduled s set host = null where s.run_id = any(array(select run_id from waiting)) \
       returning s.run_id), \
     free as (update run r set host = null \
       where r.id = any(array(select run_id from gone union all select run_id from later)) returning 1) \
     select count(*) from free"
);

pub(super) async fn bound_hosts(link: &Link) -> Result<Vec<String>> {
    let rows = link.query(BOUND_HOSTS, &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

pub(super) async fn unbind(link: &Link, host: &str, most: usize) -> Result<usize> {
    let rows = link.query(UNBIND, &[&host, &limit(most)]).await?;
    Ok(rows.first().map_or(0, |row| usize::try_from(row.get::<_, i64>(0)).unwrap_or(0)))
}
