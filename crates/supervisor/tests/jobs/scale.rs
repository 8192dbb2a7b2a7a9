//! Figures, printed; asserted only with wide margins.

use crate::harness::*;
use everbeat_supervisor::job::sentinel;
use everbeat_supervisor::job::{JobFolder, Spec, examine};

#[test]
fn a_hundred_shims_at_once_each_tell_their_own_exit() {
    let began = now();
    let jobs: Vec<Job> =
        (0..100).map(|n| Job::with(&["/bin/sh", "-c", &format!("exit {n}")], |spec| spec.interval_ms = 1000)).collect();
    let prepared = began.elapsed();
    let jobs: Vec<Job> = jobs.into_iter().map(Job::start).collect();
    println!("100 specs written in {prepared:?}, shims spawned in {:?}", began.elapsed() - prepared);
    for (n, job) in jobs.iter().enumerate() {
        assert_eq!(job.exited().exit_code, Some(n as i32));
    }
    println!("all exits known after {:?}", began.elapsed());
    let memory: Vec<Private> = jobs.iter().flat_map(Job::shims).filter_map(private).collect();
    let most = memory.iter().map(|memory| memory.anonymous_kib).max().unwrap_or_default();
    println!("memory of {} lingering shims: at most {most} KiB of their own", memory.len());
    assert!(most <= 2048, "{most} KiB");
}

#[test]
fn a_running_shim_is_small() {
    let job = Job::shell("head -c 10000000 /dev/zero; sleep 1000").start();
    eventually("output", || (job.hello().output_bytes == 10_000_000).then_some(()));
    let memory = private(job.shims()[0]).unwrap();
    println!("a busy shim: {memory:?}");
    assert!(memory.anonymous_kib <= 2048, "{memory:?}");
}

#[test]
fn a_thousand_folders_are_examined_in_a_moment() {
    let root = scratch();
    let living: Vec<Job> = (0..20).map(|_| Job::in_root(root.path(), &["sleep", "1000"], |_| {}).start()).collect();
    living.iter().for_each(|job| drop(job.hello()));
    let mut all: Vec<(JobFolder, Spec)> = (0..980)
        .map(|n| {
            let job_id = format!("job-{n}");
            let folder = JobFolder::create(root.path(), &job_id).unwrap();
            let spec = Spec::new(&job_id, 1, vec!["true".into()]).unwrap();
            // Not durably: this is about reading.
            std::fs::write(folder.path().join("spec.json"), serde_json::to_vec(&spec).unwrap()).unwrap();
            (folder, spec)
        })
        .collect();
    all.extend(living.iter().map(|job| (JobFolder::open_path(job.folder.path()).unwrap(), job.spec.clone())));
    let began = now();
    let live =
        all.iter().filter(|(folder, spec)| matches!(examine(folder, &spec.identity(), 0), Finding::Live(_))).count();
    let took = began.elapsed();
    let began = now();
    living.iter().for_each(|job| assert!(matches!(job.examine(), Finding::Live(_))));
    println!("1,000 folders examined in {took:?}; a living one in {:?}", began.elapsed() / 20);
    assert_eq!(live, 20);
}

/// By hand: `cargo test -p everbeat-supervisor --test jobs -- --ignored --nocapture`.
#[test]
#[ignore = "a thousand shims and their jobs are two thousand processes"]
fn a_thousand_living_jobs_are_examined_in_a_moment() {
    let root = scratch();
    let jobs: Vec<Job> = (0..1000)
        .map(|_| Job::in_root(root.path(), &["sleep", "1000"], |spec| spec.interval_ms = 30_000).start())
        .collect();
    jobs.iter().for_each(|job| drop(job.hello()));
    for _ in 0..3 {
        let began = now();
        assert!(jobs.iter().all(|job| matches!(job.examine(), Finding::Live(_))));
        println!("1,000 living jobs examined in {:?}", began.elapsed());
    }
    // Quickly: the harness would look through all processes for each of them.
    jobs.iter()
        .for_each(|job| drop(job.client().stop(StopReason::Cancelled, Some(std::time::Duration::ZERO)).unwrap()));
    jobs.iter().for_each(|job| drop(job.exited()));
    jobs.iter().for_each(|job| drop(job.client().ack().unwrap()));
}

#[test]
fn a_job_is_spawned_in_a_moment() {
    let (mut spawned, mut answered) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let job = Job::new(&["sleep", "1000"]);
        let began = now();
        let job = job.start();
        spawned.push(began.elapsed());
        job.hello();
        answered.push(began.elapsed());
    }
    spawned.sort();
    answered.sort();
    println!("spawn p50 {:?}, spawn to answer p50 {:?} (looked at every 5 ms)", spawned[10], answered[10]);
}

#[test]
fn a_sentinel_is_cheap_to_read() {
    let job = Job::new(&["sleep", "1000"]).start();
    eventually("a sentinel", || sentinel::read(&job.folder).ok());
    let began = now();
    for _ in 0..1000 {
        sentinel::read(&job.folder).unwrap();
    }
    println!("a sentinel is read in {:?}", began.elapsed() / 1000);
}

/// The other private pages are the program's own file (dirty where it was built a moment ago), shared
/// with every other process that runs it.
#[derive(Debug)]
struct Private {
    anonymous_kib: u64,
    #[expect(dead_code, reason = "printed")]
    all_kib: u64,
}

fn private(pid: i32) -> Option<Private> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let field = |name: &str| {
        let line = rollup.lines().find(|line| line.starts_with(name))?;
        line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
    };
    Some(Private { anonymous_kib: field("Anonymous:")?, all_kib: field("Private_Dirty:")? + field("Private_Clean:")? })
}
