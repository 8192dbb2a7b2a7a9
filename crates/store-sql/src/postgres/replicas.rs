//! Replicas: joining, renewing, judging, leaving; and the turns of sweeps.

use super::Postgres;
use super::sql::{append_event, now};
use crate::columns::REPLICA_COLUMNS;
use crate::decode::{ReplicaCells, readable};
use crate::encode::micros;
use async_trait::async_trait;
use everbeat_model::event::{EventKind, line};
use everbeat_model::replica::{NewReplica, ReplicaState};
use everbeat_model::{Replica, ReplicaId, StoreTime, Verdict};
use everbeat_store::{Error, Joined, Renewal, Replicas, Result, Sweeps};
use std::time::Duration;
use tokio_postgres::Row;

/// A repeated or late join changes nothing: it must not bring back a row that was judged since.
const JOIN: &str = concat!(
    "with ",
    now!(),
    ", joined as (insert into replica (id, host, version, state, beat, started_at, last_heartbeat_at, \
         heartbeat_interval_us, heartbeat_timeout_us, clock_skew_ms, machine) \
       select $1, $2, $3, 'active', 1, now, now, $4, $5, ($6::bigint - now) / 1000, $8 from t \
       on conflict (id) do nothing returning started_at), \
     logged as (",
    append_event!(),
    "started_at, $7 from joined) \
     select now, ($6::bigint - now) / 1000 from t"
);

const RENEW: &str = "\
    update replica set beat = beat + 1, \
      last_heartbeat_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint \
    where id = $1 and state in ('active', 'draining') returning last_heartbeat_at, state";

const BURY: &str = concat!(
    "with ",
    now!(),
    ", buried as (update replica set state = 'dead' \
       where id = $1 and state in ('active', 'draining') and ($2::bigint is null or beat = $2) returning id), \
     judged as (insert into verdict (id, at, subject_kind, subject_id, judgement, reason, evidence, judged_by, \
         run_id, attempt, followed_by) \
       select $3, now, $4, $5, $6, $7, $8, $9, $10, $11, $12 from t, buried on conflict (id) do nothing), \
     logged as (",
    append_event!(),
    "t.now, $13 from t, buried) \
     select count(*) > 0 from buried"
);

const DRAIN: &str = concat!(
    "with ",
    now!(),
    ", changed as (update replica set state = 'draining' where id = $1 and state = 'active' returning id), \
     logged as (",
    append_event!(),
    "t.now, $2 from t, changed) \
     select count(*) > 0 from changed"
);

const LEAVE: &str = concat!(
    "with ",
    now!(),
    ", changed as (update replica set state = 'left' where id = $1 and state in ('active', 'draining') returning id), \
     logged as (",
    append_event!(),
    "t.now, $2 from t, changed) \
     select count(*) > 0 from changed"
);

const FORGET: &str = concat!(
    "with ",
    now!(),
    ", forgotten as (delete from replica p using t where p.state not in ('active', 'draining') \
       and p.last_heartbeat_at < t.now - $1 and not exists (select 1 from lease l where l.replica_id = p.id) returning 1), \
     untold as (delete from worker w where not exists (select 1 from replica p \
       where p.id = w.replica_id and p.state in ('active', 'draining'))) \
     select count(*) from forgotten"
);

/// A clock that went back must not silence sweeps until it has caught up.
const SWEEP: &str = concat!(
    "with ",
    now!(),
    " insert into sweep_run as s (name, last_at) select $1, now from t \
      on conflict (name) do update set last_at = excluded.last_at \
      where s.last_at > excluded.last_at or s.last_at <= excluded.last_at - $2 returning 1"
);

#[async_trait]
impl Replicas for Postgres {
    async fn join(&self, replica: NewReplica) -> Result<Joined> {
        let event = line(EventKind::ReplicaJoined, &replica.id.to_string(), None, None);
        let (interval, timeout) = (micros(replica.heartbeat_interval), micros(replica.heartbeat_timeout));
        let rows = self
            .renew
            .query(
                JOIN,
                &[
                    &replica.id.0,
                    &replica.host,
                    &replica.version,
                    &interval,
                    &timeout,
                    &replica.wall.0,
                    &event,
                    &replica.machine,
                ],
            )
            .await?;
        let row = rows.first().ok_or_else(|| Error::Bug(format!("joining as {} wrote no row", replica.id)))?;
        Ok(Joined { now: StoreTime(row.get(0)), clock_skew_ms: row.get(1) })
    }

