//! New runs, and requests that are the same as before.

use super::Sqlite;
use super::fault::{Fault, Outcome};
use super::writer::Tx;
use crate::answers::Answers;
use crate::halves::Halves;
use everbeat_model::event::{EventKind, line};
use everbeat_model::{NewRun, Policy, RunId, Sent, Session};
use everbeat_store::{Enqueue, Enqueued, Error, Idempotency, Result};
use rusqlite::{CachedStatement, OptionalExtension, params};
use std::sync::Arc;
use uuid::Uuid;

pub(super) async fn enqueue(store: &Sqlite, requests: Vec<Enqueue>) -> Result<Vec<Result<Vec<Enqueued>>>> {
    let requests: Arc<[Enqueue]> = requests.into();
    let mut answers = Answers::to(requests.len());
    let mut open = Halves::of((0..requests.len()).collect());
    while let Some(places) = open.next() {
        match enqueue_piece(store, &requests, &places).await {
            Ok(enqueued) => answers.give(&places, enqueued),
            Err(fault @ Fault::Data(_)) => {
                if let Some(place) = open.halve(places) {
                    answers.give(&[place], vec![Err(fault.into())]);
                }
            }
            Err(fault) => return answers.told(fault.into()),
        }
    }
    answers.all()
}

async fn enqueue_piece(
    store: &Sqlite,
    requests: &Arc<[Enqueue]>,
    places: &[usize],
) -> Outcome<Vec<Result<Vec<Enqueued>>>> {
    let (all, places) = (requests.clone(), places.to_vec());
    let bytes = places.iter().map(|place| all[*place].bytes()).sum();
    let piece = move |tx: &Tx<'_>| {
        let (mut inserts, mut lines) = (Inserts::prepare(tx)?, Vec::new());
        let mut answers = Vec::with_capacity(places.len());
        for place in &places {
            answers.push(enqueue_one(tx, &all[*place], &mut inserts, &mut lines)?);
        }
        tx.append_events(&lines)?;
        Ok(answers)
    };
    store.writer.try_write(bytes, piece).await
}

/// The inner result is the request's; the outer one is the transaction's.
fn enqueue_one(
    tx: &Tx<'_>,
    request: &Enqueue,
    inserts: &mut Inserts<'_>,
    lines: &mut Vec<String>,
) -> Outcome<Result<Vec<Enqueued>>> {
    if let Some(idempotency) = &request.idempotency {
        let kept = seen(tx, &idempotency.key)?;
        match idempotency.sent(kept.as_ref().map(|(fingerprint, ids)| (fingerprint.as_str(), ids))) {
            Sent::First => {}
            Sent::Again(ids) => return Ok(Ok(ids.iter().map(|id| Enqueued::Exists(RunId(*id))).collect())),
            Sent::Reused => return Ok(Err(Error::KeyReused { key: idempotency.key.clone() })),
        }
    }
    let mut answers = Vec::with_capacity(request.runs.len());
    for run in &request.runs {
        let answer = inserts.add(tx, run)?;
        if let Enqueued::Created(id) = answer {
            lines.push(line(EventKind::RunCreated, &id.to_string(), None, None));
        }
        answers.push(answer);
    }
    if let Some(idempotency) = &request.idempotency {
        let ids: Vec<u8> = answers.iter().flat_map(|answer| answer.id().0.into_bytes()).collect();
        remember(tx, idempotency, &ids)?;
    }
    Ok(Ok(answers))
}

pub(super) struct Inserts<'a> {
    run: CachedStatement<'a>,
    ready: CachedStatement<'a>,
    policy: Option<(Arc<Policy>, String)>,
}

impl<'a> Inserts<'a> {
    pub(super) fn prepare(tx: &Tx<'a>) -> Outcome<Inserts<'a>> {
        Ok(Inserts {
            run: tx.connection.prepare_cached(
                "insert into run (id, kind, task, queue, priority, input, policy, unique_key, created_at, run_at,
                   args, execution_id, node, host, session, schedule_id, due_at)
                 values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
                 on conflict (id) do nothing",
            )?,
            ready: tx.connection.prepare_cached(
                "insert into ready (queue, task, rank, run_id, attempt, tries, losses) values (?1, ?2, ?3, ?4, 0, 0, 0)",
            )?,
            policy: None,
        })
    }

