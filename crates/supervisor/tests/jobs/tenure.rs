use crate::harness::*;
use everbeat_supervisor::job::client::{Error, Next};
use everbeat_supervisor::job::protocol::{Event, Refusal, State};
use everbeat_supervisor::job::{CancelRecord, Client, Identity, Stopped, examine};
use serde_json::json;

/// A job that was started by the owner of tenure 3 and adopted by the one of tenure 5.
fn adopted(script: &str) -> Job {
    let mut job = Job::with(&["/bin/sh", "-c", script], |spec| spec.tenure = 3).start();
    assert_eq!(job.hello().tenure, 3);
    job.spec.tenure = 5;
    assert_eq!(job.hello().tenure, 5);
    job
}

fn assert_fenced(job: &Job, tenure: u32) {
    let mut client = job.client_of(tenure);
    for refused in [
        client.hello(),
        client.stop(StopReason::Cancelled, None),
        client.signal("KILL"),
        client.ack(),
        client.beat(None, Some(json!(1))),
    ] {
        let Err(Error::Refused(Refusal::Fenced, detail)) = refused else { panic!("{refused:?}") };
        assert!(detail.contains(&format!("tenure {tenure} ")) && detail.contains("tenure 5 "), "{detail}");
    }
    assert!(matches!(client.subscribe(), Err(Error::Refused(Refusal::Fenced, _))));
}

#[test]
fn a_former_owner_can_neither_ask_nor_stop_nor_signal_nor_listen() {
    let job = adopted("sleep 1000");
    for tenure in [0, 3, 4] {
        assert_fenced(&job, tenure);
        let finding = examine(&job.folder, &job.identity(), tenure);
        assert!(matches!(finding, Finding::Fenced), "{finding:?}");
    }
    assert!(matches!(job.examine(), Finding::Live(_)), "its owner sees it");
    let hello = job.hello();
    assert_eq!((hello.state, hello.tenure, hello.progress), (State::Running, 5, None));
}

#[test]
fn a_former_owner_cannot_acknowledge_an_end_but_may_know_it() {
    let job = adopted("exit 4");
    assert_eq!(job.exited().exit_code, Some(4));
    assert_fenced(&job, 3);
    assert_eq!(job.shims().len(), 1, "it waits for its owner still");
    assert!(matches!(examine(&job.folder, &job.identity(), 3), Finding::Exited(_)));
    job.client().ack().unwrap();
    job.await_no_shim();
}

#[test]
fn a_request_from_before_the_first_owner_is_refused_at_once() {
    let job = Job::with(&["sleep", "1000"], |spec| spec.tenure = 5).start();
    assert_fenced(&job, 4);
    assert_eq!(job.hello().state, State::Running);
}

#[test]
fn another_attempt_is_fenced_whatever_its_tenure_and_raises_none() {
    let job = adopted("sleep 1000");
    let other = Identity { token: "0".repeat(32), ..job.identity() };
    let refused = Client::connect(&job.folder, &other, 9, LONG).unwrap().stop(StopReason::Cancelled, None);
    assert!(matches!(refused, Err(Error::Refused(Refusal::Fenced, _))), "{refused:?}");
    assert!(matches!(examine(&job.folder, &other, 9), Finding::Unknown(_)));
    assert_eq!(job.hello().tenure, 5);
}

#[test]
fn a_former_owners_cancel_is_not_obeyed_before_or_after_the_start() {
    let job = Job::with(&["sleep", "1000"], |spec| spec.tenure = 5);
    CancelRecord::leave(&job.folder, &job.identity(), 4, StopReason::Cancelled, 0).unwrap();
    let job = job.start();
    let seq = job.hello().seq;
    eventually("two more beats", || (job.hello().seq >= seq + 2).then_some(()));
    assert_eq!(job.hello().state, State::Running);

    CancelRecord::leave(&job.folder, &job.identity(), 5, StopReason::Cancelled, 1000).unwrap();
    let late = CancelRecord::leave(&job.folder, &job.identity(), 4, StopReason::Cancelled, 1000).unwrap_err();
    assert!(late.to_string().contains("tenure 5 after 4"), "{late}");
    assert_eq!(job.exited().stopped, Some(Stopped::Cancelled));
}

#[test]
fn a_later_owners_cancel_fences_the_present_one() {
    let job = Job::shell("trap '' TERM; echo up > up; while :; do sleep 0.02; done").start();
    job.await_file("up");
    CancelRecord::leave(&job.folder, &job.identity(), 1, StopReason::Cancelled, 600_000).unwrap();
    eventually("a fence", || matches!(job.examine(), Finding::Fenced).then_some(()));
    assert_eq!(job.client_of(1).hello().unwrap().state, State::Stopping);
}

#[test]
fn who_listens_for_a_former_owner_is_cut_off_when_a_later_one_speaks() {
    let job = Job::new(&["sleep", "1000"]).start();
    let mut former = job.client().subscribe().unwrap();
    assert!(matches!(former.next(LONG).unwrap(), Next::Event(Event::Beat(_))));
    let mut present = job.client_of(1).subscribe().unwrap();
    loop {
        match former.next(LONG).unwrap() {
            Next::Event(event) => assert_eq!(event.hello().tenure, 0, "it hears of nothing that came after"),
            Next::Quiet => panic!("nothing came"),
            Next::Gone => break,
        }
    }
    assert!(matches!(job.examine(), Finding::Fenced), "so it learns why");
    for _ in 0..3 {
        let Next::Event(event) = present.next(LONG).unwrap() else { panic!("cut off too") };
        assert_eq!(event.hello().tenure, 1);
    }
}

#[test]
fn the_jobs_own_beats_have_no_tenure() {
    let job = adopted("sleep 1000");
    let token = Identity { token: job.identity().beat_token(), ..job.identity() };
    for tenure in [0, u32::MAX] {
        let mut beater = Client::connect(&job.folder, &token, tenure, LONG).unwrap();
        let hello = beater.beat(None, Some(json!({"done": tenure}))).unwrap();
        assert_eq!((hello.tenure, hello.progress), (5, Some(json!({"done": tenure}))));
    }
    assert_eq!(job.hello().state, State::Running);
}
