//! One job in a folder of its own, gone without a trace when the test ends.

pub(crate) use everbeat_engine::{Fenced, Finding, StartError, StopReason};
use everbeat_supervisor::job::{
    Client, ExitRecord, Identity, JobFolder, Spec, examine, fence, kill, protocol::Hello, shim,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub(crate) struct Job {
    pub(crate) folder: JobFolder,
    pub(crate) spec: Spec,
    _root: Option<tempfile::TempDir>,
}

/// No test waits longer for anything. The machine may be busy, and its disk may take many seconds for one sync.
pub(crate) const LONG: Duration = Duration::from_secs(120);

impl Job {
    pub(crate) fn new(command: &[&str]) -> Job {
        Job::with(command, |_| {})
    }

    pub(crate) fn shell(script: &str) -> Job {
        Job::new(&["/bin/sh", "-c", script])
    }

    /// A job whose spec the test changes before it is written.
    pub(crate) fn with(command: &[&str], change: impl FnOnce(&mut Spec)) -> Job {
        let root = scratch();
        let mut job = Job::in_root(root.path(), command, change);
        job._root = Some(root);
        job
    }

    pub(crate) fn in_root(root: &Path, command: &[&str], change: impl FnOnce(&mut Spec)) -> Job {
        let job_id = uuid::Uuid::new_v4().to_string();
        let folder = JobFolder::create(root, &job_id).unwrap();
        let mut spec = Spec::new(&job_id, 1, command.iter().map(|part| (*part).to_owned()).collect()).unwrap();
        spec.env.insert("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into());
        (spec.interval_ms, spec.stop_grace_ms, spec.linger_ms) = (50, 5_000, 120_000);
        change(&mut spec);
        spec.write(&folder).unwrap();
        Job { folder, spec, _root: None }
    }

    pub(crate) fn start(self) -> Job {
        self.spawn().unwrap();
        self
    }

    pub(crate) fn spawn(&self) -> Result<(), StartError> {
        shim::spawn(shim_program(), ["shim"], &self.folder)
    }

    /// Through another program, which becomes the shim.
    pub(crate) fn spawn_by(&self, program: &str, args: &[&str]) -> Result<(), StartError> {
        let shim = [shim_program().to_str().unwrap(), "shim"];
        shim::spawn(Path::new(program), args.iter().chain(&shim), &self.folder)
    }

    /// Starts a shim that kills itself at the named place.
    pub(crate) fn start_to_die_at(&self, place: &str) {
        self.start_with(&format!("EVERBEAT_SHIM_KILL_AT={place}"));
    }

    /// Starts a shim that stops there until it is woken.
    pub(crate) fn start_to_freeze_at(&self, place: &str) {
        self.start_with(&format!("EVERBEAT_SHIM_FREEZE_AT={place}"));
    }

    fn start_with(&self, variable: &str) {
        let args = [variable, shim_program().to_str().unwrap(), "shim"];
        shim::spawn(Path::new("/usr/bin/env"), args, &self.folder).unwrap();
    }

    pub(crate) fn identity(&self) -> Identity {
        self.spec.identity()
    }

    pub(crate) fn examine(&self) -> Finding {
        examine(&self.folder, &self.identity(), self.spec.tenure)
    }

    /// The verdict now. While the killed are not gone there is none: it is asked for again.
    pub(crate) fn fence(&self) -> Fenced {
        patiently(|| fence(&self.folder, &self.identity()))
    }

    /// Kills its shim and everything it owns.
    pub(crate) fn kill(&self) {
        patiently(|| kill(&self.folder, &self.identity()));
    }

    /// The verdict, once the kernel has let go of a dead shim's lock.
    pub(crate) fn judge(&self) -> Fenced {
        eventually("a free lock", || Some(self.fence()).filter(|fenced| !matches!(fenced, Fenced::StillHeld)))
    }

    pub(crate) fn client(&self) -> Client {
        eventually("a socket", || Client::connect(&self.folder, &self.identity(), self.spec.tenure, LONG).ok())
    }

    /// As the owner of another tenure than the spec's.
    pub(crate) fn client_of(&self, tenure: u32) -> Client {
        Client::connect(&self.folder, &self.identity(), tenure, LONG).unwrap()
    }

    pub(crate) fn hello(&self) -> Hello {
        self.client().hello().unwrap()
    }

    pub(crate) fn exited(&self) -> ExitRecord {
        eventually("an exit", || match self.examine() {
            // A shim that found no room for its record tells it.
            Finding::Exited(_) => Some(match ExitRecord::read(&self.folder, &self.identity()) {
                Ok(Some(record)) => record,
                Ok(None) | Err(_) => self.hello().exit.unwrap(),
            }),
            // A shim that waits for the disk answers late.
            Finding::Live(_) | Finding::NotStarted | Finding::Hung => None,
            other => panic!("{other:?}"),
        })
    }

    /// The exit record, awaited without asking the shim.
    pub(crate) fn recorded(&self) -> ExitRecord {
        eventually("a record", || ExitRecord::read(&self.folder, &self.identity()).unwrap())
    }

    pub(crate) fn workspace(&self, name: &str) -> PathBuf {
        self.folder.workspace().join(name)
    }

    /// Waits until the job has written this file.
    pub(crate) fn await_file(&self, name: &str) -> String {
        eventually(name, || std::fs::read_to_string(self.workspace(name)).ok().filter(|text| text.ends_with('\n')))
    }

    pub(crate) fn stdout(&self) -> String {
        let read = everbeat_supervisor::job::logs::read_from(&self.folder, everbeat_engine::Stream::Stdout, 0, 1 << 20);
        String::from_utf8(read.unwrap().bytes).unwrap()
    }

    /// The living processes that carry this job's id.
    pub(crate) fn processes(&self) -> Vec<i32> {
        marked(&format!("EVERBEAT_JOB_ID={}", self.spec.job_id))
    }

    pub(crate) fn shims(&self) -> Vec<i32> {
        let path = self.folder.path().to_str().unwrap().to_owned();
        all_processes().filter(|pid| is_shim(*pid, &path)).collect()
    }

    pub(crate) fn signal_shim(&self, signal: Signal) {
        pidfd_send_signal(self.shim(), signal).unwrap();
    }

    /// Whoever of them is still there.
    pub(crate) fn wake_shims(&self) {
        for pid in self.shims().into_iter().filter_map(Pid::from_raw) {
            let _it_may_have_ended =
                pidfd_open(pid, PidfdFlags::empty()).and_then(|pidfd| pidfd_send_signal(pidfd, Signal::CONT));
        }
    }

    pub(crate) fn shim(&self) -> std::os::fd::OwnedFd {
        let path = self.folder.path().to_str().unwrap().to_owned();
        let pid = eventually("a shim", || self.shims().pop());
        let pidfd = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        assert!(has(pid, "cmdline", &path));
        pidfd
    }

    pub(crate) fn await_no_shim(&self) {
        eventually("the shim's end", || self.shims().is_empty().then_some(()));
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.folder.path().exists() {
            return;
        }
        let identity = self.spec.identity();
        if let Ok(mut client) = Client::connect(&self.folder, &identity, u32::MAX, Duration::from_secs(2)) {
            let _already_ended = client.stop(StopReason::Cancelled, Some(Duration::ZERO));
        }
        if std::thread::panicking() {
            let _as_far_as_it_goes = kill(&self.folder, &identity).and_then(|()| fence(&self.folder, &identity));
            return;
        }
        self.kill();
        let gone = self.fence();
        assert!(matches!(gone, Fenced::Lost | Fenced::NeverStarted | Fenced::Exited(_)), "{gone:?}");
        assert_eq!(self.processes(), [0; 0], "nothing is left");
    }
}

/// A folder in memory, where there is such a place for programs too: no test waits for a disk that others keep busy.
pub(crate) fn scratch() -> tempfile::TempDir {
    const MEMORY: &str = "/dev/shm";
    let found = rustix::fs::statvfs(MEMORY).ok();
    match found.filter(|found| !found.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC)) {
        Some(_) => tempfile::tempdir_in(MEMORY).or_else(|_| tempfile::tempdir()).unwrap(),
        None => tempfile::tempdir().unwrap(),
    }
}

fn shim_program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_everbeat-shim"))
}

