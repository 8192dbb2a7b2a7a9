//! How an attempt ends that a worker performs: by the worker's word, with the worker, or because it is made to end.

use super::follow::MOST_NOTE_BYTES;
use super::keep::describe;
use super::link::{Ended, FromWorker, HeartbeatAnswer, ToWorker, Why};
use super::performer::shown;
use super::pool::Pool;
use super::worker::{Phase, Worker};
use super::{awake_within, end};
use crate::attempts::{Conclusion, Ctx, MOST_VALUE_BYTES, Post, Stop, Work};
use crate::env::{Env, within};
use everbeat_model::worker::Class;
use everbeat_model::{Ending, Json, Outcome, Reason};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// The last words of a worker are read a moment after its end, unless something that it started keeps its output open.
const LAST_WORDS: Duration = Duration::from_millis(20);

impl Pool {
    /// What becomes of an attempt whose worker is gone. Work that must not meet its successor is given up only when
    /// nothing of it can go on.
    pub(super) async fn lost(&self, work: &Arc<Work>, worker: &Arc<Worker>, env: &dyn Env) -> Conclusion {
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
            None => {
                let was = if exit.signal.is_some() { "was " } else { "" };
                let starved = exit.out_of_memory.is_likely();
                let reason = if starved { Reason::WorkerOutOfMemory } else { Reason::WorkerDied };
                (reason, format!("its worker {was}{}", describe(&exit)))
            }
        };
        let evidence = json!({
            "worker_id": worker.id,
            "pool": self.name(),
            "pid": worker.pid(),
            "exit_code": exit.code,
            "exit_signal": exit.signal,
            "out_of_memory": exit.out_of_memory.is_likely(),
            "out_of_memory_counted_by": exit.out_of_memory.counted_by(),
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

    /// Asks a worker to end an attempt, over each link that it has, until it says so. A worker that hears and does not
    /// is ended itself; one that is cut off is judged for that.
    pub(super) async fn end_attempt(
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

/// How an attempt ended, by its worker's word.
pub(super) fn concluded(ctx: &Ctx, work: &Work, worker: &Worker, how: Ended) -> Conclusion {
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
            // The attempt reached a worker that was about to go.
            _ if worker.state().phase == Phase::Draining => {
                Ending::because(Outcome::Released, Reason::WorkerAway, "its worker takes nothing new").into()
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
