//! A copy of a job's folder, as a backup or `cp -r` makes it while the job runs.

use crate::harness::*;
use everbeat_supervisor::job::{JobFolder, destroy, examine, examine_without_spec, fence, kill};
use std::process::Command;

fn copied(job: &Job) -> (tempfile::TempDir, JobFolder) {
    let root = tempfile::tempdir().unwrap();
    let copy = Command::new("cp").arg("-a").arg(job.folder.path()).arg(root.path()).status().unwrap();
    assert!(copy.success());
    let folder = JobFolder::open(root.path(), job.folder.job_id()).unwrap();
    (root, folder)
}

#[test]
fn nothing_is_judged_or_killed_by_a_copy_of_a_live_jobs_folder() {
    let job = Job::shell("echo begun > begun; sleep 600").start();
    job.await_file("begun");
    let identity = job.identity();
    let (_root, copy) = copied(&job);
    for found in [examine(&copy, &identity, 1), examine_without_spec(&copy, &identity, 1)] {
        assert!(matches!(&found, Finding::Unknown(why) if why.contains("copy")), "{found:?}");
    }
    assert!(fence(&copy, &identity).unwrap_err().to_string().contains("copy"));
    assert!(kill(&copy, &identity).unwrap_err().to_string().contains("copy"));
    // What a person asks for ends the copy's record, and nothing else.
    destroy(&copy, &identity).unwrap();
    assert!(matches!(fence(&copy, &identity), Ok(Fenced::Lost)));
    assert!(matches!(job.examine(), Finding::Live(_)), "the original lives");
}

#[test]
fn an_end_that_was_copied_is_true() {
    let job = Job::shell("exit 3").start();
    job.exited();
    let (_root, copy) = copied(&job);
    let found = examine(&copy, &job.identity(), 1);
    assert!(matches!(&found, Finding::Exited(record) if record.exit_code == Some(3)), "{found:?}");
}
