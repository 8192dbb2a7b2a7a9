use crate::harness::*;
use everbeat_supervisor::job::client::{Error, Next};
use everbeat_supervisor::job::protocol::{Event, Refusal, State};
use everbeat_supervisor::job::sentinel::{self, Status};
use everbeat_supervisor::job::{CancelRecord, Client, Identity, JobFolder, Stopped};
use rustix::process::Signal;
use serde_json::json;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

#[test]
fn a_deadline_stops_the_job_and_says_so() {
    let job = Job::with(&["sleep", "1000"], |spec| spec.deadline_ms = Some(100)).start();
    let record = job.exited();
    assert_eq!((record.timed_out, record.stopped, record.exit_signal), (true, Some(Stopped::Deadline), Some(15)));
}

#[test]
fn a_cancel_left_in_the_folder_is_obeyed_before_and_after_the_start() {
    let job = Job::shell("echo ran > ran");
    CancelRecord::leave(&job.folder, &job.identity(), 0, StopReason::Cancelled, 1000).unwrap();
    let job = job.start();
    let record = job.exited();
    assert!(record.start_error.is_some() && record.stopped == Some(Stopped::Cancelled), "{record:?}");
    assert!(!job.workspace("ran").exists());

    let job = Job::new(&["sleep", "1000"]).start();
    job.hello();
    let other = Identity { attempt: 9, ..job.identity() };
    CancelRecord::leave(&job.folder, &other, 0, StopReason::Cancelled, 0).unwrap();
    let seq = job.hello().seq;
    eventually("two more beats", || (job.hello().seq >= seq + 2).then_some(()));
    assert_eq!(job.hello().state, State::Running, "another attempt's cancel means nothing");
    CancelRecord::leave(&job.folder, &job.identity(), 0, StopReason::Cancelled, 1000).unwrap();
    assert_eq!(job.exited().stopped, Some(Stopped::Cancelled));
}

#[test]
fn terminating_the_shim_stops_the_job_and_nothing_else_does() {
    let job = Job::shell("trap 'exit 3' TERM; echo up > up; while :; do sleep 0.05; done").start();
    job.await_file("up");
    for signal in [Signal::HUP, Signal::INT, Signal::PIPE, Signal::QUIT, Signal::USR1] {
        job.signal_shim(signal);
    }
    assert_eq!(job.hello().state, State::Running);
    job.signal_shim(Signal::TERM);
    let record = job.exited();
    assert_eq!((record.exit_code, record.stopped), (Some(3), Some(Stopped::ShimTerminated)));
    job.await_no_shim();
}

#[test]
fn only_the_attempt_that_is_meant_obeys() {
    let job = Job::new(&["sleep", "1000"]).start();
    job.hello();
    let wrong = [
        Identity { attempt: 2, ..job.identity() },
        Identity { token: "0".repeat(32), ..job.identity() },
        // The job's own secret can only beat.
        Identity { token: job.identity().beat_token(), ..job.identity() },
    ];
    for identity in wrong {
        let mut client = Client::connect(&job.folder, &identity, 0, LONG).unwrap();
        for refused in [client.hello(), client.stop(StopReason::Cancelled, None), client.signal("KILL"), client.ack()] {
            assert!(matches!(refused, Err(Error::Refused(Refusal::Fenced, _))), "{refused:?}");
        }
        assert!(matches!(
            Client::connect(&job.folder, &identity, 0, LONG).unwrap().subscribe(),
            Err(Error::Refused(Refusal::Fenced, _))
        ));
    }
    let finding = everbeat_supervisor::job::examine(&job.folder, &Identity { attempt: 2, ..job.identity() }, 0);
    assert!(matches!(finding, Finding::Unknown(_)), "{finding:?}");
    assert_eq!(job.hello().state, State::Running);
}

#[test]
fn progress_comes_by_descriptor_and_by_beat() {
    let job = Job::shell(
        "eval \"echo '{\\\"done\\\":3,\\\"total\\\":9}' >&$EVERBEAT_PROGRESS\"; \
         eval \"echo nonsense >&$EVERBEAT_PROGRESS\"; sleep 1000",
    )
    .start();
    eventually("progress", || (job.hello().progress == Some(json!({"done": 3, "total": 9}))).then_some(()));
    let token = Identity { token: job.identity().beat_token(), ..job.identity() };
    let mut beater = Client::connect(&job.folder, &token, 0, LONG).unwrap();
    let hello = beater.beat(Some(Status::Waiting), Some(json!({"note": "for a person"}))).unwrap();
    assert_eq!((hello.status, hello.progress), (Status::Waiting, Some(json!({"note": "for a person"}))));
    eventually("a sentinel", || {
        let sentinel = sentinel::read(&job.folder).unwrap();
        (sentinel.status == Status::Waiting && sentinel.progress.is_some()).then_some(())
    });
    let giant = beater.beat(None, Some(json!("x".repeat(20_000))));
    assert!(matches!(giant, Err(Error::Refused(Refusal::Malformed, _))), "{giant:?}");
}

