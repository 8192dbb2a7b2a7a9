//! The guardian's loop: whatever is ready is handled, then whatever is due.

use super::contain::Contain;
use super::fork;
use super::memory::{self, Kills};
use super::start::Begun;
use super::workers::{Message, Worker};
use crate::job::{clock, processes};
use crate::ofd_lock::Held;
use crate::pool::folder::GuardianFolder;
use crate::pool::link::{self, Received};
use crate::pool::protocol::{FromGuardian, Stage, ToGuardian};
use crate::pool::report::Report;
use crate::signals::Signals;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Signal, WaitOptions};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

pub(super) struct Guardian {
    pool: String,
    folder: GuardianFolder,
    server: OwnedFd,
    signals: Signals,
    contain: Contain,
    oom_score: String,
    workers: Vec<Worker>,
    kills: Kills,
    unsent: VecDeque<Message>,
    ending: Option<Ending>,
    /// When this process last began to wait, and when it woke.
    waited_from: u64,
    woke_at: u64,
    _lock: Held,
}

/// The server is gone, or wants this guardian to be.
struct Ending {
    kill_at: u64,
    /// When even those are killed who should have done it: keepers.
    kill_keepers_at: u64,
    report: Option<Report>,
}

/// Within a second of the server's death nothing may be left.
const GRACE_MS: u64 = 400;
const KEEPERS_GRACE_MS: u64 = 100;
/// Killed processes are gone within about that.
const LOOK_AGAIN_MS: u64 = 2;
/// After so many orders this process looks at its workers.
const TURN: usize = 64;

impl Guardian {
    pub(super) fn new(server: OwnedFd, begun: Begun) -> io::Result<Guardian> {
        let Begun { pool, folder, lock, signals, contain, oom_score } = begun;
        Ok(Guardian {
            pool,
            folder,
            server,
            signals,
            contain,
            oom_score,
            workers: Vec::new(),
            kills: Kills::new(clock::boot_ms()),
            unsent: VecDeque::new(),
            ending: None,
            waited_from: clock::boot_ms(),
            woke_at: clock::boot_ms(),
            _lock: lock,
        })
    }

    /// Until the server is gone and nothing of its workers is left.
    pub(super) fn run(mut self) {
        while !self.is_over() {
            self.wait();
            self.look();
            self.hear();
            while self.signals.next().is_some() {}
            self.step_workers();
            self.reap_adopted();
            self.end_workers();
            self.flush();
        }
        if let Contain::Cgroup(cgroup) = &self.contain {
            cgroup.leave();
            cgroup.remove();
        }
        if let Some(report) = self.ending.and_then(|ending| ending.report) {
            let _nobody_will_know = report.write(&self.folder);
        }
    }

    fn is_over(&self) -> bool {
        self.ending.is_some() && self.workers.is_empty() && fork::ended_child() == Err(Errno::CHILD)
    }

    fn wait(&mut self) {
        let clearing = self.workers.iter().any(Worker::is_clearing);
        let now = clock::boot_ms();
        let timeout = match &self.ending {
            _ if clearing => Some(LOOK_AGAIN_MS),
            Some(ending) if now < ending.kill_at && !self.workers.is_empty() => Some(ending.kill_at - now),
            Some(_) => Some(LOOK_AGAIN_MS),
            None if self.workers.iter().any(|worker| worker.counter().is_some()) => Some(memory::LOOK_MS),
            None => None,
        };
        let mut polled = vec![PollFd::new(&self.signals, PollFlags::IN)];
        if self.ending.is_none() {
            let wants_out = if self.unsent.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            polled.push(PollFd::new(&self.server, PollFlags::IN | wants_out));
        }
        polled.extend(self.workers.iter().flat_map(Worker::polled));
        self.waited_from = now;
        let _interrupted = poll(&mut polled, timeout.map(clock::timespec).as_ref());
        drop(polled);
        // What was there already may have been there for as long as this process did something else.
        let before = self.woke_at;
        self.woke_at = clock::boot_ms();
        if self.woke_at == self.waited_from {
            self.woke_at = before;
        }
    }

    /// Notes from time to time whom the kernel has killed for lack of memory, so that a death soon after can be explained.
    fn look(&mut self) {
        if self.kills.is_due(clock::boot_ms()) {
            self.workers.iter_mut().for_each(|worker| worker.look(&mut self.kills));
            self.kills.look(self.workers.iter().filter_map(Worker::counter));
        }
    }

