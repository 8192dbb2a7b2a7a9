//! Schedules and flows, as they are asked for and read.

use super::{Postgres, schedule_due, schedule_look, schedule_read, schedule_write};
use crate::decode::{counts, readable};
use crate::encode::limit;
use crate::schedules::{OccurrenceCells, left_out};
use async_trait::async_trait;
use everbeat_model::ScheduleId;
use everbeat_model::schedule::{Occurrence, ScheduleKind, Wish};
use everbeat_store::{
    Deleted, DueSchedules, LeftOut, LookedAt, Part, Put, PutSchedule, Result, ScheduleFilter, Scheduler, Schedules,
    StoredSchedule,
};
use std::collections::BTreeMap;
use std::sync::Arc;

const LATE: &str = "select s.kind, count(*) from schedule s where s.late_since is not null group by s.kind";

const WAITING: &str = "\
    select o.run_id, o.due_at, o.due_by, o.wish from occurrence o where o.schedule_id = $1 and not o.begun \
    order by o.run_id";

const LEFT: &str = "\
    select l.at, l.from_at, l.to_at, l.count, l.why from occurrence_left l where l.schedule_id = $1 \
    order by l.place desc limit $2";

/// What a settle or a look noted for a schedule that was just deleted goes too: nobody looks there.
const NOTE_STRANDED: &str = "\
    with stranded as materialized (select distinct o.schedule_id from occurrence o where o.begun \
       and (exists (select 1 from done d where d.run_id = o.run_id offset 0) \
         or not exists (select 1 from run r where r.id = o.run_id offset 0)) \
       order by o.schedule_id limit $1), \
     noted as (insert into schedule_note (schedule_id) select s.schedule_id from stranded s), \
     unknown as materialized (select n.schedule_id from (select schedule_id from schedule_note \
           union select schedule_id from schedule_fed) n \
         where not exists (select 1 from schedule s where s.id = n.schedule_id offset 0) \
       order by n.schedule_id limit $1), \
     unnoted as (delete from schedule_note n where n.schedule_id = any(array(select schedule_id from unknown))), \
     unfed as (delete from schedule_fed f where f.schedule_id = any(array(select schedule_id from unknown))) \
     select count(*) from stranded";

#[async_trait]
impl Schedules for Postgres {
    async fn put_schedule(&self, request: PutSchedule) -> Result<Put> {
        schedule_write::put(&self.look, &request).await
    }

    async fn enable_schedule(&self, kind: ScheduleKind, name: &str, enabled: bool) -> Result<Option<StoredSchedule>> {
        schedule_write::enable(&self.look, kind, name, enabled).await
    }

    async fn delete_schedule(&self, kind: ScheduleKind, name: &str, version: Option<u64>) -> Result<Deleted> {
        schedule_write::delete(&self.look, kind, name, version).await
    }

    async fn schedule(&self, kind: ScheduleKind, name: &str) -> Result<Option<StoredSchedule>> {
        schedule_read::named(self.read(), kind, name).await
    }

    async fn schedules(&self, filter: ScheduleFilter) -> Result<Part<StoredSchedule>> {
        schedule_read::list(self.read(), &filter).await
    }

    async fn late_schedules(&self) -> Result<BTreeMap<ScheduleKind, u64>> {
        let rows = self.read().query(LATE, &[]).await?;
        Ok(counts(rows.iter().map(|row| (row.get(0), row.get(1))), ScheduleKind::parse))
    }

    async fn due_schedules(&self, clock: &[ScheduleKind], limit: usize) -> Result<DueSchedules> {
        schedule_due::due(self.read(), clock, limit).await
    }

    async fn look_at_schedule(&self, id: ScheduleId, wish: Wish, scheduler: Arc<dyn Scheduler>) -> Result<LookedAt> {
        schedule_look::look(&self.look, id, &wish, &*scheduler).await
    }

    async fn waiting_occurrences(&self, id: ScheduleId) -> Result<Vec<Occurrence>> {
        let rows = self.read().query(WAITING, &[&id.0]).await?;
        let cells = rows.iter().map(|row| OccurrenceCells {
            run_id: row.get(0),
            due_at: row.get(1),
            due_by: row.get(2),
            wish: row.get(3),
            begun: false,
            over: false,
            state: None,
            checkpoint: None,
        });
        Ok(readable(cells.map(OccurrenceCells::read)))
    }

    async fn left_occurrences(&self, id: ScheduleId, most: usize) -> Result<Vec<LeftOut>> {
        let rows = self.read().query(LEFT, &[&id.0, &limit(most)]).await?;
        let left = rows.iter().map(|row| left_out(row.get(0), row.get(1), row.get(2), row.get(3), row.get(4)));
        Ok(readable(left))
    }

    async fn note_stranded_schedules(&self, most: usize) -> Result<usize> {
        let rows = self.slow.query(NOTE_STRANDED, &[&limit(most)]).await?;
        Ok(rows.first().map_or(0, |row| usize::try_from(row.get::<_, i64>(0)).unwrap_or(0)))
    }
}
