//! A folder to begin with, that runs at once.

use crate::args::{Language, Output};
use crate::exit::{self, Failure};
use crate::output;
use everbeat_model::Invalid;
use serde_json::json;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// What the folder holds, by name.
const PYTHON: [(&str, &str); 6] = [
    ("tasks.py", include_str!("../../templates/python/tasks.py")),
    ("everbeat.toml", include_str!("../../templates/python/everbeat.toml")),
    ("test_tasks.py", include_str!("../../templates/python/test_tasks.py")),
    ("requirements.txt", include_str!("../../templates/python/requirements.txt")),
    ("README.md", include_str!("../../templates/python/README.md")),
    (".gitignore", include_str!("../../templates/python/gitignore")),
];

/// In which order they are typed. The second one stays.
const NEXT: [&str; 3] = [
    "python3 -m venv venv && venv/bin/pip install -r requirements.txt",
    "everbeat serve",
    "everbeat submit count_words --input '{\"text\": \"to be or not to be\"}' --wait",
];

pub(crate) fn init(language: Language, folder: &Path, output: Output) -> Result<u8, Failure> {
    let files = match language {
        Language::Python => &PYTHON,
    };
    write_all(folder, files)?;
    let told = match output {
        Output::Json => {
            let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
            output::pretty(&json!({ "folder": folder, "files": names, "next": next(folder) }).to_string())
        }
        Output::Table => told(folder, files),
    };
    output::print(&told);
    Ok(exit::DONE)
}

fn told(folder: &Path, files: &[(&str, &str)]) -> String {
    let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    let [begin @ .., serve, submit] = &next(folder)[..] else { return String::new() };
    format!(
        "wrote {} to {}\n\nnext:\n  {}\n  {serve}\nand in another terminal:\n  {submit}",
        names.join(", "),
        folder.display(),
        begin.join("\n  ")
    )
}

fn next(folder: &Path) -> Vec<String> {
    let enter = (folder != Path::new(".")).then(|| format!("cd {}", quoted(&folder.display().to_string())));
    enter.into_iter().chain(NEXT.map(ToString::to_string)).collect()
}

/// As a shell takes it for one word.
fn quoted(path: &str) -> String {
    match path.chars().all(|c| c.is_alphanumeric() || "/._-".contains(c)) {
        true => path.to_string(),
        false => format!("'{}'", path.replace('\'', r"'\''")),
    }
}

/// Writes all of them or none, and nothing over anything.
fn write_all(folder: &Path, files: &[(&str, &str)]) -> Result<(), Failure> {
    let there: Vec<&str> =
        files.iter().map(|(name, _)| *name).filter(|name| folder.join(name).symlink_metadata().is_ok()).collect();
    if !there.is_empty() {
        return Err(taken(folder, &there));
    }
    fs::create_dir_all(folder).map_err(|error| unusable(folder, folder, &error))?;
    let mut written: Vec<PathBuf> = Vec::new();
    for (name, content) in files {
        let path = folder.join(name);
        let failure = match write_new(&path, content, &mut written) {
            Ok(()) => continue,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => taken(folder, &[name]),
            Err(error) => unusable(folder, &path, &error),
        };
        for path in written {
            let _it_stays_then = fs::remove_file(path);
        }
        return Err(failure);
    }
    Ok(())
}

fn write_new(path: &Path, content: &str, written: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    written.push(path.to_path_buf());
    file.write_all(content.as_bytes())
}

fn taken(folder: &Path, names: &[&str]) -> Failure {
    let problem = format!("has {} already; nothing was written", names.join(", "));
    let hint = "give another folder, like `everbeat init python my-tasks`, or move what is there away";
    Failure::usage(&Invalid::new("FOLDER", folder.display().to_string(), problem, hint))
}

fn unusable(folder: &Path, path: &Path, error: &io::Error) -> Failure {
    let problem = format!("cannot be used: {}: {error}", path.display());
    let hint = "give a folder that this user may write to";
    Failure::usage(&Invalid::new("FOLDER", folder.display().to_string(), problem, hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_quoted_where_a_shell_would_read_more_into_it() {
        let check = |path: &str, expected: &str| assert_eq!(quoted(path), expected);
        check("my-tasks/a_1", "my-tasks/a_1");
        check("my tasks", "'my tasks'");
        check("it's", r"'it'\''s'");
    }

    #[test]
    fn what_was_written_before_a_failure_is_removed() {
        let folder = std::env::temp_dir().join(format!("everbeat-init-{}", std::process::id()));
        let files = [("a", "1"), ("no/such/folder", "2")];
        let failure = write_all(&folder, &files).expect_err("a file cannot be written");
        assert_eq!(failure.code, exit::USAGE);
        assert!(!folder.join("a").exists());
        fs::remove_dir(&folder).expect("it is empty");
    }
}
