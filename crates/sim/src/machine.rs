//! A machine with the folders of its jobs, which outlive its replicas and its reboots, and the shims that live
//! in them, which outlive its replicas only.

use crate::env::HostLocks;
use everbeat_engine::{JobAttempt, JobBeat, LAST_WORD, Order};
use everbeat_model::job::{Exit, Stopped};
use everbeat_model::{Json, RunId, Token};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// What a simulated command does.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Script {
    pub(crate) runs_ms: u64,
    pub(crate) code: i32,
    /// How long it goes on when it is asked to stop; one that does not listen has to be killed.
    pub(crate) stops_ms: Option<u64>,
    /// There is no such program.
    pub(crate) missing: bool,
    /// Says with every beat how far it is.
    pub(crate) progresses: bool,
}

#[derive(Default)]
pub(crate) struct Machine {
    pub(crate) place: usize,
    pub(crate) locks: Option<Arc<HostLocks>>,
    disk: Mutex<Disk>,
}

#[derive(Default)]
pub(crate) struct Disk {
    /// Times that the machine was booted anew.
    pub(crate) boot: u32,
    pub(crate) folders: BTreeMap<RunId, Folder>,
    pub(crate) starts: Vec<Json>,
    /// It lacks something to begin commands, until then, and that shows in this way.
    pub(crate) short: Option<(u64, Lack)>,
}

/// What cannot be made, and so who notices and how it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// The replica, before there is a shim.
    Shim,
    /// The shim, which ends without a record and tells its replica.
    Record,
    /// The shim, which records it.
    Command,
}

impl Disk {
    pub(crate) fn lacks(&self, now: u64) -> Option<Lack> {
        self.short.filter(|(until, _)| now < *until).map(|(_, lack)| lack)
    }
}

/// What is known of one job here. Records are of one attempt each, which they name.
#[derive(Default)]
pub(crate) struct Folder {
    /// It was made for an attempt that begins. One without was made anew in the place of one that is gone.
    pub(crate) workspace: bool,
    pub(crate) spec: Option<Spec>,
    /// The shim that holds the lock.
    pub(crate) shim: Option<Shim>,
    /// Whose shim took the lock last.
    pub(crate) locked: Option<Token>,
    pub(crate) started: Option<Token>,
    pub(crate) exit: Option<(Token, Exit)>,
    pub(crate) fence: Option<Fence>,
    /// Attempts whose records others have replaced.
    pub(crate) past: BTreeMap<Token, Past>,
    /// A wish to stop, of the owner of that tenure.
    pub(crate) wish: Option<(Token, u32, u64)>,
    pub(crate) sentinel: Option<Sentinel>,
    /// Something changed.
    pub(crate) hint: Arc<Notify>,
}

#[derive(Clone)]
pub(crate) struct Spec {
    pub(crate) attempt: JobAttempt,
    pub(crate) order: Order,
    pub(crate) boot: u32,
    /// Nothing may start it after that.
    pub(crate) start_before: u64,
}

#[derive(Clone, Copy)]
pub(crate) struct Fence {
    pub(crate) attempt: u32,
    pub(crate) token: Token,
    /// Its command may have run.
    pub(crate) ran: bool,
}

/// What is known of an attempt that is over.
#[derive(Default)]
pub(crate) struct Past {
    pub(crate) ran: bool,
    pub(crate) exit: Option<Exit>,
}

#[derive(Clone, Copy)]
pub(crate) struct Sentinel {
    pub(crate) token: Token,
    pub(crate) attempt: u32,
    pub(crate) seq: u64,
    pub(crate) boot: u32,
    pub(crate) at: u64,
}

/// A living shim, from when it has the lock.
pub(crate) struct Shim {
    pub(crate) attempt: JobAttempt,
    /// The highest tenure that it has heard.
    pub(crate) tenure: u32,
    pub(crate) phase: Phase,
    pub(crate) hung_until: u64,
    pub(crate) deadline_at: Option<u64>,
    pub(crate) isolated_at: Option<u64>,
    pub(crate) isolated_after: Option<u64>,
    /// When the kernel kills it, whether it hangs or not.
    pub(crate) last_at: Option<u64>,
    pub(crate) stop_grace: u64,
    pub(crate) stopped: Option<Stopped>,
    pub(crate) seq: u64,
    pub(crate) beat_at: u64,
    pub(crate) interval: u64,
    pub(crate) script: Script,
    /// What followers hear: its beats, who may hear them, and whether all is over.
    pub(crate) told: watch::Sender<Told>,
    pub(crate) nudged: Arc<Notify>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) beat: JobBeat,
    pub(crate) tenure: u32,
    pub(crate) over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It has the lock, and has started nothing yet.
    Locked,
    Running {
        ends_at: u64,
    },
    /// The command ends by itself, or is killed.
    Stopping {
        ends_at: u64,
        kill_at: u64,
    },
    /// Its command has ended and its record is written.
    Exited {
        until: u64,
    },
}

impl Machine {
    pub(crate) fn new(place: usize, locks: bool) -> Arc<Machine> {
        Arc::new(Machine { place, locks: locks.then(Arc::default), disk: Mutex::default() })
    }

    pub(crate) fn name(&self) -> String {
        format!("host {}", self.place)
    }

