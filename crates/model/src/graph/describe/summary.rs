//! An execution as a text.

use super::words::{echo, shorten};
use super::{NodeView, ViewState};
use crate::graph::execution::Execution;
use crate::graph::node::Graph;
use crate::time::StoreTime;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The execution as a text to read. Sections without content are left out.
pub fn summary(
    graph: &Graph,
    execution: &Execution,
    views: &BTreeMap<String, NodeView>,
    id: &str,
    created_at: StoreTime,
    updated_at: StoreTime,
) -> String {
    let mut text = format!("Execution {id}\n");
    let mut header = |name: &str, value: String| _ = writeln!(text, "  {name:<9} {value}");
    header("Graph:", format!("{}, version {}", graph.name, graph.version));
    header("Revision:", execution.revision.to_string());
    header("Created:", created_at.to_string());
    header("Updated:", updated_at.to_string());
    if let Some(at) = execution.archived_at {
        header("Archived:", at.to_string());
    }
    section(&mut text, "Values", views, |name, view| {
        let cell = execution.cell(name)?;
        let due = view.due_at.map_or_else(String::new, |due| format!(", due at {due}"));
        let value = echo(&cell.value, LONGEST_LINE);
        Some(format!("{value} (revision {}, set at {}{due})", cell.revision, cell.set_at))
    });
    section(&mut text, "Waiting", views, |_, view| view.waiting_for.clone());
    section(&mut text, "Computing", views, |_, view| {
        let run = view.run.filter(|_| view.state == ViewState::Computing)?;
        let ended = view.iterations.map_or_else(String::new, |iterations| format!(", {iterations} iterations ended"));
        Some(format!("run {run}{ended}"))
    });
    section(&mut text, "Failed", views, |_, view| view.error.as_deref().map(one_line));
    text
}

const LONGEST_LINE: usize = 100;
const LONGEST_ERROR: usize = 300;

fn section(
    text: &mut String,
    title: &str,
    views: &BTreeMap<String, NodeView>,
    line: impl Fn(&str, &NodeView) -> Option<String>,
) {
    let lines = views.iter().filter_map(|(name, view)| Some((name, view.kind.as_str(), line(name, view)?)));
    for (place, (name, kind, line)) in lines.enumerate() {
        if place == 0 {
            _ = writeln!(text, "\n{title}:");
        }
        _ = writeln!(text, "  {name} ({kind}): {line}");
    }
}

/// Errors come from user code and may hold anything.
fn one_line(error: &str) -> String {
    let words: Vec<&str> =
        error.split(|c: char| c.is_whitespace() || c.is_control()).filter(|w| !w.is_empty()).collect();
    shorten(&words.join(" "), LONGEST_ERROR)
}
