//! From a folder to a running command: lock, check, mark, start.

use super::child;
use super::clients::Clients;
use super::detach::close_inherited;
use super::failure::Failure;
use super::kill_points::kill_point;
use super::output::Output;
use super::run::{Command, Shim};
use crate::job::cgroup::Cgroup;
use crate::job::clock;
use crate::job::folder::{JobFolder, Problem, STARTED};
use crate::job::kernel_lock;
use crate::job::past::Past;
use crate::job::records::{CancelRecord, ExitRecord, FenceRecord, Record, Started, Stopped};
use crate::job::spec::{Containment, Spec};
use crate::signals::Signals;
use everbeat_engine::Stream;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

pub(super) fn start(path: &Path) -> io::Result<()> {
    close_inherited()?;
    // For people who look at a list of processes.
    let _without_proc = std::fs::write("/proc/self/comm", "everbeat-shim");
    let low = OwnedFd::from(std::fs::File::open("/dev/null")?);
    kill_point("before-lock");
    let folder = JobFolder::open_path(path)?;
    // Held until this process ends.
    let Some(lock) = kernel_lock::take(&folder)? else { return Err(refused("another process holds its lock")) };
    // The lock of a folder that is being removed guards nothing.
    if !folder.is_in_place() {
        return Err(refused("its folder was taken away"));
    }
    let spec = Spec::read(&folder).map_err(Problem::into_error)?;
    check(&folder, &spec)?;
    let planned = match spec.containment {
        Containment::Auto => Cgroup::planned(&spec.job_id, &spec.identity()).ok(),
        Containment::Tree => None,
    };
    lock.sign(&spec.identity(), planned.as_ref().map(|cgroup| cgroup.path().to_owned()))?;
    kill_point("after-lock");
    folder.remove_temporaries()?;
    let signals = Signals::take()?;
    // What the command's processes leave behind becomes this process' children, and so cannot get lost.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut clients = Clients::default();
    // A folder that takes no socket may still take a job: it is tried again at every beat.
    let listening = clients.listen(&folder);
    let cgroup = planned.and_then(|planned| planned.create().ok());
    let outputs = Stream::BOTH.map(|stream| Output::open(&folder, stream, spec.log_limit_bytes));
    let mut shim = Shim::new(folder, spec, signals, clients, cgroup, outputs)?;
    if let Err(error) = listening {
        shim.note_write_error(&error);
    }
    let command = begin(&mut shim, low).inspect_err(|_| shim.leave())?;
    shim.run(command);
    drop(lock);
    Ok(())
}

const TOO_LATE: &str = "it is too late, its owner may have lost it";

/// Whether this attempt may start its command, here and now. What cannot be read forbids it.
fn check(folder: &JobFolder, spec: &Spec) -> io::Result<()> {
    let identity = spec.identity();
    if spec.boot_id != clock::boot_id()? {
        return Err(refused("its spec is of another boot"));
    }
    if spec.is_expired() {
        return Err(refused(TOO_LATE));
    }
    let fence: Option<FenceRecord> = Record::read_any(folder).map_err(Problem::into_error)?;
    let over = Past::read(folder).map_err(Problem::into_error)?.forbids(&identity);
    if over || fence.is_some_and(|fence| fence.forbids(&identity)) {
        return Err(refused("it is fenced"));
    }
    let started: Option<Started> = Record::read(folder, &identity).map_err(Problem::into_error)?;
    if started.is_some() || ExitRecord::read(folder, &identity).map_err(Problem::into_error)?.is_some() {
        return Err(refused("its command was started already"));
    }
    Ok(())
}

/// Marks the start durably, and only then starts: whoever finds no mark knows that nothing ran.
fn begin(shim: &mut Shim, low: OwnedFd) -> io::Result<Command> {
    let (folder, spec) = (&shim.folder, &shim.spec);
    let cancel: Option<CancelRecord> = Record::read(folder, &spec.identity()).map_err(Problem::into_error)?;
    if let Some(cancel) = cancel.filter(|cancel| cancel.tenure >= spec.tenure) {
        return Ok(Command::NotStarted { failure: Failure::cancelled(), stopped: Some(Stopped::left(cancel.why)) });
    }
    let door = shim.cgroup.as_ref().map(Cgroup::door).transpose()?;
    let started = Started {
        epoch: spec.epoch,
        nonce: spec.nonce.clone(),
        boot_id: spec.boot_id.clone(),
        started_at: shim.started_at.clone(),
    };
    // What cannot be marked must not begin; half a mark says that it did.
    started.write(folder).inspect_err(|_| _ = folder.unlink(STARTED))?;
    kill_point("before-exec");
    // The disk may have taken long, or this process may have been frozen. Nothing ran: the mark goes again.
    if spec.is_expired() {
        folder.unlink(STARTED)?;
        return Err(refused(TOO_LATE));
    }
    shim.vouched();
    let command = match child::start(&shim.spec, &shim.folder, door.as_ref(), low) {
        Ok((child, pipes)) => Command::Started { child, pipes },
        Err(failure) => {
            let stopped = failure.began.then_some(Stopped::ShimTerminated);
            Command::NotStarted { failure, stopped }
        }
    };
    kill_point("after-spawn");
    child::protect_self();
    Ok(command)
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("the job is not started: {why}"))
}
