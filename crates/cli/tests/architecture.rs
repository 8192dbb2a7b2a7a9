//! What the documents say about the code is true: crate edges, files and commands that they name.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The workspace crates that a crate depends on, development aside.
fn edges(name: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
    let manifest: toml::Table = text.parse().unwrap();
    let dependencies = manifest["dependencies"].as_table().unwrap().keys();
    dependencies.filter(|name| name.starts_with("everbeat")).map(|name| name.replace("everbeat-", "")).collect()
}

#[test]
fn crate_edges_are_those_of_the_architecture() {
    let allowed: [(&str, &[&str]); 8] = [
        ("model", &[]),
        ("store", &["model"]),
        ("store-sql", &["model", "store"]),
        ("engine", &["model", "store"]),
        ("flows", &["model"]),
        ("supervisor", &["model", "engine"]),
        ("server", &["model", "store", "engine"]),
        ("sim", &["model", "store", "engine"]),
    ];
    for (name, allowed) in allowed {
        let allowed: BTreeSet<String> = allowed.iter().map(ToString::to_string).collect();
        let surplus: Vec<String> = edges(name).difference(&allowed).cloned().collect();
        assert!(surplus.is_empty(), "crate {name} depends on {surplus:?}, which the architecture forbids");
    }
}

/// Planted mistakes and the conformance suite are for tests: nothing but a dev-dependency switches them on.
#[test]
fn no_binary_holds_what_only_tests_need() {
    let only_tests_need = ["everbeat-model feature \"holes\"", "everbeat-store feature \"conformance\""];
    let (built, tested) = (features("features,no-dev"), features("features"));
    for feature in only_tests_need {
        assert!(!built.contains(feature), "{feature} is on in a build of the workspace:\n{built}");
        assert!(tested.contains(feature), "{feature} is off in tests of the workspace: is the search broken?");
    }
}

/// The features of every crate of the workspace, and who switches them on.
fn features(edges: &str) -> String {
    let arguments = ["tree", "--workspace", "--offline", "--locked", "--edges", edges];
    let output = std::process::Command::new(env!("CARGO")).args(arguments).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "cargo tree failed: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn sql_stands_in_store_sql_only() {
    for name in ["model", "store", "engine", "server", "supervisor", "everbeat", "sim"] {
        // The conformance suite feeds SQL to stores as data.
        let files = sources(&root().join("crates").join(name).join("src"));
        for file in files.iter().filter(|file| !file.to_string_lossy().contains("conformance")) {
            let text = fs::read_to_string(file).unwrap().to_lowercase();
            for word in [
                "insert into ",
                "delete from ",
                "select * ",
                "select count",
                " from lease",
                " from run ",
                "create table",
            ] {
                assert!(!text.contains(word), "{} holds SQL: {word}", file.display());
            }
        }
    }
}

/// These tell people the number of a worker's process, as its guardian said it: in a view, in what a replica tells the
/// others for their views, a log line, the evidence of a verdict. No port takes a number, so that nothing can be done with one.
const SHOWN_TO_PEOPLE: [&str; 8] = [
    "engine/src/pools/end.rs",
    "engine/src/pools/guardian.rs",
    "engine/src/pools/ending.rs",
    "engine/src/pools/report.rs",
    "engine/src/pools/telemetry.rs",
    "engine/src/pools/view.rs",
    "engine/src/pools/worker.rs",
    "server/src/workers.rs",
];

/// Where life is judged, nobody even knows a process's number; where processes are owned, one is signalled only
/// through a descriptor that cannot have passed on.
#[test]
fn no_process_is_judged_or_signalled_by_its_number() {
    let words = |text: &str| -> BTreeSet<String> {
        text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_lowercase).collect()
    };
    let shown_to_people: Vec<PathBuf> = SHOWN_TO_PEOPLE.iter().map(|file| root().join("crates").join(file)).collect();
    for name in ["model", "store", "store-sql", "engine", "server", "everbeat", "sim"] {
        for file in sources(&root().join("crates").join(name).join("src")) {
            let text = fs::read_to_string(&file).unwrap();
            for word in ["pid", "getpid", "kill_process", "pidfd"] {
                // The processes of the simulation have numbers, which pass on to others on purpose.
                let shown = word == "pid" && (name == "sim" || shown_to_people.contains(&file));
                assert!(shown || !words(&text).contains(word), "{} speaks of {word}", file.display());
            }
        }
    }
    for file in sources(&root().join("crates/supervisor/src")) {
        let text = fs::read_to_string(&file).unwrap();
        // A process may end itself.
        let text = text.replace("kill_process(rustix::process::getpid()", "");
        for word in ["kill_process", "test_kill_process"] {
            assert!(!words(&text).contains(word), "{} signals by number: {word}", file.display());
        }
    }
}

#[test]
fn paths_that_the_documents_name_exist() {
    let root = root();
    let mut named = 0;
    for document in documents(&root) {
        let text = fs::read_to_string(&document).unwrap();
        for path in text.split(['`', '(', ')', ' ', '\n', '"', ',', ';']).filter(|word| is_path(word)) {
            let path = path.trim_end_matches(['.', ':']);
            let beside = document.parent().unwrap().join(path);
            assert!(
                root.join(path).exists() || beside.exists(),
                "{} names {path}, which does not exist",
                document.display()
            );
            named += 1;
        }
    }
    assert!(named > 20, "the documents name only {named} paths: is the search broken?");
}

#[test]
fn the_configuration_page_is_what_the_binary_says() {
    let output =
        std::process::Command::new(env!("CARGO_BIN_EXE_everbeat")).args(["config", "--markdown"]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let written = fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    assert_eq!(written, said, "write it anew: everbeat config --markdown > docs/configuration.md");
}

/// Words that can only be meant as paths inside this repository.
fn is_path(word: &str) -> bool {
    ["crates/", "docs/", "scripts/", "deploy/", "proto/", "sdk/", "../", "adr/"]
        .iter()
        .any(|start| word.starts_with(start))
        && !word.contains(['<', '*', '{', '…', '#'])
}

fn documents(root: &Path) -> Vec<PathBuf> {
    let folders = [root.to_path_buf(), root.join("docs"), root.join("docs/adr")];
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap()).map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            found.extend(sources(&entry));
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            found.push(entry);
        }
    }
    found
}
