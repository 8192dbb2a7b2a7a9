//! A folder to begin with.

mod common;

use common::{client, code, stderr, stdout};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

fn init(cwd: &Path, arguments: &[&str]) -> Output {
    let command = client().arg("init").args(arguments).current_dir(cwd).output();
    command.expect("it runs")
}

#[test]
fn a_folder_is_written_and_its_configuration_can_be_used() {
    let here = tempfile::tempdir().expect("a folder");
    let output = init(here.path(), &["python", "my tasks"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let said = stdout(&output);
    for part in
        ["wrote tasks.py", "cd 'my tasks'", "pip install -r requirements.txt", "everbeat serve", "everbeat submit"]
    {
        assert!(said.contains(part), "{part:?} is not in:\n{said}");
    }
    let folder = here.path().join("my tasks");
    let config = client().arg("config").current_dir(&folder).output().expect("it runs");
    assert_eq!(code(&config), 0, "{}", stderr(&config));
    assert!(stdout(&config).contains("everbeat.worker"), "{}", stdout(&config));
    assert!(fs::read_to_string(folder.join(".gitignore")).expect("it is there").contains("everbeat-data"));
}

#[test]
fn the_present_folder_is_taken_if_none_is_named_and_json_names_what_was_written() {
    let here = tempfile::tempdir().expect("a folder");
    let output = init(here.path(), &["python", "-o", "json"]);
    let told: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!((told["folder"].as_str(), told["files"].as_array().map(Vec::len)), (Some("."), Some(6)), "{told}");
    assert!(here.path().join("tasks.py").exists());
}

#[test]
fn nothing_is_overwritten_and_nothing_is_written_beside_what_is_there() {
    let here = tempfile::tempdir().expect("a folder");
    fs::write(here.path().join("everbeat.toml"), "mine").expect("written");
    let output = init(here.path(), &["python"]);
    let said = stderr(&output);
    assert_eq!(code(&output), 2, "{said}");
    assert!(said.contains("has everbeat.toml already") && said.contains("hint: give another folder"), "{said}");
    assert_eq!(fs::read_dir(here.path()).expect("a folder").count(), 1);
    assert_eq!(fs::read_to_string(here.path().join("everbeat.toml")).expect("it is there"), "mine");
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let here = tempfile::tempdir().expect("a folder");
    fs::write(here.path().join("file"), "").expect("written");
    let mut refused = vec!["file/below"];
    fs::create_dir(here.path().join("closed")).expect("made");
    fs::set_permissions(here.path().join("closed"), fs::Permissions::from_mode(0o500)).expect("closed");
    // Root may write everywhere.
    if fs::write(here.path().join("closed/probe"), "").is_err() {
        refused.push("closed");
    }
    for folder in refused {
        let output = init(here.path(), &["python", folder]);
        let said = stderr(&output);
        assert_eq!(code(&output), 2, "{said}");
        assert!(said.contains(folder) && said.contains("cannot be used") && said.contains("may write to"), "{said}");
    }
    let unknown = init(here.path(), &["cobol"]);
    assert_eq!(code(&unknown), 2);
    assert!(stderr(&unknown).contains("python"), "{}", stderr(&unknown));
}
