//! Endings that the store could not take, each with its own pace: they hold up nobody, are seen, and in the end give
//! way to a failure that can be stored.

use super::settle::Unstored;
use crate::replica::Life;
use everbeat_model::time::format_duration;
use everbeat_model::{BootInstant, Ending, Outcome, Reason};
use everbeat_store::Error as StoreError;
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
const WARN_AGAIN: Duration = Duration::from_secs(300);
/// About the size of an ending that says only why there is no other. No smaller ending gives way to such a one.
pub(crate) const SMALL_BYTES: usize = 1024;
/// Endings held beyond this keep their slots, so that no more of them come. (A result has 4 MiB at most.)
const MOST_BYTES: usize = 64 << 20;
const MOST: usize = 1000;

/// How it stands with an ending that could not be stored.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) since: BootInstant,
    pub(crate) tries: u32,
    pub(crate) next: BootInstant,
    pub(crate) error: StoreError,
    /// How long others could be stored while this one could not.
    spent: Duration,
    last_try: BootInstant,
    last_warned: BootInstant,
    /// The attempt fails for that reason; what was to be stored first is gone.
    gave_way: bool,
}

/// What is told of an ending that is held.
#[derive(Clone, Debug)]
pub(crate) struct HeldEnding {
    pub(crate) outcome: Outcome,
    pub(crate) bytes: usize,
    pub(crate) hold: Hold,
}

/// Notes that this ending could not be stored just now. `tested`: the ending was tried, and by itself.
pub(crate) fn hold(
    life: &Life,
    mut unstored: Unstored,
    error: &StoreError,
    stored_at: BootInstant,
    tested: bool,
) -> Unstored {
    let now = life.core.env.boot();
    let first = Hold {
        since: now,
        tries: 0,
        next: now,
        error: error.clone(),
        spent: Duration::ZERO,
        last_try: now,
        last_warned: now,
        gave_way: false,
    };
    let is_new = unstored.hold.is_none();
    let mut hold = unstored.hold.take().unwrap_or(first);
    hold.error = error.clone();
    if tested {
        hold.tries += 1;
        if stored_at > hold.last_try {
            hold.spent += now.since(hold.last_try);
        }
        hold.last_try = now;
    }
    let pause = FIRST_PAUSE * 2_u32.saturating_pow(hold.tries.saturating_sub(1).min(16));
    hold.next = now + life.core.env.jittered(pause.min(LONGEST_PAUSE));
    if is_new || now.since(hold.last_warned) >= WARN_AGAIN {
        hold.last_warned = now;
        let lease = &unstored.work.claimed.lease;
        tracing::warn!(run = %lease.run_id, attempt = lease.attempt, outcome = unstored.ending.outcome.as_str(),
            bytes = unstored.bytes(), tries = hold.tries, %error, "an ending cannot be stored; it is kept and tried again");
    }
    let patience = life.core.settings.store_patience;
    if hold.spent >= patience && unstored.leave_words() {
        let lease = &unstored.work.claimed.lease;
        tracing::error!(run = %lease.run_id, attempt = lease.attempt, tries = hold.tries, %error,
            "what an attempt streamed last could not be stored while other endings could, and is left out");
        (hold.spent, hold.next) = (Duration::ZERO, now);
    } else if hold.spent >= patience && !hold.gave_way && unstored.ending.bytes() > SMALL_BYTES {
        give_way(&mut unstored, &mut hold, error, now);
    }
    if life.table().hold(&unstored.work, told(&unstored, &hold)) {
        life.crew(unstored.work.crew).freed.notify_one();
    }
    unstored.hold = Some(hold);
    unstored
}

/// Fails the attempt with the reason: other endings could be stored all the time, so the fault lies in this one.
fn give_way(unstored: &mut Unstored, hold: &mut Hold, error: &StoreError, now: BootInstant) {
    let lease = &unstored.work.claimed.lease;
    let (outcome, bytes, tried) = (unstored.ending.outcome.as_str(), unstored.ending.bytes(), hold.tries);
    let span = format_duration(Duration::from_secs(now.since(hold.since).as_secs()));
    tracing::error!(run = %lease.run_id, attempt = lease.attempt, outcome, bytes, tried, %error,
        "an ending could not be stored while others could: its attempt fails for that");
    let message = format!(
        "it {outcome}, but its ending of {bytes} bytes could not be stored in {tried} tries over {span}: {error}"
    );
    unstored.ending = Ending {
        permanent: unstored.ending.permanent,
        ..Ending::because(Outcome::Failed, Reason::NotStored, &message)
    };
    unstored.draft = None;
    hold.gave_way = true;
    hold.next = now;
}

fn told(unstored: &Unstored, hold: &Hold) -> HeldEnding {
    HeldEnding { outcome: unstored.ending.outcome, bytes: unstored.bytes(), hold: hold.clone() }
}

impl HeldEnding {
    /// For whoever asks why the run still runs.
    pub(crate) fn describe(&self, attempt: u32, now: BootInstant) -> String {
        let next = if self.hold.next > now { self.hold.next.since(now) } else { Duration::ZERO };
        let (times, tries) = (if self.hold.tries == 1 { "time" } else { "times" }, self.hold.tries);
        format!(
            "attempt {attempt} has ended ({}), but its ending cannot be stored: {}; tried {tries} {times} in {}, next in {}",
            self.outcome.as_str(),
            self.hold.error,
            seconds(now.since(self.hold.since)),
            seconds(next),
        )
    }
}

fn seconds(span: Duration) -> String {
    format!("{} s", span.as_secs_f64().ceil())
}

/// Whether one more may be held without its slot.
pub(crate) fn room(count: usize, bytes: usize) -> bool {
    count < MOST && bytes < MOST_BYTES
}
