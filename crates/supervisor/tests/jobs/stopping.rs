//! Why a job was stopped, and until when it may start.

use crate::harness::*;
use crate::host::*;
use everbeat_engine::{JobAttempt, LAST_WORD, Order, Shims};
use everbeat_model::job::Stopped;
use everbeat_supervisor::job::{self, CancelRecord};
use rustix::process::Signal;
use std::time::Duration;

fn stop(host: &Host, attempt: &JobAttempt, why: StopReason) {
    host.ask(async |shims| shims.stop(attempt, why, LONG).await).unwrap();
}

#[test]
fn the_first_reason_for_a_stop_is_the_one_that_is_recorded() {
    let stubborn = "trap '' TERM; echo up > up; while [ ! -e go ]; do sleep 0.02; done";
    for (why, stopped) in [
        (StopReason::Stalled, Stopped::Stalled),
        (StopReason::Cancelled, Stopped::Requested),
        (StopReason::Fenced, Stopped::Requested),
    ] {
        let host = Host::new();
        let attempt = host.started(stubborn);
        host.await_file(&attempt, "up");
        for why in [why, StopReason::Cancelled, StopReason::Stalled, why] {
            stop(&host, &attempt, why);
        }
        stop(&host, &JobAttempt { tenure: LAST_WORD, ..attempt.clone() }, StopReason::Fenced);
        std::fs::write(host.path(&attempt, "workspace/go"), "").unwrap();
        let last = JobAttempt { tenure: LAST_WORD, ..attempt };
        assert_eq!(host.exited(&last).stopped, Some(stopped));
    }
}

#[test]
fn a_reason_left_for_a_shim_that_does_not_answer_is_recorded_too() {
    let job = Job::with(&["sleep", "1000"], |spec| spec.interval_ms = 600_000).start();
    CancelRecord::leave(&job.folder, &job.identity(), 0, StopReason::Stalled, 1000).unwrap();
    CancelRecord::leave(&job.folder, &job.identity(), 0, StopReason::Cancelled, 1000).unwrap();
    drop(job);
    for (why, stopped) in [(StopReason::Stalled, job::Stopped::Stalled), (StopReason::Fenced, job::Stopped::Fenced)] {
        let job = Job::new(&["sleep", "1000"]).start();
        CancelRecord::leave(&job.folder, &job.identity(), 0, why, 1000).unwrap();
        CancelRecord::leave(&job.folder, &job.identity(), 0, StopReason::Cancelled, 1000).unwrap();
        assert_eq!(job.exited().stopped, Some(stopped));
        let job = Job::new(&["sleep", "1000"]);
        CancelRecord::leave(&job.folder, &job.identity(), 0, why, 1000).unwrap();
        let record = job.start().exited();
        assert!(record.stopped == Some(stopped) && record.start_error.is_some(), "{record:?}");
    }
}

#[test]
fn a_shim_of_an_older_server_takes_a_stop_without_a_reason_for_a_cancel() {
    let job = Job::new(&["sleep", "1000"]).start();
    let path = job.folder.path().join("sock");
    let mut socket = eventually("a socket", || std::os::unix::net::UnixStream::connect(&path).ok());
    let order = format!("{{\"op\":\"stop\",\"epoch\":1,\"nonce\":\"{}\",\"graceMs\":1000}}\n", job.spec.nonce);
    std::io::Write::write_all(&mut socket, order.as_bytes()).unwrap();
    assert_eq!(job.exited().stopped, Some(job::Stopped::Requested));
}

#[test]
fn a_start_that_comes_too_late_starts_nothing() {
    let host = Host::new();
    let attempt = host.attempt();
    let late = Order { start_before: boot(), ..order("echo run > ran") };
    let refused = host.order(&attempt, &late).unwrap_err();
    assert!(refused.to_string().contains("too late"), "{refused}");
    assert!(!host.path(&attempt, "spec.json").exists());
    assert_eq!(host.examine(&attempt), Finding::Missing, "not even a folder");
    assert_eq!(host.fence(&attempt), Fenced::NeverStarted);
}

#[test]
fn a_start_whose_time_ran_out_while_an_earlier_attempt_ended_starts_nothing() {
    let host = Host::new();
    let first = host.started("trap 'sleep 1; exit' TERM; echo up > up; while :; do sleep 0.02; done");
    host.await_file(&first, "up");
    let second = host.next(&first);
    let late = Order { start_before: boot() + Duration::from_millis(500), ..order("echo run > ran") };
    let refused = host.order(&second, &late).unwrap_err();
    assert!(refused.to_string().contains("too late"), "{refused}");
    assert_eq!(host.fence(&second), Fenced::NeverStarted);
    assert!(!host.path(&second, "workspace/ran").exists());
}

#[test]
fn a_shim_that_was_frozen_past_its_time_does_not_start_its_command() {
    let job = Job::with(&["/bin/sh", "-c", "echo run > ran"], |spec| {
        spec.start_before_ms = Some(boot().0.as_millis() as u64);
    })
    .start();
    job.await_no_shim();
    assert!(matches!(job.examine(), Finding::NotStarted), "{:?}", job.examine());
    assert!(matches!(job.judge(), Fenced::NeverStarted));
    assert!(!job.workspace("ran").exists());
    let in_time = Job::with(&["true"], |spec| spec.start_before_ms = Some((boot() + LONG).0.as_millis() as u64));
    assert_eq!(in_time.start().exited().exit_code, Some(0));
}

#[test]
fn a_stopped_shim_obeys_the_reason_it_finds_when_it_wakes() {
    let job = Job::new(&["sleep", "1000"]).start();
    job.signal_shim(Signal::STOP);
    CancelRecord::leave(&job.folder, &job.identity(), 0, StopReason::Stalled, 1000).unwrap();
    job.signal_shim(Signal::CONT);
    assert_eq!(job.recorded().stopped, Some(job::Stopped::Stalled));
}

#[test]
fn a_shim_that_is_frozen_right_before_its_command_does_not_start_it_when_it_wakes_too_late() {
    for (late, verdict) in [(true, "never started"), (false, "exited")] {
        let job = Job::with(&["/bin/sh", "-c", "echo run > ran"], |spec| {
            let before = if late { Duration::from_secs(2) } else { 10 * LONG };
            spec.start_before_ms = Some((boot() + before).0.as_millis() as u64);
        });
        std::thread::scope(|scope| {
            scope.spawn(|| job.start_to_freeze_at("before-exec"));
            eventually("a mark", || job.folder.path().join("started.json").exists().then_some(()));
            eventually("its time", || (!late || boot().0.as_millis() as u64 > job.spec.start_before_ms?).then_some(()));
            // Until it has ended, or lingers: it may not have been asleep yet.
            eventually("an awake shim", || {
                job.wake_shims();
                (job.shims().is_empty() || job.folder.path().join("exit.json").exists()).then_some(())
            });
        });
        let judged = match job.judge() {
            Fenced::NeverStarted => "never started",
            Fenced::Exited(_) => "exited",
            other => panic!("{other:?}"),
        };
        assert_eq!((judged, job.workspace("ran").exists()), (verdict, !late));
    }
}
