//! What a worker is handed: descriptors, environment, signals, the socket's path.

use crate::harness::*;
use everbeat_engine::pools::Guardians;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_worker_has_its_standard_streams_its_secret_and_its_life_line_only() {
    for mask in MODES {
        let host = Host::new(mask);
        let guardian = host.guard("p");
        // A neighbour, of whose descriptors it gets none.
        let neighbour = host.spawn(&guardian, &shell("echo up; sleep 1000"));
        assert_eq!(host.text(&neighbour), "up");
        let script = "ls -m /proc/$$/fd; cat <&3; echo; cat <&3; timeout 0.1 cat <&4; echo $?";
        let worker = host.spawn(&guardian, &shell(script));
        let open = host.text(&worker);
        assert_eq!(open, "0, 1, 2, 3, 4", "{mask:?}");
        assert_eq!(host.text(&worker), "s3cret", "and then its end");
        assert_eq!(host.text(&worker), "124", "the life line carries nothing and does not end");
    }
}

#[test]
fn a_worker_finds_what_is_its_own_and_no_secrets_of_its_server() {
    for mask in MODES {
        let host = Host::new(mask);
        let guardian = host.guard("the pool");
        let mut order = shell("env; echo cwd=$(pwd)");
        order.env.insert("MINE".into(), "yes".into());
        order.env.insert("EVERBEAT_POOL".into(), "another".into());
        let worker = host.spawn(&guardian, &order);
        let mut env = BTreeMap::new();
        while let Some(line) = host.line(&worker) {
            let (name, value) = line.text.split_once('=').unwrap();
            env.insert(name.to_owned(), value.to_owned());
        }
        assert_eq!((env["MINE"].as_str(), env["EVERBEAT_POOL"].as_str()), ("yes", "the pool"));
        assert_eq!((env["EVERBEAT_WORKER_SECRET_FD"].as_str(), env["EVERBEAT_WORKER_LIFE_FD"].as_str()), ("3", "4"));
        assert_eq!(env["EVERBEAT_WORKER_SOCKET"], host.guardians.socket().to_str().unwrap());
        assert!(env["EVERBEAT_WORKER_DUMP_PATH"].starts_with(host.data_dir.to_str().unwrap()));
        assert_eq!(env["PATH"], std::env::var("PATH").unwrap());
        assert_eq!(env["cwd"], std::env::current_dir().unwrap().to_str().unwrap());
        assert!(!env.keys().any(|name| name.starts_with("CARGO")), "{mask:?}: {env:?}");
        assert!(!env.values().any(|value| value.contains("s3cret")));
    }
}

#[test]
fn a_worker_blocks_and_ignores_no_signal_and_leads_its_session() {
    for mask in MODES {
        let host = Host::new(mask);
        let guardian = host.guard("p");
        let script = "grep -E '^Sig(Blk|Ign)' /proc/self/status; ps -o sid= -p $$ | \
            grep -qw $$ && echo leads";
        let worker = host.spawn(&guardian, &shell(script));
        let lines: Vec<_> = std::iter::from_fn(|| host.line(&worker)).map(|line| line.text).collect();
        // The C library keeps the first two above 31 to itself, and lets nobody change them.
        let signals = |line: &str| u64::from_str_radix(line.split('\t').nth(1).unwrap(), 16).unwrap() & 0x7fff_ffff;
        assert_eq!((signals(&lines[0]), signals(&lines[1]), lines[2].as_str()), (0, 0, "leads"), "{mask:?}");
    }
}

#[test]
fn a_worker_has_the_memory_score_that_its_server_had() {
    for mask in MODES {
        let host = Host::new(mask);
        let guardian = host.guard("p");
        let worker = host.spawn(&guardian, &shell("cat /proc/self/oom_score_adj"));
        let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
        assert_eq!(host.text(&worker), own.trim(), "{mask:?}");
    }
}

#[test]
fn the_socket_has_a_short_path_in_a_folder_of_this_user() {
    let root = scratch();
    let deep = root.path().join("x".repeat(100));
    let place = |folder: &std::path::Path| {
        let host = Host::at(folder, "");
        let socket = host.guardians.socket();
        assert!(socket.as_os_str().len() <= 107, "{socket:?}");
        let listener = host.guardians.bind().unwrap();
        drop(listener);
        let _again = host.guardians.bind().unwrap();
        let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&socket), mode(socket.parent().unwrap())), (0o600, 0o700));
        std::os::unix::net::UnixStream::connect(&socket).unwrap();
        socket
    };
    assert!(place(&root.path().join("d")).starts_with(root.path()));
    let elsewhere = place(&deep);
    assert!(!elsewhere.starts_with(root.path()) && !elsewhere.parent().unwrap().exists(), "it is gone again");
}
