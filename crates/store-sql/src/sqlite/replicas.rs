//! Replicas: joining, renewing, judging, leaving; and the turns of sweeps.

use super::Sqlite;
use super::fault::Outcome;
use super::verdicts::insert_verdict;
use super::writer::Tx;
use crate::columns::REPLICA_COLUMNS;
use crate::decode::{ReplicaCells, readable};
use crate::encode::micros;
use async_trait::async_trait;
use everbeat_model::event::{EventKind, line};
use everbeat_model::replica::{NewReplica, ReplicaState};
use everbeat_model::{Replica, ReplicaId, Verdict};
use everbeat_store::{Error, Joined, Renewal, Replicas, Result, Sweeps};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::time::Duration;
use uuid::Uuid;

#[async_trait]
impl Replicas for Sqlite {
    async fn join(&self, replica: NewReplica) -> Result<Joined> {
        self.writer.write(move |tx| join(tx, &replica)).await
    }

    async fn renew(&self, replica: ReplicaId) -> Result<Renewal> {
        self.writer.write(move |tx| renew(tx, replica)).await
    }

    async fn replicas(&self) -> Result<Vec<Replica>> {
        self.readers.read(replicas).await
    }

    async fn observe(&self) -> Result<Vec<Replica>> {
        self.readers.read(observe).await
    }

    /// The file's lock keeps every other server out.
    fn sole(&self) -> bool {
        true
    }

    async fn bury(&self, replica: ReplicaId, beat: Option<u64>, verdict: Verdict) -> Result<bool> {
        self.writer.write(move |tx| bury(tx, replica, beat, &verdict)).await
    }

    async fn drain(&self, replica: ReplicaId) -> Result<bool> {
        self.writer
            .write(move |tx| change(tx, replica, "state = 'active'", "draining", EventKind::ReplicaDraining))
            .await
    }

    async fn leave(&self, replica: ReplicaId) -> Result<()> {
        let stands = "state in ('active', 'draining')";
        self.writer.write(move |tx| change(tx, replica, stands, "left", EventKind::ReplicaLeft).map(|_| ())).await
    }

    async fn forget_replicas(&self, keep: Duration) -> Result<usize> {
        self.writer
            .write(move |tx| {
                let mut delete = tx.connection.prepare_cached(
                    "delete from replica where state not in ('active', 'draining') and last_heartbeat_at < ?1
                       and id not in (select replica_id from lease)",
                )?;
                let forgotten = delete.execute([tx.now.0.saturating_sub(micros(keep))])?;
                let mut untell = tx.connection.prepare_cached(
                    "delete from worker where replica_id not in
                       (select id from replica where state in ('active', 'draining'))",
                )?;
                untell.execute([])?;
                Ok(forgotten)
            })
            .await
    }
}

#[async_trait]
impl Sweeps for Sqlite {
    async fn sweep_due(&self, name: &str, every: Duration) -> Result<bool> {
        let name = name.to_string();
        self.writer
            .write(move |tx| {
                // A clock that went back must not silence sweeps until it has caught up.
                let mut upsert = tx.connection.prepare_cached(
                    "insert into sweep_run (name, last_at) values (?1, ?2)
                     on conflict (name) do update set last_at = excluded.last_at
                     where last_at > ?2 or last_at <= ?3",
                )?;
                let changed = upsert.execute(params![name, tx.now.0, tx.now.0.saturating_sub(micros(every))])?;
                Ok(changed > 0)
            })
            .await
    }
}

fn join(tx: &Tx<'_>, replica: &NewReplica) -> Outcome<Joined> {
    let clock_skew_ms = (replica.wall.0 - tx.now.0) / 1000;
    // A repeated or late join changes nothing: it must not bring back a row that was judged since.
    let joined = tx
        .connection
        .prepare_cached(
            "insert or ignore into replica (id, host, version, state, beat, started_at, last_heartbeat_at,
               heartbeat_interval_us, heartbeat_timeout_us, clock_skew_ms, machine)
             values (?1, ?2, ?3, 'active', 1, ?4, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![
            replica.id.0.into_bytes(),
            replica.host,
            replica.version,
            tx.now.0,
            micros(replica.heartbeat_interval),
            micros(replica.heartbeat_timeout),
            clock_skew_ms,
            replica.machine,
        ])?;
    if joined > 0 {
        tx.append_events(&[line(EventKind::ReplicaJoined, &replica.id.to_string(), None, None)])?;
    }
    Ok(Joined { now: tx.now, clock_skew_ms })
}

