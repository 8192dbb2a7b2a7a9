//! What a shim is to do: written once per attempt by the server, before it starts the shim.

use super::clock;
use super::folder::{self, JobFolder, MOST_RECORD_BYTES, Problem, SPEC};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    pub schema: u32,
    pub job_id: String,
    /// The attempt's number.
    pub epoch: u64,
    /// The attempt's token, 128 random bits in hexadecimal: see [`new_token`].
    pub nonce: String,
    /// Its owner's. It rises with every replica that takes the attempt over; the token stays.
    #[serde(default)]
    pub tenure: u32,
    /// The boot in which this attempt may start.
    pub boot_id: String,
    /// On the boot time of that boot: after that its owner may have lost it, and nothing may start it any more.
    #[serde(default)]
    pub start_before_ms: Option<u64>,
    /// Program and arguments; never a shell line. A bare name is looked up in the `PATH` of `env`.
    pub command: Vec<String>,
    /// The whole environment; nothing is inherited.
    pub env: BTreeMap<String, String>,
    /// Absolute; without one, the workspace.
    pub cwd: Option<PathBuf>,
    /// The file that the command gets as its stdin: what [`JobFolder::write_input`] named. Without one, nothing.
    #[serde(default)]
    pub stdin: Option<String>,
    /// Where its stdout begins in the log, which earlier attempts wrote to as well.
    #[serde(default)]
    pub stdout_from: u64,
    pub session_id: Option<String>,
    pub agent_engine: Option<String>,
    pub interval_ms: u64,
    pub stop_grace_ms: u64,
    /// So long the command may run, on boot time.
    pub deadline_ms: Option<u64>,
    /// So long, on boot time, it may run without anybody vouching for it. Without one, for ever.
    #[serde(default)]
    pub isolated_after_ms: Option<u64>,
    /// Both files of one stream together.
    pub log_limit_bytes: u64,
    /// So long an ended job's shim waits to be acknowledged. The record outlives it.
    pub linger_ms: u64,
    #[serde(default)]
    pub containment: Containment,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Containment {
    /// A cgroup where one can be made, and the process tree.
    #[default]
    Auto,
    /// The process tree alone.
    Tree,
}

/// One attempt of one job, as its folder names it. Records and shims count only with this attempt's. Apart from the
/// engine's `JobAttempt`: what stands on a disk may be no number or token that the engine could have given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub attempt: u64,
    pub token: String,
}

pub(crate) const SCHEMA: u32 = 1;
/// Below that a job would do little but rotate its logs.
const LEAST_LOG_BYTES: u64 = 4096;

impl Spec {
    /// A spec with the defaults of `[jobs]`, for this boot.
    pub fn new(job_id: &str, attempt: u64, command: Vec<String>) -> io::Result<Spec> {
        Ok(Spec {
            schema: SCHEMA,
            job_id: job_id.to_owned(),
            epoch: attempt,
            nonce: new_token()?,
            tenure: 0,
            boot_id: clock::boot_id()?,
            start_before_ms: None,
            command,
            env: BTreeMap::new(),
            cwd: None,
            stdin: None,
            stdout_from: 0,
            session_id: None,
            agent_engine: None,
            interval_ms: 30_000,
            stop_grace_ms: 10_000,
            deadline_ms: None,
            isolated_after_ms: None,
            log_limit_bytes: 1 << 30,
            linger_ms: 600_000,
            containment: Containment::Auto,
        })
    }

