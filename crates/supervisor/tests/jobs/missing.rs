//! What was taken away is no proof that nothing ran.

use crate::harness::*;
use crate::host::*;
use everbeat_engine::{Fenced, Finding, Shims};
use everbeat_supervisor::job::{self, Containment, JobFolder};

const DAEMON: &str = "setsid sleep 1000 & echo up > up; sleep 1001";

#[test]
fn a_folder_that_is_not_there_is_told_from_a_job_that_did_not_start() {
    let host = Host::new();
    let attempt = host.attempt();
    assert_eq!(host.examine(&attempt), Finding::Missing);
    host.ask(async |shims| shims.prepare(attempt.job).await).unwrap();
    assert!(host.path(&attempt, "workspace").is_dir());
    assert_eq!(host.examine(&attempt), Finding::NotStarted);
    assert_eq!(host.fence(&attempt), Fenced::NeverStarted);
}

#[test]
fn a_command_whose_folder_was_taken_away_is_found_killed_and_called_lost() {
    let host = Host::new();
    let attempt = host.started(DAEMON);
    host.await_file(&attempt, "up");
    std::fs::rename(host.path(&attempt, ""), host.data_dir.path().join("elsewhere")).unwrap();
    assert_eq!(host.examine(&attempt), Finding::Missing);
    assert!(!host.processes(&attempt).is_empty(), "it goes on");
    assert_eq!(host.fence(&attempt), Fenced::Lost);
    assert_eq!(host.processes(&attempt), [0; 0]);
    assert_eq!(host.fence(&attempt), Fenced::Lost, "the witnesses are dead, the verdict stays");
    assert_eq!(host.examine(&attempt), Finding::Gone);
}

#[test]
fn an_emptied_folder_is_no_proof_that_nothing_ran() {
    let host = Host::new();
    let attempt = host.started("true");
    host.exited(&attempt);
    host.kill_shim(&attempt);
    let folder = host.path(&attempt, "");
    std::fs::remove_dir_all(&folder).unwrap();
    // As one does that dies while it makes the folder anew, to forbid the attempt there.
    std::fs::create_dir(&folder).unwrap();
    assert_eq!(host.examine(&attempt), Finding::Missing);
    assert_eq!(host.fence_in_place(&attempt), Fenced::Missing);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(host.fence_in_place(&attempt), Fenced::Missing);
    assert!(!folder.exists());
    host.destroy(&attempt);
    assert_eq!(host.examine(&attempt), Finding::Gone);
    assert_eq!(host.fence(&attempt), Fenced::Lost);
}

#[test]
fn a_live_job_is_live_whatever_became_of_its_spec() {
    let host = Host::new();
    let attempt = host.started(DAEMON);
    let spec = host.path(&attempt, "spec.json");
    let text = std::fs::read_to_string(&spec).unwrap();
    for epoch in ["\"epoch\":0", "\"epoch\":7"] {
        std::fs::write(&spec, text.replace("\"epoch\":1", epoch)).unwrap();
        assert!(matches!(host.examine(&attempt), Finding::Live(_)), "{:?}", host.examine(&attempt));
    }
    std::fs::remove_file(&spec).unwrap();
    assert!(matches!(host.examine(&attempt), Finding::Live(_)), "{:?}", host.examine(&attempt));
    assert_eq!(host.fence(&attempt), Fenced::StillHeld);
    let held = host.ask(async |shims| shims.held().await).unwrap();
    assert_eq!(held, [everbeat_engine::JobAttempt { tenure: everbeat_engine::LAST_WORD, ..attempt.clone() }]);
    let former = everbeat_engine::JobAttempt { tenure: 0, ..attempt.clone() };
    assert_eq!(host.examine(&former), Finding::Fenced);
}

#[test]
fn any_trace_of_an_attempt_says_that_it_began() {
    let all = ["spec.json", "lock", "started.json", ".sentinel.json"];
    for kept in ["lock", "started.json", ".sentinel.json"] {
        let host = Host::new();
        let attempt = host.started(DAEMON);
        host.kill_shim(&attempt);
        all.iter()
            .filter(|name| **name != kept)
            .for_each(|name| std::fs::remove_file(host.path(&attempt, name)).unwrap());
        assert_eq!(host.examine(&attempt), Finding::Gone, "{kept}");
        assert_eq!(host.fence(&attempt), Fenced::Lost, "{kept}");
        assert_eq!(host.processes(&attempt), [0; 0]);
    }
}

#[test]
fn the_spec_of_another_attempt_says_which_of_the_two_is_over() {
    let host = Host::new();
    let first = host.started("exec sleep 1000");
    let second = host.next(&first);
    assert_eq!(host.examine(&second), Finding::NotStarted, "the first is in its way");
    host.start(&second, "exec sleep 1000").unwrap();
    assert!(matches!(host.examine(&second), Finding::Live(_)));
    let exit = host.exited(&first);
    std::fs::remove_file(host.path(&first, "exit.json")).unwrap();
    std::fs::remove_file(host.path(&first, "fence.json")).unwrap_or_default();
    assert_eq!(host.examine(&first), Finding::Exited(exit), "the list of past attempts has it too");
    std::fs::remove_file(host.path(&first, "past.json")).unwrap();
    assert_eq!(host.examine(&first), Finding::Fenced);
}

#[test]
fn an_attempt_whose_spec_was_taken_away_is_ended_before_the_next_begins() {
    let host = Host::new();
    let first = host.started(DAEMON);
    host.await_file(&first, "up");
    std::fs::remove_file(host.path(&first, "spec.json")).unwrap();
    let second = host.next(&first);
    host.start(&second, "echo $EVERBEAT_ATTEMPT > second; exec sleep 1000").unwrap();
    assert_eq!(host.await_file(&second, "second"), "2\n");
    assert!(matches!(host.examine(&second), Finding::Live(_)));
    eventually("one command", || (host.processes(&second).len() == 1).then_some(()));
}

#[test]
fn what_is_left_is_found_with_and_without_a_cgroup() {
    for containment in [Containment::Auto, Containment::Tree] {
        let job = Job::with(&["/bin/sh", "-c", DAEMON], |spec| spec.containment = containment).start();
        job.await_file("up");
        let root = job.folder.path().parent().unwrap();
        std::fs::rename(job.folder.path(), root.join("elsewhere")).unwrap();
        let fresh = JobFolder::create(root, &job.spec.job_id).unwrap();
        for _ in 0..2 {
            assert!(matches!(job::fence(&fresh, &job.identity()).unwrap(), Fenced::Lost), "{containment:?}");
            assert_eq!(job.processes(), [0; 0], "{containment:?}");
        }
    }
}
