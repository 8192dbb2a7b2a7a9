//! The deaths of servers and guardians.

use crate::harness::*;
use crate::server::{Server, WORKERS};
use everbeat_engine::pools::Guardians;
use rustix::process::{Signal, pidfd_send_signal};
use std::time::Duration;

/// The promise is one second; a busy machine gets some more.
const SOON: Duration = Duration::from_secs(3);

#[test]
fn nothing_outlives_a_killed_server_and_its_guardian_reports() {
    for mask in MODES {
        let (root, mark) = (scratch(), new_mark());
        let mut server = Server::start(root.path(), mask, FAMILY, &mark);
        assert!(family(&mark).len() >= 5 * WORKERS, "{mask:?}");
        server.kill();
        let began = now();
        eventually("an empty house", || family(&mark).is_empty().then_some(()));
        println!("{mask:?}: {:?}", began.elapsed());
        assert!(began.elapsed() < SOON, "{mask:?}: {:?}", began.elapsed());
        eventually("the guardian's end", || guardians(root.path(), "everbeat-guard").is_empty().then_some(()));
        let next = Host::at(root.path(), mask);
        let swept = next.block_on("a sweep", next.guardians.sweep()).unwrap();
        assert_eq!(swept.orphans, 0, "{mask:?}");
        let events: Vec<_> = swept.reports.iter().map(|report| report.event.as_str()).collect();
        assert_eq!(events, ["server_death_detected", "worker_terminated", "worker_terminated", "worker_terminated"]);
        assert!(swept.reports[0].detail["detection_time_ms"].is_u64());
        for report in &swept.reports[1..] {
            assert_eq!((report.pool.as_str(), report.detail["method"].as_str()), ("p", Some("sigkill")), "{mask:?}");
            assert!(report.detail["termination_duration_ms"].as_u64().unwrap() >= 300, "{report:?}");
            assert!(report.detail["worker_id"].is_string());
        }
        let again = next.block_on("a sweep", next.guardians.sweep()).unwrap();
        assert_eq!((again.orphans, again.reports.len()), (0, 0), "told once");
        assert_eq!(std::fs::read_dir(root.path().join("pools")).unwrap().count(), 1);
    }
}

#[test]
fn workers_that_go_when_asked_are_not_killed() {
    for mask in MODES {
        let (root, mark) = (scratch(), new_mark());
        let polite = "trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done";
        let mut server = Server::start(root.path(), mask, polite, &mark);
        server.kill();
        eventually("an empty house", || family(&mark).is_empty().then_some(()));
        eventually("the guardian's end", || guardians(root.path(), "everbeat-guard").is_empty().then_some(()));
        let next = Host::at(root.path(), mask);
        let swept = next.block_on("a sweep", next.guardians.sweep()).unwrap();
        let methods: Vec<_> = swept.reports.iter().filter_map(|report| report.detail["method"].as_str()).collect();
        assert_eq!(methods, ["sigterm"; WORKERS], "{mask:?}");
    }
}

#[test]
fn a_storm_of_forks_ends_with_its_server() {
    const STORM: &str = "storm() { while :; do (setsid sleep 0.05 &) ; (sleep 0.05 &) ; done; }; trap '' TERM; \
        storm & setsid sh -c 'while :; do (sleep 0.03 &); done' & echo up; wait";
    for mask in MODES {
        let (root, mark) = (scratch(), new_mark());
        let mut server = Server::start(root.path(), mask, STORM, &mark);
        server.kill();
        eventually("the guardian's end", || guardians(root.path(), "everbeat-guard").is_empty().then_some(()));
        assert_eq!(family(&mark), [0; 0], "{mask:?}");
        assert_eq!(guardians(root.path(), "everbeat-keeper"), [0; 0], "{mask:?}");
    }
}

#[test]
fn workers_die_with_their_guardian() {
    for mask in MODES {
        let (host, mark) = (Host::new(mask), new_mark());
        let guardian = host.guard("p");
        let worker = host.spawn(&guardian, &marked_order(FAMILY, &mark));
        assert_eq!(host.text(&worker), "up");
        pidfd_send_signal(crate::harness::guardian(&host.data_dir), Signal::KILL).unwrap();
        host.block_on("the guardian's end", guardian.gone());
        assert_eq!(family(&mark), [0; 0], "{mask:?}");
        host.emptied(&worker);
        let exit = host.exited(&worker);
        // Nobody of us saw it: it is what the kernel says, or unknown.
        assert!(exit.code.is_none() && matches!(exit.signal, None | Some(9)), "{mask:?}: {exit:?}");
        assert_eq!(host.line(&worker), None);
        let refused = host.try_spawn(&guardian, &shell("true"));
        assert!(matches!(refused, Err(everbeat_engine::pools::SpawnError::Gone)));
        // Another takes its place.
        let guardian = host.guard("p");
        let worker = host.spawn(&guardian, &shell("exit 4"));
        assert_eq!(host.exited(&worker).code, Some(4));
    }
}

