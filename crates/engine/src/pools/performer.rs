//! The performer of what the workers of one pool perform.

use super::keep::describe;
use super::link::{Assignment, Ended, FromWorker, HeartbeatAnswer, LeaseShown, ToWorker, Why};
use super::pool::Pool;
use super::worker::{Left, Phase, Worker};
use super::{awake_within, end};
use crate::attempts::{
    Beat, Capacity, Conclusion, Ctx, Line, MOST_ITEM_BYTES, MOST_VALUE_BYTES, Offer, Performer, Post, Stop, Terms, Work,
};
use crate::env::{Env, within};
use async_trait::async_trait;
use everbeat_model::policy::WhenIsolated;
use everbeat_model::run::Spec;
use everbeat_model::worker::Class;
use everbeat_model::{Ending, Json, Outcome, Reason};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
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

    /// Until its guardian has ended it, or, elsewhere, until nobody vouches for it any more.
    fn outlives_process(&self) -> bool {
        true
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
        let mut rooms: BTreeMap<BTreeSet<String>, Rooms> = BTreeMap::new();
        for worker in self.workers() {
            let state = worker.state();
            let room = state.room();
            if room == 0 {
                continue;
            }
            let queues = if self.remote { &state.hello.queues } else { &self.queues };
            let rooms = rooms.entry(queues.clone()).or_default();
            rooms.most += room;
            state.hello.tasks.iter().for_each(|task| *rooms.of.entry(task.clone()).or_default() += room);
        }
        // Workers of different queues are offered one after another: what one of them may take, another may not.
        let Some((queues, mut rooms)) = self.next_turn(rooms, post) else { return Offer::default() };
        // Those have been claimed, and have no worker yet.
        let waiting = post.works().into_iter().filter(|work| work.vital().worker.is_none() && !work.over());
        for work in waiting {
            rooms.most = rooms.most.saturating_sub(1);
            rooms.of.entry(work.spec().task.clone()).and_modify(|room| *room = room.saturating_sub(1));
        }
        let line = |(task, most): (String, usize)| Line { name: task.clone(), task, most };
        let among = Some(queues).filter(|queues| !self.remote || !queues.is_empty());
        let lines = rooms.of.into_iter().map(line).collect();
        Offer { most: rooms.most, lines, queues: among, pause: Duration::ZERO }
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

    /// Its worker keeps what it came to until it is told that this was heard.
    async fn afterwards(&self, work: &Arc<Work>) {
        let id = work.vital().worker;
        if let Some(worker) = id.and_then(|id| self.worker(id)) {
            tokio::select! {
                biased;
                () = worker.dead() => {}
                _cut = worker.tell(ToWorker::EndedAnswer { lease: shown(work) }) => {}
            }
        }
    }

    async fn end(&self, post: &Post, work: &Arc<Work>) {
        let lease = shown(work);
        let Some(worker) = self.workers().into_iter().find(|worker| worker.route(&lease).is_some()) else { return };
        match worker.hear_its_end(lease.token) {
            Left::Nothing => {}
            Left::Answer => _ = worker.tell_now(ToWorker::EndedAnswer { lease }),
            Left::Goes(heard) => {
                let gone = worker.until(|state| state.emptied.then_some(()));
                tokio::select! {
                    biased;
                    () = gone => {}
                    () = self.end_attempt(post, &worker, work, heard) => {}
                }
            }
        }
        worker.disengage(lease.token);
        self.freed(post);
    }
}

/// What workers that serve the same queues have room for.
#[derive(Default)]
struct Rooms {
    most: usize,
    of: BTreeMap<String, usize>,
}

impl Pool {
    /// The workers whose turn it is to be offered. Whoever asks looks again until all have been.
    fn next_turn(&self, rooms: BTreeMap<BTreeSet<String>, Rooms>, post: &Post) -> Option<(BTreeSet<String>, Rooms)> {
        let turns = rooms.len();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % turns.max(1);
        if turn + 1 < turns {
            post.freed();
        }
        rooms.into_iter().nth(turn)
    }

