//! The performer of what the workers of one pool perform.

use super::end;
use super::keep::describe;
use super::link::{Assignment, Ended, FromWorker, HeartbeatAnswer, LeaseShown, ToWorker, Why};
use super::pool::Pool;
use super::worker::{Phase, Worker};
use crate::attempts::{
    Beat, Capacity, Conclusion, Ctx, Line, MOST_VALUE_BYTES, Offer, Performer, Post, Stop, Terms, Work,
};
use crate::env::within;
use async_trait::async_trait;
use everbeat_model::policy::WhenIsolated;
use everbeat_model::run::Spec;
use everbeat_model::worker::Class;
use everbeat_model::{Ending, Json, Outcome, Reason};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

#[async_trait]
impl Performer for Pool {
    fn name(&self) -> &'static str {
        if self.remote { "workers" } else { "pool" }
    }

    fn tasks(&self) -> BTreeSet<String> {
        self.state().tasks.clone()
    }

    fn knows(&self, task: &str) -> bool {
        self.state().tasks.contains(task)
    }

    fn performs(&self, spec: &Spec) -> bool {
        self.knows(&spec.task)
    }

    fn terms(&self, spec: &Spec) -> Terms {
        Terms::apart(&spec.policy)
    }

    fn capacity(&self) -> Capacity {
        let slots = match self.remote {
            true => self.workers().iter().map(|worker| worker.state().hello.slots).sum(),
            // During a replacement there are more workers than the size.
            false => (self.state().size * 2 + 1) * self.settings.slots,
        };
        Capacity { slots, setting: if self.remote { "workers" } else { "pool.size" } }
    }

    async fn offer(&self, post: &Post) -> Offer {
        if self.state().paused {
            return Offer::default();
        }
        let mut most = 0;
        let mut rooms: BTreeMap<String, usize> = BTreeMap::new();
        let mut queues: Option<BTreeSet<String>> = Some(self.settings.queues.iter().cloned().collect());
        if self.remote {
            queues = Some(BTreeSet::new());
        }
        for worker in self.workers() {
            let state = worker.state();
            let room = state.room();
            most += room;
            for task in state.hello.tasks.iter().filter(|_| room > 0) {
                *rooms.entry(task.clone()).or_default() += room;
            }
            if self.remote && room > 0 {
                match (&mut queues, state.hello.queues.is_empty()) {
                    (Some(queues), false) => queues.extend(state.hello.queues.iter().cloned()),
                    _ => queues = None,
                }
            }
        }
        // What was claimed a moment ago has no worker yet, and will take room.
        let unplaced = post.works().iter().filter(|work| work.vital().worker.is_none()).count();
        let most = most.saturating_sub(unplaced);
        let line = |(task, most): (String, usize)| Line { name: task.clone(), task, most };
        Offer { most, lines: rooms.into_iter().map(line).collect(), queues, pause: Duration::ZERO }
    }

    async fn perform(&self, post: &Post, work: &Arc<Work>) -> Option<Conclusion> {
        let lease = shown(work);
        let Some((worker, heard)) = self.engage(&lease, work.spec()) else {
            return Some(
                Ending::because(Outcome::Released, Reason::WorkerAway, "no worker had a free slot for it").into(),
            );
        };
        let ctx = post.ctx(work);
        work.performed_by(worker.id);
        let conclusion = self.follow(post, &ctx, work, &worker, lease, heard).await;
        worker.disengage(lease.token);
        self.freed(post);
        Some(conclusion)
    }

    async fn end(&self, post: &Post, work: &Arc<Work>) {
        let lease = shown(work);
        let Some(worker) = self.workers().into_iter().find(|worker| worker.route(&lease).is_some()) else { return };
        if let Some(mut heard) = worker.hear_its_end(lease.token) {
            // Whatever it was asked before, its time is over now: a checkpoint that it waits for is not answered any more.
            let why = if work.stop() == Some(Stop::Fenced) { Why::Fenced } else { Why::Judged };
            let ended = async {
                worker.tell(ToWorker::Cancel { lease, why }).await;
                loop {
                    match heard.recv().await {
                        Some(FromWorker::Ended { .. }) | None => break,
                        Some(FromWorker::Heartbeat { sequence, .. }) if sequence > 0 => {
                            let answer = HeartbeatAnswer::Cancelled;
                            worker.tell(ToWorker::HeartbeatAnswer { lease, sequence, answer }).await;
                        }
                        Some(_) => {}
                    }
                }
                worker.tell(ToWorker::EndedAnswer { lease }).await;
            };
            let ended = tokio::select! {
                biased;
                () = worker.until(|state| state.emptied.then_some(())) => Some(()),
                ended = within(&**post.env(), self.settings.grace_period, ended) => ended,
            };
            if ended.is_none() {
                self.end_worker(post, &worker, work).await;
            }
        }
        worker.disengage(lease.token);
        self.freed(post);
    }
}

