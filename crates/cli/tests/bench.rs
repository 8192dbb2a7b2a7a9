//! A measurement leaves nothing behind: no folder, no process, no cgroup.

mod common;

use common::{client, until};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(120);

fn bench(place: &Path, jobs: &str) -> Child {
    let mut command = client();
    command.args(["bench", "--no-sqlite", "--links", "0", "--flow-rows", "0", "--jobs", jobs]).env("TMPDIR", place);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary starts")
}

/// The jobs whose folders are below a place now.
fn jobs(place: &Path) -> BTreeSet<String> {
    let listed = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
    let names = listed(place.to_path_buf()).flat_map(|data| listed(data.path().join("jobs")));
    names
        .filter(|job| job.path().join("spec.json").exists())
        .map(|job| job.file_name().into_string().unwrap())
        .collect()
}

/// Processes that name the place on their command line or in their environment.
fn processes(place: &Path) -> Vec<String> {
    let mark = place.display().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let marked = processes.filter(|number| number.parse::<u32>().is_ok_and(|number| number != std::process::id()));
    marked
        .filter(|number| {
            let said = |file: &str| fs::read(format!("/proc/{number}/{file}")).unwrap_or_default();
            [said("cmdline"), said("environ")].iter().any(|said| String::from_utf8_lossy(said).contains(&mark))
        })
        .collect()
}

/// Cgroups of these jobs, wherever they are.
fn cgroups(jobs: &BTreeSet<String>) -> Vec<PathBuf> {
    fn search(folder: &Path, jobs: &BTreeSet<String>, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let name = entry.file_name().into_string().unwrap_or_default();
                match jobs.iter().any(|job| name.starts_with(&format!("everbeat-{job}-"))) {
                    true => found.push(entry.path()),
                    false => search(&entry.path(), jobs, found),
                }
            }
        }
    }
    let mut found = Vec::new();
    search(Path::new("/sys/fs/cgroup"), jobs, &mut found);
    found
}

/// Collects the jobs of a measurement until it has ended, or until there are enough.
fn watch(child: &mut Child, place: &Path, enough: usize) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    until(LONG, "jobs of the measurement, or its end", || {
        seen.extend(jobs(place));
        (seen.len() >= enough || child.try_wait().expect("the child can be asked").is_some()).then_some(())
    });
    seen
}

fn assert_nothing_left(place: &Path, seen: &BTreeSet<String>) {
    assert!(!seen.is_empty(), "the measurement started no job");
    until(LONG, "the end of all processes", || processes(place).is_empty().then_some(()));
    assert_eq!(cgroups(seen), Vec::<PathBuf>::new());
    let left: Vec<_> = fs::read_dir(place).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_measurement_of_jobs_leaves_nothing_behind() {
    let place = TempDir::new().expect("a temporary folder");
    let mut child = bench(place.path(), "3");
    let seen = watch(&mut child, place.path(), usize::MAX);
    let output = child.wait_with_output().expect("the binary ends");
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["jobs"]["jobs"], 3);
    assert_nothing_left(place.path(), &seen);
}

#[test]
fn a_measurement_of_jobs_that_is_interrupted_leaves_nothing_behind() {
    let place = TempDir::new().expect("a temporary folder");
    let mut child = bench(place.path(), "200");
    let mut seen = watch(&mut child, place.path(), 5);
    let interrupted = Command::new("sh").args(["-c", &format!("kill -s INT {}", child.id())]).status();
    assert!(interrupted.expect("a shell").success());
    seen.extend(watch(&mut child, place.path(), usize::MAX));
    assert_eq!(child.wait().expect("the binary ends").code(), Some(128 + 2));
    assert_nothing_left(place.path(), &seen);
}

#[test]
fn a_measurement_of_links_answers_their_pings_and_leaves_nothing_behind() {
    let place = TempDir::new().expect("a temporary folder");
    let mut command = client();
    command.args([
        "bench",
        "--no-sqlite",
        "--jobs",
        "0",
        "--flow-rows",
        "1000",
        "--links",
        "20",
        "--link-seconds",
        "1",
    ]);
    let output = command.env("TMPDIR", place.path()).output().expect("the binary ends");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("--python PATH names an interpreter"), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let links = &report["pools"]["links"];
    assert_eq!((&links["links"], &links["ping_interval_ms"]), (&20.into(), &2000.into()));
    assert!(links["round_trip_ms"]["p50"].as_f64().is_some_and(|ms| ms > 0.0), "{links}");
    let flows = &report["flows"]["ways"][0];
    assert_eq!(flows["way"], "file to SQLite");
    assert!(flows["flow_to_raw"].as_f64().is_some_and(|ratio| ratio > 0.0), "{flows}");
    until(LONG, "the end of all processes", || processes(place.path()).is_empty().then_some(()));
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn an_interpreter_that_cannot_be_used_is_named() {
    for (python, expected) in [("/nowhere/python", "cannot be run"), ("false", "ended without a word")] {
        let mut command = client();
        command.args(["bench", "--no-sqlite", "--jobs", "0", "--flow-rows", "0", "--links", "0", "--python", python]);
        let output = command.output().expect("the binary ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("--python {python}: it {expected}")), "{said}");
        assert!(said.contains("pip install everbeat"), "{said}");
    }
}
