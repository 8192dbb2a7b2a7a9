//! What a worker process is judged to be, from the signs that it gives. Pure: who watches hands in what was seen.

mod looks;

pub use looks::Looks;

use crate::spelled::spelled;
use crate::time::BootInstant;
use looks::LEAST_LOOKS;
use std::time::Duration;

spelled! {
    /// What the signs of a worker say of it.
    pub enum Class {
        /// It has not said hello yet.
        Starting = "starting",
        /// It answers.
        Alive = "alive",
        /// It has been silent for longer than it usually is.
        Suspect = "suspect",
        /// It does not answer, and computes.
        Busy = "busy",
        /// It does not answer, and waits for a processor or for the kernel.
        Starved = "starved",
        /// It was stopped by a signal or a debugger.
        Stopped = "stopped",
        /// It does not answer, and does nothing.
        Hung = "hung",
        /// It answers, and its work makes no progress.
        Stalled = "stalled",
        /// Its link is cut, and it may come back.
        CutOff = "cut_off",
        /// Its process has ended, or it is gone for good.
        Dead = "dead",
    }
}

/// How patient whoever watches is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    pub ping_interval: Duration,
    /// Silence for so long makes a worker one to be judged, if it owes enough pongs.
    pub ping_timeout: Duration,
    pub max_missed: u32,
    /// A worker that was not pinged for so long has ended itself, or will when it can.
    pub worker_ttl: Duration,
}

/// What was seen of a worker since it was last heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Silence {
    /// How long it has said nothing, by the watcher's own clock and without the watcher's own stalls.
    pub lasted: Duration,
    /// How many pings were due since, and are not answered.
    pub missed: u32,
    /// Whether its transport answered meanwhile: its kernel and its network work, whatever its program does.
    pub transport: bool,
    /// What its process was seen to do, if that can be seen.
    pub seen: Option<Seen>,
}

/// What a process did, by the latest looks since the worker was last heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Seen {
    pub looks: u32,
    /// The last look found it stopped.
    pub stopped_now: bool,
    /// For how long, as far as it was seen.
    pub stopped_for: Duration,
    /// Looks that found it on a processor, or waiting for one, or blocked in the kernel.
    pub wanting: u32,
    /// CPU time that it took from the first of these looks to the last.
    pub cpu: Duration,
    /// How long that was.
    pub over: Duration,
}

/// What to do about a silent worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sentence {
    Wait,
    End,
}

/// CPU time above this share of the time means that a worker computes.
const COMPUTES: f64 = 0.02;

impl Silence {
    /// Whether it has lasted long enough to be judged.
    pub fn judged(&self, patience: &Patience) -> bool {
        self.lasted >= patience.ping_timeout && self.missed >= patience.max_missed
    }

    /// What the silence says of a worker that has said hello.
    pub fn class(&self, patience: &Patience, suspicion: &Suspicion) -> Class {
        if let Some(seen) = self.seen
            && seen.stopped_now
        {
            return Class::Stopped;
        }
        if !self.judged(patience) {
            return if suspicion.suspects(self.lasted) { Class::Suspect } else { Class::Alive };
        }
        match self.seen {
            Some(seen) if seen.looks < LEAST_LOOKS => Class::Suspect,
            Some(seen) if seen.cpu.as_secs_f64() >= seen.over.as_secs_f64() * COMPUTES => Class::Busy,
            Some(seen) if seen.wanting > 0 => Class::Starved,
            Some(_) => Class::Hung,
            // Of a worker elsewhere nobody can tell whether it computes.
            None if self.transport => Class::Suspect,
            None => Class::CutOff,
        }
    }

    /// What becomes of a worker of this class.
    pub fn sentence(&self, class: Class, patience: &Patience) -> Sentence {
        let longest = patience.worker_ttl.max(patience.ping_timeout);
        let overdue = self.lasted >= longest;
        match class {
            Class::Hung | Class::CutOff => Sentence::End,
            // It would end itself as soon as it went on. One that computed before, and was silent, has not been stopped
            // for all of its silence.
            Class::Stopped if self.seen.is_some_and(|seen| seen.stopped_for >= longest) => Sentence::End,
            Class::Suspect if self.seen.is_none() && self.judged(patience) && overdue => Sentence::End,
            _ => Sentence::Wait,
        }
    }
}

