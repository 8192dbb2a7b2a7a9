//! Folders go, whatever became of what they hold; and under one lock.

use crate::harness::*;
use crate::host::*;
use everbeat_engine::{Fenced as Verdict, JobAttempt, Removed, Shims};
use everbeat_supervisor::HostShims;
use everbeat_supervisor::job::{JobFolder, Spec, archive, clean, clean_leftovers, clean_with, fence, new_token};
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn remove(host: &Host, attempt: &JobAttempt, dry_run: bool) -> std::io::Result<Removed> {
    host.ask(async |shims| shims.remove(attempt.job, true, dry_run).await)
}

/// The first attempt of a job, ended and acknowledged.
fn ended(host: &Host, script: &str) -> JobAttempt {
    let attempt = host.started(script);
    host.exited(&attempt);
    eventually("a shim that has left", || {
        host.ask(async |shims| shims.acknowledge(&attempt).await);
        (!host.path(&attempt, "sock").exists()).then_some(())
    });
    attempt
}

#[test]
fn a_job_without_a_workspace_is_removed_and_nothing_is_archived() {
    let host = Host::new();
    let attempt = ended(&host, "exit 0");
    std::fs::remove_dir(host.path(&attempt, "workspace")).unwrap();
    let would = eventually("a free lock", || remove(&host, &attempt, true).ok());
    assert_eq!(would.archived_to, None);
    assert_eq!(remove(&host, &attempt, false).unwrap(), would);
    assert_eq!(remove(&host, &attempt, false).unwrap_err().kind(), ErrorKind::NotFound);

    // Nor is it looked for where a link leads.
    let attempt = ended(&host, "exit 0");
    std::fs::remove_dir(host.path(&attempt, "workspace")).unwrap();
    std::os::unix::fs::symlink("/etc", host.path(&attempt, "workspace")).unwrap();
    let removed = eventually("a free lock", || remove(&host, &attempt, false).ok());
    assert_eq!(removed.archived_to, None);
}

#[test]
fn what_a_job_made_is_kept_and_counted_as_in_the_dry_run() {
    let host = Host::new();
    let attempt = ended(&host, "mkdir -p a/b; echo result > a/b/c");
    let would = eventually("a free lock", || remove(&host, &attempt, true).ok());
    let removed = remove(&host, &attempt, false).unwrap();
    assert_eq!(removed, would);
    assert_eq!(std::fs::read_to_string(Path::new(&removed.archived_to.unwrap()).join("a/b/c")).unwrap(), "result\n");
    assert!(!host.path(&attempt, "").exists());
}

#[test]
fn a_fenced_job_that_never_had_a_spec_is_removed_and_one_that_is_only_prepared_is_not() {
    let host = Host::new();
    let attempt = host.attempt();
    host.ask(async |shims| shims.prepare(attempt.job).await).unwrap();
    assert_eq!(remove(&host, &attempt, false).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(host.fence(&attempt), Verdict::NeverStarted);
    remove(&host, &attempt, false).unwrap();
    assert!(!host.path(&attempt, "").exists());
}

#[test]
fn a_destroyed_job_is_removed() {
    let host = Host::new();
    let attempt = host.started("sleep 1000");
    std::fs::write(host.path(&attempt, "spec.json"), "?").unwrap();
    assert!(remove(&host, &attempt, false).is_err());
    host.destroy(&attempt);
    remove(&host, &attempt, false).unwrap();
    assert!(!host.path(&attempt, "").exists());
}

/// A job that will never start.
fn fenced(root: &Path) -> (JobFolder, Spec) {
    let folder = JobFolder::create(root, "j").unwrap();
    let spec = Spec::new("j", 1, vec!["true".into()]).unwrap();
    spec.write(&folder).unwrap();
    assert!(matches!(fence(&folder, &spec.identity()).unwrap(), Fenced::NeverStarted));
    (folder, spec)
}

#[test]
fn what_fails_on_the_way_does_not_look_like_a_folder_that_is_not_there() {
    let root = scratch();
    let (folder, _) = fenced(root.path());
    let failed = clean_with(&folder, false, |_| Err(ErrorKind::NotFound.into())).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Other);
    assert!(failed.to_string().contains("job j cannot be cleaned"), "{failed}");
    assert!(folder.path().exists());
}

#[test]
fn nobody_has_the_lock_between_the_look_and_the_removal() {
    let root = scratch();
    let (folder, spec) = fenced(root.path());
    clean_with(&folder, false, |folder| {
        let next = Spec { epoch: 2, nonce: new_token().unwrap(), ..spec.clone() };
        assert!(matches!(fence(folder, &next.identity()).unwrap(), Fenced::StillHeld));
        assert!(clean(folder, false).is_err(), "nor does another remove it");
        Ok(())
    })
    .unwrap();
    assert!(!folder.path().exists());
}