    pub(super) fn add(&mut self, tx: &Tx<'_>, run: &NewRun) -> Outcome<Enqueued> {
        let (id, spec) = (run.id.0.into_bytes(), &run.spec);
        if let Some(key) = &spec.unique_key {
            let holder = holder_of(tx, key)?.map(RunId);
            // Most runs are new: whether one is stored already is asked where it may matter, and else shown by the insert.
            let stored = holder.is_some() && is_stored(tx, run.id)?;
            if let Some(other) = run.stood_for(stored, holder) {
                return Ok(Enqueued::Exists(other));
            }
        }
        let inserted = self.run.execute(params![
            id,
            spec.kind.as_str(),
            spec.task,
            spec.queue,
            spec.priority,
            spec.input.as_str(),
            stored_policy(&mut self.policy, &spec.policy),
            spec.unique_key,
            tx.now.0,
            run.run_at.map(|at| at.0),
            spec.args.as_ref().map(|args| args.as_str()),
            spec.parent.as_ref().map(|parent| parent.execution.0.into_bytes()),
            spec.parent.as_ref().map(|parent| parent.node.as_str()),
            spec.host,
            spec.session.as_ref().map(Session::to_stored),
            spec.occurrence.map(|of| of.schedule.0.into_bytes()),
            spec.occurrence.map(|of| of.due.0),
        ])?;
        if let Some(same) = run.stood_for(inserted == 0, None) {
            return Ok(Enqueued::Exists(same));
        }
        if let Some(key) = &spec.unique_key {
            tx.connection
                .prepare_cached("insert into unique_key (key, run_id) values (?1, ?2)")?
                .execute(params![key, id])?;
        }
        match run.run_at {
            Some(at) if at > tx.now => {
                tx.connection
                    .prepare_cached(
                        "insert into scheduled (run_id, run_at, attempt, tries, losses, host)
                         values (?1, ?2, 0, 0, 0, ?3)",
                    )?
                    .execute(params![id, at.0, spec.host])?;
            }
            _ => _ = self.ready.execute(params![spec.queue, spec.lane(), -i32::from(spec.priority), id])?,
        }
        Ok(Enqueued::Created(run.id))
    }
}

/// Runs enqueued together mostly share one policy; writing it out once is enough.
fn stored_policy<'c>(cache: &'c mut Option<(Arc<Policy>, String)>, policy: &Arc<Policy>) -> &'c str {
    if !cache.as_ref().is_some_and(|(cached, _)| Arc::ptr_eq(cached, policy)) {
        *cache = Some((policy.clone(), policy.to_stored()));
    }
    cache.as_ref().map_or("{}", |(_, stored)| stored)
}

fn is_stored(tx: &Tx<'_>, id: RunId) -> Outcome<bool> {
    let mut select = tx.connection.prepare_cached("select 1 from run where id = ?1")?;
    Ok(select.exists([id.0.into_bytes()])?)
}

fn holder_of(tx: &Tx<'_>, key: &str) -> Outcome<Option<Uuid>> {
    let mut select = tx.connection.prepare_cached("select run_id from unique_key where key = ?1")?;
    Ok(select.query_row([key], |row| row.get::<_, [u8; 16]>(0)).optional()?.map(Uuid::from_bytes))
}

/// Keeps what a request with this key made.
pub(super) fn remember(tx: &Tx<'_>, idempotency: &Idempotency, ids: &[u8]) -> Outcome<()> {
    tx.connection
        .prepare_cached("insert into idempotency (key, fingerprint, run_ids, created_at) values (?1, ?2, ?3, ?4)")?
        .execute(params![idempotency.key, idempotency.fingerprint, ids, tx.now.0])?;
    Ok(())
}

pub(super) fn seen(tx: &Tx<'_>, key: &str) -> Outcome<Option<(String, Vec<Uuid>)>> {
    let mut select = tx.connection.prepare_cached("select fingerprint, run_ids from idempotency where key = ?1")?;
    let found = select.query_row([key], |row| Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?))).optional()?;
    Ok(found.map(|(fingerprint, ids)| {
        (fingerprint, ids.chunks_exact(16).filter_map(|id| Uuid::from_slice(id).ok()).collect())
    }))
}
