//! The end of an attempt whose records cannot be understood, whatever they say.

use super::clock;
use super::folder::{CANCEL, EXIT, FENCE, JobFolder, LOCK, PAST, Problem, SOCKET, SPEC, STARTED};
use super::kernel_lock::{self, Held};
use super::past::Past;
use super::records::{CancelRecord, ExitRecord, FenceRecord, Record, Started};
use super::remains::{self, Remains};
use super::spec::{Identity, Spec};
use std::io;
use std::time::Duration;

/// The kernel lets go of a dead process' locks a moment after its memory, by which it was found.
const FREE_WITHIN: Duration = Duration::from_secs(5);

/// Kills all that bears this attempt's marks, moves aside what cannot be read, and forbids the attempt for good.
/// Of a copy nothing is killed. Afterwards [`super::fence`] says that it is lost, and the folder may be cleaned. An error is no verdict: try again.
pub fn destroy(folder: &JobFolder, identity: &Identity) -> io::Result<()> {
    let remains = Remains::all(folder, identity);
    if kernel_lock::is_copy(folder) {
        // What bears its marks is the original's.
        return FenceRecord::forbid(folder, identity, true);
    }
    remains.kill()?;
    // Nobody can hold what is no file; a file that cannot be read may be held.
    if matches!(folder.open_file(LOCK), Err(Problem::WrongKind(..))) {
        folder.set_aside(LOCK)?;
    }
    let lock = free(folder)?;
    for (name, problem) in [
        (SPEC, Spec::read(folder).err()),
        (EXIT, <ExitRecord as Record>::read_any(folder).err()),
        (STARTED, Started::read_any(folder).err()),
        (FENCE, FenceRecord::read_any(folder).err()),
        (CANCEL, CancelRecord::read_any(folder).err()),
        (PAST, Past::read(folder).err()),
    ] {
        if problem.is_some_and(|problem| !is_missing(&problem)) {
            folder.set_aside(name)?;
        }
    }
    FenceRecord::forbid(folder, identity, true)?;
    // One that came between the first look and the lock finds that it may not; it is looked for all the same.
    remains.kill()?;
    folder.unlink(SOCKET).or_else(|_| folder.set_aside(SOCKET))?;
    folder.remove_temporaries()?;
    remains::remove_cgroup(folder, identity);
    drop(lock);
    Ok(())
}

fn free(folder: &JobFolder) -> io::Result<Held> {
    let until = clock::boot_ms() + FREE_WITHIN.as_millis() as u64;
    loop {
        match kernel_lock::take(folder)? {
            Some(lock) => return Ok(lock),
            None if clock::boot_ms() > until => {
                return Err(io::Error::new(io::ErrorKind::WouldBlock, "another attempt's shim holds the lock"));
            }
            None => clock::pause(5),
        }
    }
}

fn is_missing(problem: &Problem) -> bool {
    matches!(problem, Problem::Missing(_))
}
