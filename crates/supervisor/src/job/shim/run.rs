//! The shim's loop: beats, output, orders, the command's end, and what it leaves behind.

use super::super::cgroup::Cgroup;
use super::super::clock;
use super::super::folder::JobFolder;
use super::super::processes;
use super::super::protocol::{ContainedBy, Event, Hello, MOST_PROGRESS_BYTES, Order, Refusal, Reply, Request, State};
use super::super::records::{CancelRecord, ExitRecord, Record, Stopped};
use super::super::sentinel::{self, Sentinel, Status};
use super::super::spec::{SCHEMA, Spec};
use super::child::{Child, Pipes};
use super::clients::Clients;
use super::kill_points::kill_point;
use super::output::Output;
use super::progress::Progress;
use super::signals::Signals;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, WaitId, WaitIdOptions, WaitOptions};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};
use serde_json::Value;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

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
}

pub(super) enum Command {
    Started { child: Child, pipes: Pipes },
    NotStarted { why: String, stopped: Option<Stopped> },
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
/// Killed processes are gone within about that.
const LOOK_AGAIN_MS: u64 = 5;
/// While KILL is repeated to what does not die.
const KILL_AGAIN_MS: u64 = 50;
/// A record that the disk refuses is tried again after so long at most.
const RECORD_AGAIN_MS: u64 = 1000;
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
            Command::NotStarted { why, stopped } => {
                self.stopped = stopped;
                self.record(None, None, Some(why));
            }
        }
        while !self.is_done() {
            self.arm();
            for ready in self.wait() {
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
        // An exit that is not on the disk is known here alone: it waits for somebody to take it.
        self.acknowledged || (self.recorded && (self.terminated || clock::boot_ms() >= until))
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

    // Time

    fn arm(&self) {
        let phase_at = match self.phase {
            Phase::Running(_) => self.deadline_at,
            Phase::Stopping { kill_at, .. } => Some(kill_at),
            Phase::Clearing { look_at } => Some(look_at),
            Phase::Exited { until } if self.recorded => Some(until),
            Phase::Exited { .. } => None,
        };
        let beat_at = (self.is_beating() || !self.recorded).then_some(self.beats.next_at);
        let announce_at = (self.reported.seq != self.reported.announced_seq)
            .then_some(self.reported.announced_at + ANNOUNCE_EVERY_MS);
        let next = [phase_at, beat_at, announce_at].into_iter().flatten().min();
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

    fn is_beating(&self) -> bool {
        matches!(self.phase, Phase::Running(_) | Phase::Stopping { .. })
    }

    fn beat(&mut self) {
        let now = clock::boot_ms();
        self.beats.seq += 1;
        self.beats.next_at = now + self.spec.interval_ms;
        let sentinel = Sentinel {
            job_id: self.spec.job_id.clone(),
            status: self.reported.status,
            last_heartbeat: clock::now_text(),
            workspace_path: self.folder.workspace(),
            session_id: self.spec.session_id.clone(),
            agent_engine: self.spec.agent_engine.clone(),
            started_at: self.started_at.clone(),
            schema: SCHEMA,
            epoch: self.spec.epoch,
            nonce: self.spec.nonce.clone(),
            seq: self.beats.seq,
            boot_id: self.spec.boot_id.clone(),
            boot_ms: now,
            interval_ms: self.spec.interval_ms,
            progress: self.reported.progress.clone(),
            last_write_error: self.beats.last_error.clone(),
        };
        if let Err(error) = sentinel::write(&self.folder, &sentinel) {
            self.note_write_error(&error);
        }
        if let Err(error) = self.clients.listen(&self.folder) {
            self.note_write_error(&error);
        }
        self.clients.announce(&Event::Beat(Box::new(self.hello())));
        let cancel: Result<Option<CancelRecord>, _> = Record::read(&self.folder, &self.spec.identity());
        if let Ok(Some(cancel)) = cancel {
            self.stop(Stopped::Cancelled, cancel.grace_ms);
        }
    }

    /// Never a reason to stop the job; told to whoever asks.
    pub(super) fn note_write_error(&mut self, error: &io::Error) {
        self.beats.failures += 1;
        self.beats.last_error = Some(format!("{}: {error}", clock::now_text()));
    }

    // Orders

    fn obey(&mut self, client: u64, line: &[u8]) {
        let refused = |error, detail: &str| Reply::Refused { error, detail: Some(detail.to_owned()) };
        let reply = match serde_json::from_slice::<Request>(line) {
            Err(error) => refused(Refusal::Malformed, &error.to_string()),
            Ok(request) if !self.may(&request) => refused(Refusal::Fenced, "this is not the attempt you mean"),
            Ok(request) => match self.perform(client, request.order) {
                Ok(()) => Reply::Hello(Box::new(self.hello())),
                Err((error, detail)) => refused(error, detail),
            },
        };
        self.clients.answer(client, &reply);
    }

    fn may(&self, request: &Request) -> bool {
        let identity = self.spec.identity();
        let beats = matches!(request.order, Order::Beat { .. }) && request.nonce == identity.beat_token();
        request.epoch == identity.epoch && (request.nonce == identity.nonce || beats)
    }

    fn perform(&mut self, client: u64, order: Order) -> Result<(), (Refusal, &'static str)> {
        match order {
            Order::Hello => {}
            Order::Stop { grace_ms } => {
                self.stop(Stopped::Requested, grace_ms.unwrap_or(self.spec.stop_grace_ms));
            }
            Order::Signal { name } => {
                let signal = processes::signal_by_name(&name).ok_or((Refusal::Malformed, "no such signal"))?;
                let (Phase::Running(child) | Phase::Stopping { child, .. }) = &self.phase else {
                    return Err((Refusal::Untimely, "the command has ended"));
                };
                let _it_ended_just_now = rustix::process::pidfd_send_signal(&child.pidfd, signal);
            }
            Order::Beat { status, progress } => {
                let size = progress.as_ref().map_or(0, |progress| progress.to_string().len());
                if size > MOST_PROGRESS_BYTES {
                    return Err((Refusal::Malformed, "progress has more than 16 KiB"));
                }
                self.report(status, progress);
            }
            Order::Ack if self.exit.is_none() => return Err((Refusal::Untimely, "the command has not ended")),
            Order::Ack => self.acknowledged = true,
            Order::Subscribe if self.clients.subscribe(client) => {}
            Order::Subscribe => return Err((Refusal::Busy, "too many subscribers")),
        }
        Ok(())
    }

    fn report(&mut self, status: Option<Status>, progress: Option<Value>) {
        let named = progress.as_ref().and_then(|progress| progress.get("status"));
        let named = named.and_then(|status| serde_json::from_value(status.clone()).ok());
        self.reported.status = status.or(named).unwrap_or(self.reported.status);
        self.reported.progress = progress.or(self.reported.progress.take());
        self.reported.seq += 1;
    }

    fn hello(&self) -> Hello {
        Hello {
            job_id: self.spec.job_id.clone(),
            epoch: self.spec.epoch,
            state: match self.phase {
                Phase::Running(_) => State::Running,
                Phase::Stopping { .. } => State::Stopping,
                Phase::Clearing { .. } => State::Clearing,
                Phase::Exited { .. } => State::Exited,
            },
            status: self.reported.status,
            seq: self.beats.seq,
            boot_ms: clock::boot_ms(),
            started_at: self.started_at.clone(),
            progress: self.reported.progress.clone(),
            progress_seq: self.reported.seq,
            last_write_error: self.beats.last_error.clone(),
            write_failures: self.beats.failures,
            output_bytes: self.outputs.iter().map(|output| output.written).sum(),
            dropped_bytes: self.outputs.iter().map(|output| output.dropped).sum(),
            contained_by: if self.cgroup.is_some() { ContainedBy::Cgroup } else { ContainedBy::Tree },
            exit: self.exit.clone(),
        }
    }

    // The command's end

    /// TERM to all there are; after the grace, KILL. A second wish may only shorten the grace.
    fn stop(&mut self, why: Stopped, grace_ms: u64) {
        let at = clock::boot_ms().saturating_add(grace_ms);
        match std::mem::replace(&mut self.phase, Phase::Clearing { look_at: 0 }) {
            Phase::Running(child) => {
                self.stopped = Some(why);
                self.ask_everything(&child);
                self.phase = Phase::Stopping { child, kill_at: at };
            }
            Phase::Stopping { child, kill_at } => self.phase = Phase::Stopping { child, kill_at: kill_at.min(at) },
            ended => self.phase = ended,
        }
    }

    /// TERM, and CONT so that the stopped hear it. The command's own group gets it at once, so that nobody
    /// slips through by forking; the group's id is its own while the command is not reaped.
    fn ask_everything(&self, child: &Child) {
        let group = child.pid.as_raw_nonzero().get();
        let others: Vec<i32> = self.members().into_iter().filter(|pid| processes::group(*pid) != Some(group)).collect();
        for signal in [Signal::TERM, Signal::CONT] {
            let _it_ended_just_now = rustix::process::kill_process_group(child.pid, signal);
            processes::signal(others.iter().copied(), signal, |pid| self.is_member(pid));
        }
    }

    fn kill_everything(&self) {
        if let Some(cgroup) = &self.cgroup {
            let _the_tree_walk_does_it_too = cgroup.kill_job();
        }
        processes::signal(self.members(), Signal::KILL, |pid| self.is_member(pid));
    }

    /// Everything below this process, and everything in the job's cgroup.
    fn members(&self) -> Vec<i32> {
        let mut pids = processes::descendants(own_pid());
        pids.extend(self.cgroup.iter().flat_map(Cgroup::pids));
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    fn is_member(&self, pid: i32) -> bool {
        processes::descends(pid, own_pid()) || self.cgroup.as_ref().is_some_and(|cgroup| cgroup.pids().contains(&pid))
    }

    /// The command has ended: its status is looked at, recorded, and only then taken from the kernel.
    fn take_exit(&mut self) {
        let (Phase::Running(child) | Phase::Stopping { child, .. }) = &self.phase else { return };
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let Ok(Some(status)) = rustix::process::waitid(WaitId::PidFd(child.pidfd.as_fd()), look) else { return };
        self.drain();
        kill_point("after-exit-before-record");
        self.record(status.exit_status(), status.terminating_signal(), None);
    }

    fn record(&mut self, exit_code: Option<i32>, exit_signal: Option<i32>, start_error: Option<String>) {
        let record = ExitRecord {
            schema: SCHEMA,
            job_id: self.spec.job_id.clone(),
            epoch: self.spec.epoch,
            nonce: self.spec.nonce.clone(),
            boot_id: self.spec.boot_id.clone(),
            exit_code,
            exit_signal,
            start_error,
            timed_out: self.stopped == Some(Stopped::Deadline),
            stopped: self.stopped,
            started_at: self.started_at.clone(),
            ended_at: clock::now_text(),
            boot_ms: clock::boot_ms(),
            output_bytes: self.outputs.iter().map(|output| output.written).sum(),
            dropped_bytes: self.outputs.iter().map(|output| output.dropped).sum(),
        };
        self.write_record(&record);
        self.exit = Some(record);
        kill_point("after-record-before-reap");
        // Now it is reaped, with all the others, in `clear`.
        self.phase = Phase::Clearing { look_at: 0 };
        self.clients.announce(&Event::Exit(Box::new(self.hello())));
        self.clear();
    }

    fn write_record(&mut self, record: &ExitRecord) {
        let name = <ExitRecord as Record>::NAME;
        match self.folder.write_durably_with(name, record, || kill_point("record-before-rename")) {
            Ok(()) => self.recorded = true,
            Err(error) => {
                self.note_write_error(&error);
                self.beats.next_at = clock::boot_ms() + self.spec.interval_ms.min(RECORD_AGAIN_MS);
            }
        }
    }

    /// Kills and reaps until this process has no child and the cgroup no member: then there is none.
    fn clear(&mut self) {
        let no_child = loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some(_reaped)) => {}
                Ok(None) => break false,
                Err(rustix::io::Errno::CHILD) => break true,
                Err(_interrupted) => {}
            }
        };
        if no_child && self.cgroup.as_ref().is_none_or(|cgroup| cgroup.job_is_empty().unwrap_or(true)) {
            self.drain();
            self.phase = Phase::Exited { until: clock::boot_ms().saturating_add(self.spec.linger_ms) };
            self.clients.announce(&Event::Exited(Box::new(self.hello())));
        } else {
            self.kill_everything();
            self.phase = Phase::Clearing { look_at: clock::boot_ms() + LOOK_AGAIN_MS };
        }
    }

    /// Takes what the pipes hold, but no more than they can hold: somebody may write on and on.
    fn drain(&mut self) {
        const MOST_TURNS: usize = 16;
        for output in &mut self.outputs {
            for _ in 0..MOST_TURNS {
                if !output.pump(&self.folder, &mut self.buffer) {
                    break;
                }
            }
        }
        if let Some(progress) = self.progress.latest(&mut self.buffer) {
            self.report(None, Some(progress));
        }
    }

    /// Reaps the orphans this process was given, one by one: never the command itself, whose end must be
    /// recorded first.
    fn reap_adopted(&mut self) {
        let (Phase::Running(child) | Phase::Stopping { child, .. }) = &self.phase else {
            return self.clear_if_clearing();
        };
        for pid in processes::children(own_pid()).into_iter().filter_map(rustix::process::Pid::from_raw) {
            if pid != child.pid {
                let _alive_still = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
            }
        }
    }

    fn clear_if_clearing(&mut self) {
        if let Phase::Clearing { .. } = self.phase {
            self.clear();
        }
    }
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}
