//! The shim's loop: whatever is ready is handled, then whatever is due.

mod beats;
mod ending;
mod members;
mod requests;

use super::child::{Child, Pipes};
use super::clients::Clients;
use super::detach::tell_started;
use super::failure::Failure;
use super::last_timer::LastTimer;
use super::output::Output;
use super::progress::Progress;
use crate::job::cgroup::Cgroup;
use crate::job::clock;
use crate::job::folder::JobFolder;
use crate::job::protocol::Event;
use crate::job::records::{ExitRecord, Stopped};
use crate::job::sentinel::Status;
use crate::job::spec::Spec;
use crate::signals::Signals;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};
use serde_json::Value;
use std::io;
use std::os::fd::OwnedFd;

#[derive(Debug)]
pub(super) struct Shim {
    pub(super) folder: JobFolder,
    pub(super) spec: Spec,
    pub(super) cgroup: Option<Cgroup>,
    pub(super) started_at: String,
    signals: Signals,
    clients: Clients,
    outputs: [Output; 2],
    progress: Progress,
    /// On boot time, so that it also runs while the machine sleeps.
    timer: OwnedFd,
    buffer: Vec<u8>,
    phase: Phase,
    stopped: Option<Stopped>,
    exit: Option<ExitRecord>,
    /// Whether the record is on the disk.
    recorded: bool,
    acknowledged: bool,
    terminated: bool,
    reported: Reported,
    beats: Beats,
    deadline_at: Option<u64>,
    /// The highest that an owner has spoken with.
    tenure: u32,
    /// When the command stops if nobody vouches for it before. It counts from its start.
    isolated_at: Option<u64>,
    /// For the case that this process does nothing at that time.
    last_timer: Option<LastTimer>,
}

pub(super) enum Command {
    Started { child: Child, pipes: Pipes },
    NotStarted { failure: Failure, stopped: Option<Stopped> },
}

#[derive(Debug)]
enum Phase {
    Running(Child),
    Stopping { child: Child, kill_at: u64 },
    Clearing { look_at: u64 },
    Exited { until: u64 },
}

/// What the job says of itself.
#[derive(Debug, Default)]
struct Reported {
    status: Status,
    progress: Option<Value>,
    seq: u64,
    announced_seq: u64,
    announced_at: u64,
}

#[derive(Debug, Default)]
struct Beats {
    seq: u64,
    next_at: u64,
    last_error: Option<String>,
    failures: u64,
}

#[derive(Clone, Copy)]
enum Ready {
    Signals,
    Timer,
    Child,
    Output(usize),
    Progress,
    Listener,
    Client(u64),
}

const BUFFER_BYTES: usize = 32 << 10;
/// While KILL is repeated to what does not die.
const KILL_AGAIN_MS: u64 = 50;
/// Subscribers hear of progress no more often.
const ANNOUNCE_EVERY_MS: u64 = 100;

