//! What is true when `spawn` returns.

use crate::harness::*;
use everbeat_supervisor::job::protocol::State;
use everbeat_supervisor::job::{Containment, JobFolder, sentinel};
use std::process::Command;
use std::time::Duration;

/// Well below the time after which it would return anyway.
const SOON: Duration = Duration::from_secs(5);

#[test]
fn spawning_returns_when_the_command_has_begun() {
    for _ in 0..10 {
        let job = Job::with(&["sleep", "1000"], |spec| spec.interval_ms = 600_000).start();
        assert!(matches!(job.examine(), Finding::Live(_)), "{:?}", job.examine());
        assert_eq!(job.hello().state, State::Running);
        assert_eq!(sentinel::read(&job.folder).unwrap().seq, 1, "and has beaten once");
    }
}

#[test]
fn spawning_returns_when_it_is_recorded_that_the_command_cannot_begin() {
    for _ in 0..10 {
        let job = Job::new(&["/nowhere/at/all"]).start();
        assert!(job.folder.path().join("exit.json").exists());
        assert!(matches!(job.examine(), Finding::Exited(_)), "{:?}", job.examine());
    }
}

#[test]
fn spawning_returns_soon_when_the_shim_dies_so_that_it_can_be_fenced_at_once() {
    for containment in [Containment::Auto, Containment::Tree] {
        for (place, expected) in [
            ("before-lock", "never started"),
            ("after-lock", "never started"),
            ("before-exec", "lost"),
            ("after-spawn", "lost"),
            ("after-exit-before-record", "it began"),
            ("record-before-rename", "it began"),
            ("after-record-before-reap", "it began"),
        ] {
            let job = Job::with(&["/bin/sh", "-c", "setsid sleep 1000 & exit 7"], |spec| {
                spec.containment = containment;
            });
            let began = now();
            job.start_to_die_at(place);
            assert!(began.elapsed() < SOON, "{place}: {:?}", began.elapsed());
            if expected == "it began" {
                job.await_no_shim();
                continue;
            }
            match (job.examine(), place) {
                (Finding::NotStarted, "before-lock") | (Finding::Gone, _) => {}
                (other, _) => panic!("{place}: {other:?}"),
            }
            match (job.fence(), expected) {
                (Fenced::NeverStarted, "never started") | (Fenced::Lost, "lost") => {}
                (other, _) => panic!("{place}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_shim_that_may_not_start_its_command_holds_nobody_up() {
    let job = Job::new(&["sleep", "1000"]).start();
    let began = now();
    job.spawn().unwrap();
    assert!(began.elapsed() < SOON, "the lock is held: {:?}", began.elapsed());
    let fenced = Job::new(&["true"]);
    assert!(matches!(fenced.judge(), Fenced::NeverStarted));
    let began = now();
    fenced.spawn().unwrap();
    assert!(began.elapsed() < SOON, "it is fenced: {:?}", began.elapsed());
}

#[test]
fn a_job_that_becomes_a_daemon_does_not_hold_spawning_up() {
    let daemon = "setsid sh -c 'sleep 1000 & sleep 1001' & (sleep 1002 &) ; echo up > up; sleep 1003";
    let began = now();
    let job = Job::shell(daemon).start();
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    job.await_file("up");
    // Nobody has the pipe: the shim's stdout leads nowhere, the others' to the shim.
    let shim = job.shims()[0];
    assert_eq!(std::fs::read_link(format!("/proc/{shim}/fd/1")).unwrap().to_str(), Some("/dev/null"));
    let ends = |pid: i32| {
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect::<Vec<_>>()
    };
    let known = ends(shim);
    for pid in job.processes() {
        let strange: Vec<_> = ends(pid)
            .into_iter()
            .filter(|end| end.to_string_lossy().starts_with("pipe:") && !known.contains(end))
            .collect();
        assert!(strange.is_empty(), "{pid}: {strange:?}");
    }
}

#[test]
fn the_place_of_death_reaches_a_shim_through_its_server() {
    let job = Job::new(&["sleep", "1000"]);
    let server = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "starting::as_a_server", "--ignored"])
        .env("EVERBEAT_SHIM_KILL_AT", "before-exec")
        .env("EVERBEAT_TEST_FOLDER", job.folder.path())
        .output()
        .unwrap();
    assert!(server.status.success(), "{server:?}");
    assert!(matches!(job.examine(), Finding::Gone), "{:?}", job.examine());
    assert!(matches!(job.judge(), Fenced::Lost));
}

#[test]
#[ignore = "the server of another test"]
fn as_a_server() {
    let Some(path) = std::env::var_os("EVERBEAT_TEST_FOLDER") else { return };
    let folder = JobFolder::open_path(path.as_ref()).unwrap();
    let shim = env!("CARGO_BIN_EXE_everbeat-shim").as_ref();
    everbeat_supervisor::job::shim::spawn(shim, ["shim"], &folder).unwrap();
}

#[test]
fn a_command_reads_its_input_and_without_one_nothing() {
    let script = "cat > copy; cat /proc/$$/fdinfo/0";
    let job = Job::shell(script).start();
    assert_eq!(job.exited().exit_code, Some(0));
    assert_eq!(std::fs::read(job.workspace("copy")).unwrap(), b"");

    let mut job = Job::shell(script);
    job.folder.write_input(b"an older one").unwrap();
    let input = [&b"\0\xff{}"[..], &vec![b'x'; 300_000]].concat();
    job.spec.stdin = Some(job.folder.write_input(&input).unwrap());
    job.spec.write(&job.folder).unwrap();
    let job = job.start();
    assert_eq!(job.exited().exit_code, Some(0));
    assert!(std::fs::read(job.workspace("copy")).unwrap() == input);
    let stdout = job.stdout();
    let flags = stdout.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
    let flags = i32::from_str_radix(flags, 8).unwrap();
    let (access, nonblock) = (0o3, 0o4000);
    assert_eq!((flags & access, flags & nonblock), (0, 0), "to be read only, and like any other file");
}

#[test]
fn a_file_that_is_no_program_is_not_handed_to_a_shell() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, "touch ran\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let job = Job::new(&[script.to_str().unwrap()]).start();
    let Finding::Exited(record) = job.examine() else { panic!("{:?}", job.examine()) };
    assert_eq!((record.exit_code, record.start_errno), (None, Some(8)), "ENOEXEC: {record:?}");
    assert!(!job.folder.workspace().join("ran").exists());
}
