//! What clients of the socket, and the job itself, want of the shim.

use super::{Phase, Shim};
use crate::job::clock;
use crate::job::processes;
use crate::job::protocol::{ContainedBy, Hello, MOST_PROGRESS_BYTES, Op, Refusal, Reply, Request, State};
use crate::job::records::Stopped;
use crate::job::sentinel::Status;
use serde_json::Value;

/// Of the time after which a job is isolated: so much later it is killed, whatever its shim does. That is after any
/// grace, and before the host is given up, which takes half of that time.
const LAST_PART: (u64, u64) = (3, 8);

impl Shim {
    pub(super) fn obey(&mut self, client: u64, line: &[u8]) {
        let done = match serde_json::from_slice::<Request>(line) {
            Err(error) => Err(refused(Refusal::Malformed, error.to_string())),
            Ok(request) => self.admit(&request).and_then(|()| {
                self.perform(client, request).map_err(|(error, detail)| refused(error, detail.to_owned()))
            }),
        };
        let reply = done.map_or_else(|refusal| refusal, |()| Reply::Hello(Box::new(self.hello())));
        self.clients.answer(client, &reply);
    }

    /// An owner may ask anything, until a later one has; the job itself may beat.
    fn admit(&mut self, request: &Request) -> Result<(), Reply> {
        let identity = self.spec.identity();
        let beats = matches!(request.op, Op::Beat { .. }) && request.nonce == identity.beat_token();
        if request.epoch != identity.attempt || (request.nonce != identity.token && !beats) {
            return Err(refused(Refusal::Fenced, "this is not the attempt you mean".into()));
        }
        if beats {
            return Ok(());
        }
        if request.tenure < self.tenure {
            let detail = format!("your tenure {} is over: the owner of tenure {} has it", request.tenure, self.tenure);
            let later_tenure = Some(self.tenure);
            return Err(Reply::Refused { error: Refusal::Fenced, detail: Some(detail), later_tenure });
        }
        self.fence_before(request.tenure);
        Ok(())
    }

    /// Somebody whom the store acknowledges owns it. Only who says so explicitly: one that is cut off from the store
    /// asks and listens just the same.
    pub(in super::super) fn vouched(&mut self) {
        let Some(ms) = self.spec.isolated_after_ms else { return };
        let at = clock::boot_ms().saturating_add(ms);
        self.isolated_at = Some(at);
        if let Some(timer) = &self.last_timer
            && let Err(error) = timer.put_off(at.saturating_add(LAST_PART.0 * (ms / LAST_PART.1)))
        {
            self.note_write_error(&error);
        }
    }

    /// From now on, earlier owners have no say and hear nothing.
    pub(super) fn fence_before(&mut self, tenure: u32) {
        if tenure > self.tenure {
            self.tenure = tenure;
            self.clients.drop_subscribers_before(tenure);
        }
    }

    fn perform(&mut self, client: u64, request: Request) -> Result<(), (Refusal, &'static str)> {
        match request.op {
            Op::Hello => {}
            Op::Vouch => self.vouched(),
            Op::Stop { grace_ms, why } => {
                self.stop(Stopped::told(why), grace_ms.unwrap_or(self.spec.stop_grace_ms));
            }
            Op::Signal { name } => {
                let signal = processes::signal_by_name(&name).ok_or((Refusal::Malformed, "no such signal"))?;
                let (Phase::Running(child) | Phase::Stopping { child, .. }) = &self.phase else {
                    return Err((Refusal::Untimely, "the command has ended"));
                };
                let _it_ended_just_now = rustix::process::pidfd_send_signal(&child.pidfd, signal);
            }
            Op::Beat { status, progress } => {
                let size = progress.as_ref().map_or(0, |progress| progress.to_string().len());
                if size > MOST_PROGRESS_BYTES {
                    return Err((Refusal::Malformed, "progress has more than 16 KiB"));
                }
                self.report(status, progress);
            }
            Op::Ack if self.exit.is_none() => return Err((Refusal::Untimely, "the command has not ended")),
            Op::Ack => self.acknowledged = true,
            Op::Subscribe if self.clients.subscribe(client, request.tenure) => {}
            Op::Subscribe => return Err((Refusal::Busy, "too many subscribers")),
        }
        Ok(())
    }

    pub(super) fn report(&mut self, status: Option<Status>, progress: Option<Value>) {
        let named = progress.as_ref().and_then(|progress| progress.get("status"));
        let named = named.and_then(|status| serde_json::from_value(status.clone()).ok());
        self.reported.status = status.or(named).unwrap_or(self.reported.status);
        self.reported.progress = progress.or(self.reported.progress.take());
        self.reported.seq += 1;
    }

    pub(super) fn hello(&self) -> Hello {
        Hello {
            job_id: self.spec.job_id.clone(),
            epoch: self.spec.epoch,
            tenure: self.tenure,
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
}

fn refused(error: Refusal, detail: String) -> Reply {
    Reply::Refused { error, detail: Some(detail), later_tenure: None }
}
