//! The owner's judgement of its own attempts, on its own boot clock: silent, stalled, past the
//! deadline, past the grace of a cancel, or cut off from the store for too long.

use crate::Stop;
use crate::life::Life;
use crate::perform::{Condemned, Entry};
use crate::settle::Draft;
use everbeat_model::policy::HeartbeatMode;
use everbeat_model::time::format_duration;
use everbeat_model::verdict::Judgement;
use everbeat_model::{BootInstant, Ending, Outcome};
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
            stop_isolated(&life, now).await;
            stopped_after = Some(renewed);
        }
        let due = life.table().take_due(now);
        for entry in due {
            match judgement(&entry, now, lag) {
                Some((ending, draft, grace)) => condemn(&life, &entry, ending, draft, grace).await,
                None => entry.kill_if_over(now),
            }
            if let Some(at) = entry.next_check() {
                life.table().arm(at.max(now + SHORTEST_LOOK), entry.token());
            }
        }
    }
}

const SHORTEST_LOOK: Duration = Duration::from_millis(1);

impl Life {
    /// Looks at an attempt's timers anew.
    pub(crate) fn rearm(&self, entry: &Entry) {
        if let Some(at) = entry.next_check() {
            self.table().arm(at, entry.token());
            self.rearmed.notify_one();
        }
    }
}

type Judged = (Ending, Draft, Duration);

/// What is due for this attempt now, if anything: its ending, its verdict, and how long its performer
/// may take to stop.
fn judgement(entry: &Entry, now: BootInstant, lag: Duration) -> Option<Judged> {
    let policy = &entry.claimed.spec.policy;
    let mut vital = entry.vital();
    if vital.judged {
        return None;
    }
    let grace = policy.cancel_grace;
    let attached = !entry.detached();
    if let Some(asked) = vital.cancel_asked.filter(|_| attached)
        && now.since(asked) >= grace
    {
        let message = format!("cancelled on request; it did not stop within {}", format_duration(grace));
        let ending = Ending::because(Outcome::Cancelled, "cancel_grace", &message);
        let evidence =
            serde_json::json!({ "cancel_asked_ms_ago": millis(now.since(asked)), "cancel_grace_ms": millis(grace) });
        return Some((
            ending,
            Draft { judgement: Judgement::Cancelled, reason: "cancel_grace", evidence },
            Duration::ZERO,
        ));
    }
    if let Some(deadline) = policy.deadline.filter(|_| attached)
        && now.since(entry.started) >= deadline
    {
        let message = format!("ran longer than its deadline of {}", format_duration(deadline));
        let evidence = serde_json::json!({
            "ran_ms": millis(now.since(entry.started)),
            "deadline_ms": millis(deadline),
            "last_heartbeat_ms_ago": millis(now.since(vital.last_beat)),
        });
        let ending = Ending::because(Outcome::TimedOut, "deadline", &message);
        return Some((ending, Draft { judgement: Judgement::TimedOut, reason: "deadline", evidence }, grace));
    }
    if let Some(timeout) = policy.heartbeat_timeout.filter(|_| attached && policy.heartbeat == HeartbeatMode::Manual) {
        let allowed = timeout.max(vital.promised.unwrap_or_default());
        if lag > timeout / 2 || vital.checkpoints_waiting > 0 {
            vital.last_beat = now;
        } else if now.since(vital.last_beat) >= allowed {
            let silent = now.since(vital.last_beat);
            let message = format!("no heartbeat for {}", format_duration(allowed));
            let evidence = serde_json::json!({
                "silent_for_ms": millis(silent),
                "heartbeat_timeout_ms": millis(timeout),
                "promised_silence_ms": vital.promised.map(millis),
            });
            let ending = Ending::because(Outcome::Lost, "attempt_silent", &message);
            return Some((ending, Draft { judgement: Judgement::Lost, reason: "attempt_silent", evidence }, grace));
        }
    }
    if let Some(timeout) = policy.stall_timeout {
        if lag > timeout / 2 {
            vital.last_progress = now;
        } else if now.since(vital.last_progress) >= timeout {
            let message = format!("no progress for {}", format_duration(timeout));
            let evidence = serde_json::json!({
                "stalled_for_ms": millis(now.since(vital.last_progress)),
                "stall_timeout_ms": millis(timeout),
                "last_progress": vital.progress,
            });
            let ending = Ending::because(Outcome::Stalled, "no_progress", &message);
            return Some((ending, Draft { judgement: Judgement::Stalled, reason: "no_progress", evidence }, grace));
        }
    }
    None
}

/// Settles the attempt as judged and stops its performer, which keeps its slot until it has ended.
async fn condemn(life: &Arc<Life>, entry: &Arc<Entry>, ending: Ending, draft: Draft, grace: Duration) {
    match entry.condemn(ending, Some(draft)) {
        Condemned::Already => return,
        Condemned::AfterItsEnd => {}
        Condemned::Now(ending, draft) => life.settle(entry, ending, draft).await,
    }
    if grace.is_zero() {
        entry.kill(Stop::Judged);
        return;
    }
    entry.ask_stop(Stop::Judged);
    if entry.detached() {
        // Its watcher stays until it has seen the end.
        return;
    }
    entry.vital().kill_at = Some(life.core.env.boot() + grace);
}

async fn stop_isolated(life: &Arc<Life>, now: BootInstant) {
    let renewed = life.pulse().renewed;
    let entries = life.table().all();
    // A shim keeps that time itself.
    let stops = |entry: &&Arc<Entry>| entry.stops_when_isolated() && !entry.detached() && !entry.vital().judged;
    for entry in entries.iter().filter(stops) {
        let ending = Ending::because(Outcome::Lost, "isolated", "stopped: its replica could not renew in time");
        let evidence = serde_json::json!({
            "replica_id": life.id,
            "renewed_ms_ago": millis(now.since(renewed)),
            "renew_deadline_ms": millis(life.core.settings.renew_deadline()),
        });
        let draft = Draft { judgement: Judgement::Lost, reason: "isolated", evidence };
        condemn(life, entry, ending, draft, Duration::ZERO).await;
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
