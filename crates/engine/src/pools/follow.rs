//! Follows one attempt at its worker: hands it over, hears of it, answers, and passes on what it is told.

use super::ending::concluded;
use super::link::{Assignment, FromWorker, HeartbeatAnswer, LeaseShown, ToWorker, Why};
use super::pool::Pool;
use super::worker::Worker;
use crate::attempts::{Beat, Conclusion, Ctx, MOST_ITEM_BYTES, Post, Stop, Work};
use everbeat_model::policy::WhenIsolated;
use everbeat_model::{Ending, Json, Outcome, Reason};
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
                Some(FromWorker::Ended { how, .. }) => return concluded(ctx, work, worker, how),
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
