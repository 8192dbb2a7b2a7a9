//! The life of one worker.

use crate::harness::*;
use everbeat_engine::pools::{
    Containment, Guardians, OutputLine, SpawnError, WantedContainment, WorkerExit, WorkerSignal,
};

#[test]
fn a_worker_is_contained_by_the_best_there_is() {
    for mask in MODES {
        let host = Host::new(mask);
        assert_eq!(host.guard("p").containment(), expected(mask), "{mask:?}");
    }
}

#[test]
fn strict_is_refused_without_a_complete_containment() {
    let host = Host::new("cgroup,namespace");
    let refused = host.block_on("an answer", host.guardians.guard("p", WantedContainment::Strict));
    let text = refused.err().unwrap().to_string();
    assert!(text.contains("containment = \"strict\" needs a cgroup"), "{text}");
    let host = Host::new("cgroup");
    host.block_on("an answer", host.guardians.guard("p", WantedContainment::Strict)).unwrap();
}

#[test]
fn an_exit_is_told_as_it_was() {
    for mask in MODES {
        let host = Host::new(mask);
        let guardian = host.guard("p");
        let worker = host.spawn(&guardian, &shell("exit 7"));
        assert_eq!(host.exited(&worker), WorkerExit { code: Some(7), ..WorkerExit::default() }, "{mask:?}");
        let emptied = host.emptied(&worker);
        assert_eq!((emptied.how, emptied.killed), ("exited", 0), "{mask:?}");
        let worker = host.spawn(&guardian, &shell("kill -SEGV $$"));
        assert_eq!(host.exited(&worker), WorkerExit { signal: Some(11), ..WorkerExit::default() }, "{mask:?}");
        host.emptied(&worker);
        assert_eq!(host.exited(&worker).signal, Some(11), "asked again");
    }
}

#[test]
fn a_polite_signal_reaches_the_worker_and_a_kill_everybody() {
    for mask in MODES {
        let host = Host::new(mask);
        let guardian = host.guard("p");
        let worker = host.spawn(&guardian, &shell("trap 'exit 3' TERM; echo up; while :; do sleep 0.02; done"));
        assert_eq!(host.text(&worker), "up");
        host.block_on("a signal", worker.signal(WorkerSignal::Terminate)).unwrap();
        assert_eq!(host.exited(&worker).code, Some(3), "{mask:?}");
        let stubborn = "trap '' TERM; setsid sleep 1000 & sleep 1000 & echo up; wait; sleep 1000";
        let worker = host.spawn(&guardian, &shell(stubborn));
        assert_eq!(host.text(&worker), "up");
        host.block_on("a signal", worker.signal(WorkerSignal::Terminate)).unwrap();
        host.block_on("a signal", worker.signal(WorkerSignal::Kill)).unwrap();
        assert_eq!(host.exited(&worker).signal, Some(9), "{mask:?}");
        host.emptied(&worker);
        // The pipe ends when nobody holds it.
        assert_eq!(host.line(&worker), None, "{mask:?}");
    }
}

#[test]
fn what_cannot_be_started_is_named() {
    for mask in MODES {
        let host = Host::new(mask);
        let guardian = host.guard("p");
        let why = |order| match host.try_spawn(&guardian, &order) {
            Err(SpawnError::Command(error)) => error.to_string(),
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("it runs"),
        };
        assert_eq!(why(order(&["no-such-program"])), "program \"no-such-program\" was not found in PATH");
        assert_eq!(why(order(&["/no/such"])), "program \"/no/such\": No such file or directory (os error 2)");
        let text = why(order(&["/etc/passwd"]));
        assert_eq!(text, "program \"/etc/passwd\" is not executable: Permission denied (os error 13)");
        let mut elsewhere = order(&["true"]);
        elsewhere.cwd = Some("/no/folder".into());
        assert_eq!(why(elsewhere), "working folder \"/no/folder\": No such file or directory (os error 2)");
        // The guardian goes on.
        assert_eq!(host.exited(&host.spawn(&guardian, &order(&["true"]))).code, Some(0));
    }
}

#[test]
fn both_outputs_are_told_line_by_line() {
    for mask in MODES {
        let host = Host::new(mask);
        let guardian = host.guard("p");
        let worker = host.spawn(&guardian, &shell("printf 'one\\ntwo'; printf 'bad\\n' >&2"));
        let mut lines = Vec::new();
        while let Some(line) = host.line(&worker) {
            lines.push(line);
        }
        lines.sort_by_key(|line| line.error);
        let line = |text: &str, error| OutputLine { error, text: text.into(), cut: false };
        assert_eq!(lines, [line("one", false), line("two", false), line("bad", true)], "{mask:?}");
    }
}

#[test]
fn an_order_that_is_given_up_leaves_no_worker() {
    for mask in MODES {
        let (host, mark) = (Host::new(mask), new_mark());
        let guardian = host.guard("p");
        for _ in 0..20 {
            let order = marked_order("echo up; sleep 1000", &mark);
            host.block_on("an order", async {
                tokio::select! {
                    biased;
                    worker = guardian.spawn(&order) => drop(worker),
                    () = tokio::task::yield_now() => {}
                }
            });
        }
        // Orders are obeyed one after the other: when this one runs, all others were seen.
        let last = host.spawn(&guardian, &shell("echo up; sleep 1000"));
        assert_eq!(host.text(&last), "up");
        eventually("an empty house", || family(&mark).is_empty().then_some(()));
        let one_each = usize::from(guardian.containment() != Containment::Cgroup);
        let keepers = || guardians(&host.data_dir, "everbeat-keeper").len();
        eventually("no more keepers", || (keepers() == one_each).then_some(()));
    }
}

#[test]
fn a_storm_of_forks_is_killed() {
    const STORM: &str = "storm() { while :; do (setsid sleep 0.05 &) ; (sleep 0.05 &) ; done; }; trap '' TERM; \
        storm & setsid sh -c 'while :; do (sleep 0.03 &); done' & echo up; wait";
    for mask in MODES {
        let (host, mark) = (Host::new(mask), new_mark());
        let guardian = host.guard("p");
        let worker = host.spawn(&guardian, &marked_order(STORM, &mark));
        assert_eq!(host.text(&worker), "up");
        host.block_on("a signal", worker.signal(WorkerSignal::Kill)).unwrap();
        let emptied = host.emptied(&worker);
        assert_eq!(family(&mark), [0; 0], "{mask:?}");
        assert!(emptied.killed > 0 && emptied.how != "exited", "{mask:?}: {emptied:?}");
    }
}
