//! What a server and the guardian of a pool say to each other: small messages, with descriptors beside them.

use everbeat_engine::pools;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "say")]
pub(super) enum ToGuardian {
    /// The first message.
    Begin { pool: String, strict: bool },
    /// With descriptors: the order, as JSON in a file in memory; the worker's ends of stdout and stderr; the secret; and
    /// the worker's end of stdin, if it is to have one.
    Spawn { id: u64, worker: String },
    /// Kills a worker and everything it started.
    Kill { id: u64 },
    /// Kills everything and ends. Without this the end of the connection is the server's death.
    End,
}

/// What a worker is to be, without what it is handed as descriptors. An environment may be larger than a message.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) command: Vec<String>,
    /// The whole environment; nothing is inherited.
    pub(super) env: BTreeMap<String, String>,
    pub(super) cwd: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "say")]
pub(super) enum FromGuardian {
    /// The answer to `Begin`.
    Ready {
        containment: Containment,
    },
    /// The other answer to `Begin`; the guardian ends.
    Refused {
        why: String,
        errno: Option<i32>,
    },
    /// With a descriptor: a pidfd of the worker's main process.
    Spawned {
        id: u64,
        pid: i32,
        leaf: Option<PathBuf>,
    },
    Failed {
        id: u64,
        stage: Stage,
        errno: i32,
    },
    Exited {
        id: u64,
        code: Option<i32>,
        signal: Option<i32>,
        out_of_memory: OutOfMemory,
    },
    Emptied {
        id: u64,
        how: How,
        took_us: u64,
        killed: usize,
    },
}

/// What failed on the way to a running program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Stage {
    /// The machine has no process, descriptor or cgroup to give.
    Process,
    /// The working folder.
    Folder,
    Program,
}

impl Stage {
    pub(super) fn as_byte(self) -> u8 {
        match self {
            Stage::Process => b'p',
            Stage::Folder => b'f',
            Stage::Program => b'x',
        }
    }

    pub(super) fn of_byte(byte: u8) -> Stage {
        match byte {
            b'f' => Stage::Folder,
            b'x' => Stage::Program,
            _ => Stage::Process,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Containment {
    Cgroup,
    PidNamespace,
    TreeWalk,
}

impl Containment {
    pub(super) fn told(self) -> pools::Containment {
        match self {
            Containment::Cgroup => pools::Containment::Cgroup,
            Containment::PidNamespace => pools::Containment::PidNamespace,
            Containment::TreeWalk => pools::Containment::TreeWalk,
        }
    }

    /// How what is left of a worker is ended.
    pub(super) fn how(self) -> How {
        match self {
            Containment::Cgroup => How::Cgroup,
            Containment::PidNamespace => How::Namespace,
            Containment::TreeWalk => How::Walk,
        }
    }
}

/// Whether the kernel ended a worker for lack of memory, by what counts that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OutOfMemory {
    No,
    Machine,
    SharedCgroup,
    OwnCgroup,
}

impl OutOfMemory {
    pub(super) fn told(self) -> pools::OutOfMemory {
        match self {
            OutOfMemory::No => pools::OutOfMemory::No,
            OutOfMemory::Machine => pools::OutOfMemory::Machine,
            OutOfMemory::SharedCgroup => pools::OutOfMemory::SharedCgroup,
            OutOfMemory::OwnCgroup => pools::OutOfMemory::OwnCgroup,
        }
    }
}

/// How it came that nothing of a worker is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum How {
    /// Nothing was left when it exited.
    Exited,
    Cgroup,
    Namespace,
    Walk,
}

impl How {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            How::Exited => "exited",
            How::Cgroup => "cgroup",
            How::Namespace => "namespace",
            How::Walk => "walk",
        }
    }
}

/// What a keeper says to its guardian. See `guardian::keeper`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "say")]
pub(super) enum FromKeeper {
    /// With a descriptor: a pidfd of the worker's main process.
    Started,
    Exited {
        code: Option<i32>,
        signal: Option<i32>,
    },
    Emptied {
        took_us: u64,
        killed: usize,
    },
}

/// What a guardian says to a keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToKeeper {
    /// The number of the main process was read: it may be reaped.
    Known,
    Kill,
}

/// Which descriptor a worker finds its secret and its life line at.
pub(super) const SECRET_FD: i32 = 3;
pub(super) const LIFE_FD: i32 = 4;

pub(super) fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a malformed message: {what}"))
}