    pub(crate) fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Folder {
    /// The shim of this very attempt, if it holds the lock.
    pub(crate) fn shim_of(&mut self, token: Token) -> Option<&mut Shim> {
        self.shim.as_mut().filter(|shim| shim.attempt.token == token)
    }

    pub(crate) fn exit_of(&self, token: Token) -> Option<&Exit> {
        let own = self.exit.as_ref().filter(|(of, _)| *of == token).map(|(_, exit)| exit);
        own.or_else(|| self.past.get(&token).and_then(|past| past.exit.as_ref()))
    }

    /// Of two attempts of one number only the one that was named is fenced.
    pub(crate) fn forbids(&self, attempt: &JobAttempt) -> bool {
        let fenced = |fence: Fence| fence.attempt > attempt.attempt || fence.token == attempt.token;
        self.fence.is_some_and(fenced) || self.past.contains_key(&attempt.token)
    }

    /// Whether what stands there says that its command began.
    pub(crate) fn began(&self, token: Token) -> bool {
        self.started == Some(token)
            || self.fence.is_some_and(|fence| fence.token == token && fence.ran)
            || self.sentinel.is_some_and(|sentinel| sentinel.token == token)
    }

    /// Whether it is known to have run, and to be over.
    pub(crate) fn ran_before(&self, token: Token) -> bool {
        self.past.get(&token).is_some_and(|past| past.ran)
    }

    /// Forbids an attempt for good. A later fence stays: it forbids this attempt too.
    pub(crate) fn forbid(&mut self, attempt: &JobAttempt, ran: bool, keeps_past: bool) {
        let token = attempt.token;
        match self.fence {
            Some(fence) if fence.token == token => self.fence = Some(Fence { ran: fence.ran || ran, ..fence }),
            Some(fence) if fence.attempt > attempt.attempt => {
                if keeps_past {
                    self.past.entry(token).or_default().ran |= ran;
                }
            }
            _ => {
                if keeps_past {
                    self.keep_past(token);
                }
                self.fence = Some(Fence { attempt: attempt.attempt, token, ran });
            }
        }
    }

    /// Keeps what is known of other attempts before this one's records take the place of theirs.
    pub(crate) fn keep_past(&mut self, by: Token) {
        let started = self.started.map(|token| (token, true, None));
        let exit = self.exit.clone().map(|(token, exit)| (token, exit.start_error.is_none(), Some(exit)));
        let fence = self.fence.map(|fence| (fence.token, fence.ran, None));
        let beat = self.sentinel.map(|sentinel| (sentinel.token, true, None));
        for (token, ran, exit) in [started, exit, fence, beat].into_iter().flatten().filter(|(of, ..)| *of != by) {
            let past = self.past.entry(token).or_default();
            past.ran |= ran;
            past.exit = past.exit.take().or(exit);
        }
    }

    /// Its shim is gone: whoever listened hears that, and the lock is free.
    pub(crate) fn let_go(&mut self) -> Option<Shim> {
        let shim = self.shim.take();
        if let Some(shim) = &shim {
            shim.nudged.notify_one();
        }
        self.hint.notify_waiters();
        shim
    }
}

impl Shim {
    pub(crate) fn hangs(&self, now: u64) -> bool {
        self.hung_until > now
    }

    /// Its command has ended, and its record is written.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Exited { .. })
    }

    pub(crate) fn runs(&self) -> bool {
        matches!(self.phase, Phase::Running { .. } | Phase::Stopping { .. })
    }

    pub(crate) fn beat(&self) -> JobBeat {
        let (seq, progresses) = (self.seq, self.script.progresses);
        let progress = progresses.then(|| Json::of(&seq));
        JobBeat { seq, progress, progress_seq: if progresses { seq } else { 0 }, ..JobBeat::default() }
    }

    /// Somebody whom the store acknowledges owns it.
    pub(crate) fn vouched(&mut self, now: u64) {
        self.isolated_at = self.isolated_after.map(|span| now + span);
        self.last_at = self.isolated_after.map(|span| now + span + span * 3 / 8);
        self.nudged.notify_one();
    }

    /// Hears an owner, unless a later one has spoken.
    pub(crate) fn hears(&mut self, tenure: u32) -> bool {
        if tenure < self.tenure {
            return false;
        }
        if tenure > self.tenure {
            self.tenure = tenure;
            self.told.send_modify(|told| told.tenure = tenure);
        }
        self.nudged.notify_one();
        true
    }

    /// Asks the command to end. A second wish may only shorten the grace.
    pub(crate) fn stop(&mut self, why: Stopped, grace: u64, now: u64) {
        let latest = self.deadline_at.map_or(u64::MAX, |at| at + self.stop_grace);
        let kill = (now + grace).min(latest);
        match self.phase {
            Phase::Running { ends_at } => {
                self.stopped = Some(why);
                let heeds = self.script.stops_ms.map_or(u64::MAX, |millis| now + millis * 1000);
                self.phase = Phase::Stopping { ends_at: ends_at.min(heeds), kill_at: kill };
            }
            Phase::Stopping { ends_at, kill_at } => {
                self.phase = Phase::Stopping { ends_at, kill_at: kill_at.min(kill) };
            }
            Phase::Locked | Phase::Exited { .. } => {}
        }
        self.nudged.notify_one();
    }

    /// When its command ends if nobody kills it.
    pub(crate) fn ends_by_itself_at(&self) -> Option<u64> {
        match self.phase {
            Phase::Running { ends_at } | Phase::Stopping { ends_at, .. } => Some(ends_at),
            Phase::Locked | Phase::Exited { .. } => None,
        }
    }

    /// When its command ends, as things stand.
    pub(crate) fn command_ends_at(&self) -> Option<u64> {
        match self.phase {
            Phase::Running { ends_at } => Some(ends_at),
            Phase::Stopping { ends_at, kill_at } => Some(ends_at.min(kill_at)),
            Phase::Locked | Phase::Exited { .. } => None,
        }
    }
}

/// An attempt as somebody sees it who is nobody's owner.
pub(crate) fn as_stray(attempt: &JobAttempt) -> JobAttempt {
    JobAttempt { tenure: LAST_WORD, ..attempt.clone() }
}
