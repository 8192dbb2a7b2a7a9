//! What is known of a check, and what pings, time and people make of it.

use super::{Check, PingKind, Signal};
use crate::spelled::spelled;
use crate::time::StoreTime;
use std::time::Duration;

spelled! {
    /// How a check stands.
    pub enum CheckState {
        /// No ping has come since the check was made or resumed.
        New = "new",
        Up = "up",
        /// A success is due, and may still come within the grace.
        Late = "late",
        Down = "down",
        /// Nothing is expected until somebody resumes the check.
        Paused = "paused",
    }
}

spelled! {
    /// Why a check is down.
    pub enum WhyDown {
        /// A ping said that the job failed.
        Failed = "failed",
        /// No success came in time.
        Missed = "missed",
        /// A job that had begun did not end in time.
        Overrun = "overrun",
    }
}

/// How a check stands, with what belongs to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    New,
    Up,
    Late,
    Down { since: StoreTime, why: WhyDown },
    Paused,
}

impl Health {
    pub fn state(self) -> CheckState {
        match self {
            Health::New => CheckState::New,
            Health::Up => CheckState::Up,
            Health::Late => CheckState::Late,
            Health::Down { .. } => CheckState::Down,
            Health::Paused => CheckState::Paused,
        }
    }
}

/// What is known of a check from its pings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vitals {
    pub health: Health,
    /// From when on the next success is expected: the last success, or when the check was resumed. None until the first.
    pub armed_at: Option<StoreTime>,
    pub last_success_at: Option<StoreTime>,
    /// The job has begun and has not said that it ended.
    pub started_at: Option<StoreTime>,
    pub last_ping_at: Option<StoreTime>,
    /// How long the job took, when it last said both that it began and that it ended.
    pub last_duration: Option<Duration>,
    /// Pings that ever came.
    pub pings: u64,
}

/// What those are told who follow the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckNews {
    Late { due: StoreTime },
    Down { since: StoreTime, why: WhyDown, exit_code: Option<u8> },
    Up { down_since: StoreTime },
}

/// What becomes of the vitals of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub vitals: Vitals,
    pub news: Vec<CheckNews>,
    /// From a start to the end that this ping told of.
    pub duration: Option<Duration>,
}

impl Vitals {
    /// A check that nobody has pinged.
    pub const NEW: Vitals = Vitals {
        health: Health::New,
        armed_at: None,
        last_success_at: None,
        started_at: None,
        last_ping_at: None,
        last_duration: None,
        pings: 0,
    };

    /// When the next success is expected.
    pub fn due(&self, check: &Check) -> Option<StoreTime> {
        match self.health {
            Health::Paused => None,
            _ => self.armed_at.and_then(|at| check.rhythm.after(at)),
        }
    }

    /// When the check will stand otherwise if no ping comes.
    pub fn look_at(&self, check: &Check) -> Option<StoreTime> {
        let (late, down) = match self.health {
            Health::Paused | Health::Down { .. } => return None,
            Health::New | Health::Up => (self.due(check), None),
            Health::Late => (None, self.due(check).map(|due| due.plus(check.grace))),
        };
        let overrun = self.started_at.map(|started| started.plus(check.grace));
        [late, down, overrun].into_iter().flatten().min()
    }

    /// What has become of the check by the passing of time alone.
    pub fn looked(&self, check: &Check, now: StoreTime) -> Change {
        let mut change = Change { vitals: *self, news: Vec::new(), duration: None };
        if matches!(self.health, Health::Paused | Health::Down { .. }) {
            return change;
        }
        let due = self.due(check);
        let missed = due.map(|due| (due.plus(check.grace), WhyDown::Missed));
        let overrun = self.started_at.map(|started| (started.plus(check.grace), WhyDown::Overrun));
        let limit = [missed, overrun].into_iter().flatten().min_by_key(|(limit, _)| *limit);
        match (limit, due) {
            (Some((since, why)), _) if since <= now => change.goes_down(since, why, None),
            (_, Some(due)) if due <= now && self.health != Health::Late => {
                change.vitals.health = Health::Late;
                change.news.push(CheckNews::Late { due });
            }
            _ => {}
        }
        change
    }

    /// What a ping makes of the check. Time has its say first: a success that comes too late ends a time of being down.
    pub fn pinged(&self, check: &Check, signal: Signal, now: StoreTime) -> Change {
        let mut change = self.looked(check, now);
        change.vitals.pings += 1;
        change.vitals.last_ping_at = Some(now);
        if change.vitals.health == Health::Paused {
            return change;
        }
        match signal.kind {
            PingKind::Log => {}
            PingKind::Start => change.vitals.started_at = Some(now),
            PingKind::Success => {
                change.ends(now);
                change.vitals.armed_at = Some(now);
                change.vitals.last_success_at = Some(now);
                change.goes_up();
            }
            PingKind::Fail => {
                change.ends(now);
                change.goes_down(now, WhyDown::Failed, signal.exit_code);
            }
        }
        change
    }

    /// What another definition makes of the check: what was too late by the old one may be in time by the new one.
    pub fn rewritten(&self, check: &Check, now: StoreTime) -> Change {
        let judged_by_time =
            matches!(self.health, Health::Late | Health::Down { why: WhyDown::Missed | WhyDown::Overrun, .. });
        if !judged_by_time {
            return self.looked(check, now);
        }
        let fresh = if self.last_success_at == self.armed_at { Health::Up } else { Health::New };
        let mut change = Vitals { health: fresh, ..*self }.looked(check, now);
        match (self.health, change.vitals.health) {
            // Whoever was told once is not told again.
            (Health::Down { .. }, Health::Down { .. }) => {
                change.vitals.health = self.health;
                change.news.clear();
            }
            (Health::Late, Health::Late) => change.news.clear(),
            (Health::Down { since, .. }, _) => change.news.insert(0, CheckNews::Up { down_since: since }),
            _ => {}
        }
        change
    }

    /// Nothing is expected from now on.
    pub fn paused(&self) -> Vitals {
        Vitals { health: Health::Paused, started_at: None, ..*self }
    }

    /// Pings are expected again, counted from now: what was missed meanwhile is not held against the check.
    pub fn resumed(&self, now: StoreTime) -> Vitals {
        let armed_at = self.last_ping_at.map(|_| now);
        Vitals { health: Health::New, armed_at, started_at: None, ..*self }
    }
}

impl Change {
    fn ends(&mut self, now: StoreTime) {
        self.duration = self.vitals.started_at.take().map(|started| now.since(started));
        self.vitals.last_duration = self.duration.or(self.vitals.last_duration);
    }

    fn goes_up(&mut self) {
        if let Health::Down { since, .. } = self.vitals.health {
            self.news.push(CheckNews::Up { down_since: since });
        }
        self.vitals.health = Health::Up;
    }

    fn goes_down(&mut self, since: StoreTime, why: WhyDown, exit_code: Option<u8>) {
        match self.vitals.health {
            // Told once; why, by what was said last.
            Health::Down { since, .. } => self.vitals.health = Health::Down { since, why },
            _ => {
                self.vitals.health = Health::Down { since, why };
                self.news.push(CheckNews::Down { since, why, exit_code });
            }
        }
    }
}