    async fn renew(&self, replica: ReplicaId) -> Result<Renewal> {
        let rows = self.renew.query(RENEW, &[&replica.0]).await?;
        let Some(row) = rows.first() else { return Ok(Renewal::Fenced) };
        let state: &str = row.get(1);
        let state = ReplicaState::parse(state)
            .ok_or_else(|| Error::Bug(format!("the stored replica {replica} has the unknown state {state:?}")))?;
        Ok(Renewal::Renewed { now: StoreTime(row.get(0)), state })
    }

    async fn replicas(&self) -> Result<Vec<Replica>> {
        let sql = format!(
            "select {REPLICA_COLUMNS}, coalesce(n.running, 0) from replica p \
             left join (select replica_id, count(*) as running from lease group by replica_id) n \
               on n.replica_id = p.id order by p.id"
        );
        let rows = self.read().query(&sql, &[]).await?;
        Ok(readable(rows.iter().map(|row| replica_cells(row, 0).read())))
    }

    async fn observe(&self) -> Result<Vec<Replica>> {
        let sql = format!(
            "select {REPLICA_COLUMNS}, 0::bigint from replica p where p.state in ('active', 'draining') order by p.id"
        );
        let rows = self.renew.query(&sql, &[]).await?;
        Ok(readable(rows.iter().map(|row| replica_cells(row, 0).read())))
    }

    async fn bury(&self, replica: ReplicaId, beat: Option<u64>, verdict: Verdict) -> Result<bool> {
        let beat = beat.map(|beat| i64::try_from(beat).unwrap_or(i64::MAX));
        let detail = verdict.detail();
        let event = line(EventKind::ReplicaDead, &replica.to_string(), None, Some(&detail));
        let rows = self
            .renew
            .query(
                BURY,
                &[
                    &replica.0,
                    &beat,
                    &verdict.id.0,
                    &verdict.subject.kind.as_str(),
                    &verdict.subject.id,
                    &verdict.judgement.as_str(),
                    &verdict.reason,
                    &verdict.evidence.as_str(),
                    &verdict.judged_by.0,
                    &verdict.run_id.map(|run| run.0),
                    &verdict.attempt.map(crate::encode::int),
                    &verdict.then,
                    &event,
                ],
            )
            .await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }

    async fn drain(&self, replica: ReplicaId) -> Result<bool> {
        let event = line(EventKind::ReplicaDraining, &replica.to_string(), None, None);
        let rows = self.renew.query(DRAIN, &[&replica.0, &event]).await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }

    async fn leave(&self, replica: ReplicaId) -> Result<()> {
        let event = line(EventKind::ReplicaLeft, &replica.to_string(), None, None);
        self.renew.query(LEAVE, &[&replica.0, &event]).await?;
        Ok(())
    }

    async fn forget_replicas(&self, keep: Duration) -> Result<usize> {
        let rows = self.slow.query(FORGET, &[&micros(keep)]).await?;
        Ok(rows.first().map_or(0, |row| usize::try_from(row.get::<_, i64>(0)).unwrap_or(0)))
    }
}

#[async_trait]
impl Sweeps for Postgres {
    async fn sweep_due(&self, name: &str, every: Duration) -> Result<bool> {
        let rows = self.command.query(SWEEP, &[&name, &micros(every)]).await?;
        Ok(!rows.is_empty())
    }
}

/// Reads the columns of a replica and its number of leases, from `first` on.
pub(super) fn replica_cells(row: &Row, first: usize) -> ReplicaCells {
    ReplicaCells {
        id: row.get(first),
        host: row.get(first + 1),
        version: row.get(first + 2),
        state: row.get(first + 3),
        beat: row.get(first + 4),
        started_at: row.get(first + 5),
        last_heartbeat_at: row.get(first + 6),
        heartbeat_interval_us: row.get(first + 7),
        heartbeat_timeout_us: row.get(first + 8),
        clock_skew_ms: row.get(first + 9),
        machine: row.get(first + 10),
        running: row.get(first + 11),
    }
}