/// How long a worker is usually silent: the mean of the last silences and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Suspicion {
    mean: f64,
    variance: f64,
    /// However regular a worker is, it may always be that much later.
    floor: f64,
}

/// Weight of the latest silence: about the last twenty count.
const LATEST: f64 = 0.1;
/// So many deviations beyond the mean are suspect: fewer than one in a million, if silences were spread evenly.
const DEVIATIONS: f64 = 5.0;

impl Suspicion {
    pub fn new(ping_interval: Duration) -> Suspicion {
        let interval = ping_interval.as_secs_f64();
        Suspicion { mean: interval, variance: (interval / 4.0).powi(2), floor: interval / 4.0 }
    }

    /// A worker was heard after a silence.
    pub fn heard(&mut self, after: Duration) {
        let off = after.as_secs_f64() - self.mean;
        self.mean += LATEST * off;
        self.variance = (1.0 - LATEST) * (self.variance + LATEST * off * off);
    }

    pub fn suspects(&self, silence: Duration) -> bool {
        silence.as_secs_f64() > self.mean + DEVIATIONS * self.variance.sqrt().max(self.floor)
    }
}

/// Crashes of a pool's workers, one after another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crashes {
    in_a_row: u32,
    last: Option<BootInstant>,
    /// No worker is started before.
    pub hold_until: Option<BootInstant>,
}

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// So many in a row, and the pool says that it is not well.
const DEGRADED_AFTER: u32 = 3;

