//! The owner's judgement of its own attempts, on its own boot clock: silent, stalled, past the
//! deadline, past the grace of a cancel, or cut off from the store for too long.

use super::conclusion::Conclusion;
use super::work::{Condemned, Work};
use crate::Stop;
use crate::replica::Life;
use everbeat_model::time::format_duration;
use everbeat_model::verdict::Judgement;
use everbeat_model::{BootInstant, Outcome, Reason};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

pub(crate) async fn run(life: Arc<Life>) {
    let env = life.core.env.clone();
    // The renewal after which isolated work was stopped: once is enough.
    let mut stopped_after = None;
    loop {
        let renewed = life.pulse().renewed;
        let (timer, isolation) = {
            let table = life.table();
            let watched = table.any_stops_when_isolated() && stopped_after != Some(renewed);
            (table.next_timer(), watched.then(|| renewed + life.core.settings.renew_deadline()))
        };
        // In slices: a stall within a longer sleep would not be seen, and the clock that timers run on
        // may stop while the machine is suspended.
        let slice = env.boot() + life.core.settings.idle_limit();
        let asked = [timer, isolation].into_iter().flatten().min().map(|at| at.min(slice));
        let wait = async {
            match asked {
                Some(at) => env.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = life.rearmed.notified() => {}
            () = wait => {}
        }
        let now = env.boot();
        // Woken much later than asked, this loop itself was away; what it did not see does not count.
        let lag = asked.filter(|asked| now > *asked).map_or(Duration::ZERO, |asked| now.since(asked));
        let renewed = life.pulse().renewed;
        if isolation.is_some() && now >= renewed + life.core.settings.renew_deadline() {
            stop_isolated(&life, now);
            stopped_after = Some(renewed);
        }
        let due = life.table().take_due(now);
        for work in due {
            match judgement(&work, now, lag) {
                Some((conclusion, stop)) => condemn(&life, &work, conclusion, stop),
                None => work.kill_if_over(now),
            }
            if let Some(at) = work.next_check() {
                life.table().arm(at.max(now + SHORTEST_LOOK), work.token());
            }
        }
    }
}

const SHORTEST_LOOK: Duration = Duration::from_millis(1);

impl Life {
    /// Looks at an attempt's timers anew.
    pub(crate) fn rearm(&self, work: &Work) {
        if let Some(at) = work.next_check() {
            self.table().arm(at, work.token());
            self.rearmed.notify_one();
        }
    }
}

/// How a condemned performer is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopping {
    AtOnce,
    /// The attempt is asked to stop, and has the grace of its terms.
    Asked,
}

/// What is due for this attempt now, if anything.
fn judgement(work: &Work, now: BootInstant, lag: Duration) -> Option<(Conclusion, Stopping)> {
    let terms = &work.terms;
    let mut vital = work.vital();
    if vital.decided {
        return None;
    }
    if let Some((asked, grace)) = vital.cancel_asked.zip(terms.grace)
        && now.since(asked) >= grace
    {
        let message = format!("cancelled on request; it did not stop within {}", format_duration(grace));
        let evidence = json!({ "cancel_asked_ms_ago": millis(now.since(asked)), "cancel_grace_ms": millis(grace) });
        let judged =
            Conclusion::because((Outcome::Cancelled, Judgement::Cancelled), Reason::CancelGrace, &message, evidence);
        return Some((judged, Stopping::AtOnce));
    }
    if let Some(deadline) = terms.deadline
        && now.since(work.started) >= deadline
    {
        let message = format!("ran longer than its deadline of {}", format_duration(deadline));
        let evidence = json!({
            "ran_ms": millis(now.since(work.started)),
            "deadline_ms": millis(deadline),
            "last_heartbeat_ms_ago": millis(now.since(vital.last_beat)),
        });
        let judged =
            Conclusion::because((Outcome::TimedOut, Judgement::TimedOut), Reason::Deadline, &message, evidence);
        return Some((judged, Stopping::Asked));
    }
    if let Some(timeout) = terms.silence {
        let allowed = timeout.max(vital.promised.unwrap_or_default());
        if lag > timeout / 2 || vital.checkpoints_waiting > 0 || vital.items_waiting > 0 {
            vital.last_beat = now;
        } else if now.since(vital.last_beat) >= allowed {
            let silent = now.since(vital.last_beat);
            let message = format!("no heartbeat for {}", format_duration(allowed));
            let evidence = json!({
                "silent_for_ms": millis(silent),
                "heartbeat_timeout_ms": millis(timeout),
                "promised_silence_ms": vital.promised.map(millis),
            });
            let judged = Conclusion::lost(Reason::AttemptSilent, &message, evidence);
            return Some((judged, Stopping::Asked));
        }
    }
    if let Some(timeout) = terms.stall {
        // Who waits until the store takes what it streams does not stand still by itself.
        if lag > timeout / 2 || vital.items_waiting > 0 {
            vital.last_progress = now;
        } else if now.since(vital.last_progress) >= timeout {
            let message = format!("no progress for {}", format_duration(timeout));
            let evidence = json!({
                "stalled_for_ms": millis(now.since(vital.last_progress)),
                "stall_timeout_ms": millis(timeout),
                "last_progress": vital.progress,
            });
            let judged =
                Conclusion::because((Outcome::Stalled, Judgement::Stalled), Reason::NoProgress, &message, evidence);
            return Some((judged, Stopping::Asked));
        }
    }
    None
}

/// Settles the attempt as judged and stops its performer, which keeps its slot until it has ended.
fn condemn(life: &Arc<Life>, work: &Arc<Work>, conclusion: Conclusion, stopping: Stopping) {
    let now = match work.condemn(conclusion) {
        Condemned::Already => return,
        Condemned::AfterItsEnd => None,
        Condemned::Now(conclusion) => Some(conclusion),
    };
    // The attempt is told first: from here on no heartbeat is answered as if it counted.
    match (stopping, work.terms.grace) {
        (Stopping::AtOnce, _) | (Stopping::Asked, Some(Duration::ZERO)) => work.kill(Stop::Judged),
        (Stopping::Asked, grace) => {
            work.ask_stop(Stop::Judged);
            work.vital().kill_at = grace.map(|grace| life.core.env.boot() + grace);
        }
    }
    if let Some(conclusion) = now {
        life.settle(work, conclusion);
    }
}

fn stop_isolated(life: &Arc<Life>, now: BootInstant) {
    let renewed = life.pulse().renewed;
    let all = life.table().all();
    for work in all.iter().filter(|work| work.terms.isolation && !work.vital().decided) {
        let evidence = json!({
            "replica_id": life.id,
            "renewed_ms_ago": millis(now.since(renewed)),
            "renew_deadline_ms": millis(life.core.settings.renew_deadline()),
        });
        let judged = Conclusion::lost(Reason::Isolated, "stopped: its replica could not renew in time", evidence);
        condemn(life, work, judged, Stopping::AtOnce);
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
