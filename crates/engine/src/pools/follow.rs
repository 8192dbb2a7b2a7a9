//! Follows one attempt at its worker: hands it over, hears of it, answers, and passes on what it is told.

use super::ending::concluded;
use super::link::{Assignment, FromWorker, HeartbeatAnswer, LeaseShown, SessionShown, ToWorker, Why};
use super::pool::Pool;
use super::streamed::{Kept, Streamed, keep_item};
use super::worker::Worker;
use crate::attempts::{Beat, Conclusion, Ctx, Post, Stop, Work};
use everbeat_model::policy::WhenIsolated;
use everbeat_model::{Ending, Hole, Json, Outcome, Reason};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Longer notes of progress are refused.
pub(super) const MOST_NOTE_BYTES: usize = 16 << 10;

impl Pool {
    /// Hears of an attempt until its end.
    pub(super) async fn follow(
        &self,
        post: &Post,
        ctx: &Ctx,
        work: &Arc<Work>,
        worker: &Arc<Worker>,
        lease: LeaseShown,
        (session, mut heard): (Option<SessionShown>, mpsc::Receiver<FromWorker>),
    ) -> Conclusion {
        if !worker.assign(assignment(work, lease, session)).await {
            return Ending::because(Outcome::Released, Reason::WorkerAway, "its worker was cut off before it began")
                .into();
        }
        let mut told = None;
        // What waits for the store, and the answer that the worker waits for. Meanwhile it is still heard that the worker
        // died, or that the attempt should stop.
        let mut storing: Option<BoxFuture<'_, Stored>> = None;
        let mut streamed = Streamed::default();
        let mut answering: Option<BoxFuture<'_, ()>> = None;
        loop {
            let listens = storing.is_none();
            if listens && answering.is_none() {
                answering = streamed.answer(ctx, worker, lease);
            }
            let is_answered = async {
                match &mut answering {
                    Some(answering) => answering.await,
                    None => std::future::pending().await,
                }
            };
            let is_stored = async {
                match &mut storing {
                    Some(storing) => storing.await,
                    None => std::future::pending().await,
                }
            };
            let word = tokio::select! {
                biased;
                stored = is_stored => {
                    storing = None;
                    match stored {
                        Stored::Checkpoint(0, _) | Stored::Nothing => {}
                        Stored::Checkpoint(sequence, answer) => {
                            worker.tell(ToWorker::HeartbeatAnswer { lease, sequence, answer }).await;
                        }
                        Stored::Item(sequence) => streamed.kept(sequence),
                    }
                    continue;
                }
                () = is_answered => {
                    answering = None;
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
                Some(FromWorker::Ended { how, .. }) => return concluded(ctx, work, worker, how),
                Some(FromWorker::Heartbeat { sequence, done, total, note, checkpoint, next_within, .. }) => {
                    let beat = Beat { done, total, note, next_within };
                    match beaten(ctx, beat, checkpoint) {
                        Beaten::Stores(value) => storing = Some(store(ctx, sequence, value).boxed()),
                        Beaten::Answered(answer) if sequence > 0 => {
                            worker.tell(ToWorker::HeartbeatAnswer { lease, sequence, answer }).await;
                        }
                        Beaten::Answered(_) => {}
                    }
                }
                Some(FromWorker::Output { sequence, item, .. }) => {
                    let new = streamed.hear(sequence);
                    if new || post.life.core.settings.hole.is(Hole::OutputRepeated) {
                        let stored = move |kept| match kept {
                            Kept::Yes => Stored::Item(sequence),
                            Kept::No => Stored::Nothing,
                        };
                        storing = Some(keep_item(ctx, item).map(stored).boxed());
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

/// What was stored, or taken to be.
enum Stored {
    /// The number of its heartbeat, and what is said of it.
    Checkpoint(u64, HeartbeatAnswer),
    /// The item of this number is dealt with.
    Item(u64),
    Nothing,
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
async fn store(ctx: &Ctx, sequence: u64, value: Json) -> Stored {
    let answer = match ctx.store_checkpoint(value).await {
        Ok(()) => HeartbeatAnswer::GoOn,
        Err(stop @ (Stop::TooLarge | Stop::TooDeep | Stop::Unstorable)) => HeartbeatAnswer::Refused(stop.to_string()),
        Err(stop) => stopped(stop),
    };
    Stored::Checkpoint(sequence, answer)
}

async fn keep_line(ctx: &Ctx, text: String) -> Stored {
    let _stop = ctx.log(&text).await;
    Stored::Nothing
}

fn assignment(work: &Work, lease: LeaseShown, session: Option<SessionShown>) -> Assignment {
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
        session,
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
