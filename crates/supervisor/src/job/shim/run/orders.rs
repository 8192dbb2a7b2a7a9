//! What clients of the socket, and the job itself, want of the shim.

use super::{Phase, Shim};
use crate::job::clock;
use crate::job::processes;
use crate::job::protocol::{ContainedBy, Hello, MOST_PROGRESS_BYTES, Order, Refusal, Reply, Request, State};
use crate::job::records::Stopped;
use crate::job::sentinel::Status;
use serde_json::Value;

impl Shim {
    pub(super) fn obey(&mut self, client: u64, line: &[u8]) {
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