    /// Asks a worker to end an attempt, over each link that it has, until it says so. A worker that hears and does not
    /// is ended itself; one that is cut off is judged for that.
    async fn end_attempt(
        &self,
        post: &Post,
        worker: &Arc<Worker>,
        work: &Arc<Work>,
        mut heard: mpsc::Receiver<FromWorker>,
    ) {
        let (env, lease) = (&**post.env(), shown(work));
        // Whatever it was asked before, its time is over now: a checkpoint that it waits for is not stored any more.
        let why = if work.stop() == Some(Stop::Fenced) { Why::Fenced } else { Why::Judged };
        loop {
            let epoch = worker.epoch();
            let ended = async {
                loop {
                    match heard.recv().await {
                        Some(FromWorker::Ended { .. }) | None => return,
                        Some(FromWorker::Heartbeat { sequence, .. }) if sequence > 0 => {
                            let answer = HeartbeatAnswer::Cancelled;
                            worker.tell(ToWorker::HeartbeatAnswer { lease, sequence, answer }).await;
                        }
                        Some(_) => {}
                    }
                }
            };
            let tell = worker.tell(ToWorker::Cancel { lease, why });
            let bounded = async {
                match awake_within(env, self.settings.grace_period, tell).await {
                    Some(true) => awake_within(env, self.settings.grace_period, ended).await,
                    Some(false) => {
                        ended.await;
                        Some(())
                    }
                    None => None,
                }
            };
            tokio::select! {
                biased;
                ended = bounded => match ended {
                    Some(()) => {
                        worker.tell_now(ToWorker::EndedAnswer { lease });
                        return;
                    }
                    None => return self.end_worker(post, worker, work).await,
                },
                () = worker.until(|state| (state.line.as_ref().map(|line| line.epoch) != epoch).then_some(())) => {}
            }
        }
    }

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
        if !worker.assign(assignment(work, lease)).await {
            return Ending::because(Outcome::Released, Reason::WorkerAway, "its worker was cut off before it began")
                .into();
        }
        let mut told = None;
        // What waits for the store, and the answer that the worker waits for. Meanwhile it is still heard that the worker
        // died, or that the attempt should stop.
        let mut storing: Option<BoxFuture<'_, Option<(u64, HeartbeatAnswer)>>> = None;
        let mut streamed = 0;
        loop {
            let listens = storing.is_none();
            let is_stored = async {
                match &mut storing {
                    Some(storing) => storing.await,
                    None => std::future::pending().await,
                }
            };
            let word = tokio::select! {
                biased;
                answer = is_stored => {
                    storing = None;
                    if let Some((sequence, answer)) = answer.filter(|(sequence, _)| *sequence > 0) {
                        worker.tell(ToWorker::HeartbeatAnswer { lease, sequence, answer }).await;
                    }
                    continue;
                }
                word = heard.recv(), if listens => word,
                () = worker.dead() => return self.lost(work, worker, &**post.env()).await,
                stop = told_anew(ctx, worker, told) => {
                    told = worker.epoch().map(|epoch| (stop, epoch));
                    worker.tell(ToWorker::Cancel { lease, why: why(stop) }).await;
                    continue;
                }
            };
            match word {
                Some(FromWorker::Ended { how, .. }) => return concluded(ctx, work, how),
                Some(FromWorker::Heartbeat { sequence, done, total, note, checkpoint, next_within, .. }) => {
                    let beat = Beat { done, total, note, next_within };
                    match beaten(ctx, beat, checkpoint) {
                        Beaten::Stores(value) => storing = Some(stored(ctx, sequence, value).map(Some).boxed()),
                        Beaten::Answered(answer) if sequence > 0 => {
                            worker.tell(ToWorker::HeartbeatAnswer { lease, sequence, answer }).await;
                        }
                        Beaten::Answered(_) => {}
                    }
                }
                Some(FromWorker::Output { sequence, item, .. }) => {
                    // After a reconnect a worker may repeat itself; one that counts nothing does not.
                    if sequence == 0 || sequence > streamed {
                        streamed = streamed.max(sequence);
                        storing = Some(keep_item(ctx, item).boxed());
                    }
                }
                Some(FromWorker::Log { level, text, .. }) => {
                    tracing::info!(target: "everbeat::worker", worker = %worker.id, run = %lease.run_id,
                        attempt = lease.attempt, level, "{text}");
                    let plain = level.is_empty() || level.eq_ignore_ascii_case("info");
                    let text = if plain { text } else { format!("{level}: {text}") };
                    storing = Some(keep_line(ctx, text).boxed());
                }
                Some(_) => {}
                None => {
                    let why = "its worker came back and did not know of it";
                    return Ending::because(Outcome::Released, Reason::WorkerAway, why).into();
                }
            }
        }
    }

    /// What becomes of an attempt whose worker is gone. Work that must not meet its successor is given up only when
    /// nothing of it can go on.
    async fn lost(&self, work: &Arc<Work>, worker: &Arc<Worker>, env: &dyn Env) -> Conclusion {
        if work.terms.isolation {
            worker.until(|state| state.emptied.then_some(())).await;
        }
        if worker.process.is_some() {
            let spoken = worker.until(|state| state.pulse.output_over.then_some(()));
            within(env, LAST_WORDS, spoken).await;
        }
        let now = env.boot();
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

/// What an attempt should hear, if it has not heard so before: over the link of that epoch, and no other. A drain gives
/// way to any other wish.
async fn told_anew(ctx: &Ctx, worker: &Worker, told: Option<(Stop, u64)>) -> Stop {
    let before = told.map(|(_, epoch)| epoch);
    let linked = worker.until(|state| state.line.as_ref().is_some_and(|line| Some(line.epoch) != before).then_some(()));
    match told {
        None => {
            let stop = ctx.stopped().await;
            linked.await;
            stop
        }
        Some((Stop::Draining, _)) => ctx.work.cancelled().await,
        Some((stop, _)) => {
            linked.await;
            stop
        }
    }
}

/// What follows a heartbeat.
enum Beaten {
    Answered(HeartbeatAnswer),
    /// It brought a checkpoint, which is to be stored before the answer.
    Stores(Json),
}

fn beaten(ctx: &Ctx, beat: Beat, checkpoint: Option<String>) -> Beaten {
    let refused = |why: String| Beaten::Answered(HeartbeatAnswer::Refused(why));
    if beat.note.as_ref().is_some_and(|note| note.len() > MOST_NOTE_BYTES) {
        return refused(format!("the note is longer than {MOST_NOTE_BYTES} bytes"));
    }
    let answer = ctx.heartbeat(beat);
    match checkpoint.map(|text| Json::parse(&text)) {
        None => Beaten::Answered(answer.map_or_else(stopped, |()| HeartbeatAnswer::GoOn)),
        Some(Ok(value)) => Beaten::Stores(value),
        Some(Err(error)) => refused(format!("the checkpoint is not JSON: {error}")),
    }
}

/// Stores a checkpoint, and says whether it is stored: what the worker should do besides, it is told otherwise.
async fn stored(ctx: &Ctx, sequence: u64, value: Json) -> (u64, HeartbeatAnswer) {
    let answer = match ctx.store_checkpoint(value).await {
        Ok(()) => HeartbeatAnswer::GoOn,
        Err(stop @ (Stop::TooLarge | Stop::TooDeep | Stop::Unstorable)) => HeartbeatAnswer::Refused(stop.to_string()),
        Err(stop) => stopped(stop),
    };
    (sequence, answer)
}

/// A piece of the result of an attempt. One that cannot be taken is told in the log of the attempt.
async fn keep_item(ctx: &Ctx, item: String) -> Option<(u64, HeartbeatAnswer)> {
    let bytes = item.len();
    let refused = match Json::parse(&item) {
        _ if bytes > MOST_ITEM_BYTES => format!("it has {bytes} bytes; at most {MOST_ITEM_BYTES} are taken"),
        Err(error) => format!("it is not JSON: {error}"),
        Ok(item) => match ctx.output_json(&item).await {
            Err(stop @ (Stop::TooLarge | Stop::TooDeep)) => stop.to_string(),
            // Whether the attempt should stop, its worker is told elsewhere.
            _ => return None,
        },
    };
    keep_line(ctx, format!("everbeat: an item of output was refused: {refused}")).await
}

async fn keep_line(ctx: &Ctx, text: String) -> Option<(u64, HeartbeatAnswer)> {
    let _stop = ctx.log(&text).await;
    None
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
fn concluded(ctx: &Ctx, work: &Work, how: Ended) -> Conclusion {
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
            _ if work.terms.isolation => {
                let why = "stopped by its worker: its replica did not vouch for it in time";
                Conclusion::lost(Reason::Isolated, why, json!({ "worker_id": work.vital().worker }))
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
