//! The figures of a server: what the source counts, what `/metrics` shows, and what the alert rules ask for.

mod common;

use common::{Options, Server};
use everbeat_engine::metrics::{FAMILIES, Kind, Series};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

#[test]
fn what_the_source_counts_is_what_the_table_describes() {
    let mut counted = BTreeSet::new();
    for file in sources(&root().join("crates")).iter().filter(|file| !file.ends_with("engine/src/metrics.rs")) {
        let text = fs::read_to_string(file).unwrap();
        for counts in ["counter!(", "gauge!(", "histogram!(", "show(text,"] {
            for call in text.split(counts).skip(1) {
                if let Some(literal) = call.trim_start().strip_prefix('"') {
                    counted.insert(literal.split('"').next().unwrap().to_string());
                }
            }
        }
    }
    let described: BTreeSet<String> = FAMILIES.iter().map(|family| family.name.to_string()).collect();
    assert_eq!(described.len(), FAMILIES.len(), "a family is described twice");
    let undescribed: Vec<_> = counted.difference(&described).collect();
    assert!(undescribed.is_empty(), "not in crates/engine/src/metrics.rs: {undescribed:?}");
    let uncounted: Vec<_> = described.difference(&counted).collect();
    assert!(uncounted.is_empty(), "nothing counts these: {uncounted:?}");
}

#[test]
fn a_fresh_server_shows_every_family_with_its_meaning() {
    let server = Server::start(Options::default());
    let metrics = server.get("/metrics");
    let text = metrics.as_str().unwrap();
    for family in FAMILIES {
        let name = family.name;
        let help = format!("# HELP {name} {}\n# TYPE {name} {}\n", family.help, family.kind.as_str());
        assert_eq!(text.matches(&help).count(), 1, "{help} in {text}");
        let shown = match family.kind {
            Kind::Histogram(_) => format!("{name}_count"),
            Kind::Counter | Kind::Gauge => name.to_string(),
        };
        let figures = text.lines().filter(|line| line.split(['{', ' ']).next() == Some(&*shown)).count();
        let least = match family.series {
            Series::One | Series::Read(_) => 1,
            Series::Each(_, values) => values().len(),
            Series::Rows(_, rows) => rows().len(),
        };
        assert!(figures >= least, "{figures} figures of {shown}, not {least}, in {text}");
    }
}

#[test]
fn the_figures_of_workers_are_zero_before_there_is_one() {
    let server = Server::start(Options::default());
    let metrics = server.get("/metrics");
    let shown: BTreeSet<&str> = metrics.as_str().unwrap().lines().collect();
    for figure in [
        "everbeat_worker_pings_total",
        "everbeat_worker_pongs_total",
        "everbeat_worker_pings_missed_total",
        "everbeat_worker_round_trip_seconds_count",
        "everbeat_worker_restarts_total{pool=\"\"}",
        "everbeat_worker_cleanup_seconds_count",
        "everbeat_worker_orphans_total",
        "everbeat_watchdog_activations_total",
        "everbeat_workers{pool=\"\",state=\"ready\"}",
    ] {
        assert!(shown.contains(&*format!("{figure} 0")), "{figure} in {shown:?}");
    }
}

#[test]
fn every_figure_that_an_alert_asks_for_is_there_with_those_labels() {
    let server = Server::start(Options::default());
    let metrics = server.get("/metrics");
    let text = metrics.as_str().unwrap();
    let rules = fs::read_to_string(root().join("deploy/alerts.yml")).unwrap();
    let expressions: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).collect();
    assert_eq!(expressions.len(), rules.matches("- alert: ").count());
    for expression in &expressions {
        assert!(expression.contains("everbeat_"), "{expression}");
        for (at, _) in expression.match_indices("everbeat_") {
            let rest = &expression[at..];
            let end = rest.find(|letter: char| !letter.is_ascii_lowercase() && letter != '_').unwrap_or(rest.len());
            let (name, after) = rest.split_at(end);
            let labels = after.strip_prefix('{').map_or("", |after| after.split('}').next().unwrap());
            let labels: Vec<&str> = labels.split(',').map(str::trim).filter(|label| !label.is_empty()).collect();
            let found = text.lines().any(|line| {
                line.split(['{', ' ']).next() == Some(name) && labels.iter().all(|label| line.contains(label))
            });
            assert!(found, "{name} with {labels:?} of {expression} in {text}");
        }
    }
}

/// Rust files of the crates themselves, tests apart.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() && !entry.ends_with("tests") {
            found.extend(sources(&entry));
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            found.push(entry);
        }
    }
    found
}
