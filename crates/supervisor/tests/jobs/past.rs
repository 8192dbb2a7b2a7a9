//! A store that fails over may ask again for an attempt whose place another one has taken since.

use crate::host::Host;
use everbeat_engine::{Fenced, Finding, JobAttempt};

/// Another one of the same number, as a store grants it that has forgotten the first.
fn again(host: &Host, attempt: &JobAttempt) -> JobAttempt {
    let before = JobAttempt { attempt: attempt.attempt - 1, ..attempt.clone() };
    host.next(&before)
}

#[test]
fn an_attempt_whose_place_was_taken_keeps_its_true_exit() {
    let host = Host::new();
    let first = host.started("exit 7");
    assert_eq!(host.exited(&first).exit_code, Some(7));
    let second = host.next(&first);
    host.start(&second, "exit 0").unwrap();
    assert_eq!(host.exited(&second).exit_code, Some(0));
    let third = again(&host, &second);
    host.start(&third, "sleep 1000").unwrap();
    assert_eq!(host.exited(&first).exit_code, Some(7));
    assert_eq!(host.exited(&second).exit_code, Some(0));
    assert!(matches!(host.examine(&third), Finding::Live(_)));
}

#[test]
fn an_attempt_that_was_lost_is_not_said_to_have_never_run_when_another_of_its_number_has_its_place() {
    let host = Host::new();
    let lost = host.started("sleep 1000");
    host.kill_shim(&lost);
    let other = again(&host, &lost);
    host.start(&other, "sleep 1000").unwrap();
    assert!(matches!(host.examine(&lost), Finding::Gone));
    assert!(matches!(host.fence(&lost), Fenced::Lost));
    assert!(matches!(host.examine(&other), Finding::Live(_)), "it is not the first one's to end");
    // Nor after yet another one was fenced.
    host.fence(&again(&host, &lost));
    assert!(matches!(host.fence(&lost), Fenced::Lost));
}

#[test]
fn an_attempt_that_was_forbidden_stays_forbidden_when_another_of_its_number_is() {
    let host = Host::new();
    let first = host.attempt();
    assert!(matches!(host.fence(&first), Fenced::NeverStarted));
    let other = again(&host, &first);
    assert!(matches!(host.fence(&other), Fenced::NeverStarted));
    assert!(host.start(&first, "sleep 1000").is_err());
    assert!(matches!(host.fence(&first), Fenced::NeverStarted));
}