impl Shim {
    pub(super) fn new(
        folder: JobFolder,
        spec: Spec,
        signals: Signals,
        clients: Clients,
        cgroup: Option<Cgroup>,
        outputs: [Output; 2],
    ) -> io::Result<Shim> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Shim {
            timer: rustix::time::timerfd_create(TimerfdClockId::Boottime, flags)?,
            deadline_at: spec.deadline_ms.map(|ms| clock::boot_ms().saturating_add(ms)),
            isolated_at: None,
            last_timer: spec.isolated_after_ms.map(|_| LastTimer::new()).transpose()?,
            tenure: spec.tenure,
            started_at: clock::now_text(),
            buffer: vec![0; BUFFER_BYTES],
            phase: Phase::Clearing { look_at: 0 },
            progress: Progress::default(),
            stopped: None,
            exit: None,
            recorded: false,
            acknowledged: false,
            terminated: false,
            reported: Reported::default(),
            beats: Beats::default(),
            folder,
            spec,
            signals,
            clients,
            cgroup,
            outputs,
        })
    }

    /// Until nothing is left to do for this job.
    pub(super) fn run(&mut self, command: Command) {
        match command {
            Command::Started { child, pipes } => {
                let [stdout, stderr] = &mut self.outputs;
                stdout.connect(pipes.stdout);
                stderr.connect(pipes.stderr);
                self.progress.connect(pipes.progress);
                self.phase = Phase::Running(child);
                self.beat();
            }
            Command::NotStarted { failure, stopped } => {
                self.stopped = stopped;
                self.record(None, None, Some(failure));
            }
        }
        tell_started();
        while !self.is_done() {
            self.arm();
            let ready = self.wait();
            // Before anything is read: a request that lay here while this process was frozen vouches too late.
            self.stop_if_isolated();
            for ready in ready {
                self.handle(ready);
            }
            self.keep_time();
        }
        self.leave();
    }

    /// Leaves nothing behind but records and logs. The socket goes last: its absence says so.
    pub(super) fn leave(&mut self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.leave();
            cgroup.remove();
        }
        self.clients.close(&self.folder);
    }

    fn is_done(&self) -> bool {
        let Phase::Exited { until } = self.phase else { return false };
        // An exit that is not on the disk is known here alone: it waits for somebody to take it, unless its folder was
        // deleted, and with it every way to come here.
        let may_leave = self.recorded || self.folder.is_deleted();
        self.acknowledged || (may_leave && (self.terminated || clock::boot_ms() >= until))
    }

    fn wait(&mut self) -> Vec<Ready> {
        let mut sources = vec![Ready::Signals, Ready::Timer];
        let mut polled = vec![PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&self.timer, PollFlags::IN)];
        if let Phase::Running(child) | Phase::Stopping { child, .. } = &self.phase {
            sources.push(Ready::Child);
            polled.push(PollFd::new(&child.pidfd, PollFlags::IN));
        }
        for (at, output) in self.outputs.iter().enumerate() {
            if let Some(pipe) = output.pipe() {
                sources.push(Ready::Output(at));
                polled.push(PollFd::from_borrowed_fd(pipe, PollFlags::IN));
            }
        }
        if let Some(pipe) = self.progress.pipe() {
            sources.push(Ready::Progress);
            polled.push(PollFd::from_borrowed_fd(pipe, PollFlags::IN));
        }
        for (id, socket, flags) in self.clients.polled() {
            sources.push(id.map_or(Ready::Listener, Ready::Client));
            polled.push(PollFd::from_borrowed_fd(socket, flags));
        }
        match poll(&mut polled, None) {
            Ok(_) => {
                let ready = sources.iter().zip(&polled).filter(|(_, fd)| !fd.revents().is_empty());
                ready.map(|(source, _)| *source).collect()
            }
            Err(_interrupted) => Vec::new(),
        }
    }

    fn handle(&mut self, ready: Ready) {
        match ready {
            Ready::Signals => self.take_signals(),
            Ready::Timer => {
                let _how_often_it_rang = rustix::io::read(&self.timer, &mut [0_u8; 8]);
            }
            Ready::Child => self.take_exit(),
            Ready::Output(at) => {
                let _the_rest_comes_next_turn = self.outputs[at].pump(&self.folder, &mut self.buffer);
            }
            Ready::Progress => {
                if let Some(progress) = self.progress.latest(&mut self.buffer) {
                    self.report(None, Some(progress));
                }
            }
            Ready::Listener => self.clients.accept(),
            Ready::Client(id) => {
                for line in self.clients.serve(id) {
                    self.obey(id, &line);
                }
            }
        }
    }

    fn take_signals(&mut self) {
        while let Some(signal) = self.signals.next() {
            match signal {
                libc::SIGTERM => {
                    self.terminated = true;
                    self.stop(Stopped::ShimTerminated, self.spec.stop_grace_ms);
                }
                libc::SIGCHLD => self.reap_adopted(),
                _ => {}
            }
        }
    }

    fn arm(&self) {
        let phase_at = match self.phase {
            Phase::Running(_) => self.deadline_at,
            Phase::Stopping { kill_at, .. } => Some(kill_at),
            Phase::Clearing { look_at } => Some(look_at),
            Phase::Exited { until } if self.recorded => Some(until),
            Phase::Exited { .. } => None,
        };
        let isolated_at = self.isolated_at.filter(|_| self.is_beating());
        let beat_at = (self.is_beating() || !self.recorded).then_some(self.beats.next_at);
        let announce_at = (self.reported.seq != self.reported.announced_seq)
            .then_some(self.reported.announced_at + ANNOUNCE_EVERY_MS);
        let next = [phase_at, isolated_at, beat_at, announce_at].into_iter().flatten().min();
        // Zero would disarm it.
        let it_value = clock::timespec(next.unwrap_or(u64::MAX / 2_000_000).max(1));
        let time = Itimerspec { it_interval: clock::timespec(0), it_value };
        let _only_wrong_values_fail = rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &time);
    }

    fn keep_time(&mut self) {
        let now = clock::boot_ms();
        if self.reported.seq != self.reported.announced_seq && now >= self.reported.announced_at + ANNOUNCE_EVERY_MS {
            (self.reported.announced_seq, self.reported.announced_at) = (self.reported.seq, now);
            self.clients.announce(&Event::Progress(Box::new(self.hello())));
        }
        if now >= self.beats.next_at {
            if self.is_beating() {
                self.beat();
            } else if let (false, Some(record)) = (self.recorded, self.exit.clone()) {
                self.write_record(&record);
            }
        }
        match &mut self.phase {
            Phase::Running(_) if self.deadline_at.is_some_and(|at| now >= at) => {
                self.stop(Stopped::Deadline, self.spec.stop_grace_ms);
            }
            Phase::Stopping { kill_at, .. } if now >= *kill_at => {
                *kill_at = now + KILL_AGAIN_MS;
                self.kill_everything();
            }
            Phase::Clearing { look_at } if now >= *look_at => self.clear(),
            _ => {}
        }
    }
}