#[test]
fn who_opened_a_folder_that_was_removed_does_not_remove_the_next_one() {
    let root = scratch();
    let (folder, spec) = fenced(root.path());
    // Still open elsewhere when it is moved out of sight.
    std::fs::rename(folder.path(), root.path().join(".deleted-0")).unwrap();
    let next = JobFolder::create(root.path(), "j").unwrap();
    Spec { epoch: 2, nonce: new_token().unwrap(), ..spec }.write(&next).unwrap();
    assert_eq!(clean(&folder, false).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert!(next.path().join("spec.json").exists());
}

#[test]
fn what_somebody_else_left_does_not_keep_the_rest() {
    if !rustix::process::geteuid().is_root() {
        println!("not run: only root can leave something of another user's");
        return;
    }
    let root = scratch();
    let make = |path: &str, owner: Option<u32>| {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.join("inside")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        [path.join("inside"), path].iter().for_each(|path| chown(path, owner, None).unwrap());
    };
    for folder in ["jobs", "archive"] {
        make(folder, Some(NOBODY));
        for n in 0..10 {
            make(&format!("{folder}/.deleted-{n}"), (n != 5).then_some(NOBODY));
            make(&format!("{folder}/job-{n}"), (n != 5).then_some(NOBODY));
        }
    }
    chown(root.path(), Some(NOBODY), None).unwrap();
    if !as_nobody("removal::of_leftovers_by_nobody", root.path()) {
        return;
    }
    let names = |folder: &str| {
        let entries = std::fs::read_dir(root.path().join(folder)).unwrap().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names("jobs").iter().filter(|name| name.starts_with(".deleted-")).count(), 1);
    let archive = names("archive");
    assert!(archive.len() == 2 && archive.iter().all(|name| name.starts_with(".deleted-")), "root's: {archive:?}");
}

#[test]
#[ignore = "the process of another test"]
fn of_leftovers_by_nobody() {
    let Some(root) = std::env::var_os("EVERBEAT_TEST_FOLDER") else { return };
    let root = Path::new(&root);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let forgotten = runtime.block_on(async {
        let shims = HostShims::open(&crate::host::place(root), "/nowhere".into(), Vec::new()).unwrap();
        shims.forget_archives(Duration::ZERO).await
    });
    assert!(forgotten.unwrap_err().to_string().contains(".deleted-5"));
    assert!(clean_leftovers(&root.join("jobs")).unwrap_err().to_string().contains(".deleted-5"));
}

#[test]
fn a_job_that_locked_itself_out_is_counted_archived_and_removed() {
    if rustix::process::geteuid().is_root() {
        let root = scratch();
        chown(root.path(), Some(NOBODY), None).unwrap();
        as_nobody("removal::of_what_is_closed_by_nobody", root.path());
    } else {
        closed(scratch().path());
    }
}

#[test]
#[ignore = "the process of another test"]
fn of_what_is_closed_by_nobody() {
    if let Some(root) = std::env::var_os("EVERBEAT_TEST_FOLDER") {
        closed(Path::new(&root));
    }
}

fn closed(root: &Path) {
    let (folder, _) = fenced(&root.join("jobs"));
    let close = |path: &Path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o000)).unwrap();
    let workspace = folder.workspace();
    std::fs::create_dir(workspace.join("closed")).unwrap();
    for file in ["closed/file", "file"] {
        std::fs::write(workspace.join(file), "result").unwrap();
        close(&workspace.join(file));
    }
    for path in ["closed", ""] {
        close(&workspace.join(path));
        clean(&folder, true).expect("it can be counted");
        close(&workspace.join(path));
    }
    let archived = archive(&folder, &root.join("archived"), 1 << 20).unwrap();
    assert_eq!((archived.files, archived.bytes, archived.left_out), (2, 12, 0));
    assert_eq!(std::fs::read_to_string(root.join("archived/closed/file")).unwrap(), "result");
    close(&workspace.join("closed"));
    close(&workspace);
    close(folder.path());
    let folder = JobFolder::open_path(folder.path()).unwrap();
    clean(&folder, false).unwrap();
    assert!(!folder.path().exists());
}

const NOBODY: u32 = 65534;

/// Runs a test of this file as a user to whom something can be forbidden. False where that user may not run it.
fn as_nobody(test: &str, root: &Path) -> bool {
    let done = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored"])
        .env("EVERBEAT_TEST_FOLDER", root)
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/")
        .output();
    if let Err(error) = &done
        && error.kind() == ErrorKind::PermissionDenied
    {
        println!("not run: {error}");
        return false;
    }
    let done = done.unwrap();
    assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
    true
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}