    fn hear(&mut self) {
        for _ in 0..TURN {
            if self.ending.is_some() {
                return;
            }
            match link::receive::<ToGuardian>(&self.server) {
                Ok(Received::Message(message, descriptors)) => self.obey(message, descriptors),
                Ok(Received::WithoutRoom(ToGuardian::Spawn { id, .. })) => {
                    self.fail(id, Stage::Process, &Errno::MFILE.into());
                }
                Ok(Received::WithoutRoom(message)) => self.obey(message, Vec::new()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Nobody who cannot be understood may hold workers.
                Ok(Received::End) | Err(_) => return self.bereaved(),
            }
        }
    }

    fn obey(&mut self, message: ToGuardian, descriptors: Vec<OwnedFd>) {
        match message {
            ToGuardian::Begin { .. } => {}
            ToGuardian::Spawn { id, worker } => {
                match Worker::start(&self.contain, id, worker, descriptors, &self.oom_score) {
                    Ok(worker) => self.workers.push(worker),
                    Err((stage, error)) => self.fail(id, stage, &error),
                }
            }
            ToGuardian::Kill { id } => {
                if let Some(worker) = self.workers.iter_mut().find(|worker| worker.id == id) {
                    worker.kill();
                }
            }
            ToGuardian::End => self.end(None, 0),
        }
    }

    fn fail(&mut self, id: u64, stage: Stage, error: &io::Error) {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        self.unsent.push_back((FromGuardian::Failed { id, stage, errno }, None));
    }

    /// The server is gone.
    fn bereaved(&mut self) {
        let detection_ms = clock::boot_ms().saturating_sub(self.woke_at);
        let now = clock::boot_ms();
        self.workers.iter_mut().for_each(|worker| worker.ask(now));
        let mut report = Report::new(&self.pool);
        report.server_death_detected(detection_ms, self.workers.len());
        self.end(Some(report), GRACE_MS);
    }

    fn end(&mut self, report: Option<Report>, grace_ms: u64) {
        let kill_at = clock::boot_ms() + grace_ms;
        self.ending = Some(Ending { kill_at, kill_keepers_at: kill_at + KEEPERS_GRACE_MS, report });
    }

    fn step_workers(&mut self) {
        let mut say = Vec::new();
        for at in (0..self.workers.len()).rev() {
            if !self.workers[at].step(&mut self.kills, &mut say) {
                continue;
            }
            // Told before it is reaped: until then its number is its own.
            self.unsent.extend(say.drain(..));
            self.flush();
            let worker = self.workers.swap_remove(at);
            if let Some(report) = self.ending.as_mut().and_then(|ending| ending.report.as_mut()) {
                let took_ms = worker.asked_at.map_or(0, |at| clock::boot_ms().saturating_sub(at));
                report.worker_terminated(&worker.worker, took_ms, worker.killed);
            }
            worker.reap();
        }
        self.unsent.extend(say);
    }

    /// Reaps the orphans this process was given. Where workers have keepers, an orphan is what a killed keeper left.
    fn reap_adopted(&mut self) {
        while let Ok(Some(pid)) = fork::ended_child() {
            if self.workers.iter().any(|worker| worker.child() == pid) {
                break;
            }
            let _reaped = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        }
        if !matches!(self.contain, Contain::Cgroup(_)) {
            self.kill_strays();
        }
    }

    fn kill_strays(&self) {
        let own = own_pid();
        let ours: Vec<i32> = self.workers.iter().map(|worker| worker.child().as_raw_nonzero().get()).collect();
        for stray in processes::children(own).into_iter().filter(|pid| !ours.contains(pid)) {
            let mut strays = processes::descendants(stray);
            strays.push(stray);
            processes::signal(strays, Signal::KILL, |pid| processes::descends(pid, own) && !ours.contains(&pid));
        }
    }

    fn end_workers(&mut self) {
        let Some(ending) = &self.ending else { return };
        let now = clock::boot_ms();
        if now >= ending.kill_at {
            self.workers.iter_mut().for_each(Worker::kill);
        }
        // Everything below this process: keepers that hang, and what got out of where it was put.
        if now >= ending.kill_keepers_at || self.workers.is_empty() {
            let own = own_pid();
            processes::signal(processes::descendants(own), Signal::KILL, |pid| processes::descends(pid, own));
        }
    }

    fn flush(&mut self) {
        while let Some((message, descriptor)) = self.unsent.front() {
            let descriptors: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
            match link::send(&self.server, message, &descriptors) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Its end is seen when it is listened to.
                _sent_or_gone => _ = self.unsent.pop_front(),
            }
        }
    }
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}