/// The living processes with this line in their environment.
pub(crate) fn marked(line: &str) -> Vec<i32> {
    all_processes().filter(|pid| has(*pid, "environ", line)).collect()
}

fn all_processes() -> impl Iterator<Item = i32> {
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// A shim that is just being started shows no command line for a moment, but its program.
fn is_shim(pid: i32, folder: &str) -> bool {
    let Ok(line) = std::fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    match line.is_empty() {
        true => std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == shim_program()),
        false => line.split(|byte| *byte == 0).any(|part| part == folder.as_bytes()),
    }
}

fn has(pid: i32, file: &str, text: &str) -> bool {
    std::fs::read(format!("/proc/{pid}/{file}"))
        .is_ok_and(|bytes| bytes.split(|byte| *byte == 0).any(|part| part == text.as_bytes()))
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

/// Asks as the engine does: that the killed are still there is no verdict, and it asks again. One that waits for the disk
/// dies only when its write is through.
pub(crate) fn patiently<T>(mut ask: impl FnMut() -> std::io::Result<T>) -> T {
    eventually("the end of the killed", || match ask() {
        Ok(answer) => Some(answer),
        Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => None,
        Err(error) => panic!("{error}"),
    })
}

#[expect(clippy::disallowed_methods, reason = "another process gives no signal")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[expect(clippy::disallowed_methods, reason = "figures")]
pub(crate) fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// A tiny file system, unmounted when it goes.
pub(crate) struct Tiny(pub(crate) tempfile::TempDir);

impl Tiny {
    /// None where this user may not mount.
    pub(crate) fn mount() -> Option<Tiny> {
        let folder = tempfile::tempdir().unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(folder.path()).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| Tiny(folder))
    }

    /// Leaves no room; answers what takes it.
    pub(crate) fn fill(&self) -> PathBuf {
        let filler = self.0.path().join("filler");
        let _full = std::fs::write(&filler, vec![1; 1 << 20]);
        filler
    }

    pub(crate) fn remount(&self, how: &str) {
        let option = format!("remount,{how}");
        assert!(Command::new("mount").args(["-o", &option]).arg(self.0.path()).status().unwrap().success());
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        let _leaves_a_line_in_the_mount_table = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}
