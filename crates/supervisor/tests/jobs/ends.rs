use crate::harness::*;
use everbeat_supervisor::job::Stopped;
use std::os::fd::AsRawFd;

#[test]
fn a_true_exit_is_recorded_whatever_it_is() {
    for (script, code, signal) in
        [("exit 0", Some(0), None), ("exit 7", Some(7), None), ("kill -SEGV $$", None, Some(11))]
    {
        let job = Job::shell(script).start();
        let record = job.exited();
        assert_eq!((record.exit_code, record.exit_signal), (code, signal), "{script}");
        assert_eq!((record.start_error.as_ref(), record.timed_out, record.stopped), (None, false, None));
        assert_eq!((record.epoch, &record.nonce), (job.spec.epoch, &job.spec.nonce));
    }
}

#[test]
fn a_program_that_cannot_be_started_says_why() {
    let job = Job::new(&["/nowhere/at/all"]).start();
    let record = job.exited();
    assert!(record.start_error.as_ref().unwrap().contains("No such file"), "{record:?}");
    assert_eq!((record.exit_code, record.exit_signal), (None, None));
    let job = Job::with(&["true"], |spec| spec.cwd = Some("/nowhere".into())).start();
    assert!(job.exited().start_error.is_some());
}

#[test]
fn arguments_are_never_read_by_a_shell() {
    let odd = ["a;touch x", "$(touch y)", "`id`", "two\nlines", "-rf", "*", "", "ü\"'\\"];
    let mut command = vec!["/usr/bin/printf", "<%s>\\n", "--"];
    command.extend(odd);
    let job = Job::new(&command).start();
    assert_eq!(job.exited().exit_code, Some(0));
    // printf takes the first "--" as one more argument to print.
    let expected: String = ["--"].iter().chain(&odd).map(|part| format!("<{part}>\n")).collect();
    assert_eq!(job.stdout(), expected);
    assert_eq!(std::fs::read_dir(job.folder.workspace()).unwrap().count(), 0);
}

#[test]
fn a_job_sees_its_own_environment_and_nothing_else() {
    let job = Job::with(&["/usr/bin/env"], |spec| drop(spec.env.insert("MINE".into(), "1".into()))).start();
    job.exited();
    let stdout = job.stdout();
    let mut names: Vec<&str> = stdout.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    names.sort_unstable();
    let own = ["ATTEMPT", "BEAT_TOKEN", "JOB_ID", "JOB_TAG", "PROGRESS", "SOCKET", "WORKSPACE"];
    let mut expected: Vec<String> = own.iter().map(|name| format!("EVERBEAT_{name}")).collect();
    expected.extend(["MINE".into(), "PATH".into()]);
    assert_eq!(names, expected);
    assert!(!stdout.contains(&job.spec.nonce), "the nonce is the server's");
}

#[test]
fn a_job_and_its_shim_inherit_no_descriptor() {
    let root = scratch();
    let leaky: Vec<std::fs::File> = (0..50)
        .map(|n| {
            let file = std::fs::File::create(root.path().join(format!("leak-{n}"))).unwrap();
            rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
            file
        })
        .collect();
    assert!(leaky.iter().any(|file| file.as_raw_fd() > 20));
    let job = Job::shell("ls -l /proc/$$/fd > fds; echo >> fds; exec sleep 1000").start();
    let seen = job.await_file("fds");
    // The three streams, progress, and what the shell redirects.
    assert!(seen.lines().filter(|line| line.contains("->")).count() <= 6 && !seen.contains("leak-"), "{seen}");
    for shim in job.shims() {
        for entry in std::fs::read_dir(format!("/proc/{shim}/fd")).unwrap().flatten() {
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            assert!(!target.to_string_lossy().contains("leak-"), "{target:?}");
        }
    }
}

#[test]
fn a_second_shim_cannot_start_the_job_again() {
    let job = Job::shell("echo run >> runs; cat < /dev/null; sleep 1000").start();
    job.await_file("runs");
    for _ in 0..5 {
        let job = &job;
        everbeat_supervisor::job::shim::spawn(
            std::path::Path::new(env!("CARGO_BIN_EXE_everbeat-shim")),
            ["shim"],
            &job.folder,
        )
        .unwrap();
    }
    eventually("the others' end", || (job.shims().len() == 1).then_some(()));
    assert!(matches!(job.examine(), Finding::Live(_)));
    job.client().stop(StopReason::Cancelled, None).unwrap();
    assert_eq!(job.exited().stopped, Some(Stopped::Requested));
    job.client().ack().unwrap();
    job.await_no_shim();
    // Not even when the first has ended.
    let job = job.start();
    job.await_no_shim();
    assert_eq!(job.await_file("runs"), "run\n");
}

#[test]
fn an_ended_shim_lingers_until_it_is_acknowledged_and_no_longer_than_it_should() {
    let job = Job::shell("exit 4").start();
    assert_eq!(job.exited().exit_code, Some(4));
    assert_eq!(job.shims().len(), 1, "it lingers");
    job.client().ack().unwrap();
    job.await_no_shim();
    assert!(!job.folder.path().join("sock").exists());
    assert_eq!(job.exited().exit_code, Some(4));
    let job = Job::with(&["true"], |spec| spec.linger_ms = 20).start();
    job.await_no_shim();
    assert_eq!(job.exited().exit_code, Some(0));
}

#[test]
fn a_shim_whose_folder_was_deleted_leaves_although_nobody_takes_its_exit() {
    let script = "echo up > up; while [ -e \"$PWD\" ]; do sleep 0.02; done";
    let job = Job::with(&["/bin/sh", "-c", script], |spec| spec.linger_ms = 20).start();
    job.await_file("up");
    // It beats into the folder all the while.
    eventually("the folder is deleted", || std::fs::remove_dir_all(job.folder.path()).is_ok().then_some(()));
    job.await_no_shim();
    assert!(job.processes().is_empty());
}