#[test]
fn a_subscriber_hears_beats_progress_the_end_and_the_shims_own_end() {
    let job = Job::shell("while [ ! -e go ]; do sleep 0.02; done; exit 6").start();
    let mut events = job.client().subscribe().unwrap();
    job.client().beat(None, Some(json!({"done": 1}))).unwrap();
    let (mut beats, mut progress, mut ended) = (0, 0, Vec::new());
    loop {
        match events.next(LONG).unwrap() {
            Next::Event(Event::Beat(_)) => beats += 1,
            Next::Event(Event::Progress(_)) => progress += 1,
            Next::Event(Event::Exit(hello)) => ended.push(hello.exit.unwrap().exit_code),
            Next::Event(Event::Exited(hello)) => {
                ended.push(hello.exit.unwrap().exit_code);
                job.client().ack().unwrap();
            }
            Next::Gone => break,
            Next::Quiet => panic!("nothing came"),
        }
        if beats >= 2 && progress >= 1 && !job.workspace("go").exists() {
            std::fs::write(job.workspace("go"), "").unwrap();
        }
    }
    assert_eq!(ended, [Some(6), Some(6)]);
}

#[test]
fn a_killed_shim_is_known_at_once_to_who_listens() {
    let job = Job::new(&["sleep", "1000"]).start();
    let mut events = job.client().subscribe().unwrap();
    let shim = job.shim();
    let killed = now();
    rustix::process::pidfd_send_signal(&shim, Signal::KILL).unwrap();
    while !matches!(events.next(LONG).unwrap(), Next::Gone) {}
    println!("shim killed → known: {:?}", killed.elapsed());
    assert!(matches!(job.examine(), Finding::Gone));
    assert!(matches!(job.fence(), Fenced::Lost));
}

#[test]
fn hostile_clients_do_not_hold_up_the_shim() {
    let job = Job::new(&["sleep", "1000"]).start();
    job.hello();
    let path = job.folder.path().join("sock");
    let connect = || UnixStream::connect(&path).unwrap();
    // Hoarders that never speak; one that never ends its line; one that asks and never listens.
    let hoarders: Vec<UnixStream> =
        (0..100).map(|_| eventually("a place", || UnixStream::connect(&path).ok())).collect();
    assert_eq!(job.hello().state, State::Running);
    let mut endless = connect();
    endless.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let part = vec![b'x'; 1 << 16];
    while endless.write_all(&part).is_ok() {}
    let mut deaf = connect();
    deaf.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let hello = format!("{{\"op\":\"hello\",\"epoch\":1,\"nonce\":\"{}\"}}\n", job.spec.nonce);
    while deaf.write_all(hello.repeat(100).as_bytes()).is_ok() {}
    let mut rude = connect();
    rude.set_read_timeout(Some(LONG)).unwrap();
    rude.write_all(b"{}\n\xff\xfe\n[[[[\n").unwrap();
    let mut answer = [0; 20];
    rude.read_exact(&mut answer).unwrap();
    assert!(answer.starts_with(b"{\"error\":\"malformed\""));
    assert_eq!(job.hello().state, State::Running);
    drop(hoarders);
}

#[test]
fn a_signal_by_name_reaches_the_command() {
    let job = Job::shell("trap 'echo hup > hup' HUP; echo up > up; while :; do sleep 0.02; done").start();
    job.await_file("up");
    assert!(matches!(job.client().signal("NONSENSE"), Err(Error::Refused(Refusal::Malformed, _))));
    job.client().signal("SIGHUP").unwrap();
    job.await_file("hup");
    assert!(matches!(job.client().ack(), Err(Error::Refused(Refusal::Untimely, _))));
}

#[test]
fn a_folder_with_a_long_path_has_a_socket_too() {
    let root = scratch();
    let deep = root.path().join("d".repeat(100)).join("e".repeat(100));
    let job = Job::in_root(&deep, &["sleep", "1000"], |_| {}).start();
    assert_eq!(job.hello().state, State::Running);
    assert!(JobFolder::open_path(job.folder.path()).is_ok());
}

#[test]
fn a_long_grace_does_not_outlast_the_deadline() {
    let job = Job::with(&["/bin/sh", "-c", "trap '' TERM; echo up > up; while :; do sleep 0.02; done"], |spec| {
        (spec.deadline_ms, spec.stop_grace_ms) = (Some(1000), 100);
    })
    .start();
    job.await_file("up");
    job.client().stop(StopReason::Cancelled, Some(Duration::from_secs(100_000))).unwrap();
    let record = job.exited();
    assert_eq!((record.exit_signal, record.stopped), (Some(9), Some(Stopped::Requested)));
}
