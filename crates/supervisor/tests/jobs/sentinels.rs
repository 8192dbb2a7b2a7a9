use crate::harness::*;
use everbeat_supervisor::job::Problem;
use everbeat_supervisor::job::sentinel::{self, Sentinel};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn a_sentinel_says_what_the_seed_asks_and_names_no_pid() {
    let job = Job::with(&["sleep", "1000"], |spec| {
        spec.session_id = Some("abc123".into());
        spec.agent_engine = Some("claude-code".into());
    })
    .start();
    let sentinel = eventually("a sentinel", || sentinel::read(&job.folder).ok());
    assert_eq!((sentinel.epoch, &sentinel.nonce, sentinel.interval_ms), (1, &job.spec.nonce, 50));
    let text = std::fs::read_to_string(job.folder.path().join(".sentinel.json")).unwrap();
    for field in [
        "jobId",
        "status",
        "lastHeartbeat",
        "workspacePath",
        "sessionId",
        "agentEngine",
        "startedAt",
        "schema",
        "epoch",
        "nonce",
        "seq",
        "bootId",
        "bootMs",
        "intervalMs",
        "progress",
        "lastWriteError",
    ] {
        assert!(text.contains(&format!("\"{field}\":")), "{field}: {text}");
    }
    assert!(!text.to_lowercase().contains("\"pid"), "{text}");
    assert!(text.contains("\"status\":\"running\""));
    eventually("the next beat", || (sentinel::read(&job.folder).unwrap().seq > sentinel.seq).then_some(()));
}

#[test]
fn readers_never_see_half_a_sentinel() {
    // Two writers: the shim, and one that should not be there.
    let job = Job::with(&["sleep", "1000"], |spec| spec.interval_ms = 1).start();
    eventually("a sentinel", || sentinel::read(&job.folder).ok());
    let intruder = sentinel::Sentinel::sample(&job.folder).unwrap();
    let over = AtomicBool::new(false);
    let (reads, writes): (u64, u64) = std::thread::scope(|scope| {
        let read = || {
            let mut reads = 0;
            while !over.load(Ordering::Relaxed) {
                sentinel::read(&job.folder).unwrap();
                reads += 1;
            }
            reads
        };
        let write = || {
            let mut writes = 0;
            while !over.load(Ordering::Relaxed) {
                sentinel::write(&job.folder, &intruder).unwrap();
                writes += 1;
            }
            writes
        };
        let (readers, writer) = ([scope.spawn(read), scope.spawn(read)], scope.spawn(write));
        pause(Duration::from_secs(10));
        over.store(true, Ordering::Relaxed);
        (readers.map(|reader| reader.join().unwrap()).iter().sum(), writer.join().unwrap())
    });
    let beats = job.hello().seq;
    println!("{beats} beats and {writes} other writes, {reads} reads in 10 s");
    assert!(beats > 100 && writes > 100 && reads > 100);
}

#[test]
fn a_sentinel_of_any_kind_is_a_problem_and_never_more() {
    let job = Job::new(&["true"]);
    let path = job.folder.path().join(".sentinel.json");
    let file = path.as_path();
    let check = |prepare: &dyn Fn(&Path), expected: fn(&Problem) -> bool| {
        prepare(file);
        let problem = sentinel::read(&job.folder).unwrap_err();
        assert!(expected(&problem), "{problem:?}");
        assert!(matches!(job.examine(), Finding::NotStarted), "a sentinel decides nothing");
        if file.is_dir() {
            std::fs::remove_dir(file).unwrap()
        } else {
            let _absent = std::fs::remove_file(file);
        }
    };
    check(&|_| {}, |problem| matches!(problem, Problem::Missing(_)));
    let malformed = |problem: &Problem| matches!(problem, Problem::Malformed(..));
    for text in ["", "{", "null", "[]", "{\"jobId\":\"x\"}", "\u{0}\u{0}\u{0}", &"[".repeat(60_000)] {
        check(&|file| std::fs::write(file, text).unwrap(), malformed);
    }
    check(&|file| std::fs::write(file, [0xff; 100]).unwrap(), malformed);
    check(&|file| std::fs::create_dir(file).unwrap(), |problem| matches!(problem, Problem::WrongKind(_, "directory")));
    check(&|file| std::os::unix::fs::symlink("/etc/passwd", file).unwrap(), |problem| {
        matches!(problem, Problem::WrongKind(_, "symbolic link"))
    });
    check(&|file| assert!(Command::new("mkfifo").arg(file).status().unwrap().success()), |problem| {
        matches!(problem, Problem::WrongKind(_, "FIFO"))
    });
    check(&|file| drop(std::os::unix::net::UnixListener::bind(file).unwrap()), |problem| {
        matches!(problem, Problem::WrongKind(_, "socket"))
    });
    check(&|file| std::fs::File::create(file).unwrap().set_len(1 << 30).unwrap(), |problem| {
        matches!(problem, Problem::TooLarge(..))
    });
    if rustix::process::geteuid().is_root() {
        check(
            &|file| {
                std::fs::write(file, "{}").unwrap();
                std::os::unix::fs::chown(file, Some(12345), None).unwrap();
            },
            |problem| matches!(problem, Problem::WrongOwner(_, 12345)),
        );
    }
}

