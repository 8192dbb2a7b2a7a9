//! Signs of life, written and told.

use super::Phase;
use super::Shim;
use crate::job::clock;
use crate::job::protocol::Event;
use crate::job::records::{CancelRecord, Record, Stopped};
use crate::job::sentinel::{self, Sentinel};
use crate::job::spec::SCHEMA;
use std::io;

impl Shim {
    pub(super) fn is_beating(&self) -> bool {
        matches!(self.phase, Phase::Running(_) | Phase::Stopping { .. })
    }

    pub(super) fn beat(&mut self) {
        let now = clock::boot_ms();
        self.beats.seq += 1;
        self.beats.next_at = now.saturating_add(self.spec.interval_ms);
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
        if let Ok(Some(cancel)) = cancel
            && cancel.tenure >= self.tenure
        {
            self.fence_before(cancel.tenure);
            self.stop(Stopped::left(cancel.why), cancel.grace_ms);
        }
    }

    /// Never a reason to stop the job; told to whoever asks.
    pub(in super::super) fn note_write_error(&mut self, error: &io::Error) {
        self.beats.failures += 1;
        self.beats.last_error = Some(format!("{}: {error}", clock::now_text()));
    }
}
