//! Looking at all of the jobs' common folder, whatever stands in it.

use crate::harness::*;
use everbeat_engine::Lock;
use everbeat_supervisor::job::{FoundState, Health, JobFolder, Problem, Spec, health, scan, sentinels};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn mkfifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn prepared(root: &Path, job_id: &str) -> (JobFolder, Spec) {
    let folder = JobFolder::create(root, job_id).unwrap();
    let spec = Spec::new(job_id, 1, vec!["true".into()]).unwrap();
    // Not durably: these are many.
    std::fs::write(folder.path().join("spec.json"), serde_json::to_vec(&spec).unwrap()).unwrap();
    (folder, spec)
}

#[test]
fn a_scan_finds_every_job_whatever_else_stands_there() {
    let root = scratch();
    let at = |name: &str| root.path().join(name);
    let living = Job::in_root(root.path(), &["sleep", "1000"], |_| {}).start();
    let damaged = Job::in_root(root.path(), &["sleep", "1000"], |_| {}).start();
    std::fs::write(damaged.folder.path().join("spec.json"), "{").unwrap();
    let (_, waiting) = prepared(root.path(), "waiting");
    prepared(root.path(), "no-spec");
    std::fs::remove_file(at("no-spec/spec.json")).unwrap();
    prepared(root.path(), "fifo-spec");
    std::fs::remove_file(at("fifo-spec/spec.json")).unwrap();
    mkfifo(&at("fifo-spec/spec.json"));
    prepared(root.path(), "other-spec");
    std::fs::copy(at("waiting/spec.json"), at("other-spec/spec.json")).unwrap();
    prepared(root.path(), "fifo-lock");
    mkfifo(&at("fifo-lock/lock"));
    prepared(root.path(), "folder-lock");
    std::fs::create_dir(at("folder-lock/lock")).unwrap();
    symlink(living.folder.path(), at("link")).unwrap();
    symlink("loop", at("loop")).unwrap();
    mkfifo(&at("fifo"));
    std::fs::write(at("file"), "").unwrap();
    std::fs::create_dir(at("no id")).unwrap();
    std::fs::create_dir(root.path().join(OsStr::from_bytes(b"\xff\xfe"))).unwrap();
    std::fs::create_dir(at(".deleted-0")).unwrap();

    let found = scan(root.path()).unwrap();
    let mut foreign = Vec::new();
    for found in &found {
        let job_id = found.job_id.as_str();
        match &found.state {
            FoundState::Held(Ok(identity)) => {
                assert_eq!((job_id, identity), (&*living.spec.job_id, &living.identity()))
            }
            FoundState::Held(Err(Problem::Malformed(..))) => assert_eq!(job_id, damaged.spec.job_id),
            FoundState::Free(Ok(identity)) => assert_eq!((job_id, identity), ("waiting", &waiting.identity())),
            FoundState::Free(Err(problem)) => match (job_id, problem) {
                ("no-spec", Problem::Missing(_))
                | ("fifo-spec", Problem::WrongKind(..))
                | ("other-spec", Problem::Foreign(_)) => {}
                other => panic!("{other:?}"),
            },
            FoundState::Foreign(why) if !why.is_empty() => foreign.push(job_id),
            other => panic!("{job_id}: {other:?}"),
        }
    }
    assert_eq!(foreign, ["fifo", "fifo-lock", "file", "folder-lock", "link", "loop", "no id", "\u{fffd}\u{fffd}"]);
    assert_eq!(found.len(), foreign.len() + 6);
    assert!(found.is_sorted_by_key(|found| &found.job_id));
    assert!(scan(&at("nowhere")).is_err(), "no folder is not the same as no jobs");
    damaged.spec.write(&damaged.folder).unwrap();
}

#[test]
fn a_thousand_folders_are_scanned_and_their_sentinels_read_in_a_moment() {
    let root = scratch();
    let living = Job::in_root(root.path(), &["sleep", "1000"], |_| {}).start();
    let sentinel = std::fs::read_to_string(living.folder.path().join(".sentinel.json")).unwrap();
    let ids: Vec<String> = (0..1_000).map(|n| format!("job-{n:04}")).collect();
    for id in &ids {
        let (folder, _) = prepared(root.path(), id);
        std::fs::write(folder.path().join("lock"), "").unwrap();
        std::fs::write(folder.path().join(".sentinel.json"), sentinel.replace(&living.spec.job_id, id)).unwrap();
    }
    let began = now();
    let found = scan(root.path()).unwrap();
    let scanned = began.elapsed();
    let count = |held| found.iter().filter(|found| matches!(found.state, FoundState::Held(Ok(_))) == held).count();
    assert_eq!((count(true), count(false)), (1, 1_000));

    let began = now();
    let read = sentinels(root.path(), &ids);
    let stale_after = Duration::from_secs(120);
    let fresh = read.iter().filter(|(_, sentinel)| {
        let age = sentinel.as_ref().ok().and_then(|sentinel| sentinel.age());
        age.is_some_and(|age| age < stale_after)
    });
    assert_eq!(fresh.count(), 1_000);
    let aged = began.elapsed();
    let began = now();
    assert!(ids.iter().all(|id| health(root.path(), id).lock == Lock::Free));
    let told = began.elapsed();
    println!("1,000 folders: scanned in {scanned:?}, sentinels read in {aged:?}, health told in {told:?}");
}

