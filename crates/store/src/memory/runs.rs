use super::Memory;
use super::state::{DoneRow, LeaseRow, State};
use crate::{
    AT_ONCE, Cancelled, Claim, Enqueue, Enqueued, Error, Held, LIST_BYTES, Part, Promoted, Reopened, Result, RunFilter,
    Runs, Sign, Signed, Which,
};
use async_trait::async_trait;
use everbeat_model::event::{EventKind, line};
use everbeat_model::lease::Shown;
use everbeat_model::replica::may_claim;
use everbeat_model::run::{Claimed, Spec};
use everbeat_model::{
    Attempt, Hole, Json, Lease, Next, Replica, ReplicaId, Run, RunId, RunState, Settled, Settlement, Standing,
    StoreTime, Token,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

#[async_trait]
impl Runs for Memory {
    async fn enqueue(&self, request: Enqueue) -> Result<Vec<Enqueued>> {
        let now = self.now();
        let mut state = self.lock();
        if let Some(idempotency) = &request.idempotency
            && let Some((fingerprint, ids, _)) = state.idempotency.get(&idempotency.key)
        {
            if *fingerprint != idempotency.fingerprint {
                return Err(Error::KeyReused { key: idempotency.key.clone() });
            }
            return Ok(ids.iter().map(|id| Enqueued::Exists(*id)).collect());
        }
        let mut answers = Vec::with_capacity(request.runs.len());
        let mut lines = Vec::new();
        for run in request.runs {
            if state.runs.contains_key(&run.id) {
                // The same run again: an earlier answer was lost.
                answers.push(Enqueued::Exists(run.id));
                continue;
            }
            if let Some(key) = &run.spec.unique_key {
                if let Some(existing) = state.unique.get(key) {
                    answers.push(Enqueued::Exists(*existing));
                    continue;
                }
                state.unique.insert(key.clone(), run.id);
            }
            lines.push(line(EventKind::RunCreated, &run.id.to_string(), None, None));
            answers.push(Enqueued::Created(run.id));
            state.put_run(run, now);
        }
        if let Some(idempotency) = request.idempotency {
            let ids = answers.iter().map(|answer| answer.id()).collect();
            state.idempotency.insert(idempotency.key, (idempotency.fingerprint, ids, now));
        }
        state.append(now, &lines);
        state.version += 1;
        Ok(answers)
    }

    async fn claim(&self, request: Claim) -> Result<Vec<Claimed>> {
        let now = self.now();
        let mut state = self.lock();
        let row = state.replicas.get(&request.replica).map(|replica| replica.state);
        if !may_claim(row, self.hole) {
            return Ok(Vec::new());
        }
        let mut candidates: Vec<(i32, RunId, String, String)> = state
            .ready
            .keys()
            .filter(|(queue, ..)| !state.paused.get(queue).copied().unwrap_or(false))
            .map(|(queue, lane, rank, id)| (*rank, *id, queue.clone(), lane.clone()))
            .collect();
        candidates.sort();
        let (mut tasks, mut queues) = (request.tasks, request.queues);
        let mut claimed = Vec::new();
        for (rank, id, queue, task) in candidates {
            if claimed.len() == request.limit {
                break;
            }
            let Some(task_free) = tasks.get_mut(&task).filter(|free| **free > 0) else { continue };
            match queues.get_mut(&queue) {
                Some(0) => continue,
                Some(queue_free) => *queue_free -= 1,
                None => {}
            }
            *task_free -= 1;
            let Some(standing) = state.ready.remove(&(queue, task, rank, id)) else { continue };
            let standing = Standing { attempt: standing.attempt + 1, ..standing };
            let lease = Lease {
                run_id: id,
                attempt: standing.attempt,
                token: self.token(),
                replica_id: request.replica,
                tenure: 0,
                granted_at: now,
            };
            let row = LeaseRow { lease: lease.clone(), standing, last_heartbeat_at: now, cancel_requested_at: None };
            state.leases.insert(id, row);
            let checkpoint = state.signs.get(&id).and_then(|(_, checkpoint)| checkpoint.clone());
            let row = &state.runs[&id];
            claimed.push(Claimed { lease, spec: row.spec.clone(), standing, checkpoint, due_at: row.due_at() });
        }
        state.version += u64::from(!claimed.is_empty());
        Ok(claimed)
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>> {
        let now = self.now();
        let mut state = self.lock();
        let mut lines = Vec::new();
        let answers = settlements
            .into_iter()
            .map(|settlement| settle_one(&mut state, self.hole, now, settlement, &mut lines))
            .collect();
        state.append(now, &lines);
        state.version += 1;
        Ok(answers)
    }

    async fn was_settled(&self, leases: Vec<(RunId, Token)>) -> Result<Vec<bool>> {
        let state = self.lock();
        let by = |id: &RunId, token: &Token| {
            let ended = state.done.get(id).and_then(|done| done.attempt.as_ref()).is_some_and(|(_, by)| by == token);
            ended || state.attempts.range((*id, 0)..=(*id, u32::MAX)).any(|(_, (_, by))| by == token)
        };
        Ok(leases.iter().map(|(id, token)| by(id, token)).collect())
    }

    async fn sign(&self, signs: Vec<Sign>) -> Result<Vec<Signed>> {
        let now = self.now();
        let mut state = self.lock();
        let mut answers = Vec::with_capacity(signs.len());
        for sign in signs {
            let Some(held) =
                state.leases.get_mut(&sign.shown.run_id).filter(|held| held.lease.admits(&sign.shown, self.hole))
            else {
                answers.push(Signed::Fenced);
                continue;
            };
            held.last_heartbeat_at = now;
            answers.push(Signed::Accepted { cancel_asked: held.cancel_requested_at.is_some() });
            if sign.progress.is_some() || sign.checkpoint.is_some() {
                let (progress, checkpoint) = state.signs.entry(sign.shown.run_id).or_default();
                *progress = sign.progress.or(progress.take());
                *checkpoint = sign.checkpoint.or(checkpoint.take());
            }
        }
        state.version += 1;
        Ok(answers)
    }

    async fn cancel(&self, run: RunId) -> Result<Cancelled> {
        let now = self.now();
        let mut state = self.lock();
        state.version += 1;
        let cancelled = cancel_one(&mut state, run, now, None);
        if cancelled == Cancelled::Ended {
            state.append(now, &[line(EventKind::RunCancelled, &run.to_string(), None, None)]);
        }
        Ok(cancelled)
    }

    async fn cancel_asked(&self, replica: ReplicaId) -> Result<Vec<Shown>> {
        let state = self.lock();
        let asked =
            state.leases.values().filter(|held| held.lease.replica_id == replica && held.cancel_requested_at.is_some());
        Ok(asked.map(|held| held.lease.shown()).collect())
    }

    async fn reopen(&self, run: RunId, attempt: u32) -> Result<Reopened> {
        let now = self.now();
        let mut state = self.lock();
        let Some(spec) = state.runs.get(&run).map(|row| row.spec.clone()) else { return Ok(Reopened::NotFound) };
        if state.done.get(&run).is_none_or(|done| done.standing.attempt != attempt) {
            return Ok(Reopened::NotFinished);
        }
        if let Some(key) = &spec.unique_key {
            if let Some(holder) = state.unique.get(key) {
                return Ok(Reopened::KeyTaken(*holder));
            }
            state.unique.insert(key.clone(), run);
        }
        if let Some(done) = state.done.remove(&run)
            && let Some((ended, token)) = done.attempt
        {
            state.attempts.insert((run, ended.attempt), (ended, token));
        }
        state.put_ready(run, &spec, Standing { attempt, ..Standing::default() });
        state.append(now, &[line(EventKind::RunReopened, &run.to_string(), None, None)]);
        state.version += 1;
        Ok(Reopened::Ready)
    }

    async fn place(&self, shown: Shown, host: Option<String>) -> Result<bool> {
        let mut state = self.lock();
        let stands = state.leases.get(&shown.run_id).is_some_and(|held| held.lease.admits(&shown, self.hole));
        let Some(row) = state.runs.get_mut(&shown.run_id).filter(|_| stands) else { return Ok(false) };
        Arc::make_mut(&mut row.spec).host = host;
        state.version += 1;
        Ok(true)
    }

    async fn bound_hosts(&self) -> Result<Vec<String>> {
        let state = self.lock();
        let hosts: BTreeSet<String> =
            waiting(&state).filter_map(|run| state.runs.get(&run)?.spec.host.clone()).collect();
        Ok(hosts.into_iter().collect())
    }

    async fn unbind(&self, host: String, limit: usize) -> Result<usize> {
        let mut state = self.lock();
        let there = |run: &RunId| state.runs.get(run).is_some_and(|row| row.spec.host.as_ref() == Some(&host));
        let mut bound: Vec<RunId> = waiting(&state).filter(there).collect();
        bound.sort();
        bound.truncate(limit);
        for run in &bound {
            let Some(spec) = state.runs.get(run).map(|row| row.spec.clone()) else { continue };
            let standing = state.take_ready(*run, &spec);
            let free = Arc::new(Spec { host: None, ..(*spec).clone() });
            if let Some(standing) = standing {
                state.put_ready(*run, &free, standing);
            }
            if let Some(row) = state.runs.get_mut(run) {
                row.spec = free;
            }
        }
        state.version += u64::from(!bound.is_empty());
        Ok(bound.len())
    }

    async fn adopt(&self, to: ReplicaId, limit: usize) -> Result<Vec<Held>> {
        let mut state = self.lock();
        let may_hold = |row: &&Replica| row.state.holds_leases();
        let Some(host) = state.replicas.get(&to).filter(may_hold).map(|row| row.host.clone()) else {
            return Ok(Vec::new());
        };
        let gone = |row: &Replica| row.host == host && !row.state.holds_leases();
        let of_the_gone = |held: &&LeaseRow| state.replicas.get(&held.lease.replica_id).is_some_and(gone);
        let detached = |held: &&LeaseRow| state.runs[&held.lease.run_id].spec.detached();
        let found = state.leases.values().filter(detached).filter(of_the_gone).take(limit);
        let adopted: Vec<RunId> = found.map(|held| held.lease.run_id).collect();
        for run in &adopted {
            if let Some(held) = state.leases.get_mut(run) {
                held.lease.replica_id = to;
                held.lease.tenure += 1;
            }
        }
        state.version += u64::from(!adopted.is_empty());
        Ok(adopted.iter().filter_map(|run| state.leases.get(run)).map(|held| full(&state, held)).collect())
    }

    async fn promote(&self, limit: usize) -> Result<Promoted> {
        let now = self.now();
        let mut state = self.lock();
        let due: Vec<(StoreTime, RunId)> =
            state.scheduled.keys().take_while(|(at, _)| *at <= now).take(limit).copied().collect();
        for key in &due {
            if let Some(standing) = state.scheduled.remove(key) {
                let spec = state.runs[&key.1].spec.clone();
                state.put_ready(key.1, &spec, standing);
            }
        }
        state.version += u64::from(!due.is_empty());
        let next_in = state.scheduled.keys().next().map(|(at, _)| at.since(now));
        Ok(Promoted { moved: due.len(), next_in })
    }

    async fn lease_index(&self, replica: ReplicaId, after: Option<RunId>, limit: usize) -> Result<Vec<Shown>> {
        let state = self.lock();
        let mine = state.leases.values().filter(|held| held.lease.replica_id == replica);
        let after = mine.filter(|held| after.is_none_or(|after| held.lease.run_id > after));
        Ok(after.take(limit).map(|held| held.lease.shown()).collect())
    }

    async fn held(&self, which: Which) -> Result<Vec<Held>> {
        let state = self.lock();
        let stands = |replica: &Replica| replica.state.holds_leases();
        let orphaned = |held: &&LeaseRow| !state.replicas.get(&held.lease.replica_id).is_some_and(stands);
        let detached = |held: &LeaseRow| state.runs[&held.lease.run_id].spec.detached();
        let full = |held| full(&state, held);
        Ok(match which {
            Which::Orphaned(limit) => {
                state.leases.values().filter(orphaned).filter(|held| !detached(held)).take(limit).map(full).collect()
            }
            Which::Detached(after, limit) => state
                .leases
                .values()
                .filter(|held| after.is_none_or(|after| held.lease.run_id > after))
                .filter(orphaned)
                .filter(|held| detached(held))
                .take(limit)
                .map(full)
                .collect(),
            Which::Of(runs) => runs.iter().filter_map(|run| state.leases.get(run)).map(full).collect(),
        })
    }

    async fn run(&self, id: RunId) -> Result<Option<Run>> {
        Ok(self.lock().run(id))
    }

    async fn finished(&self, runs: Vec<RunId>) -> Result<Vec<RunId>> {
        let state = self.lock();
        let over = |id: &RunId| state.done.contains_key(id) || !state.runs.contains_key(id);
        Ok(runs.into_iter().filter(over).collect())
    }

    async fn runs(&self, filter: RunFilter) -> Result<Part<Run>> {
        let state = self.lock();
        let older = state.runs.iter().rev().filter(|(id, _)| filter.before.is_none_or(|before| **id < before));
        let matching = older.filter(|(_, row)| {
            filter.task.as_ref().is_none_or(|task| row.spec.task == *task)
                && filter.queue.as_ref().is_none_or(|queue| row.spec.queue == *queue)
                && filter.kind.is_none_or(|kind| row.spec.kind == kind)
        });
        let runs = matching.filter_map(|(id, _)| state.run(*id));
        let mut wanted = runs.filter(|run| filter.state.is_none_or(|state| run.state == state)).take(filter.limit);
        let (mut items, mut bytes) = (Vec::new(), 0);
        while bytes < LIST_BYTES
            && let Some(run) = wanted.next()
        {
            bytes += run.bytes();
            items.push(run);
        }
        Ok(Part { items, cut_short: wanted.next().is_some() })
    }

    async fn attempts(&self, run: RunId) -> Result<Vec<Attempt>> {
        let state = self.lock();
        let mut attempts: Vec<Attempt> =
            state.attempts.range((run, 0)..=(run, u32::MAX)).map(|(_, (attempt, _))| attempt.clone()).collect();
        attempts
            .extend(state.done.get(&run).and_then(|done| done.attempt.as_ref()).map(|(attempt, _)| attempt.clone()));
        attempts.extend(state.leases.get(&run).map(|held| Attempt {
            attempt: held.lease.attempt,
            outcome: None,
            replica_id: held.lease.replica_id,
            worker_id: None,
            started_at: held.lease.granted_at,
            ended_at: None,
            last_heartbeat_at: Some(held.last_heartbeat_at),
            error: None,
            verdict_id: None,
        }));
        Ok(attempts)
    }

    async fn forget(&self, run: RunId) -> Result<bool> {
        let mut state = self.lock();
        let over = state.done.contains_key(&run) && !awaited(&state, run);
        if over {
            forget_one(&mut state, run);
        }
        Ok(over)
    }

    async fn forget_runs(&self, keep: Duration, limit: usize) -> Result<usize> {
        let now = self.now();
        let mut state = self.lock();
        let old = state.done.iter().filter(|(_, done)| now.since(done.finished_at) > keep).map(|(id, _)| *id);
        let old: Vec<RunId> = old.filter(|id| !awaited(&state, *id)).take(limit).collect();
        old.iter().for_each(|id| forget_one(&mut state, *id));
        let day = Duration::from_secs(86_400);
        state.idempotency.retain(|_, (_, _, at)| now.since(*at) <= day);
        state.version += 1;
        Ok(old.len())
    }
}

/// Runs that are neither running nor finished.
fn waiting(state: &State) -> impl Iterator<Item = RunId> {
    state.ready.keys().map(|(.., run)| *run).chain(state.scheduled.keys().map(|(_, run)| *run))
}

/// Whether an execution has not taken note of its end yet.
fn awaited(state: &State, id: RunId) -> bool {
    let parent = state.runs.get(&id).and_then(|row| row.spec.parent.as_ref());
    let row = parent.and_then(|parent| Some((state.executions.get(&parent.execution)?, &parent.node)));
    row.is_some_and(|(row, node)| row.execution.running(node) == Some(id))
}

fn forget_one(state: &mut State, id: RunId) {
    state.done.remove(&id);
    state.runs.remove(&id);
    state.signs.remove(&id);
    state.attempts.retain(|(run, _), _| *run != id);
    state.version += 1;
}

fn full(state: &State, held: &LeaseRow) -> Held {
    Held {
        lease: held.lease.clone(),
        spec: state.runs[&held.lease.run_id].spec.clone(),
        standing: held.standing,
        cancel_asked: held.cancel_requested_at.is_some(),
        last_heartbeat_at: held.last_heartbeat_at,
        owner: state.replicas.get(&held.lease.replica_id).cloned(),
    }
}

fn settle_one(
    state: &mut State,
    hole: Option<Hole>,
    now: StoreTime,
    settlement: Settlement,
    lines: &mut Vec<String>,
) -> Settled {
    let id = settlement.shown.run_id;
    let Some(held) = state.leases.get(&id).filter(|held| held.lease.admits(&settlement.shown, hole)) else {
        return Settled::Fenced;
    };
    if settlement.unless_cancelled() && held.cancel_requested_at.is_some() {
        return Settled::CancelAsked;
    }
    let held = held.clone();
    state.leases.remove(&id);
    // The fence never goes back, whatever number the writer had in mind.
    let standing = Standing { attempt: held.lease.attempt, ..settlement.standing };
    let ended = Attempt {
        attempt: held.lease.attempt,
        outcome: Some(settlement.ending.outcome),
        replica_id: held.lease.replica_id,
        worker_id: None,
        started_at: held.lease.granted_at,
        ended_at: Some(now),
        last_heartbeat_at: Some(settlement.last_heartbeat_at.unwrap_or(held.last_heartbeat_at)),
        error: settlement.ending.error.clone(),
        verdict_id: settlement.verdict.as_ref().map(|verdict| verdict.id),
    };
    if let Some(mut verdict) = settlement.verdict {
        verdict.at = now;
        state.verdicts.insert(verdict.id, verdict);
    }
    let attempt = Some(held.lease.attempt);
    let subject = id.to_string();
    match settlement.next {
        Next::Finish(to) => {
            lines.push(line(EventKind::run(to), &subject, attempt, None));
            let error = (to != RunState::Succeeded).then_some(settlement.ending.error).flatten();
            let done = DoneRow {
                state: to,
                finished_at: now,
                standing,
                result: settlement.ending.result,
                error,
                attempt: Some((ended, settlement.shown.token)),
            };
            finish(state, id, done, hole);
        }
        Next::Ready | Next::After(_) => {
            lines.push(line(EventKind::attempt(settlement.ending.outcome), &subject, attempt, None));
            state.attempts.insert((id, ended.attempt), (ended, settlement.shown.token));
            match settlement.next {
                Next::After(delay) => _ = state.scheduled.insert((now.plus(delay), id), standing),
                _ => {
                    // As it stands in the run: that is what says where it belongs by now.
                    let spec = state.runs.get(&id).map_or_else(|| settlement.spec.clone(), |row| row.spec.clone());
                    state.put_ready(id, &spec, standing);
                }
            }
        }
    }
    Settled::Done
}

/// Ends a run that is not running; asks for the end of one that is.
pub(super) fn cancel_one(state: &mut State, run: RunId, now: StoreTime, error: Option<Json>) -> Cancelled {
    let Some(spec) = state.runs.get(&run).map(|row| row.spec.clone()) else { return Cancelled::NotFound };
    if state.done.contains_key(&run) {
        return Cancelled::AlreadyFinished;
    }
    if let Some(held) = state.leases.get_mut(&run) {
        held.cancel_requested_at.get_or_insert(now);
        return Cancelled::Asked;
    }
    let standing = match state.scheduled_at(run) {
        Some((at, standing)) => {
            state.scheduled.remove(&(at, run));
            standing
        }
        None => state.take_ready(run, &spec).unwrap_or_default(),
    };
    let done = DoneRow { state: RunState::Cancelled, finished_at: now, standing, result: None, error, attempt: None };
    finish(state, run, done, None);
    Cancelled::Ended
}

fn finish(state: &mut State, id: RunId, done: DoneRow, hole: Option<Hole>) {
    if let Some(spec) = state.runs.get(&id).map(|row| row.spec.clone()) {
        if let Some(key) = &spec.unique_key {
            state.unique.remove(key);
        }
        if let Some(parent) = spec.parent.as_ref().filter(|_| hole != Some(Hole::NoteForgotten)) {
            state.agenda.insert((AT_ONCE, parent.execution));
        }
    }
    state.done.insert(id, done);
}