impl Pool {
    /// The worker that performs a run, and where it is heard: the one with the most room.
    fn engage(&self, lease: &LeaseShown, spec: &Spec) -> Option<(Arc<Worker>, mpsc::Receiver<FromWorker>)> {
        let mut able: Vec<(usize, Arc<Worker>)> = self
            .workers()
            .into_iter()
            .filter_map(|worker| {
                let state = worker.state();
                let serves = self.serves(&state.hello.queues, &spec.queue) && state.takes(&spec.task);
                let room = state.room();
                drop(state);
                serves.then_some((room, worker))
            })
            .collect();
        able.sort_by_key(|(room, _)| std::cmp::Reverse(*room));
        able.into_iter().find_map(|(_, worker)| {
            let heard = worker.engage(lease, &spec.task)?;
            Some((worker, heard))
        })
    }

    fn serves(&self, queues: &BTreeSet<String>, queue: &str) -> bool {
        !self.remote || queues.is_empty() || queues.contains(queue)
    }

    fn freed(&self, post: &Post) {
        self.changed.notify_one();
        post.freed();
    }

    /// Hears of an attempt until its end.
    async fn follow(
        &self,
        post: &Post,
        ctx: &Ctx,
        work: &Arc<Work>,
        worker: &Arc<Worker>,
        lease: LeaseShown,
        mut heard: mpsc::Receiver<FromWorker>,
    ) -> Conclusion {
        if !worker.tell(ToWorker::Work(Box::new(assignment(work, lease)))).await {
            return Ending::because(Outcome::Released, Reason::WorkerAway, "its worker was cut off before it began")
                .into();
        }
        let mut told = false;
        loop {
            let word = tokio::select! {
                biased;
                word = heard.recv() => word,
                () = worker.dead() => return self.lost(post, work, worker).await,
                stop = ctx.stopped(), if !told => {
                    told = true;
                    worker.tell(ToWorker::Cancel { lease, why: why(stop) }).await;
                    continue;
                }
            };
            match word {
                Some(FromWorker::Ended { how, .. }) => {
                    let conclusion = concluded(ctx, how);
                    worker.tell_now(ToWorker::EndedAnswer { lease });
                    return conclusion;
                }
                Some(FromWorker::Heartbeat { sequence, done, total, note, checkpoint, next_within, .. }) => {
                    let beat = Beat { done, total, note, next_within };
                    let answer = self.beaten(ctx, beat, checkpoint).await;
                    if sequence > 0 {
                        worker.tell(ToWorker::HeartbeatAnswer { lease, sequence, answer }).await;
                    }
                }
                // A piece of its result is a sign that it advances.
                Some(FromWorker::Output { .. }) => _ = ctx.heartbeat(Beat::default()),
                Some(FromWorker::Log { level, text, .. }) => {
                    tracing::info!(target: "everbeat::worker", worker = %worker.id, run = %lease.run_id,
                        attempt = lease.attempt, level, "{text}");
                }
                Some(_) => {}
                None => {
                    let why = "its worker came back and did not know of it";
                    return Ending::because(Outcome::Released, Reason::WorkerAway, why).into();
                }
            }
        }
    }

    async fn beaten(&self, ctx: &Ctx, beat: Beat, checkpoint: Option<String>) -> HeartbeatAnswer {
        if let Some(note) = &beat.note
            && note.len() > MOST_NOTE_BYTES
        {
            return HeartbeatAnswer::Refused(format!("the note is longer than {MOST_NOTE_BYTES} bytes"));
        }
        let answer = ctx.heartbeat(beat);
        let Some(checkpoint) = checkpoint else {
            return answer.map_or_else(stopped, |()| HeartbeatAnswer::GoOn);
        };
        let value = match Json::parse(&checkpoint) {
            Ok(value) => value,
            Err(error) => return HeartbeatAnswer::Refused(format!("the checkpoint is not JSON: {error}")),
        };
        match ctx.checkpoint_json(value).await {
            Ok(()) => HeartbeatAnswer::GoOn,
            Err(stop @ (Stop::TooLarge | Stop::TooDeep | Stop::Unstorable)) => {
                HeartbeatAnswer::Refused(stop.to_string())
            }
            Err(stop) => stopped(stop),
        }
    }

    /// What becomes of an attempt whose worker is gone. Work that must not meet its successor is given up only when
    /// nothing of it can go on.
    async fn lost(&self, post: &Post, work: &Arc<Work>, worker: &Arc<Worker>) -> Conclusion {
        if work.terms.isolation {
            worker.until(|state| state.emptied.then_some(())).await;
            if worker.process.is_none() {
                // It was told until when it is vouched for, and stops by then.
                post.env().sleep_until(post.vouched_until()).await;
            }
        }
        if worker.process.is_some() {
            let spoken = worker.until(|state| state.pulse.output_over.then_some(()));
            within(&**post.env(), LAST_WORDS, spoken).await;
        }
        let now = post.env().boot();
        let state = worker.state();
        let exit = state.exit.clone().unwrap_or_default();
        let (reason, message) = match &state.sentence {
            Some(sentence) => (sentence.reason, format!("its worker was ended: {}", sentence.message)),
            None if exit.out_of_memory => {
                (Reason::WorkerOutOfMemory, "its worker was killed by the kernel for lack of memory".to_string())
            }
            None => (Reason::WorkerDied, format!("its worker {}", describe(&exit))),
        };
        let evidence = json!({
            "worker_id": worker.id,
            "pool": self.name(),
            "pid": worker.pid(),
            "exit_code": exit.code,
            "exit_signal": exit.signal,
            "out_of_memory": exit.out_of_memory,
            "class": state.sentence.as_ref().map_or(Class::Dead, |sentence| sentence.class).as_str(),
            "uptime_ms": millis(worker.uptime(now)),
            "last_heard_ms_ago": millis(now.since(state.pulse.heard)),
            "last_pong_ms_ago": state.pulse.last_pong.map(|(at, _)| millis(now.since(at))),
            "last_lines": state.last_lines,
            "stacks": state.sentence.as_ref().and_then(|sentence| sentence.stacks.clone()),
        });
        drop(state);
        Conclusion::lost(reason, &message, evidence)
    }

