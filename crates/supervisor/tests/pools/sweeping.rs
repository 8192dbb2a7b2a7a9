//! What a start does with what earlier servers left.

use crate::harness::*;
use crate::server::Server;
use everbeat_engine::pools::Guardians;
use rustix::process::{Signal, pidfd_send_signal};
use std::sync::Arc;

#[test]
fn what_server_and_guardian_left_together_is_gone_when_the_sweep_returns() {
    for mask in MODES {
        let (root, mark) = (scratch(), new_mark());
        let mut server = Server::start(root.path(), mask, FAMILY, &mark);
        let guardian = guardian(root.path());
        pidfd_send_signal(&guardian, Signal::STOP).unwrap();
        server.kill();
        pidfd_send_signal(&guardian, Signal::KILL).unwrap();
        let next = Host::at(root.path(), mask);
        let swept = next.block_on("a sweep", next.guardians.sweep()).unwrap();
        assert_eq!(family(&mark), [0; 0], "{mask:?}");
        assert_eq!(swept.reports, [], "nobody was left to tell");
        println!("{mask:?}: {} orphans in {:?}", swept.orphans, swept.took);
        assert_eq!(std::fs::read_dir(root.path().join("pools")).unwrap().count(), 1, "{mask:?}");
    }
}

#[test]
fn a_guardian_that_hangs_does_not_stop_a_sweep() {
    for mask in MODES {
        let (root, mark) = (scratch(), new_mark());
        let mut server = Server::start(root.path(), mask, FAMILY, &mark);
        pidfd_send_signal(guardian(root.path()), Signal::STOP).unwrap();
        server.kill();
        let next = Host::at(root.path(), mask);
        let swept = next.block_on("a sweep", next.guardians.sweep()).unwrap();
        assert_eq!(family(&mark), [0; 0], "{mask:?}");
        assert_eq!(guardians(root.path(), "everbeat-guard"), [0; 0], "{mask:?}");
        assert!(swept.orphans > 0, "{mask:?}");
    }
}

#[test]
fn what_belongs_to_a_living_server_is_left_alone() {
    for mask in MODES {
        let (root, living, dead) = (scratch(), new_mark(), new_mark());
        let first = Host::at(root.path(), mask);
        let guardian = first.guard("p");
        let worker = first.spawn(&guardian, &marked_order(FAMILY, &living));
        assert_eq!(first.text(&worker), "up");
        let before = family(&living);
        let mut server = Server::start(root.path(), mask, FAMILY, &dead);
        let of_dead: Vec<_> = guardians(root.path(), "everbeat-guard");
        server.kill();
        let next = Arc::new(Host::at(root.path(), mask));
        // Two that start together, beside one that lives.
        let other = {
            let next = next.clone();
            std::thread::spawn(move || next.block_on("a sweep", next.guardians.sweep()).unwrap())
        };
        first.block_on("a sweep", first.guardians.sweep()).unwrap();
        assert_eq!(family(&dead), [0; 0], "{mask:?}");
        other.join().unwrap();
        assert_eq!(family(&dead), [0; 0], "{mask:?}");
        assert_eq!(of_dead.len(), 2);
        assert!(before.iter().take(4).all(|pid| family(&living).contains(pid)), "{mask:?}");
        assert!(first.block_on("a look", worker.look()).is_some(), "{mask:?}");
    }
}

#[test]
fn what_is_no_servers_folder_is_left_alone() {
    let root = scratch();
    let host = Host::at(root.path(), "");
    let strange = root.path().join("pools/notes");
    std::fs::create_dir(&strange).unwrap();
    let dead = root.path().join("pools").join("ab".repeat(16));
    std::fs::create_dir_all(dead.join("0")).unwrap();
    // A note that names a cgroup that is nobody's of ours.
    let note = r#"{"pool":"p","boot_id":"x","cgroup":"/sys/fs/cgroup"}"#;
    std::fs::write(dead.join("0/lock"), note).unwrap();
    std::fs::write(dead.join("0/report"), "{\"event\":\n").unwrap();
    let swept = host.block_on("a sweep", host.guardians.sweep()).unwrap();
    assert_eq!((swept.orphans, swept.reports.len()), (0, 0));
    assert!(strange.exists() && !dead.exists());
}

#[test]
fn an_ordinary_end_leaves_nothing_to_sweep() {
    let root = scratch();
    let host = Host::at(root.path(), "");
    let guardian = host.guard("p");
    let worker = host.spawn(&guardian, &shell("echo up; sleep 1000"));
    assert_eq!(host.text(&worker), "up");
    host.block_on("its end", guardian.end());
    drop((worker, guardian, host));
    assert_eq!(std::fs::read_dir(root.path().join("pools")).unwrap().count(), 0);
}