#[test]
fn a_bad_sentinel_or_id_hides_no_other() {
    let root = scratch();
    let living = Job::in_root(root.path(), &["sleep", "1000"], |_| {}).start();
    prepared(root.path(), "none");
    let (folder, _) = prepared(root.path(), "fifo");
    mkfifo(&folder.path().join(".sentinel.json"));
    let ids = ["nowhere", "../etc", "none", "fifo", &living.spec.job_id];
    let read = sentinels(root.path(), ids);
    assert!(read.iter().map(|(id, _)| id.as_str()).eq(ids), "in the order asked for");
    let mut read = read.into_iter().map(|(_, sentinel)| sentinel);
    assert!(matches!(read.next(), Some(Err(Problem::Missing(_)))));
    assert!(matches!(read.next(), Some(Err(Problem::Unreadable(..)))));
    assert!(matches!(read.next(), Some(Err(Problem::Missing(_)))));
    assert!(matches!(read.next(), Some(Err(Problem::WrongKind(..)))));
    assert_eq!(read.next().unwrap().unwrap().job_id, living.spec.job_id);
    let nowhere = sentinels(&root.path().join("nowhere"), ["a", "b"]);
    assert!(nowhere.len() == 2 && nowhere.iter().all(|(_, sentinel)| sentinel.is_err()));
}

#[test]
fn health_tells_what_stands_in_a_folder() {
    let root = scratch();
    let job = Job::in_root(root.path(), &["/bin/sh", "-c", "while [ ! -e go ]; do sleep 0.02; done"], |_| {});
    let look = || health(root.path(), &job.spec.job_id);
    let expected = Health {
        lock: Lock::Absent,
        sentinel_exists: false,
        exit_record: false,
        workspace_exists: true,
        session_data_exists: false,
        problem: None,
    };
    assert_eq!(look(), expected);
    job.spawn().unwrap();
    let expected = Health { lock: Lock::Held, sentinel_exists: true, ..expected };
    assert_eq!(look(), expected);
    std::fs::write(job.workspace("go"), "").unwrap();
    job.exited();
    job.client().ack().unwrap();
    job.await_no_shim();
    assert_eq!(look(), Health { lock: Lock::Free, exit_record: true, ..expected.clone() });
    std::fs::remove_dir_all(job.folder.workspace()).unwrap();
    symlink("/", job.folder.workspace()).unwrap();
    assert!(!look().workspace_exists, "a link is no workspace");
    let absent = health(root.path(), "nowhere");
    assert!(absent.lock == Lock::Absent && absent.problem.is_some() && !absent.workspace_exists);
    assert_eq!(serde_json::to_value(&absent).unwrap()["lock"], "absent");
    assert_eq!(health(root.path(), "../etc").lock, Lock::Unknown);
}

#[test]
fn session_data_is_what_bears_the_sessions_name_near_the_top_of_the_workspace() {
    let check = |session: Option<&str>, prepare: &dyn Fn(&Path), expected: bool| {
        let root = scratch();
        let (folder, mut spec) = prepared(root.path(), "j");
        spec.session_id = session.map(str::to_owned);
        spec.write(&folder).unwrap();
        prepare(&folder.workspace());
        assert_eq!(health(root.path(), "j").session_data_exists, expected);
    };
    let file = |path: &'static str| {
        move |workspace: &Path| {
            let path = workspace.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
    };
    check(Some("abc123"), &|_| {}, false);
    check(Some("abc123"), &file("abc123"), true);
    check(Some("abc123"), &file("abc123.jsonl"), true);
    check(Some("abc123"), &file("abc123/state"), true);
    check(Some("abc123"), &file(".agent/sessions/abc123.jsonl"), true);
    check(Some("abc123"), &file(".agent/sessions/deep/abc123.jsonl"), false);
    check(Some("abc123"), &file("xabc123"), false);
    check(None, &file("abc123"), false);
    check(Some(""), &file("abc123"), false);
    check(Some("abc123"), &|workspace| symlink("/", workspace.join("abc123")).unwrap(), false);
    // However much lies below, what lies on top is seen.
    let heap = |workspace: &Path| {
        std::fs::create_dir(workspace.join("heap")).unwrap();
        (0..3_000).for_each(|n| std::fs::write(workspace.join(format!("heap/{n}")), "").unwrap());
        file("session/abc123")(workspace);
    };
    check(Some("heap"), &heap, true);
    check(Some("session"), &heap, true);
}
