//! Machines that lack what a start needs: whatever is missing, nobody says that the command ran, and who could not begin
//! says what it was.

use crate::harness::*;
use crate::host::Host;
use everbeat_engine::Shims;
use everbeat_model::Shortage;
use rustix::io::Errno;

fn tiny() -> Option<Tiny> {
    let tiny = Tiny::mount();
    if tiny.is_none() {
        println!("not run: mounting needs more rights");
    }
    tiny
}

/// Why it will never begin.
fn never(started: Result<(), StartError>) -> Option<Shortage> {
    match started {
        Err(StartError::Never(error)) => Some(Shortage::of(&error).unwrap_or_else(|| panic!("{error}"))),
        Ok(()) => None,
        Err(StartError::Unclear(error)) => panic!("unclear: {error}"),
    }
}

#[test]
fn the_numbers_of_shortages_are_the_kernels() {
    use Shortage::*;
    for (errno, shortage) in [
        (Errno::NOSPC, DiskSpace),
        (Errno::DQUOT, DiskQuota),
        (Errno::ROFS, WritableDisk),
        (Errno::MFILE, Descriptors),
        (Errno::NFILE, Descriptors),
        (Errno::AGAIN, Processes),
        (Errno::NOMEM, Memory),
    ] {
        assert_eq!(Shortage::of_errno(errno.raw_os_error()), Some(shortage));
    }
    for errno in [Errno::NOENT, Errno::ACCESS, Errno::NOEXEC, Errno::TXTBSY, Errno::LOOP, Errno::TOOBIG] {
        assert_eq!(Shortage::of_errno(errno.raw_os_error()), None, "{errno}");
    }
}

#[test]
fn a_shim_that_finds_no_room_begins_nothing_and_says_so() {
    let Some(tiny) = tiny() else { return };
    // Where the file of the lock is there already, the shim comes as far as the mark of the start.
    for lock in ["absent", "there"] {
        let job = Job::in_root(tiny.0.path(), &["touch", "ran"], |_| {});
        if lock == "there" {
            std::fs::write(job.folder.path().join("lock"), "{}").unwrap();
        }
        let filler = tiny.fill();
        assert_eq!(never(job.spawn()), Some(Shortage::DiskSpace), "{lock}");
        job.await_no_shim();
        assert!(matches!(job.examine(), Finding::NotStarted | Finding::Gone), "{lock}: {:?}", job.examine());
        assert!(!job.folder.path().join("started.json").exists(), "{lock}");
        std::fs::remove_file(filler).unwrap();
        assert!(matches!(job.judge(), Fenced::NeverStarted), "{lock}");
        assert!(!job.workspace("ran").exists(), "{lock}");
    }
}

#[test]
fn however_few_descriptors_there_are_a_command_runs_or_it_is_told_that_it_did_not() {
    let (mut told, mut recorded, mut ran) = (0, 0, 0);
    // With fewer the programs themselves cannot be loaded.
    for most in 5..40 {
        let job = Job::new(&["touch", "ran"]);
        let limit = format!("--nofile={most}:{most}");
        if let Some(shortage) = never(job.spawn_by("/usr/bin/prlimit", &[&limit])) {
            assert_eq!(shortage, Shortage::Descriptors, "{most}");
            job.await_no_shim();
            assert!(!job.workspace("ran").exists(), "{most}");
            assert!(matches!(job.fence(), Fenced::NeverStarted), "{most}");
            told += 1;
            continue;
        }
        let record = job.exited();
        match record.start_error {
            Some(_) => {
                assert_eq!(record.start_errno.and_then(Shortage::of_errno), Some(Shortage::Descriptors), "{record:?}");
                assert!(!job.workspace("ran").exists(), "{most}");
                recorded += 1;
            }
            None => {
                assert_eq!(record.exit_code, Some(0), "{most}: {record:?}");
                assert!(job.workspace("ran").exists(), "{most}");
                ran += 1;
            }
        }
    }
    println!("{told} were told, {recorded} recorded, {ran} ran");
    assert!(told > 0 && recorded > 0 && ran > 0, "{told} {recorded} {ran}");
}

#[test]
fn a_host_without_room_begins_nothing_until_there_is_some() {
    let Some(tiny) = tiny() else { return };
    let host = Host::with(tempfile::tempdir_in(tiny.0.path()).unwrap());
    let first = host.attempt();
    host.ask(async |shims| shims.prepare(first.job).await).unwrap();
    let filler = tiny.fill();
    let probe = || host.ask(async |shims| shims.probe().await).err().map(|error| Shortage::of(&error));
    assert_eq!(never(host.start(&first, "touch ran")), Some(Shortage::DiskSpace));
    assert_eq!(probe(), Some(Some(Shortage::DiskSpace)));
    std::fs::remove_file(filler).unwrap();
    assert_eq!(probe(), None);
    assert_eq!(host.fence(&first), Fenced::NeverStarted);
    tiny.remount("ro");
    let second = host.next(&first);
    assert_eq!(never(host.start(&second, "touch ran")), Some(Shortage::WritableDisk));
    assert_eq!(probe(), Some(Some(Shortage::WritableDisk)));
    tiny.remount("rw");
    let third = host.next(&second);
    assert_eq!(never(host.start(&third, "touch ran")), None);
    assert_eq!(host.exited(&third).exit_code, Some(0));
    assert!(host.path(&third, "workspace").join("ran").exists());
}

#[test]
fn a_program_that_cannot_be_run_is_no_shortage() {
    let job = Job::new(&["/nowhere/at/all"]);
    assert_eq!(never(job.spawn()), None);
    let record = job.exited();
    assert_eq!((record.start_errno, record.start_errno.and_then(Shortage::of_errno)), (Some(2), None));
}