#[test]
fn a_killed_keeper_leaves_nothing() {
    for mask in &MODES[1..] {
        let (host, mark) = (Host::new(mask), new_mark());
        let guardian = host.guard("p");
        let worker = host.spawn(&guardian, &marked_order(FAMILY, &mark));
        let other = host.spawn(&guardian, &shell("echo up; sleep 1000"));
        assert_eq!((host.text(&worker), host.text(&other)), ("up".into(), "up".into()));
        let keepers = guardians(&host.data_dir, "everbeat-keeper");
        let is_its = |pid: &&i32| {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", worker.pid())).unwrap();
            stat.rsplit(')').next().unwrap().split_whitespace().nth(1) == Some(&pid.to_string())
        };
        let keeper = *keepers.iter().find(is_its).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_raw(keeper).unwrap(), Signal::KILL).unwrap();
        host.emptied(&worker);
        eventually("an empty house", || family(&mark).is_empty().then_some(()));
        assert!(host.block_on("a look", other.look()).is_some(), "the other worker goes on");
    }
}

#[test]
fn an_ended_guardian_leaves_no_trace() {
    for mask in MODES {
        let (host, mark) = (Host::new(mask), new_mark());
        let guardian = host.guard("p");
        let worker = host.spawn(&guardian, &marked_order(FAMILY, &mark));
        assert_eq!(host.text(&worker), "up");
        host.block_on("its end", guardian.end());
        assert_eq!(family(&mark), [0; 0], "{mask:?}");
        assert_eq!(host.exited(&worker).signal, Some(9), "{mask:?}");
        let folders = std::fs::read_dir(host.data_dir.join("pools")).unwrap().flatten();
        let inside: Vec<_> = folders.flat_map(|folder| std::fs::read_dir(folder.path()).unwrap().flatten()).collect();
        assert!(inside.iter().all(|entry| entry.file_type().unwrap().is_file()), "{inside:?}");
    }
}

#[test]
fn a_guardian_that_hangs_is_ended_all_the_same() {
    for mask in MODES {
        let (host, mark) = (Host::new(mask), new_mark());
        let guardian = host.guard("p");
        let worker = host.spawn(&guardian, &marked_order(FAMILY, &mark));
        assert_eq!(host.text(&worker), "up");
        pidfd_send_signal(crate::harness::guardian(&host.data_dir), Signal::STOP).unwrap();
        host.block_on("its end", guardian.end());
        assert_eq!(family(&mark), [0; 0], "{mask:?}");
    }
}

#[test]
fn a_worker_that_nobody_holds_ends() {
    for mask in MODES {
        let (host, mark) = (Host::new(mask), new_mark());
        let guardian = host.guard("p");
        let worker = host.spawn(&guardian, &marked_order(FAMILY, &mark));
        assert_eq!(host.text(&worker), "up");
        drop(worker);
        eventually("an empty house", || family(&mark).is_empty().then_some(()));
    }
}

/// Figures: `cargo test --workspace --test pools -- --ignored --nocapture`.
#[test]
#[ignore = "a thousand processes, for figures"]
fn two_hundred_workers_end_with_their_server() {
    const QUIET: &str =
        "trap '' TERM; sleep 1000 & setsid sleep 1000 & (setsid sleep 1000 &) ; echo up; wait; sleep 1000";
    for mask in MODES {
        let (root, mark) = (scratch(), new_mark());
        let began = now();
        let mut server = Server::with(200, root.path(), mask, QUIET, &mark);
        println!("{mask:?}: {} processes up in {:?}", family(&mark).len(), began.elapsed());
        server.kill();
        let began = now();
        eventually("an empty house", || family(&mark).is_empty().then_some(()));
        println!("{mask:?}: gone in {:?}", began.elapsed());
        eventually("the guardian's end", || guardians(root.path(), "everbeat-guard").is_empty().then_some(()));
        println!("{mask:?}: guardian gone in {:?}", began.elapsed());
        assert!(began.elapsed() < SOON, "{mask:?}");
    }
}
