use super::Memory;
use super::state::State;
use crate::audit::VIOLATION_LIMIT;
use crate::{
    Audit, Audits, EventPage, Events, Joined, News, Queues, Renewal, Replicas, Result, Sweeps, TRIM_LIMIT, Tasks,
    VerdictFilter, Verdicts, Violation, WakeSignal, Wakes,
};
use async_trait::async_trait;
use everbeat_model::event::{EventKind, PER_BATCH, line};
use everbeat_model::queue::Queue;
use everbeat_model::replica::{NewReplica, ReplicaState};
use everbeat_model::run::Spec;
use everbeat_model::{Replica, ReplicaId, RunId, RunState, Verdict, VerdictId};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[async_trait]
impl Replicas for Memory {
    async fn join(&self, replica: NewReplica) -> Result<Joined> {
        let now = self.now();
        let mut state = self.lock();
        let clock_skew_ms = (replica.wall.0 - now.0) / 1000;
        let row = Replica {
            id: replica.id,
            host: replica.host,
            machine: replica.machine,
            version: replica.version,
            state: ReplicaState::Active,
            beat: 1,
            started_at: now,
            last_heartbeat_at: now,
            heartbeat_interval: replica.heartbeat_interval,
            heartbeat_timeout: replica.heartbeat_timeout,
            clock_skew_ms,
            running: 0,
        };
        // A repeated or late join changes nothing: it must not bring back a row that was judged since.
        if let Entry::Vacant(place) = state.replicas.entry(replica.id) {
            place.insert(row);
            state.append(now, &[line(EventKind::ReplicaJoined, &replica.id.to_string(), None, None)]);
        }
        state.version += 1;
        Ok(Joined { now, clock_skew_ms })
    }

    async fn renew(&self, replica: ReplicaId) -> Result<Renewal> {
        let now = self.now();
        let mut state = self.lock();
        state.version += 1;
        Ok(match state.replicas.get_mut(&replica).filter(|row| row.state.holds_leases()) {
            Some(row) => {
                row.beat += 1;
                row.last_heartbeat_at = now;
                Renewal::Renewed { now, state: row.state }
            }
            None => Renewal::Fenced,
        })
    }

    async fn replicas(&self) -> Result<Vec<Replica>> {
        let state = self.lock();
        let running = |id: ReplicaId| state.leases.values().filter(|held| held.lease.replica_id == id).count() as u64;
        Ok(state.replicas.values().map(|row| Replica { running: running(row.id), ..row.clone() }).collect())
    }

    async fn bury(&self, replica: ReplicaId, beat: Option<u64>, verdict: Verdict) -> Result<bool> {
        let now = self.now();
        let mut state = self.lock();
        let Some(row) = state.replicas.get_mut(&replica) else { return Ok(false) };
        if !row.state.holds_leases() || beat.is_some_and(|beat| beat != row.beat) {
            return Ok(false);
        }
        row.state = ReplicaState::Dead;
        let detail = verdict.detail();
        state.verdicts.insert(verdict.id, Verdict { at: now, ..verdict });
        state.append(now, &[line(EventKind::ReplicaDead, &replica.to_string(), None, Some(&detail))]);
        state.version += 1;
        Ok(true)
    }

    async fn drain(&self, replica: ReplicaId) -> Result<bool> {
        let now = self.now();
        let mut state = self.lock();
        let Some(row) = state.replicas.get_mut(&replica).filter(|row| row.state == ReplicaState::Active) else {
            return Ok(false);
        };
        row.state = ReplicaState::Draining;
        state.append(now, &[line(EventKind::ReplicaDraining, &replica.to_string(), None, None)]);
        state.version += 1;
        Ok(true)
    }

    async fn leave(&self, replica: ReplicaId) -> Result<()> {
        let now = self.now();
        let mut state = self.lock();
        if let Some(row) = state.replicas.get_mut(&replica).filter(|row| row.state.holds_leases()) {
            row.state = ReplicaState::Left;
            state.append(now, &[line(EventKind::ReplicaLeft, &replica.to_string(), None, None)]);
            state.version += 1;
        }
        Ok(())
    }

    async fn forget_replicas(&self, keep: Duration) -> Result<usize> {
        let now = self.now();
        let mut state = self.lock();
        let leased: BTreeSet<ReplicaId> = state.leases.values().map(|held| held.lease.replica_id).collect();
        let before = state.replicas.len();
        state.replicas.retain(|id, row| {
            row.state.holds_leases() || leased.contains(id) || now.since(row.last_heartbeat_at) <= keep
        });
        let State { workers, replicas, .. } = &mut *state;
        workers.retain(|_, row| replicas.get(&row.replica_id).is_some_and(|replica| replica.state.holds_leases()));
        state.version += 1;
        Ok(before - state.replicas.len())
    }
}