    /// A worker that does not end an attempt is ended itself. Whatever else it performs may finish first, for a while.
    async fn end_worker(&self, post: &Post, worker: &Arc<Worker>, work: &Arc<Work>) {
        let core = &post.life.core;
        let Some(pool) = core.pools.of_worker(worker.id) else { return };
        let alone = worker.until(|state| (state.running() <= 1 || state.phase == Phase::Dead).then_some(()));
        within(&*core.env, self.settings.grace_period, alone).await;
        let task = &work.spec().task;
        let message = format!("it did not end an attempt at {task:?} that it was told to end");
        end::sentence(core, &pool, worker, Reason::WorkerUnresponsive, Class::Stalled, message);
        worker.until(|state| state.emptied.then_some(())).await;
    }
}

/// The last words of a worker are read a moment after its end, unless something that it started keeps its output open.
const LAST_WORDS: Duration = Duration::from_millis(20);
/// Longer notes of progress are refused.
const MOST_NOTE_BYTES: usize = 16 << 10;

fn shown(work: &Work) -> LeaseShown {
    let lease = &work.claimed.lease;
    LeaseShown { run_id: lease.run_id, attempt: lease.attempt, token: lease.token }
}

fn assignment(work: &Work, lease: LeaseShown) -> Assignment {
    let spec = work.spec();
    Assignment {
        lease,
        task: spec.task.clone(),
        input: spec.input.clone(),
        checkpoint: work.claimed.checkpoint.clone(),
        deadline: spec.policy.deadline,
        args: spec.args.clone(),
        parent: spec.parent.clone(),
        stop_when_isolated: spec.policy.when_isolated == WhenIsolated::Stop,
        session: None,
        cancel_grace: spec.policy.cancel_grace,
    }
}

fn why(stop: Stop) -> Why {
    match stop {
        Stop::Cancelled => Why::Cancelled,
        Stop::Draining => Why::Draining,
        Stop::Fenced => Why::Fenced,
        Stop::Judged | Stop::TooLarge | Stop::TooDeep | Stop::Unstorable => Why::Judged,
    }
}

fn stopped(stop: Stop) -> HeartbeatAnswer {
    match stop {
        Stop::Cancelled | Stop::Judged | Stop::TooLarge | Stop::TooDeep | Stop::Unstorable => {
            HeartbeatAnswer::Cancelled
        }
        Stop::Draining => HeartbeatAnswer::Draining,
        Stop::Fenced => HeartbeatAnswer::Fenced,
    }
}

/// How an attempt ended, by its worker's word.
fn concluded(ctx: &Ctx, how: Ended) -> Conclusion {
    match how {
        Ended::Result(text) => result(&text).into(),
        Ended::Failure { message, permanent, detail } => {
            let detail = Some(detail).filter(|detail| !detail.is_empty());
            Ending::failed_with(
                &bounded(&message, MOST_NOTE_BYTES),
                permanent,
                detail.map(|detail| bounded(&detail, MOST_DETAIL_BYTES)),
            )
            .into()
        }
        Ended::Stopped => match ctx.check() {
            Err(Stop::Draining) => Ending::because(Outcome::Released, Reason::Draining, "the replica drains").into(),
            Err(Stop::Cancelled) => {
                Ending::because(Outcome::Cancelled, Reason::Cancelled, "cancelled on request").into()
            }
            _ => Ending::failed("it stopped although nobody had asked it to", false).into(),
        },
    }
}

/// Longer tracebacks are cut.
const MOST_DETAIL_BYTES: usize = 64 << 10;

fn result(text: &str) -> Ending {
    if text.len() > MOST_VALUE_BYTES {
        return Ending::failed("the result is larger than 4 MiB; store it elsewhere and return where", true);
    }
    match Json::parse(text) {
        Ok(result) => Ending::succeeded(result),
        Err(error) => Ending::failed(&format!("the result is not JSON: {error}"), true),
    }
}

/// The first so many bytes, as far as they are whole characters.
fn bounded(text: &str, most: usize) -> String {
    text[..text.floor_char_boundary(most)].to_string()
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
