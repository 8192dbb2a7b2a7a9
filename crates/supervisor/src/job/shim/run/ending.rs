//! The command's end: asked for, recorded, reaped, and nothing left behind.

use super::members::own_pid;
use super::{Phase, Shim};
use crate::job::clock;
use crate::job::processes;
use crate::job::protocol::Event;
use crate::job::records::{ExitRecord, Record, Stopped};
use crate::job::shim::failure::Failure;
use crate::job::shim::kill_points::kill_point;
use crate::job::shim::output::TURN_BYTES;
use crate::job::spec::SCHEMA;
use rustix::process::{WaitId, WaitIdOptions, WaitOptions};
use std::os::fd::AsFd;

/// Killed processes are gone within about that.
const LOOK_AGAIN_MS: u64 = 5;
/// A record that the disk refuses is tried again after so long at most.
const RECORD_AGAIN_MS: u64 = 1000;

/// Of the time after which a job is isolated, its end may take so small a part.
const ISOLATED_GRACE_PART: u64 = 4;

impl Shim {
    /// TERM to all there are; after the grace, KILL. A second wish may only shorten the grace.
    pub(super) fn stop(&mut self, why: Stopped, grace_ms: u64) {
        // What has ended by itself was not stopped, although nobody has looked yet.
        self.take_exit();
        // No grace outlasts the one that the deadline would give.
        let at_latest = self.deadline_at.map_or(u64::MAX, |at| at.saturating_add(self.spec.stop_grace_ms));
        let at = clock::boot_ms().saturating_add(grace_ms).min(at_latest);
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

    /// Nobody has vouched for too long: somebody else may be about to do this work, and does not wait for a long grace.
    pub(super) fn stop_if_isolated(&mut self) {
        if self.isolated_at.is_some_and(|at| clock::boot_ms() >= at) {
            self.isolated_at = None;
            let most_grace_ms = self.spec.isolated_after_ms.unwrap_or(0) / ISOLATED_GRACE_PART;
            self.stop(Stopped::Isolated, self.spec.stop_grace_ms.min(most_grace_ms));
        }
    }

    /// The command has ended: its status is looked at, recorded, and only then taken from the kernel.
    pub(super) fn take_exit(&mut self) {
        let (Phase::Running(child) | Phase::Stopping { child, .. }) = &self.phase else { return };
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let Ok(Some(status)) = rustix::process::waitid(WaitId::PidFd(child.pidfd.as_fd()), look) else { return };
        self.drain();
        kill_point("after-exit-before-record");
        self.record(status.exit_status(), status.terminating_signal(), None);
    }

    pub(super) fn record(&mut self, exit_code: Option<i32>, exit_signal: Option<i32>, failure: Option<Failure>) {
        let record = ExitRecord {
            schema: SCHEMA,
            job_id: self.spec.job_id.clone(),
            epoch: self.spec.epoch,
            nonce: self.spec.nonce.clone(),
            boot_id: self.spec.boot_id.clone(),
            exit_code,
            exit_signal,
            start_errno: failure.as_ref().and_then(|failure| failure.errno),
            start_failed: failure.as_ref().and_then(|failure| failure.part),
            start_error: failure.map(|failure| failure.why),
            timed_out: self.stopped == Some(Stopped::Deadline),
            stopped: self.stopped,
            started_at: self.started_at.clone(),
            ended_at: clock::now_text(),
            boot_ms: clock::boot_ms(),
            output_bytes: self.outputs.iter().map(|output| output.written).sum(),
            dropped_bytes: self.outputs.iter().map(|output| output.dropped).sum(),
            stdout_dropped_bytes: self.outputs[0].dropped,
        };
        self.write_record(&record);
        self.exit = Some(record);
        kill_point("after-record-before-reap");
        // Now it is reaped, with all the others, in `clear`.
        self.phase = Phase::Clearing { look_at: 0 };
        self.clients.announce(&Event::Exit(Box::new(self.hello())));
        self.clear();
    }

    pub(super) fn write_record(&mut self, record: &ExitRecord) {
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
    pub(super) fn clear(&mut self) {
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
            if let Some(timer) = &self.last_timer {
                timer.disarm();
            }
            self.phase = Phase::Exited { until: clock::boot_ms().saturating_add(self.spec.linger_ms) };
            self.clients.announce(&Event::Exited(Box::new(self.hello())));
        } else {
            self.kill_everything();
            self.phase = Phase::Clearing { look_at: clock::boot_ms() + LOOK_AGAIN_MS };
        }
    }

    /// Takes what the pipes hold, so that a record counts what the command itself wrote; but no more than they can hold:
    /// somebody may write on and on.
    fn drain(&mut self) {
        /// 1 MiB, which is as large as a pipe can be made.
        const MOST_TURNS: usize = (1 << 20) / TURN_BYTES;
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
    pub(super) fn reap_adopted(&mut self) {
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