#[async_trait]
impl Sweeps for Memory {
    async fn sweep_due(&self, name: &str, every: Duration) -> Result<bool> {
        let now = self.now();
        let mut state = self.lock();
        // A clock that went back must not silence sweeps until it has caught up.
        let due = state.sweeps.get(name).is_none_or(|last| *last > now || now.since(*last) >= every);
        if due {
            state.sweeps.insert(name.to_string(), now);
        }
        Ok(due)
    }
}

#[async_trait]
impl Queues for Memory {
    async fn queues(&self) -> Result<Vec<Queue>> {
        let state = self.lock();
        let mut queues: BTreeMap<String, Queue> = BTreeMap::new();
        let mut queue = |name: &str, count: fn(&mut Queue)| {
            let empty = || Queue { name: name.to_string(), paused: false, scheduled: 0, ready: 0, running: 0 };
            count(queues.entry(name.to_string()).or_insert_with(empty));
        };
        state
            .paused
            .iter()
            .for_each(|(name, paused)| queue(name, if *paused { |queue| queue.paused = true } else { |_| {} }));
        state.ready.keys().for_each(|(name, ..)| queue(name, |queue| queue.ready += 1));
        state.scheduled.keys().for_each(|(_, id)| queue(&state.runs[id].spec.queue, |queue| queue.scheduled += 1));
        state.leases.keys().for_each(|id| queue(&state.runs[id].spec.queue, |queue| queue.running += 1));
        Ok(queues.into_values().collect())
    }

    async fn ahead(&self, spec: &Spec, run: RunId, limit: usize) -> Result<u64> {
        let state = self.lock();
        let place = State::place(spec, run);
        let first = (place.0.clone(), place.1.clone(), i32::MIN, RunId(uuid::Uuid::nil()));
        Ok(state.ready.range(first..place).take(limit).count() as u64)
    }

    async fn ready_ages(&self) -> Result<BTreeMap<String, Duration>> {
        let now = self.now();
        let state = self.lock();
        let mut ages: BTreeMap<String, Duration> = BTreeMap::new();
        let mut line = None;
        for ((queue, lane, rank, id), standing) in &state.ready {
            if line.replace((queue, lane, rank)) == Some((queue, lane, rank)) {
                continue;
            }
            let ended = state.attempts.get(&(*id, standing.attempt)).and_then(|(attempt, _)| attempt.ended_at);
            let age = now.since(ended.unwrap_or_else(|| state.runs[id].due_at()));
            let oldest = ages.entry(queue.clone()).or_default();
            *oldest = age.max(*oldest);
        }
        Ok(ages)
    }

    async fn pause(&self, queue: &str, paused: bool) -> Result<bool> {
        let now = self.now();
        let mut state = self.lock();
        let before = state.paused.get(queue).copied().unwrap_or(false);
        if before != paused {
            state.paused.insert(queue.to_string(), paused);
            let kind = if paused { EventKind::QueuePaused } else { EventKind::QueueResumed };
            state.append(now, &[line(kind, queue, None, None)]);
        }
        state.version += 1;
        Ok(before != paused)
    }
}

#[async_trait]
impl Tasks for Memory {
    async fn offer(&self, tasks: &BTreeSet<String>) -> Result<()> {
        self.lock().tasks.extend(tasks.iter().cloned());
        Ok(())
    }

    async fn tasks(&self) -> Result<BTreeSet<String>> {
        Ok(self.lock().tasks.clone())
    }
}

#[async_trait]
impl Verdicts for Memory {
    async fn record(&self, verdicts: Vec<Verdict>) -> Result<()> {
        let now = self.now();
        let mut state = self.lock();
        let mut lines = Vec::new();
        for verdict in verdicts {
            let attempt = verdict.attempt;
            lines.push(line(EventKind::judged(verdict.judgement), &verdict.subject.id, attempt, None));
            state.verdicts.insert(verdict.id, Verdict { at: now, ..verdict });
        }
        state.append(now, &lines);
        state.version += 1;
        Ok(())
    }

    async fn verdict(&self, id: VerdictId) -> Result<Option<Verdict>> {
        Ok(self.lock().verdicts.get(&id).cloned())
    }

    async fn verdicts(&self, filter: VerdictFilter) -> Result<Vec<Verdict>> {
        let state = self.lock();
        let matching = state.verdicts.iter().rev().filter(|(id, verdict)| {
            filter.before.is_none_or(|before| **id < before)
                && filter.run_id.is_none_or(|run| verdict.run_id == Some(run))
                && filter.subject.as_ref().is_none_or(|subject| verdict.subject.id == *subject)
        });
        Ok(matching.take(filter.limit).map(|(_, verdict)| verdict.clone()).collect())
    }

    async fn forget_verdicts(&self, keep: Duration, limit: usize) -> Result<usize> {
        let now = self.now();
        let mut state = self.lock();
        let old = state.verdicts.values().filter(|verdict| now.since(verdict.at) > keep).map(|verdict| verdict.id);
        let old: Vec<VerdictId> = old.take(limit).collect();
        old.iter().for_each(|id| _ = state.verdicts.remove(id));
        state.version += 1;
        Ok(old.len())
    }
}

