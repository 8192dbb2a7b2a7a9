//! The net under shims: those that nobody's lease stands for any more are ended. Nothing should ever be in it, but for
//! what a failover, or a host that comes back too late, leaves.

use super::Found;
use super::shims::{Finding, JobAttempt, LAST_WORD, Shims, StopReason, WithoutFolder};
use crate::replica::{Life, Turn};
use crate::{Stop, figures};
use everbeat_model::verdict::{Judgement, Subject, SubjectKind};
use everbeat_model::{Attempt, Json, Outcome, Reason, RunId, Verdict, VerdictId};
use everbeat_store::{Class, Error as StoreError, Obstacle, Which};
use futures_util::FutureExt;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const BATCH: usize = 500;
/// So long a stray may take to end, besides its grace; then it is killed.
const END_WITHIN: Duration = Duration::from_secs(10);
const SLICE: Duration = Duration::from_millis(100);

/// Shims of this host that hold their locks for a lease which does not stand any more. A host that came back
/// too late finds such, and a replica whose lease a failover took back: what they do counts for nothing.
pub(super) async fn stop(life: &Arc<Life>, shims: &Arc<dyn Shims>) -> Result<(), StoreError> {
    let core = &life.core;
    let held = shims.held().await.map_err(|error| {
        tracing::warn!(%error, "the folder of jobs cannot be looked through");
        StoreError::unavailable(Obstacle::Io, error)
    })?;
    let mut strays = Vec::new();
    for chunk in held.chunks(BATCH) {
        let runs: Vec<RunId> = chunk.iter().map(|attempt| attempt.job).collect();
        let leases = life.call_in(Turn::Sweep, core.store.held(Which::Of(runs))).await?;
        let stands = |attempt: &JobAttempt| leases.iter().any(|held| held.lease.token == attempt.token);
        for attempt in chunk.iter().filter(|attempt| !stands(attempt)) {
            let watched = life.table().get(attempt.token);
            if let Some(work) = watched {
                if !work.forsake() {
                    continue;
                }
                work.kill(Stop::Fenced);
                life.table().settled(&work);
            }
            let run = match life.call_in(Turn::Sweep, core.store.run(attempt.job)).await {
                Err(error) if error.class() == Class::Bug => {
                    // One row that cannot be read hides no other.
                    tracing::error!(job = %attempt.job, %error, "the run of a live job cannot be read");
                    continue;
                }
                run => run?,
            };
            match run {
                Some(_) => strays.push(JobAttempt { tenure: LAST_WORD, ..attempt.clone() }),
                None => tracing::warn!(job = %attempt.job, "a live job is not known to the store; it is left alone"),
            }
        }
    }
    let (mut stopping, mut verdicts) = (Vec::new(), Vec::new());
    for stray in strays {
        life.turned(Turn::Sweep);
        let settled = life.call_in(Turn::Sweep, core.store.was_settled(vec![(stray.job, stray.token)])).await?;
        let attempts = life.call_in(Turn::Sweep, core.store.attempts(stray.job)).await?;
        let lost = |ended: &Attempt| ended.attempt == stray.attempt && ended.outcome == Some(Outcome::Lost);
        let given_up = attempts.iter().any(lost);
        // Its end is stored, and nobody told its shim.
        let counts = settled == [true] && !given_up;
        match shims.examine(&stray).await {
            Finding::Exited(_) => {
                if given_up {
                    verdicts.push(fenced(life, &stray, Reason::LateResult, "its result counts for nothing"));
                }
                shims.acknowledge(&stray).await;
            }
            _ if counts => stopping.push(stray),
            _ => {
                let then = "told to stop; its result counts for nothing";
                verdicts.push(fenced(life, &stray, Reason::LateReturn, then));
                core.jobs.found(stray.token, stray.job, Found::Stray, "its lease had passed on: told to stop");
                stopping.push(stray);
            }
        }
    }
    if !verdicts.is_empty() {
        life.call_in(Turn::Sweep, core.store.record(verdicts)).await?;
    }
    if stopping.is_empty() {
        return Ok(());
    }
    let (env, shims, grace) = (core.env.clone(), shims.clone(), core.settings.jobs.stop_grace);
    let ends = async move {
        for stray in stopping {
            end(&*env, &*shims, &stray, grace).await;
        }
    };
    life.keep(core.env.spawn("strays", ends.boxed()));
    Ok(())
}

/// Asks until it has ended, or hangs.
pub(super) async fn end(env: &dyn crate::Env, shims: &dyn Shims, stray: &JobAttempt, grace: Duration) {
    let until = env.boot() + grace + END_WITHIN;
    loop {
        match shims.examine(stray).await {
            Finding::Exited(_) => return shims.acknowledge(stray).await,
            Finding::Live(_) | Finding::Hung if env.boot() < until => {
                let _asked_again_below = shims.stop(stray, StopReason::Fenced, grace).await;
            }
            Finding::Live(_) | Finding::Hung => {
                let _fenced_below = shims.kill(stray).await;
                let _it_is_nobodys = shims.fence(stray, WithoutFolder::LeaveIt).await;
                return;
            }
            Finding::NotStarted | Finding::Missing | Finding::Gone | Finding::Rebooted => {
                let _it_is_nobodys = shims.fence(stray, WithoutFolder::LeaveIt).await;
                return;
            }
            Finding::Unknown(_) if env.boot() < until => {}
            Finding::Fenced | Finding::Unknown(_) => return,
        }
        env.sleep(SLICE).await;
    }
}

fn fenced(life: &Life, stray: &JobAttempt, reason: Reason, then: &str) -> Verdict {
    tracing::warn!(job = %stray.job, attempt = stray.attempt, reason = reason.as_str(),
        "nobody's lease stands for a job any more");
    metrics::counter!("everbeat_fenced_writes_total").increment(1);
    figures::judged(Judgement::Fenced, reason);
    Verdict {
        id: VerdictId(life.core.new_id()),
        at: life.core.now(),
        subject: Subject { kind: SubjectKind::Run, id: stray.job.to_string() },
        judgement: Judgement::Fenced,
        reason: reason.to_string(),
        evidence: Json::of(&json!({ "host": life.core.settings.host, "found_by": "start", "shim": "holds its lock" })),
        judged_by: life.id,
        run_id: Some(stray.job),
        attempt: Some(stray.attempt),
        then: then.to_string(),
    }
}
