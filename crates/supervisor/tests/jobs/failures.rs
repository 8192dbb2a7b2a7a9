//! Commands that cannot be started.

use crate::harness::*;
use everbeat_supervisor::job::{Spec, StartPart};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

const NOENT: i32 = 2;
const ACCES: i32 = 13;
const NOTDIR: i32 = 20;

/// Prepares a folder of tools, starts the command there, and compares what the record says of it.
fn check(program: &str, change: fn(&mut Spec, &Path), text: &str, errno: i32, part: StartPart) {
    let tools = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str, mode: u32| {
        std::fs::write(tools.path().join(name), content).unwrap();
        std::fs::set_permissions(tools.path().join(name), PermissionsExt::from_mode(mode)).unwrap();
    };
    write("plain", "#!/bin/sh\n", 0o644);
    write("orphan", "#!/nowhere/interpreter\n", 0o755);
    let here = |text: &str| text.replace("HERE", tools.path().to_str().unwrap());
    let job = Job::with(&[&here(program)], |spec| {
        spec.env.insert("PATH".into(), here("HERE:/usr/bin:/bin"));
        change(spec, tools.path());
    })
    .start();
    let record = job.exited();
    let why = record.start_error.clone().unwrap_or_default();
    assert!(why.contains(&here(text)), "{why:?} is not {text:?}");
    assert_eq!((record.start_errno, record.start_failed), (Some(errno), Some(part)), "{record:?}");
    assert_eq!((record.exit_code, record.exit_signal, record.stopped), (None, None, None));
}

#[test]
fn a_program_that_is_not_there_is_told_from_one_that_may_not_be_run() {
    use StartPart::Program;
    let as_is = |_: &mut Spec, _: &Path| {};
    check("nosuch", as_is, "program \"nosuch\" was not found in PATH", NOENT, Program);
    check("nosuch", |spec, _| drop(spec.env.remove("PATH")), "was not found in PATH", NOENT, Program);
    check("HERE/nosuch", as_is, "program \"HERE/nosuch\": No such file or directory", NOENT, Program);
    check("HERE/plain/x", as_is, "program \"HERE/plain/x\": Not a directory", NOTDIR, Program);
    check("plain", as_is, "program \"plain\" is not executable: Permission denied", ACCES, Program);
    check("HERE/plain", as_is, "program \"HERE/plain\" is not executable: Permission denied", ACCES, Program);
    check("HERE", as_is, "program \"HERE\" is not executable: Permission denied", ACCES, Program);
    check("orphan", as_is, "program \"orphan\" needs an interpreter that does not exist", NOENT, Program);
    let in_tools = |spec: &mut Spec, tools: &Path| spec.cwd = Some(tools.to_owned());
    check("./plain", in_tools, "program \"./plain\" is not executable", ACCES, Program);
    check("./nosuch", in_tools, "program \"./nosuch\": No such file or directory", NOENT, Program);
}

#[test]
fn a_working_folder_that_cannot_be_entered_is_named() {
    use StartPart::Folder;
    let missing = |spec: &mut Spec, _: &Path| spec.cwd = Some("/nowhere".into());
    check("true", missing, "working folder \"/nowhere\": No such file or directory", NOENT, Folder);
    check("nosuch", missing, "working folder \"/nowhere\"", NOENT, Folder);
    let file = |spec: &mut Spec, tools: &Path| spec.cwd = Some(tools.join("plain"));
    check("true", file, "working folder \"HERE/plain\": Not a directory", NOTDIR, Folder);
    if rustix::process::geteuid().is_root() {
        println!("not run: no folder is forbidden to root");
        return;
    }
    let forbidden = |spec: &mut Spec, tools: &Path| {
        std::fs::create_dir(tools.join("closed")).unwrap();
        std::fs::set_permissions(tools.join("closed"), PermissionsExt::from_mode(0o000)).unwrap();
        spec.cwd = Some(tools.join("closed"));
    };
    check("true", forbidden, "working folder \"HERE/closed\": Permission denied", ACCES, Folder);
}

#[test]
fn a_program_relative_to_the_working_folder_is_found_there() {
    let job = Job::with(&["./tool", "7"], |_| {});
    std::fs::write(job.workspace("tool"), "#!/bin/sh\nexit $1\n").unwrap();
    std::fs::set_permissions(job.workspace("tool"), PermissionsExt::from_mode(0o755)).unwrap();
    let job = job.start();
    assert_eq!(job.exited().exit_code, Some(7));
    let shim = job.shims()[0];
    let cwd = std::fs::read_link(format!("/proc/{shim}/cwd")).unwrap();
    assert_eq!(cwd, Path::new("/"), "the shim itself pins no folder of the job's");
}

#[test]
fn an_input_of_any_other_kind_starts_nothing() {
    let elsewhere = tempfile::tempdir().unwrap();
    let secret = elsewhere.path().join("secret");
    std::fs::write(&secret, "secret").unwrap();
    let check = |prepare: &dyn Fn(&Path), text: &str, errno: Option<i32>| {
        let job = Job::with(&["/bin/sh", "-c", "echo run >> runs"], |spec| spec.stdin = Some("input.json".into()));
        prepare(&job.folder.path().join("input.json"));
        let job = job.start();
        let record = job.exited();
        assert!(record.start_error.as_ref().is_some_and(|why| why.contains(text)), "{record:?}");
        assert_eq!((record.start_errno, record.start_failed), (errno, Some(StartPart::Input)));
        assert!(!job.workspace("runs").exists());
    };
    check(&|_| {}, "does not exist", Some(NOENT));
    check(&|file| symlink(&secret, file).unwrap(), "symbolic link", None);
    check(&|file| assert!(Command::new("mkfifo").arg(file).status().unwrap().success()), "FIFO", None);
    check(&|file| std::fs::create_dir(file).unwrap(), "directory", None);
}