#[async_trait]
impl Events for Memory {
    async fn events(&self, after: u64, limit: usize) -> Result<EventPage> {
        let state = self.lock();
        let first = after / PER_BATCH;
        let oldest = state.events.keys().next().copied().unwrap_or(state.last_batch + 1);
        let mut page = EventPage { events: Vec::new(), gap: after > 0 && oldest > first + 1 };
        for batch in state.events.range(first..).map(|(batch, _)| *batch) {
            page.events.extend(state.expanded(batch).into_iter().filter(|event| event.id > after));
            if page.events.len() >= limit.max(1) {
                break;
            }
        }
        Ok(page)
    }

    async fn announce(&self, news: Vec<News>) -> Result<()> {
        let now = self.now();
        let mut state = self.lock();
        let lines: Vec<String> =
            news.iter().map(|news| line(news.kind, &news.subject, news.attempt, news.detail.as_ref())).collect();
        state.append(now, &lines);
        state.version += u64::from(!lines.is_empty());
        Ok(())
    }

    async fn last_event(&self) -> Result<u64> {
        let state = self.lock();
        Ok(state.expanded(state.last_batch).last().map_or(0, |event| event.id))
    }

    async fn trim_events(&self, keep: u64) -> Result<usize> {
        let mut state = self.lock();
        let newest_old = state.last_batch.saturating_sub(keep);
        let old: Vec<u64> = state.events.range(..=newest_old).take(TRIM_LIMIT).map(|(batch, _)| *batch).collect();
        old.iter().for_each(|batch| _ = state.events.remove(batch));
        Ok(old.len())
    }
}

#[async_trait]
impl Audits for Memory {
    async fn audit(&self) -> Result<Audit> {
        let state = self.lock();
        let mut audit = Audit::default();
        let mut count = |name: &str, number: usize| _ = audit.checked.insert(name.to_string(), number as u64);
        let finished = |to: RunState| state.done.values().filter(|done| done.state == to).count();
        count("runs", state.runs.len());
        count("ready", state.ready.len());
        count("scheduled", state.scheduled.len());
        count("running", state.leases.len());
        count("succeeded", finished(RunState::Succeeded));
        count("failed", finished(RunState::Failed));
        count("cancelled", finished(RunState::Cancelled));
        count("leases", state.leases.len());
        count("replicas", state.replicas.len());
        count("attempts", state.attempts.len() + state.done.values().filter(|done| done.attempt.is_some()).count());
        count("executions", state.executions.len());
        let computing: Vec<_> = state
            .executions
            .iter()
            .flat_map(|(id, row)| row.execution.nodes.keys().map(move |node| (id, node, row.execution.running(node))))
            .filter_map(|(id, node, run)| Some((*id, node, run?)))
            .collect();
        count("computing", computing.len());
        let mut violate = |guarantee: &str, subject: String, detail: String| {
            if audit.violations.len() < VIOLATION_LIMIT {
                audit.violations.push(Violation { guarantee: guarantee.to_string(), subject, detail });
            }
        };
        let scheduled: BTreeSet<_> = state.scheduled.keys().map(|(_, id)| *id).collect();
        let ready: BTreeSet<_> = state.ready.keys().map(|(.., id)| *id).collect();
        for id in state.runs.keys() {
            let places = usize::from(scheduled.contains(id))
                + usize::from(ready.contains(id))
                + usize::from(state.leases.contains_key(id))
                + usize::from(state.done.contains_key(id));
            if places != 1 {
                violate(
                    "G2",
                    id.to_string(),
                    format!("the run is in {places} of scheduled, ready, running and finished"),
                );
            }
        }
        for held in state.leases.values().filter(|held| !state.replicas.contains_key(&held.lease.replica_id)) {
            let detail = format!("its lease belongs to replica {}, which is unknown", held.lease.replica_id);
            violate("G2", held.lease.run_id.to_string(), detail);
        }
        for (id, node, run) in computing {
            let unfinished = state.runs.contains_key(&run) && !state.done.contains_key(&run);
            if !unfinished && !state.agenda.iter().any(|(_, noted)| *noted == id) {
                let detail = format!("node {node} waits for run {run}, which is over, and nobody will look");
                violate("G2", id.to_string(), detail);
            }
        }
        for (id, attempt) in state.attempts.keys() {
            let ended_again = state.done.get(id).is_some_and(|done| done.standing.attempt < *attempt)
                || state.leases.get(id).is_some_and(|held| held.lease.attempt <= *attempt);
            if ended_again {
                violate("G1", id.to_string(), format!("attempt {attempt} ended, yet an earlier one counts"));
            }
        }
        Ok(audit)
    }
}

impl Wakes for Memory {
    fn wake(&self) {
        self.wakes.send_modify(|wakes| *wakes += 1);
    }

    fn wakes(&self) -> WakeSignal {
        WakeSignal::new(self.wakes.subscribe())
    }
}
