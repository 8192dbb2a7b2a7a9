//! The durable records of an attempt. Each counts only for the attempt asked for.
//!
//! On the disk and on the socket the number of an attempt is called `epoch` and its token `nonce`: shims of earlier
//! versions read and write these words.

use super::clock;
use super::folder::{CANCEL, EXIT, FENCE, JobFolder, MOST_RECORD_BYTES, Problem, STARTED};
use super::past::Past;
use super::spec::Identity;
use everbeat_engine::StopReason;
use everbeat_model::job::Exit;
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
    /// Of the latter, those of stdout.
    #[serde(default)]
    pub stdout_dropped_bytes: u64,
}

/// Why a shim stopped its command. Apart from the model's `Stopped`: a record also tells by which way the wish came, in
/// words that stay on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stopped {
    /// Over the socket.
    Requested,
    /// By `cancel.json`.
    Cancelled,
    /// By its owner: it made no progress.
    Stalled,
    /// No lease stood for it any more.
    Fenced,
    Deadline,
    /// Nobody vouched for it for too long.
    Isolated,
    /// Its shim was asked to end.
    ShimTerminated,
}

impl Stopped {
    /// What the record says of a wish that came over the socket.
    pub(crate) fn told(why: StopReason) -> Stopped {
        match why {
            StopReason::Cancelled => Stopped::Requested,
            StopReason::Stalled => Stopped::Stalled,
            StopReason::Fenced => Stopped::Fenced,
        }
    }

    /// And of one that was left in the folder.
    pub(crate) fn left(why: StopReason) -> Stopped {
        match why {
            StopReason::Cancelled => Stopped::Cancelled,
            other => Stopped::told(other),
        }
    }

    /// What a stop means for whoever judges the end.
    fn meaning(self) -> everbeat_model::job::Stopped {
        use everbeat_model::job::Stopped as Meaning;
        match self {
            Stopped::Requested | Stopped::Cancelled | Stopped::Fenced => Meaning::Requested,
            Stopped::Stalled => Meaning::Stalled,
            Stopped::Deadline => Meaning::Deadline,
            Stopped::Isolated => Meaning::Isolated,
            Stopped::ShimTerminated => Meaning::ShimTerminated,
        }
    }
}

/// The part of a spec that kept a command from starting.
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
    /// The command may have run. Kept here because what told so may be gone: processes, and records that cannot be
    /// read.
    #[serde(default)]
    pub may_have_run: bool,
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
    #[serde(default)]
    pub why: StopReason,
    pub grace_ms: u64,
}

pub(crate) trait Record: Serialize + DeserializeOwned {
    const NAME: &str;
    fn attempt(&self) -> u64;
    fn token(&self) -> &str;

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
        self.attempt() == identity.attempt && self.token() == identity.token
    }
}

macro_rules! record {
    ($record:ty, $name:expr) => {
        impl Record for $record {
            const NAME: &str = $name;
            fn attempt(&self) -> u64 {
                self.epoch
            }
            fn token(&self) -> &str {
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
    /// The exit record of this attempt, if it has ended; also where another attempt has taken its place since.
    pub fn read(folder: &JobFolder, identity: &Identity) -> Result<Option<ExitRecord>, Problem> {
        match Record::read(folder, identity)? {
            Some(record) => Ok(Some(record)),
            None => Ok(Past::read(folder)?.exit(identity)),
        }
    }

    /// What the engine is told of this exit. Apart from the record: a record is a file, and other versions read it.
    pub(crate) fn exit(&self) -> Exit {
        let word = |part: &StartPart| serde_json::to_value(part).ok().and_then(|word| Some(word.as_str()?.to_string()));
        Exit {
            exit_code: self.exit_code,
            exit_signal: self.exit_signal,
            start_error: self.start_error.clone(),
            start_errno: self.start_errno,
            start_failed: self.start_failed.as_ref().and_then(word),
            stopped: self.stopped.map(Stopped::meaning),
            output_bytes: self.output_bytes,
            dropped_bytes: self.dropped_bytes,
        }
    }
}

impl CancelRecord {
    /// Leaves the wish to stop where the shim looks at its start and at every interval. One that a later
    /// owner left stays; of one owner's wishes the first says why.
    pub fn leave(
        folder: &JobFolder,
        identity: &Identity,
        tenure: u32,
        why: StopReason,
        grace_ms: u64,
    ) -> io::Result<()> {
        let left: Option<CancelRecord> = Record::read(folder, identity).unwrap_or_default();
        let why = match left {
            Some(left) if left.tenure > tenure => {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    format!("the cancel of a later owner (tenure {} after {tenure}) stands", left.tenure),
                ));
            }
            Some(left) if left.tenure == tenure => left.why,
            _ => why,
        };
        let (epoch, nonce) = (identity.attempt, identity.token.clone());
        CancelRecord { epoch, nonce, tenure, why, grace_ms }.write(folder)
    }
}

impl FenceRecord {
    /// Forbids the attempt for good. A later fence stays: it forbids this attempt too.
    pub(crate) fn forbid(folder: &JobFolder, identity: &Identity, may_have_run: bool) -> io::Result<()> {
        let stands: Option<FenceRecord> = Record::read_any(folder).map_err(Problem::into_error)?;
        match stands {
            Some(stands) if stands.is_of(identity) && (stands.may_have_run || !may_have_run) => return Ok(()),
            Some(stands) if stands.is_of(identity) => {}
            Some(stands) if stands.forbids(identity) => return Past::note(folder, identity, may_have_run),
            Some(_) => Past::keep(folder, identity)?,
            None => {}
        }
        let (epoch, nonce) = (identity.attempt, identity.token.clone());
        FenceRecord { epoch, nonce, fenced_at: clock::now_text(), may_have_run }.write(folder)
    }

    /// Whether it forbids this attempt. Of two attempts of one number (a store may forget a commit at a
    /// failover) only the one that was named is fenced.
    pub(crate) fn forbids(&self, identity: &Identity) -> bool {
        self.epoch > identity.attempt || self.is_of(identity)
    }
}