#[test]
fn the_wall_clock_moves_no_age_and_the_future_has_none() {
    let job = Job::new(&["sleep", "1000"]).start();
    let sentinel = eventually("a sentinel", || sentinel::read(&job.folder).ok());
    let fresh = |sentinel: &Sentinel| sentinel.age().is_some_and(|age| age < Duration::from_secs(120));
    let dead = |sentinel: &Sentinel| sentinel.age().is_some_and(|age| age > Duration::from_secs(600));
    for time in ["2099-01-01T00:00:00.000Z", "1999-01-01T00:00:00.000Z"] {
        assert!(fresh(&Sentinel { last_heartbeat: time.into(), ..sentinel.clone() }), "{time}");
    }
    assert_eq!(Sentinel { boot_ms: u64::MAX, ..sentinel.clone() }.age(), None);
    let other_boot = Sentinel { boot_id: "other".into(), ..sentinel };
    assert!(fresh(&other_boot));
    assert_eq!(Sentinel { last_heartbeat: "2099-01-01T00:00:00Z".into(), ..other_boot.clone() }.age(), None);
    assert!(dead(&Sentinel { last_heartbeat: "1999-01-01T00:00:00Z".into(), ..other_boot }));
}

#[test]
fn a_full_disk_stops_neither_the_job_nor_the_knowledge_of_its_end() {
    let Some(tiny) = Tiny::mount() else {
        println!("not run: mounting needs more rights");
        return;
    };
    let script = "while [ ! -e go ]; do sleep 0.02; done; head -c 1000000 /dev/zero; exit 3";
    let job = Job::in_root(tiny.0.path(), &["/bin/sh", "-c", script], |_| {}).start();
    job.hello();
    let filler = tiny.fill();
    let hello = eventually("a failed write", || Some(job.hello()).filter(|hello| hello.last_write_error.is_some()));
    assert!(hello.last_write_error.unwrap().contains("No space left"));
    std::fs::File::create(job.workspace("go")).unwrap();
    let record = job.exited();
    assert_eq!(record.exit_code, Some(3));
    assert!(record.dropped_bytes > 0 && record.dropped_bytes + record.output_bytes == 1_000_000, "{record:?}");
    assert!(!job.folder.path().join("exit.json").exists(), "it is known from the shim alone");
    assert_eq!(job.shims().len(), 1, "which waits");
    std::fs::remove_file(&filler).unwrap();
    eventually("the record", || job.folder.path().join("exit.json").exists().then_some(()));
    assert_eq!(job.exited().exit_code, Some(3));
    drop(job);
}

/// A folder in which nothing can be made or renamed, until this goes.
struct ReadOnly<'a>(&'a Path);

impl ReadOnly<'_> {
    fn make(folder: &Path) -> Option<ReadOnly<'_>> {
        // Permissions do not bind root; the immutable flag does.
        (set(folder, true) && std::fs::File::create(folder.join("probe")).is_err()).then(|| ReadOnly(folder))
    }
}

impl Drop for ReadOnly<'_> {
    fn drop(&mut self) {
        assert!(set(self.0, false), "{} stays read-only", self.0.display());
    }
}

fn set(folder: &Path, read_only: bool) -> bool {
    let (program, argument) = match (rustix::process::geteuid().is_root(), read_only) {
        (true, true) => ("chattr", "+i"),
        (true, false) => ("chattr", "-i"),
        (false, true) => ("chmod", "0500"),
        (false, false) => ("chmod", "0700"),
    };
    Command::new(program).arg(argument).arg(folder).output().is_ok_and(|output| output.status.success())
}

#[test]
fn a_folder_that_became_read_only_does_not_stop_the_job() {
    let job = Job::shell("while [ ! -e go ]; do sleep 0.02; done; exit 8").start();
    job.hello();
    let Some(read_only) = ReadOnly::make(job.folder.path()) else {
        println!("not run: this file system knows no read-only folders");
        let _made_by_the_trial = std::fs::remove_file(job.folder.path().join("probe"));
        return;
    };
    eventually("a failed write", || job.hello().last_write_error);
    let stuck = sentinel::read(&job.folder).unwrap().seq;
    let hello = eventually("more beats", || Some(job.hello()).filter(|hello| hello.seq > stuck + 2));
    assert!(hello.write_failures > 2 && matches!(job.examine(), Finding::Live(_)));
    assert_eq!(sentinel::read(&job.folder).unwrap().seq, stuck, "the sentinel ages while the job lives");
    drop(read_only);
    let sentinel = eventually("a beat", || sentinel::read(&job.folder).ok().filter(|beat| beat.seq > stuck));
    assert!(sentinel.last_write_error.is_some(), "what went wrong is still told");
    std::fs::write(job.workspace("go"), "").unwrap();
    assert_eq!(job.exited().exit_code, Some(8));
}
