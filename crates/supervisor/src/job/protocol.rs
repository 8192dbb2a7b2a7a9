//! What server and shim say to one another over `sock`: one JSON object a line.

use super::records::ExitRecord;
use super::sentinel::Status;
use everbeat_engine::{JobBeat, StopReason};
use everbeat_model::Json;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// The attempt's number.
    pub epoch: u64,
    /// The attempt's token; for a beat, its beat token.
    pub nonce: String,
    /// Of the owner that asks. A beat with a beat token has none.
    #[serde(default)]
    pub tenure: u32,
    #[serde(flatten)]
    pub op: Op,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum Op {
    Hello,
    Stop {
        grace_ms: Option<u64>,
        #[serde(default)]
        why: StopReason,
    },
    Signal {
        name: String,
    },
    Beat {
        status: Option<Status>,
        progress: Option<Value>,
    },
    Ack,
    Subscribe,
    /// A replica that the store acknowledges owns it.
    Vouch,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
pub enum Reply {
    Refused {
        error: Refusal,
        detail: Option<String>,
        /// The later owner's, if that is why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        later_tenure: Option<u32>,
    },
    Hello(Box<Hello>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Refusal {
    /// Not this attempt's number and token, or a later owner has it.
    Fenced,
    /// Not a request.
    Malformed,
    /// Not now: the job runs still, or has ended.
    Untimely,
    /// Too many subscribers.
    Busy,
}

/// How a shim and its job are. Every request that is accepted is answered with it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hello {
    pub job_id: String,
    pub epoch: u64,
    /// The highest that an owner has spoken with.
    #[serde(default)]
    pub tenure: u32,
    pub state: State,
    pub status: Status,
    pub seq: u64,
    pub boot_ms: u64,
    pub started_at: String,
    pub progress: Option<Value>,
    /// Rises with every progress or status the job reports.
    pub progress_seq: u64,
    pub last_write_error: Option<String>,
    pub write_failures: u64,
    pub output_bytes: u64,
    pub dropped_bytes: u64,
    pub contained_by: ContainedBy,
    /// The end, also when it could not be written to the disk.
    pub exit: Option<ExitRecord>,
}

impl Hello {
    /// What the engine is told of this shim. Apart from the message: messages are exchanged with other versions.
    pub(crate) fn beat(&self) -> JobBeat {
        JobBeat {
            seq: self.seq,
            progress: self.progress.as_ref().map(Json::of),
            progress_seq: self.progress_seq,
            write_error: self.last_write_error.clone(),
            write_failures: self.write_failures,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Running,
    /// Asked to stop; its grace runs.
    Stopping,
    /// The command has ended; what it left behind is being killed.
    Clearing,
    /// Ended, and nothing is left of it.
    Exited,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContainedBy {
    Cgroup,
    Tree,
}

/// What a subscriber is told, the present state first.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    Beat(Box<Hello>),
    Progress(Box<Hello>),
    /// The command has ended; its record is on the disk, or `hello.last_write_error` says why not.
    Exit(Box<Hello>),
    /// Nothing of the job is left, and its logs are complete.
    Exited(Box<Hello>),
}

impl Event {
    pub fn hello(&self) -> &Hello {
        match self {
            Event::Beat(hello) | Event::Progress(hello) | Event::Exit(hello) | Event::Exited(hello) => hello,
        }
    }
}

/// A request, a reply or an event is never longer: progress may have 16 KiB, a record far less.
pub(crate) const MOST_LINE_BYTES: usize = 64 << 10;
pub(crate) const MOST_PROGRESS_BYTES: usize = 16 << 10;
