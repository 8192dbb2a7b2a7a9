//! Which schedules should be looked at, and when the next one should.

use super::link::Link;
use super::sql::now;
use crate::cells::number;
use crate::encode::limit;
use everbeat_model::ScheduleId;
use everbeat_model::schedule::ScheduleKind;
use everbeat_store::{DueSchedule, DueSchedules, Result};
use std::time::Duration;
use uuid::Uuid;

/// Each source gives its first by an index; what is found in several counts once, at its earliest. The row without an id
/// says how long it is until the next one is due.
const DUE: &str = concat!(
    "with ",
    now!(),
    ", source as (\
       (select s.id, s.kind, 0::bigint as at, s.enabled, s.next_due_at \
        from (select n.schedule_id from schedule_note n group by n.schedule_id order by n.schedule_id) n \
        cross join lateral (select * from schedule s where s.id = n.schedule_id offset 0) s limit $2) \
       union all \
       (select s.id, s.kind, s.look_at, s.enabled, s.next_due_at from schedule s \
        where s.enabled and s.look_at <= (select now from t) order by s.look_at, s.id limit $2) \
       union all \
       select s.* from unnest($1::text[]) as k(kind) cross join lateral (\
         select s.id, s.kind, s.next_due_at, s.enabled, s.next_due_at from schedule s \
         where s.enabled and s.kind = k.kind and s.next_due_at <= (select now from t) \
         order by s.next_due_at, s.id limit $2) s), \
     ahead as (\
       (select s.look_at as at from schedule s where s.enabled and s.look_at > (select now from t) \
        order by s.look_at, s.id limit 1) \
       union all \
       select s.next_due_at from unnest($1::text[]) as k(kind) cross join lateral (\
         select s.next_due_at from schedule s \
         where s.enabled and s.kind = k.kind and s.next_due_at > (select now from t) \
         order by s.next_due_at, s.id limit 1) s) \
     (select s.id, s.kind, min(s.at), bool_or(s.enabled and s.kind = any($1) and s.next_due_at <= t.now) \
      from source s, t group by s.id, s.kind order by 3, 1 limit $2) \
     union all \
     select null, null, min(a.at) - min(t.now), false from ahead a, t"
);

pub(super) async fn due(link: &Link, clock: &[ScheduleKind], most: usize) -> Result<DueSchedules> {
    let kinds: Vec<&str> = clock.iter().map(|kind| kind.as_str()).collect();
    let rows = link.query(DUE, &[&kinds, &limit(most.saturating_add(1))]).await?;
    let mut ahead: Option<i64> = None;
    let mut found: Vec<(i64, DueSchedule)> = Vec::with_capacity(rows.len());
    for row in &rows {
        let Some(id) = row.get::<_, Option<Uuid>>(0).map(ScheduleId) else {
            ahead = row.get(2);
            continue;
        };
        // A schedule of a kind unknown here is left to whoever knows it.
        let Some(kind) = ScheduleKind::parse(row.get(1)) else { continue };
        // Without a due time, whether that has come is null.
        let by_clock = row.get::<_, Option<bool>>(3).unwrap_or(false);
        found.push((row.get(2), DueSchedule { id, kind, by_clock }));
    }
    found.sort_by_key(|(at, due)| (*at, due.id));
    let ahead = ahead.map(|micros| Duration::from_micros(number(micros)));
    let next_in = if found.len() > most { Some(Duration::ZERO) } else { ahead };
    Ok(DueSchedules { schedules: found.into_iter().take(most).map(|(_, due)| due).collect(), next_in })
}
