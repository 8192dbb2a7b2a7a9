//! Attempts whose records cannot be understood.

use crate::host::*;
use everbeat_engine::{Fenced, Finding, Shims, WithoutFolder};

const DAEMON: &str = "setsid sleep 1000 & echo up > up; sleep 1001";
const RECORDS: [&str; 4] = ["spec.json", "started.json", "exit.json", "fence.json"];

#[test]
fn an_attempt_with_unreadable_records_is_destroyed_and_called_lost() {
    for (name, alive) in RECORDS.into_iter().flat_map(|name| [(name, true), (name, false)]) {
        let host = Host::new();
        let attempt = host.started(DAEMON);
        host.await_file(&attempt, "up");
        if !alive {
            host.kill_shim(&attempt);
        }
        std::fs::write(host.path(&attempt, name), "{\"schema\":").unwrap();
        match (host.examine(&attempt), alive) {
            (Finding::Live(_), true) | (Finding::Unknown(_), false) => {}
            (other, _) => panic!("{name}, {alive}: {other:?}"),
        }
        let fence = host.ask(async |shims| shims.fence(&attempt, WithoutFolder::MakeOne).await);
        assert!(matches!((&fence, name), (Ok(Fenced::StillHeld), _) | (Err(_), _) | (Ok(Fenced::Lost), "spec.json")));
        host.destroy(&attempt);
        assert_eq!(host.processes(&attempt), [0; 0], "{name}");
        assert_eq!(host.fence(&attempt), Fenced::Lost, "{name}");
        assert_eq!(host.examine(&attempt), Finding::Gone, "{name}");
        let kept = std::fs::read_dir(host.path(&attempt, "")).unwrap().flatten();
        let kept =
            kept.filter(|entry| entry.file_name().to_string_lossy().starts_with(&format!(".unreadable-{name}-")));
        assert_eq!(kept.count(), 1, "{name} is kept for people");
        host.destroy(&attempt); // Twice is harmless.
        let next = host.next(&attempt);
        host.start(&next, "exec sleep 1000").unwrap();
        assert!(matches!(host.examine(&next), Finding::Live(_)), "{name}: {:?}", host.examine(&next));
    }
}

#[test]
fn what_stands_in_the_place_of_lock_and_socket_is_no_obstacle() {
    let host = Host::new();
    let attempt = host.started(DAEMON);
    host.await_file(&attempt, "up");
    for name in ["lock", "sock"] {
        std::fs::remove_file(host.path(&attempt, name)).unwrap();
        std::fs::create_dir(host.path(&attempt, name)).unwrap();
    }
    assert!(matches!(host.examine(&attempt), Finding::Unknown(_)));
    host.destroy(&attempt);
    assert_eq!(host.processes(&attempt), [0; 0]);
    assert_eq!(host.fence(&attempt), Fenced::Lost);
}

#[test]
fn an_exit_that_can_be_read_stays_the_truth() {
    let host = Host::new();
    let attempt = host.started("exit 7");
    assert_eq!(host.exited(&attempt).exit_code, Some(7));
    std::fs::write(host.path(&attempt, "started.json"), "?").unwrap();
    host.destroy(&attempt);
    assert!(matches!(host.fence(&attempt), Fenced::Exited(exit) if exit.exit_code == Some(7)));
}

#[test]
fn an_earlier_attempt_that_holds_the_lock_is_destroyed_with_it() {
    let host = Host::new();
    let first = host.started(DAEMON);
    host.await_file(&first, "up");
    std::fs::write(host.path(&first, "spec.json"), "?").unwrap();
    let second = host.next(&first);
    assert!(host.start(&second, "true").is_err());
    host.destroy(&second);
    assert_eq!(host.processes(&second), [0; 0]);
    assert_eq!(host.fence(&second), Fenced::Lost);
}