impl Crashes {
    /// A worker ended that had neither served for a while nor finished anything.
    pub fn crashed(&mut self, now: BootInstant) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.in_a_row.min(10)).min(LONGEST_PAUSE);
        self.in_a_row = self.in_a_row.saturating_add(1);
        (self.last, self.hold_until) = (Some(now), Some(now + pause));
    }

    /// A worker does its work. If it was started after the last crash, the crashes are over; answers whether they are by
    /// this. One that was there before says nothing of those that are started now.
    pub fn served(&mut self, started: BootInstant) -> bool {
        let over = self.last.is_some_and(|last| started > last);
        if over {
            *self = Crashes::default();
        }
        over
    }

    /// How many of those that are wanted may be started: one after another, while they crash.
    pub fn at_once(&self, wanted: usize, starting: usize) -> usize {
        if self.in_a_row == 0 { wanted } else { wanted.min(1_usize.saturating_sub(starting)) }
    }

    pub fn degraded(&self) -> bool {
        self.in_a_row >= DEGRADED_AFTER
    }

    pub fn may_start(&self, now: BootInstant) -> bool {
        self.hold_until.is_none_or(|until| now >= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn patience() -> Patience {
        Patience { ping_interval: S * 2, ping_timeout: S * 10, max_missed: 3, worker_ttl: S * 30 }
    }

    fn class_of(silence: Silence) -> (Class, Sentence) {
        let class = silence.class(&patience(), &Suspicion::new(S * 2));
        (class, silence.sentence(class, &patience()))
    }

    fn seen(looks: u32, wanting: u32, cpu_ms: u64) -> Option<Seen> {
        Some(Seen { looks, wanting, cpu: Duration::from_millis(cpu_ms), over: S * looks, ..Seen::default() })
    }

    #[test]
    fn what_a_silent_process_does_says_what_it_is() {
        let silent = |lasted, missed, seen| Silence { lasted: S * lasted, missed, transport: true, seen };
        let stopped = |looks: u32| {
            let stopped_for = S * looks;
            Some(Seen { looks, stopped_now: true, stopped_for, ..Seen::default() })
        };
        let cases = [
            (silent(1, 0, seen(1, 0, 0)), Class::Alive, Sentence::Wait),
            (silent(5, 2, seen(5, 0, 0)), Class::Suspect, Sentence::Wait),
            (silent(9, 4, seen(9, 0, 0)), Class::Suspect, Sentence::Wait),
            (silent(11, 2, seen(11, 0, 0)), Class::Suspect, Sentence::Wait),
            (silent(11, 5, seen(11, 0, 0)), Class::Hung, Sentence::End),
            (silent(11, 5, seen(2, 0, 0)), Class::Suspect, Sentence::Wait),
            (silent(11, 5, seen(11, 11, 10_900)), Class::Busy, Sentence::Wait),
            (silent(600, 300, seen(11, 11, 10_900)), Class::Busy, Sentence::Wait),
            (silent(600, 300, seen(11, 0, 0)), Class::Hung, Sentence::End),
            (silent(11, 5, seen(11, 3, 20)), Class::Starved, Sentence::Wait),
            (silent(11, 5, stopped(11)), Class::Stopped, Sentence::Wait),
            (silent(31, 15, stopped(31)), Class::Stopped, Sentence::End),
            (silent(600, 300, stopped(1)), Class::Stopped, Sentence::Wait),
            (silent(1, 0, stopped(1)), Class::Stopped, Sentence::Wait),
        ];
        for (silence, class, sentence) in cases {
            assert_eq!(class_of(silence), (class, sentence), "{silence:?}");
        }
    }

    #[test]
    fn one_that_computed_for_long_and_then_does_nothing_is_hung_a_timeout_later() {
        let mut looks = Looks::new(patience().ping_timeout);
        let mut classes = Vec::new();
        for second in 1..=700_u32 {
            let computed = S * second.min(600);
            looks.add(BootInstant(S * second), computed, second < 600);
            let seen = Some(looks.seen());
            let silence = Silence { lasted: S * second, missed: second / 2, transport: true, seen };
            let (class, _) = class_of(silence);
            if classes.last().is_none_or(|(_, before)| *before != class) {
                classes.push((second, class));
            }
        }
        let (hung, last) = classes.pop().expect("a class");
        assert_eq!(last, Class::Hung, "{classes:?}");
        assert!((610..=614).contains(&hung), "{hung}");
        assert!(classes.iter().all(|(second, class)| *second < 10 || *class == Class::Busy), "{classes:?}");
    }

    #[test]
    fn of_a_worker_elsewhere_only_the_link_can_tell() {
        let silent = |lasted, transport| Silence { lasted: S * lasted, missed: 5, transport, seen: None };
        assert_eq!(class_of(silent(11, false)), (Class::CutOff, Sentence::End));
        assert_eq!(class_of(silent(11, true)), (Class::Suspect, Sentence::Wait));
        assert_eq!(class_of(silent(31, true)), (Class::Suspect, Sentence::End));
    }

    #[test]
    fn suspicion_follows_what_is_usual() {
        let mut suspicion = Suspicion::new(S * 2);
        assert!(!suspicion.suspects(S * 3));
        assert!(suspicion.suspects(S * 5));
        (0..100).for_each(|turn| suspicion.heard(S * (2 + 6 * (turn % 2))));
        assert!(!suspicion.suspects(S * 12), "a worker that often takes long is given longer");
        (0..200).for_each(|_| suspicion.heard(S * 2));
        assert!(suspicion.suspects(S * 5), "and it may become regular again");
    }

    #[test]
    fn crashes_in_a_row_are_spaced_out_and_told() {
        let mut crashes = Crashes::default();
        let now = BootInstant(Duration::ZERO);
        assert!(crashes.may_start(now));
        crashes.crashed(now);
        assert!(!crashes.may_start(now) && crashes.may_start(now + FIRST_PAUSE) && !crashes.degraded());
        assert_eq!((crashes.at_once(4, 0), crashes.at_once(4, 1)), (1, 0));
        (0..50).for_each(|_| crashes.crashed(now));
        assert!(crashes.degraded());
        assert!(crashes.may_start(now + LONGEST_PAUSE) && !crashes.may_start(now + LONGEST_PAUSE - S));
        assert!(!crashes.served(now) && crashes.degraded(), "a worker from before says nothing of the next");
        assert!(crashes.served(now + S) && !crashes.served(now + S));
        assert!(crashes.may_start(now) && !crashes.degraded() && crashes.at_once(4, 2) == 4);
    }
}
