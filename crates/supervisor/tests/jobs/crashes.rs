use crate::harness::*;
use everbeat_supervisor::job::Containment;

/// Leaves somebody behind, who must not outlive the verdict.
const COMMAND: &str = "echo run >> runs; setsid sleep 1000 & exit 7";

/// What each place must end in.
const PLACES: [(&str, &str); 7] = [
    ("before-lock", "never started"),
    ("after-lock", "never started"),
    ("before-exec", "lost"),
    ("after-spawn", "lost"),
    ("after-exit-before-record", "lost"),
    ("record-before-rename", "lost"),
    ("after-record-before-reap", "exited"),
];

#[test]
fn a_shim_killed_anywhere_ends_in_one_verdict_and_the_command_never_runs_twice() {
    for containment in [Containment::Auto, Containment::Tree] {
        for (place, expected) in PLACES {
            let job = Job::with(&["/bin/sh", "-c", COMMAND], |spec| spec.containment = containment);
            job.start_to_die_at(place);
            job.await_no_shim();
            let finding = eventually("a free lock", || Some(job.examine()).filter(|f| !matches!(f, Finding::Hung)));
            match (finding, expected) {
                (Finding::NotStarted, _) => assert_eq!(place, "before-lock"),
                (Finding::Gone, "never started" | "lost") => {}
                (Finding::Exited(_), "exited") => {}
                (other, _) => panic!("{place}: {other:?}"),
            }
            // Nor does another shim start again what was started once, fenced or not.
            let job = if expected == "never started" { job } else { job.start() };
            job.await_no_shim();
            let verdict = |fenced: Fenced| match fenced {
                Fenced::Lost => "lost",
                Fenced::NeverStarted => "never started",
                Fenced::Exited(record) => {
                    assert_eq!(record.exit_code, Some(7));
                    "exited"
                }
                Fenced::StillHeld => "still held",
                Fenced::Missing => "missing",
            };
            assert_eq!(verdict(job.judge()), expected, "{place}");
            // A late shim of the same attempt starts nothing, and changes no verdict.
            let job = job.start();
            job.await_no_shim();
            assert_eq!(verdict(job.judge()), expected, "{place}, again");
            let runs = std::fs::read_to_string(job.workspace("runs")).unwrap_or_default();
            assert!(runs.lines().count() <= 1, "{place}: {runs}");
            assert!(expected != "never started" || runs.is_empty(), "{place}: {runs}");
            assert_eq!(job.processes(), [0; 0]);
        }
    }
}

#[test]
fn a_shim_killed_at_any_moment_ends_in_one_verdict_too() {
    let mut verdicts = std::collections::BTreeMap::new();
    for n in 0..40 {
        let job = Job::shell(COMMAND);
        std::thread::scope(|scope| {
            // An error if the first process was hit.
            scope.spawn(|| job.spawn());
            pause(std::time::Duration::from_micros(n * 1500));
            job.kill();
        });
        // It may have come only after the first blow.
        job.kill();
        let verdict = match job.judge() {
            Fenced::Lost => "lost",
            Fenced::NeverStarted => "never started",
            Fenced::Exited(record) => {
                assert_eq!(record.exit_code, Some(7));
                "exited"
            }
            Fenced::StillHeld | Fenced::Missing => unreachable!(),
        };
        let runs = std::fs::read_to_string(job.workspace("runs")).unwrap_or_default();
        assert!(runs.lines().count() <= 1 && (verdict != "never started" || runs.is_empty()), "{verdict}: {runs}");
        assert!(verdict != "exited" || runs == "run\n");
        assert_eq!(job.processes(), [0; 0]);
        *verdicts.entry(verdict).or_insert(0) += 1;
    }
    println!("{verdicts:?}");
}

#[test]
fn the_next_attempt_starts_where_the_last_was_fenced() {
    let mut job = Job::shell("echo $EVERBEAT_ATTEMPT >> runs; echo out; exit 1");
    job.start_to_die_at("before-exec");
    job.await_no_shim();
    assert!(matches!(job.judge(), Fenced::Lost));
    job.spec.epoch = 2;
    job.spec.nonce = everbeat_supervisor::job::new_token().unwrap();
    job.spec.write(&job.folder).unwrap();
    assert!(matches!(job.examine(), Finding::NotStarted), "the last attempt's lock is not this one's");
    let job = job.start();
    assert_eq!(job.exited().epoch, 2);
    assert_eq!(job.await_file("runs"), "2\n");
}

#[test]
fn a_fenced_attempt_does_not_start() {
    let job = Job::shell("echo run >> runs");
    assert!(matches!(job.examine(), Finding::NotStarted));
    assert!(matches!(job.judge(), Fenced::NeverStarted));
    let job = job.start();
    job.await_no_shim();
    assert!(!job.workspace("runs").exists());
}

#[test]
fn another_boot_is_known_by_its_id_and_its_shim_does_not_start() {
    let job = Job::with(&["/bin/sh", "-c", "echo run >> runs"], |spec| spec.boot_id = "another".into());
    assert!(matches!(job.examine(), Finding::Rebooted));
    let job = job.start();
    job.await_no_shim();
    assert!(matches!(job.examine(), Finding::Rebooted));
    assert!(matches!(job.judge(), Fenced::NeverStarted));
    assert!(!job.workspace("runs").exists());
}

#[test]
fn what_cannot_be_read_is_unknown_and_never_death() {
    let job = Job::shell("exit 0");
    std::fs::write(job.folder.path().join("exit.json"), "{\"schema\":").unwrap();
    assert!(matches!(job.examine(), Finding::Unknown(_)));
    assert!(everbeat_supervisor::job::fence(&job.folder, &job.identity()).is_err());
    std::fs::remove_file(job.folder.path().join("exit.json")).unwrap();
    std::fs::rename(job.folder.path().join("spec.json"), job.folder.path().join("kept")).unwrap();
    assert!(matches!(job.examine(), Finding::Unknown(_)));
    std::fs::rename(job.folder.path().join("kept"), job.folder.path().join("spec.json")).unwrap();
    assert!(matches!(job.examine(), Finding::NotStarted));
}
