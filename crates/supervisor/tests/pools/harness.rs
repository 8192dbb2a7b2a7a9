//! A server's guardians in a data folder of their own, in each containment.

use everbeat_engine::pools::{
    Containment, Emptied, Guardian, Guardians, OutputLine, SpawnError, WantedContainment, WorkerExit, WorkerOrder,
    WorkerProcess,
};
use everbeat_model::WorkerId;
use everbeat_supervisor::{HostGuardians, Misplaced, Place};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Long enough for a busy machine; nothing waits that long unless it fails.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// What a guardian is made to believe that the machine lacks.
pub(crate) const MODES: [&str; 3] = ["", "cgroup", "cgroup,namespace"];

pub(crate) struct Host {
    pub(crate) data_dir: PathBuf,
    pub(crate) guardians: HostGuardians,
    runtime: tokio::runtime::Runtime,
    _root: Option<tempfile::TempDir>,
}

impl Host {
    pub(crate) fn new(mask: &str) -> Host {
        let root = scratch();
        let mut host = Host::at(root.path(), mask);
        host._root = Some(root);
        host
    }

    pub(crate) fn at(data_dir: &Path, mask: &str) -> Host {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let place = Place::take(data_dir, Misplaced::Refuse).unwrap();
        let guardians = {
            let _inside = runtime.enter();
            let args: [OsString; 3] = [
                format!("EVERBEAT_POOL_MASK={mask}").into(),
                env!("CARGO_BIN_EXE_everbeat-guardian").into(),
                "guardian".into(),
            ];
            HostGuardians::open(&place, "/usr/bin/env".into(), args.into()).unwrap()
        };
        Host { data_dir: data_dir.to_owned(), guardians, runtime, _root: None }
    }

    /// Waits, but not for ever.
    pub(crate) fn block_on<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        #[expect(clippy::disallowed_methods, reason = "a test that hangs must say where")]
        let done = self.runtime.block_on(async { tokio::time::timeout(LONG, work).await });
        done.unwrap_or_else(|_| panic!("waited in vain for {what}"))
    }

    pub(crate) fn guard(&self, pool: &str) -> Arc<dyn Guardian> {
        self.block_on("a guardian", self.guardians.guard(pool, WantedContainment::Auto)).unwrap()
    }

    pub(crate) fn spawn(&self, guardian: &Arc<dyn Guardian>, order: &WorkerOrder) -> Arc<dyn WorkerProcess> {
        self.try_spawn(guardian, order).unwrap()
    }

    pub(crate) fn try_spawn(
        &self,
        guardian: &Arc<dyn Guardian>,
        order: &WorkerOrder,
    ) -> Result<Arc<dyn WorkerProcess>, SpawnError> {
        self.block_on("a worker", guardian.spawn(order))
    }

    pub(crate) fn line(&self, worker: &Arc<dyn WorkerProcess>) -> Option<OutputLine> {
        self.block_on("a line", worker.line())
    }

    /// The text of the next line.
    pub(crate) fn text(&self, worker: &Arc<dyn WorkerProcess>) -> String {
        self.line(worker).expect("a line").text
    }

    pub(crate) fn exited(&self, worker: &Arc<dyn WorkerProcess>) -> WorkerExit {
        self.block_on("an exit", worker.exited())
    }

    pub(crate) fn emptied(&self, worker: &Arc<dyn WorkerProcess>) -> Emptied {
        self.block_on("emptiness", worker.emptied())
    }
}

/// The containment that is expected with a mask, on this machine.
pub(crate) fn expected(mask: &str) -> Containment {
    match mask {
        "" if has_cgroups() => Containment::Cgroup,
        "cgroup,namespace" => Containment::TreeWalk,
        _ => Containment::PidNamespace,
    }
}

fn has_cgroups() -> bool {
    cgroups().is_some_and(|at| {
        let probe = at.join(format!("everbeat-probe-{}", std::process::id()));
        std::fs::create_dir(&probe).and_then(|()| std::fs::remove_dir(&probe)).is_ok()
    })
}

/// The cgroup of this process, wherever it is mounted.
pub(crate) fn cgroups() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let at = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?.to_owned();
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
    Some(Path::new(&at).join(own))
}

pub(crate) fn shell(script: &str) -> WorkerOrder {
    order(&["/bin/sh", "-c", script])
}

pub(crate) fn order(command: &[&str]) -> WorkerOrder {
    WorkerOrder {
        worker: WorkerId(uuid::Uuid::new_v4()),
        command: command.iter().map(|part| (*part).to_owned()).collect(),
        env: BTreeMap::new(),
        cwd: None,
        secret: "s3cret".into(),
        lines: false,
    }
}

/// One of everything that a worker may leave behind, and that will not go when asked.
pub(crate) const FAMILY: &str = "trap '' TERM; sleep 1000 & setsid sleep 1000 & (setsid sleep 1000 &) ; \
    (setsid sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' &); echo up; while :; do sleep 0.05; done";

/// The same order with a mark in its environment, by which the processes of a test are found.
pub(crate) fn marked_order(script: &str, mark: &str) -> WorkerOrder {
    let mut order = shell(script);
    order.env.insert("TEST_MARK".into(), mark.into());
    order
}

/// Whoever bears it is gone when the test ends, however it ends.
pub(crate) struct Mark(String);

pub(crate) fn new_mark() -> Mark {
    Mark(uuid::Uuid::new_v4().to_string())
}

impl std::ops::Deref for Mark {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        for pid in family(self) {
            let pidfd = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            // Its number may be another's by now.
            if let Some(pidfd) = pidfd.filter(|_| has(pid, &format!("TEST_MARK={}", self.0))) {
                let _gone_already = pidfd_send_signal(pidfd, Signal::KILL);
            }
        }
    }
}

/// The living processes with this mark.
pub(crate) fn family(mark: &str) -> Vec<i32> {
    marked(&format!("TEST_MARK={mark}"))
}

/// The guardians of a data folder, or their keepers.
pub(crate) fn guardians(data_dir: &Path, name: &str) -> Vec<i32> {
    let pools = data_dir.join("pools").to_str().unwrap().to_owned();
    let is_one = |pid: &i32| {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        read("comm").trim() == name && read("cmdline").contains(&pools)
    };
    all_processes().filter(is_one).collect()
}

/// The one guardian of a data folder.
pub(crate) fn guardian(data_dir: &Path) -> OwnedFd {
    let found = guardians(data_dir, "everbeat-guard");
    assert_eq!(found.len(), 1, "{found:?}");
    pidfd_open(Pid::from_raw(found[0]).unwrap(), PidfdFlags::empty()).unwrap()
}

/// A folder in memory, where there is such a place: no test waits for a disk that others keep busy.
pub(crate) fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// The living processes with this line in their environment.
pub(crate) fn marked(line: &str) -> Vec<i32> {
    all_processes().filter(|pid| has(*pid, line)).collect()
}

fn all_processes() -> impl Iterator<Item = i32> {
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn has(pid: i32, line: &str) -> bool {
    std::fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|bytes| bytes.split(|byte| *byte == 0).any(|part| part == line.as_bytes()))
}

/// Looks until there is something, for at most [`LONG`].
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = now();
    while began.elapsed() < LONG {
        if let Some(found) = look() {
            return found;
        }
        pause(Duration::from_millis(5));
    }
    panic!("waited in vain for {what}");
}

#[expect(clippy::disallowed_methods, reason = "another process gives no signal")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[expect(clippy::disallowed_methods, reason = "figures")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
