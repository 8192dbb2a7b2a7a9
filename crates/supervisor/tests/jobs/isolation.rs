use crate::harness::*;
use everbeat_supervisor::job::client::Error;
use everbeat_supervisor::job::{Client, ExitRecord, Identity, Stopped};
use rustix::process::Signal;
use std::time::Duration;

fn isolated_after(ms: u64, command: &[&str]) -> Job {
    Job::with(command, |spec| (spec.isolated_after_ms, spec.tenure) = (Some(ms), 1)).start()
}

#[test]
fn a_job_whose_owner_is_silent_stops_itself() {
    let job = isolated_after(300, &["sleep", "1000"]);
    let record = job.recorded();
    assert_eq!((record.stopped, record.exit_signal, record.timed_out), (Some(Stopped::Isolated), Some(15), false));
}

#[test]
fn neither_the_job_nor_a_former_owner_nor_who_only_listens_can_vouch_for_it() {
    let job = isolated_after(300, &["sleep", "1000"]);
    let token = Identity { token: job.identity().beat_token(), ..job.identity() };
    let mut beater = Client::connect(&job.folder, &token, 0, LONG).unwrap();
    let mut former = job.client_of(0);
    let _listens = job.client().subscribe().unwrap();
    let record = eventually("a record", || {
        beater.beat(None, None).unwrap();
        assert!(matches!(beater.vouch(), Err(Error::Refused(..))));
        assert!(matches!(former.vouch(), Err(Error::Refused(..))));
        ExitRecord::read(&job.folder, &job.identity()).unwrap()
    });
    assert_eq!(record.stopped, Some(Stopped::Isolated));
}

#[test]
fn an_owner_that_only_looks_and_listens_does_not_vouch_for_it() {
    let job = isolated_after(700, &["sleep", "1000"]);
    let record = eventually("a record", || {
        job.examine();
        let _it_may_have_ended = job.client().subscribe();
        let _it_may_have_ended = job.client().signal("CONT");
        ExitRecord::read(&job.folder, &job.identity()).unwrap()
    });
    assert_eq!(record.stopped, Some(Stopped::Isolated));
}

#[test]
fn the_end_of_an_isolated_job_does_not_take_its_whole_grace() {
    let stubborn = "trap '' TERM; echo up > up; while :; do sleep 0.02; done";
    let job = Job::with(&["/bin/sh", "-c", stubborn], |spec| {
        (spec.isolated_after_ms, spec.stop_grace_ms) = (Some(1_000), 1_000_000);
    })
    .start();
    let began = job.hello().boot_ms;
    let record = job.recorded();
    assert_eq!((record.exit_signal, record.stopped), (Some(9), Some(Stopped::Isolated)));
    assert!(record.boot_ms < began + 10_000, "a quarter of the second after it: {}", record.boot_ms - began);
}

#[test]
fn a_job_goes_on_for_as_long_as_its_owner_vouches() {
    let job = isolated_after(1_500, &["sleep", "1000"]);
    let first = job.hello().boot_ms;
    let mut owner = job.client();
    eventually("three times as long", || (owner.vouch().unwrap().boot_ms >= first + 4_500).then_some(()));
    assert!(ExitRecord::read(&job.folder, &job.identity()).unwrap().is_none());
    // A later owner's word counts as well.
    let last = job.client_of(2).vouch().unwrap().boot_ms;
    let record = job.recorded();
    assert_eq!(record.stopped, Some(Stopped::Isolated));
    assert!(record.boot_ms >= last + 1_500, "{} after {last}", record.boot_ms);
}

#[test]
fn a_word_that_waited_while_the_shim_was_frozen_vouches_for_nothing() {
    let job = isolated_after(8_000, &["sleep", "1000"]);
    let mut owner = Client::connect(&job.folder, &job.identity(), 1, Duration::from_millis(10)).unwrap();
    job.signal_shim(Signal::STOP);
    assert!(matches!(owner.vouch(), Err(Error::Silent)));
    // Not as long as the kernel waits before it kills the shim.
    pause(Duration::from_millis(8_500));
    job.signal_shim(Signal::CONT);
    // Nor does any later one.
    let record = eventually("a record", || {
        let _refused_or_too_late = job.client().vouch();
        ExitRecord::read(&job.folder, &job.identity()).unwrap()
    });
    assert_eq!(record.stopped, Some(Stopped::Isolated));
}

#[test]
fn a_long_grace_does_not_outlast_isolation() {
    let stubborn = "trap '' TERM; echo up > up; while :; do sleep 0.02; done";
    let job = Job::with(&["/bin/sh", "-c", stubborn], |spec| {
        (spec.isolated_after_ms, spec.stop_grace_ms) = (Some(1_000), 100);
    })
    .start();
    job.await_file("up");
    job.client().stop(StopReason::Cancelled, Some(Duration::from_secs(100_000))).unwrap();
    let record = job.recorded();
    assert_eq!((record.exit_signal, record.stopped), (Some(9), Some(Stopped::Requested)));
}

#[test]
fn a_shim_that_hangs_is_killed_in_time_and_its_command_with_it() {
    let job = isolated_after(1_000, &["sleep", "1000"]);
    assert_eq!(job.processes().len(), 1);
    job.signal_shim(Signal::STOP);
    eventually("the end of both", || (job.processes().is_empty() && job.shims().is_empty()).then_some(()));
    // Nobody knows how it ended, and nobody says so.
    assert!(matches!(job.judge(), Fenced::Lost));
}

#[test]
fn the_shim_of_an_ended_job_is_not_killed_while_it_waits_to_be_acknowledged() {
    let job = isolated_after(400, &["true"]);
    let ended = job.exited();
    eventually("a while", || (job.hello().boot_ms > ended.boot_ms + 2_000).then_some(()));
    assert_eq!(job.shims().len(), 1);
}
