//! Runs and their leases.

use super::Memory;
use super::cancel::cancel_one;
use super::claim::claim;
use super::enqueue::enqueue;
use super::forget::{awaited, forget_one};
use super::settle::settle_one;
use super::state::{LeaseRow, State};
use crate::{
    Cancelled, Claim, Enqueue, Enqueued, Held, LIST_BYTES, Part, Promoted, Reopened, Result, RunFilter, Runs, Sign,
    Signed, Which,
};
use async_trait::async_trait;
use everbeat_model::event::{EventKind, line};
use everbeat_model::idempotency;
use everbeat_model::lease::Shown;
use everbeat_model::reopen::{Closed, reopen, standing};
use everbeat_model::run::{Claimed, Spec};
use everbeat_model::{Attempt, Replica, ReplicaId, Run, RunId, Settled, Settlement, StoreTime, Token};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

#[async_trait]
impl Runs for Memory {
    async fn enqueue(&self, requests: Vec<Enqueue>) -> Result<Vec<Result<Vec<Enqueued>>>> {
        Ok(enqueue(&mut self.lock(), requests, self.now()))
    }

    async fn claim(&self, request: Claim) -> Result<Vec<Claimed>> {
        Ok(claim(&mut self.lock(), request, self.now(), self.hole, || self.token()))
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
        let closed = state.runs.get(&run).map(|row| Closed {
            run,
            finished: state.done.get(&run).map(|done| done.standing.attempt),
            holder: row.spec.unique_key.as_ref().and_then(|key| state.unique.get(key)).copied(),
        });
        let answer = reopen(closed, attempt);
        let Some(spec) = state.runs.get(&run).map(|row| row.spec.clone()).filter(|_| answer == Reopened::Ready) else {
            return Ok(answer);
        };
        if let Some(key) = &spec.unique_key {
            state.unique.insert(key.clone(), run);
        }
        if let Some(done) = state.done.remove(&run)
            && let Some((ended, token)) = done.attempt
        {
            state.attempts.insert((run, ended.attempt), (ended, token));
        }
        state.put_ready(run, &spec, standing(attempt));
        state.reopen_occurrence(run, &spec);
        state.append(now, &[line(EventKind::RunReopened, &run.to_string(), None, None)]);
        state.version += 1;
        Ok(answer)
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
        let orphans = |after: Option<RunId>| {
            let rest = state.leases.values().filter(move |held| after.is_none_or(|after| held.lease.run_id > after));
            rest.filter(orphaned)
        };
        Ok(match which {
            Which::Orphaned(after, limit) => {
                let plain = orphans(after).filter(|held| !detached(held));
                plain.take(limit).map(full).collect()
            }
            Which::Detached(after, limit) => {
                let detached = orphans(after).filter(|held| detached(held));
                detached.take(limit).map(full).collect()
            }
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
                && filter.schedule.is_none_or(|id| row.spec.occurrence.is_some_and(|one| one.schedule == id))
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
        state.idempotency.retain(|_, (_, _, at)| now.since(*at) <= idempotency::KEEP);
        state.version += 1;
        Ok(old.len())
    }
}

/// Runs that are neither running nor finished.
fn waiting(state: &State) -> impl Iterator<Item = RunId> {
    state.ready.keys().map(|(.., run)| *run).chain(state.scheduled.keys().map(|(_, run)| *run))
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