fn renew(tx: &Tx<'_>, replica: ReplicaId) -> Outcome<Renewal> {
    let mut update = tx.connection.prepare_cached(
        "update replica set beat = beat + 1, last_heartbeat_at = ?2
         where id = ?1 and state in ('active', 'draining') returning state",
    )?;
    let state = update.query_row(params![replica.0.into_bytes(), tx.now.0], |row| row.get::<_, String>(0));
    let Some(state) = state.optional()? else { return Ok(Renewal::Fenced) };
    let state = ReplicaState::parse(&state)
        .ok_or_else(|| Error::Bug(format!("the stored replica {replica} has the unknown state {state:?}")))?;
    Ok(Renewal::Renewed { now: tx.now, state })
}

fn replicas(connection: &Connection) -> Outcome<Vec<Replica>> {
    let mut select = connection.prepare_cached(&format!(
        "select {REPLICA_COLUMNS}, coalesce(n.running, 0) from replica p
         left join (select replica_id, count(*) as running from lease group by replica_id) n on n.replica_id = p.id
         order by p.id"
    ))?;
    let cells = select.query_map([], |row| replica_cells(row, 0))?.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(readable(cells.into_iter().map(ReplicaCells::read)))
}

fn observe(connection: &Connection) -> Outcome<Vec<Replica>> {
    let mut select = connection.prepare_cached(&format!(
        "select {REPLICA_COLUMNS}, 0 from replica p where p.state in ('active', 'draining') order by p.id"
    ))?;
    let cells = select.query_map([], |row| replica_cells(row, 0))?.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(readable(cells.into_iter().map(ReplicaCells::read)))
}

fn bury(tx: &Tx<'_>, replica: ReplicaId, beat: Option<u64>, verdict: &Verdict) -> Outcome<bool> {
    let mut update = tx.connection.prepare_cached(
        "update replica set state = 'dead'
         where id = ?1 and state in ('active', 'draining') and (?2 is null or beat = ?2)",
    )?;
    let beat = beat.map(|beat| i64::try_from(beat).unwrap_or(i64::MAX));
    if update.execute(params![replica.0.into_bytes(), beat])? == 0 {
        return Ok(false);
    }
    insert_verdict(tx, verdict)?;
    let detail = verdict.detail();
    tx.append_events(&[line(EventKind::ReplicaDead, &replica.to_string(), None, Some(&detail))])?;
    Ok(true)
}

fn change(tx: &Tx<'_>, replica: ReplicaId, from: &str, to: &str, event: EventKind) -> Outcome<bool> {
    let mut update =
        tx.connection.prepare_cached(&format!("update replica set state = ?2 where id = ?1 and {from}"))?;
    let changed = update.execute(params![replica.0.into_bytes(), to])? > 0;
    if changed {
        tx.append_events(&[line(event, &replica.to_string(), None, None)])?;
    }
    Ok(changed)
}

/// Reads the columns of a replica and its number of leases, from `first` on.
pub(super) fn replica_cells(row: &Row<'_>, first: usize) -> rusqlite::Result<ReplicaCells> {
    Ok(ReplicaCells {
        id: Uuid::from_bytes(row.get(first)?),
        host: row.get(first + 1)?,
        version: row.get(first + 2)?,
        state: row.get(first + 3)?,
        beat: row.get(first + 4)?,
        started_at: row.get(first + 5)?,
        last_heartbeat_at: row.get(first + 6)?,
        heartbeat_interval_us: row.get(first + 7)?,
        heartbeat_timeout_us: row.get(first + 8)?,
        clock_skew_ms: row.get(first + 9)?,
        machine: row.get(first + 10)?,
        running: row.get(first + 11)?,
    })
}