    /// Written durably: a shim never starts on half a spec.
    pub fn write(&self, folder: &JobFolder) -> io::Result<()> {
        self.check().map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        if self.job_id != folder.job_id() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the spec is of another job than the folder"));
        }
        if serde_json::to_vec(self)?.len() as u64 > MOST_RECORD_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "command and environment exceed 1 MiB"));
        }
        folder.write_durably(SPEC, self)
    }

    pub fn read(folder: &JobFolder) -> Result<Spec, Problem> {
        let spec: Spec = folder.read_json(SPEC, MOST_RECORD_BYTES)?;
        spec.check().map_err(|why| Problem::Malformed(SPEC.into(), why.into()))?;
        if spec.job_id != folder.job_id() {
            return Err(Problem::Foreign(SPEC.into()));
        }
        Ok(spec)
    }

    pub fn identity(&self) -> Identity {
        Identity { attempt: self.epoch, token: self.nonce.clone() }
    }

    /// Whether it is too late to start it.
    pub(crate) fn is_expired(&self) -> bool {
        self.start_before_ms.is_some_and(|before| clock::boot_ms() >= before)
    }

    fn check(&self) -> Result<(), &'static str> {
        let nul = |text: &str| text.contains('\0');
        if self.schema != SCHEMA {
            Err("its schema is not known here")
        } else if self.nonce.len() != 32 || !self.nonce.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            Err("its nonce is not 128 bits in hexadecimal")
        } else if self.command.is_empty() || self.command[0].is_empty() {
            Err("its command is empty")
        } else if self.command.iter().any(|part| nul(part))
            || self.env.iter().any(|(name, value)| nul(name) || nul(value) || name.is_empty() || name.contains('='))
        {
            Err("its command or environment cannot be handed to a process")
        } else if self.cwd.as_ref().is_some_and(|cwd| !cwd.is_absolute()) {
            Err("its working folder is not absolute")
        } else if self.stdin.as_deref().is_some_and(|name| !folder::is_input(name)) {
            Err("its stdin is not an input of the job's folder")
        } else if self.interval_ms == 0 {
            Err("its interval is zero")
        } else if self.log_limit_bytes < LEAST_LOG_BYTES {
            Err("its log limit is below 4 KiB")
        } else {
            Ok(())
        }
    }
}

impl Identity {
    /// The second secret, which the job itself gets: it can only beat.
    pub fn beat_token(&self) -> String {
        self.derive("beat")
    }

    /// Stands in the environment of the job's processes, to find those that left the tree.
    pub(crate) fn tag(&self) -> String {
        self.derive("tag")
    }

    /// Stands in the environment of the shim, to find a hung one.
    pub(crate) fn shim_tag(&self) -> String {
        self.derive("shim")
    }

    /// One-way: who sees a tag does not know the token.
    fn derive(&self, purpose: &str) -> String {
        let digest = Sha256::digest(format!("everbeat {purpose} {} {}", self.attempt, self.token));
        hex(&digest[..16])
    }
}

/// 128 random bits in hexadecimal.
pub fn new_token() -> io::Result<String> {
    let mut bytes = [0_u8; 16];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())? {
        16 => Ok(hex(&bytes)),
        _ => Err(io::Error::other("the kernel gave too few random bytes")),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_that_cannot_be_carried_out_is_refused_when_it_is_written() {
        let root = tempfile::tempdir().unwrap();
        let folder = JobFolder::create(root.path(), "j").unwrap();
        let good = Spec::new("j", 1, vec!["true".into()]).unwrap();
        good.write(&folder).unwrap();
        let refused = |change: fn(&mut Spec)| {
            let mut spec = good.clone();
            change(&mut spec);
            assert!(spec.write(&folder).is_err(), "{spec:?}");
        };
        refused(|spec| spec.command.clear());
        refused(|spec| spec.command = vec!["a\0b".into()]);
        refused(|spec| spec.cwd = Some("relative".into()));
        refused(|spec| spec.stdin = Some("spec.json".into()));
        refused(|spec| spec.stdin = Some("input/../spec.json".into()));
        refused(|spec| spec.nonce = "guess".into());
        refused(|spec| spec.job_id = "k".into());
        refused(|spec| spec.interval_ms = 0);
        refused(|spec| spec.log_limit_bytes = 100);
        refused(|spec| drop(spec.env.insert("A=B".into(), String::new())));
        refused(|spec| drop(spec.env.insert("A".into(), "x".repeat(1 << 20))));
        assert_eq!(Spec::read(&folder).unwrap().nonce, good.nonce);
    }

    #[test]
    fn the_three_secrets_of_an_attempt_differ_and_change_with_it() {
        let one = Identity { attempt: 1, token: new_token().unwrap() };
        let two = Identity { attempt: 2, ..one.clone() };
        let all = [one.tag(), one.shim_tag(), one.beat_token(), two.tag(), two.shim_tag(), two.beat_token()];
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }
}
