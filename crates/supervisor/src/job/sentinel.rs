//! The sentinel: the shim's sign of health, for people and for the admin API. Its age is not a verdict.

use super::clock;
use super::folder::{JobFolder, MOST_SENTINEL_BYTES, Problem, SENTINEL};
use super::root::Root;
use super::spec::Identity;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// No PID here, on purpose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sentinel {
    pub job_id: String,
    pub status: Status,
    /// By the wall clock: for people. Ages are taken from `boot_ms`.
    pub last_heartbeat: String,
    pub workspace_path: PathBuf,
    pub session_id: Option<String>,
    pub agent_engine: Option<String>,
    pub started_at: String,
    pub schema: u32,
    pub epoch: u64,
    pub nonce: String,
    pub seq: u64,
    pub boot_id: String,
    pub boot_ms: u64,
    pub interval_ms: u64,
    pub progress: Option<Value>,
    pub last_write_error: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    #[default]
    Running,
    Waiting,
    Processing,
}

/// Reads the sentinel, whatever stands there: a problem is an answer, and nothing waits or follows.
pub fn read(folder: &JobFolder) -> Result<Sentinel, Problem> {
    let sentinel: Sentinel = folder.read_json(SENTINEL, MOST_SENTINEL_BYTES)?;
    let malformed = |why: &str| Problem::Malformed(SENTINEL.into(), why.into());
    if sentinel.job_id != folder.job_id() {
        return Err(Problem::Foreign(SENTINEL.into()));
    }
    if sentinel.schema != super::spec::SCHEMA {
        return Err(malformed("its schema is not known here"));
    }
    clock::parse(&sentinel.last_heartbeat).ok_or_else(|| malformed("lastHeartbeat is not a time"))?;
    Ok(sentinel)
}

/// The sentinels of many jobs, in the order asked for. One that cannot be read hides no other.
pub fn sentinels<I: AsRef<str>>(
    root: &Path,
    ids: impl IntoIterator<Item = I>,
) -> Vec<(String, Result<Sentinel, Problem>)> {
    let opened = Root::open(root);
    let one = |id: &str| match &opened {
        Ok(root) => read(&root.job(id)?),
        Err(error) => Err(Problem::Unreadable(root.display().to_string(), error.kind().into())),
    };
    ids.into_iter().map(|id| (id.as_ref().to_owned(), one(id.as_ref()))).collect()
}

impl Sentinel {
    /// One such as a shim writes, to measure with.
    pub fn sample(folder: &JobFolder) -> std::io::Result<Sentinel> {
        let now = clock::now_text();
        Ok(Sentinel {
            job_id: folder.job_id().to_owned(),
            status: Status::Running,
            last_heartbeat: now.clone(),
            workspace_path: folder.workspace(),
            session_id: None,
            agent_engine: None,
            started_at: now,
            schema: super::spec::SCHEMA,
            epoch: 1,
            nonce: super::spec::new_token()?,
            seq: 1,
            boot_id: clock::boot_id()?,
            boot_ms: clock::boot_ms(),
            interval_ms: 30_000,
            progress: None,
            last_write_error: None,
        })
    }

    pub(crate) fn is_of(&self, identity: &Identity) -> bool {
        self.epoch == identity.attempt && self.nonce == identity.token
    }

    /// How long ago it was written: on boot time in the same boot, by the wall clock across boots. A beat
    /// from the future has no age.
    pub fn age(&self) -> Option<Duration> {
        let same_boot = clock::boot_id().is_ok_and(|boot| boot == self.boot_id);
        let milliseconds = match same_boot {
            true => clock::boot_ms().checked_sub(self.boot_ms),
            false => clock::wall_ms().checked_sub(clock::parse(&self.last_heartbeat)?),
        };
        milliseconds.map(Duration::from_millis)
    }
}

/// Not synced: after a crash of the machine the job is lost anyway.
pub fn write(folder: &JobFolder, sentinel: &Sentinel) -> std::io::Result<()> {
    folder.write_quickly(SENTINEL, sentinel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentinel_is_cheap_to_write() {
        let root = tempfile::tempdir().unwrap();
        let folder = JobFolder::create(root.path(), "j").unwrap();
        let sentinel = Sentinel::sample(&folder).unwrap();
        let began = clock::boot_ms();
        for _ in 0..1000 {
            write(&folder, &sentinel).unwrap();
        }
        println!("a sentinel is written in {} µs", clock::boot_ms() - began);
        assert_eq!(read(&folder).unwrap(), sentinel);
    }
}
