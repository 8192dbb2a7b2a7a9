use crate::harness::*;
use everbeat_supervisor::job::{JobFolder, Spec, archive, clean, clean_leftovers};
use std::os::unix::fs::symlink;

#[test]
fn only_an_ended_job_is_cleaned_and_no_link_is_followed() {
    let outside = scratch();
    std::fs::write(outside.path().join("precious"), "x").unwrap();
    let job = Job::shell("mkdir -p a/b; echo result > a/b/c; while [ ! -e go ]; do sleep 0.02; done").start();
    eventually("a result", || job.workspace("a/b/c").exists().then_some(()));
    symlink(outside.path(), job.workspace("link")).unwrap();
    symlink(outside.path().join("precious"), job.workspace("a/file")).unwrap();
    assert!(clean(&job.folder, false).is_err(), "it runs");
    std::fs::write(job.workspace("go"), "").unwrap();
    job.exited();
    assert!(clean(&job.folder, false).is_err(), "its shim lingers");
    job.client().ack().unwrap();
    job.await_no_shim();

    let to = outside.path().join("archive");
    let archived = archive(&job.folder, &to, 1 << 20).unwrap();
    assert_eq!((archived.files, archived.bytes, archived.left_out), (2, 7, 2));
    assert_eq!(std::fs::read_to_string(to.join("a/b/c")).unwrap(), "result\n");
    assert!(archive(&job.folder, &to, 1 << 20).is_err(), "it does not write over anything");
    assert_eq!(archive(&job.folder, &outside.path().join("small"), 3).unwrap().left_out, 3);

    let would = clean(&job.folder, true).unwrap();
    assert!(job.folder.path().exists() && would.entries > 8);
    let root = job.folder.path().parent().unwrap().to_owned();
    let copy = JobFolder::open_path(job.folder.path()).unwrap();
    let cleaned = clean(&copy, false).unwrap();
    assert_eq!(cleaned.entries, would.entries + 1);
    assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
    assert_eq!(std::fs::read_to_string(outside.path().join("precious")).unwrap(), "x");
}

#[test]
fn a_lost_job_is_cleaned_after_it_was_fenced_however_deep_it_dug() {
    let root = scratch();
    let folder = JobFolder::create(root.path(), "deep").unwrap();
    let spec = Spec::new("deep", 1, vec!["true".into()]).unwrap();
    spec.write(&folder).unwrap();
    assert!(clean(&folder, false).is_err(), "nobody knows what became of it");
    let mut at = folder.workspace();
    let mut deep = rustix::fs::open(&at, rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap();
    for _ in 0..500 {
        rustix::fs::mkdirat(&deep, "d", rustix::fs::Mode::RWXU).unwrap();
        deep = rustix::fs::openat(&deep, "d", rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap();
    }
    at.push("d");
    std::fs::set_permissions(&at, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    assert!(matches!(everbeat_supervisor::job::fence(&folder, &spec.identity()).unwrap(), Fenced::NeverStarted));
    let other = Spec { epoch: 2, nonce: everbeat_supervisor::job::new_token().unwrap(), ..spec.clone() };
    other.write(&folder).unwrap();
    assert!(clean(&folder, false).is_err(), "a newer attempt is not fenced");
    spec.write(&folder).unwrap();
    clean(&folder, false).unwrap();
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn what_a_crash_left_of_cleaning_is_found_later() {
    let root = scratch();
    std::fs::create_dir_all(root.path().join(".deleted-0/workspace/a")).unwrap();
    std::fs::create_dir_all(root.path().join("job")).unwrap();
    assert_eq!(clean_leftovers(root.path()).unwrap().entries, 3);
    assert!(root.path().join("job").exists());
}
