use crate::harness::*;
use everbeat_supervisor::job::{CancelRecord, ExitRecord, FolderWatch};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::Duration;

fn hinted(watch: &FolderWatch, within: Duration) -> bool {
    let within = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: 0 };
    poll(&mut [PollFd::new(watch, PollFlags::IN)], Some(&within)).unwrap() > 0
}

#[test]
fn what_comes_into_a_folder_or_goes_from_it_is_hinted_at_until_it_is_drained() {
    let job = Job::new(&["true"]);
    let watch = job.folder.watch().unwrap();
    let check = |happens: &dyn Fn()| {
        assert!(!hinted(&watch, Duration::ZERO));
        happens();
        assert!(hinted(&watch, LONG));
        watch.drain();
        assert!(!hinted(&watch, Duration::ZERO), "all of it is drained");
    };
    check(&|| CancelRecord::leave(&job.folder, &job.identity(), 0, StopReason::Cancelled, 0).unwrap());
    check(&|| std::fs::remove_file(job.folder.path().join("cancel.json")).unwrap());
    check(&|| std::fs::create_dir(job.folder.path().join("folder")).unwrap());
    check(&|| (0..1_000).for_each(|n| drop(std::fs::File::create(job.folder.path().join(n.to_string())).unwrap())));
    std::fs::write(job.workspace("file"), "").unwrap();
    assert!(!hinted(&watch, Duration::ZERO), "the workspace is the job's");
}

#[test]
fn more_hints_than_the_kernel_keeps_are_one_hint() {
    let most: usize =
        std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    let job = Job::new(&["true"]);
    let watch = job.folder.watch().unwrap();
    let paths = ["one", "two"].map(|name| job.folder.path().join(name));
    std::fs::write(&paths[0], "").unwrap();
    // Two names in turn: the kernel joins equal hints that follow one another.
    for n in 0..most.min(100_000) + 100 {
        std::fs::rename(&paths[n % 2], &paths[(n + 1) % 2]).unwrap();
    }
    assert!(hinted(&watch, LONG));
    watch.drain();
    assert!(!hinted(&watch, Duration::ZERO));
    std::fs::write(job.folder.path().join("after"), "").unwrap();
    assert!(hinted(&watch, LONG), "and it goes on");
}

#[test]
fn an_end_is_learnt_from_hints_alone() {
    let job = Job::with(&["/bin/sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; exit 3"], |spec| {
        spec.interval_ms = 600_000;
    });
    let watch = job.folder.watch().unwrap();
    let job = job.start();
    watch.drain();
    std::fs::write(job.workspace("go"), "").unwrap();
    let record = loop {
        assert!(hinted(&watch, LONG));
        watch.drain();
        if let Some(record) = ExitRecord::read(&job.folder, &job.identity()).unwrap() {
            break record;
        }
    };
    assert_eq!(record.exit_code, Some(3));
}
