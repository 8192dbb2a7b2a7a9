//! The durable records of an attempt. Each counts only with the epoch and nonce of the attempt asked for.

use super::folder::{CANCEL, EXIT, FENCE, JobFolder, MOST_RECORD_BYTES, Problem, STARTED};
use super::spec::Identity;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;

/// The command's end, as the kernel told it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExitRecord {
    pub schema: u32,
    pub job_id: String,
    pub epoch: u64,
    pub nonce: String,
    pub boot_id: String,
    pub exit_code: Option<i32>,
    pub exit_signal: Option<i32>,
    /// Why the command never ran.
    pub start_error: Option<String>,
    /// What the kernel said of it: ENOENT for what does not exist, EACCES for what may not be run.
    #[serde(default)]
    pub start_errno: Option<i32>,
    /// Which part of the spec it was.
    #[serde(default)]
    pub start_failed: Option<StartPart>,
    pub timed_out: bool,
    /// Why it was asked to stop, if it was.
    pub stopped: Option<Stopped>,
    pub started_at: String,
    pub ended_at: String,
    pub boot_ms: u64,
    /// Bytes of both streams that reached the logs, and those for which there was no room.
    pub output_bytes: u64,
    pub dropped_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stopped {
    /// Over the socket.
    Requested,
    /// By `cancel.json`.
    Cancelled,
    Deadline,
    /// No owner spoke to the shim for too long.
    Isolated,
    /// Its shim was asked to end.
    ShimTerminated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StartPart {
    Program,
    /// The working folder.
    Folder,
    /// What was to be its stdin.
    Input,
}

/// Written between lock and exec. From here on nobody can say that the command never ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Started {
    pub epoch: u64,
    pub nonce: String,
    pub boot_id: String,
    pub started_at: String,
}

/// This attempt, and every earlier one, must not start any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FenceRecord {
    pub epoch: u64,
    pub nonce: String,
    pub fenced_at: String,
}

/// A wish to stop, for a shim whose socket could not be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CancelRecord {
    pub epoch: u64,
    pub nonce: String,
    /// Of who wishes it. A shim that has heard of a later owner does not obey.
    #[serde(default)]
    pub tenure: u32,
    pub grace_ms: u64,
}

pub(crate) trait Record: Serialize + DeserializeOwned {
    const NAME: &str;
    fn epoch(&self) -> u64;
    fn nonce(&self) -> &str;

    fn write(&self, folder: &JobFolder) -> io::Result<()> {
        folder.write_durably(Self::NAME, self)
    }

    /// The record as it stands, whoever's it is; none is not a problem.
    fn read_any(folder: &JobFolder) -> Result<Option<Self>, Problem> {
        match folder.read_json(Self::NAME, MOST_RECORD_BYTES) {
            Ok(record) => Ok(Some(record)),
            Err(Problem::Missing(_)) => Ok(None),
            Err(problem) => Err(problem),
        }
    }

    /// The record of this attempt.
    fn read(folder: &JobFolder, identity: &Identity) -> Result<Option<Self>, Problem> {
        Ok(Self::read_any(folder)?.filter(|record| record.is_of(identity)))
    }

    fn is_of(&self, identity: &Identity) -> bool {
        self.epoch() == identity.epoch && self.nonce() == identity.nonce
    }
}

macro_rules! record {
    ($record:ty, $name:expr) => {
        impl Record for $record {
            const NAME: &str = $name;
            fn epoch(&self) -> u64 {
                self.epoch
            }
            fn nonce(&self) -> &str {
                &self.nonce
            }
        }
    };
}

record!(ExitRecord, EXIT);
record!(Started, STARTED);
record!(FenceRecord, FENCE);
record!(CancelRecord, CANCEL);

impl ExitRecord {
    /// The exit record of this attempt, if it has ended.
    pub fn read(folder: &JobFolder, identity: &Identity) -> Result<Option<ExitRecord>, Problem> {
        Record::read(folder, identity)
    }
}

impl CancelRecord {
    /// Leaves the wish to stop where the shim looks at its start and at every interval. One that a later
    /// owner left stays.
    pub fn leave(folder: &JobFolder, identity: &Identity, tenure: u32, grace_ms: u64) -> io::Result<()> {
        let left: Option<CancelRecord> = Record::read(folder, identity).unwrap_or_default();
        match left {
            Some(left) if left.tenure > tenure => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("the cancel of a later owner (tenure {} after {tenure}) stands", left.tenure),
            )),
            _ => CancelRecord { epoch: identity.epoch, nonce: identity.nonce.clone(), tenure, grace_ms }.write(folder),
        }
    }
}

impl FenceRecord {
    /// Whether it forbids this attempt. Of two attempts of one number (a store may forget a commit at a
    /// failover) only the one that was named is fenced.
    pub(crate) fn forbids(&self, identity: &Identity) -> bool {
        self.epoch > identity.epoch || self.is_of(identity)
    }
}
