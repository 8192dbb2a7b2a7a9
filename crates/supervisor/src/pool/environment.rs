//! What a worker gets of its server's environment, and the names under which it finds what is its own.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Stands in the environment of every worker and of what it starts.
pub(super) const WORKER_TAG: &str = "EVERBEAT_POOL_TAG";
/// Stands in the environment of a guardian.
pub(super) const GUARDIAN_TAG: &str = "EVERBEAT_GUARDIAN_TAG";

/// The socket to dial.
pub(super) const SOCKET: &str = "EVERBEAT_WORKER_SOCKET";
/// The descriptor from which the secret is read, once.
pub(super) const SECRET_FD: &str = "EVERBEAT_WORKER_SECRET_FD";
/// The descriptor whose end of file says that the guardian is gone.
pub(super) const LIFE_FD: &str = "EVERBEAT_WORKER_LIFE_FD";
/// The file for the stacks of all threads, on SIGUSR1.
pub(super) const DUMP_PATH: &str = "EVERBEAT_WORKER_DUMP_PATH";
pub(super) const POOL: &str = "EVERBEAT_POOL";
/// For people who look at a process.
pub(super) const WORKER_ID: &str = "EVERBEAT_WORKER_ID";

/// Of the server's environment a worker gets what says where and who it is, and where its language finds its packages;
/// secrets it must be given. What begins with `LC_` comes along as well.
const INHERITED: [&str; 16] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "PYTHONPATH",
    "PYTHONHOME",
    "NODE_PATH",
    "GEM_PATH",
    "JAVA_HOME",
];
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What every worker gets of this process's environment.
pub(super) fn inherited() -> BTreeMap<String, String> {
    let own =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let mut env: BTreeMap<String, String> =
        own.filter(|(name, _)| INHERITED.contains(&name.as_str()) || name.starts_with("LC_")).collect();
    env.entry("PATH".to_string()).or_insert_with(|| DEFAULT_PATH.to_string());
    env
}

/// Where this process was started: workers find their modules there, unless they are told otherwise.
pub(super) fn folder() -> PathBuf {
    std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"))
}
