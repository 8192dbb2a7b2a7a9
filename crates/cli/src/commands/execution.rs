use super::find::EXECUTION;
use super::graph::draw;
use super::run::json;
use super::{To, list};
use crate::args::{Assignment, ExecutionAction, WaitFor};
use crate::client::{Answer, Trouble, escape};
use crate::exit::{self, Failure};
use crate::output::{age, fields, moment, plain, state, table};
use crate::spinner::Spinner;
use crate::waiting::{self, Ended, Newness};
use crate::{interrupt, term};
use comfy_table::Cell;
use everbeat_model::Invalid;
use everbeat_model::time::format_duration;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) fn act(to: &To, mut action: ExecutionAction) -> Result<u8, Failure> {
    if let Some(id) = action.id() {
        *id = to.id(id, EXECUTION)?;
    }
    match action {
        ExecutionAction::Start { graph, version, set, values, metadata, idempotency_key } => {
            let mut all = values.as_deref().map(read_values).transpose()?.unwrap_or_default();
            all.extend(assigned(set));
            let metadata = read_metadata(metadata.as_deref())?;
            start(to, &Start { graph, version, values: all, metadata }, idempotency_key.as_deref())
        }
        ExecutionAction::Set { id, values, metadata } => {
            let body = Values { values: assigned(values), metadata: read_metadata(metadata.as_deref())? };
            said_revision(to, &to.client.put(&path(&id, "/values"), &written(&body)?)?)
        }
        ExecutionAction::Unset { id, nodes } => unset(to, &id, &nodes),
        ExecutionAction::Get { id, node, wait, revision, timeout } => get(to, &id, &node, wait, revision, timeout),
        ExecutionAction::Show { id, mermaid: true } => draw(to, &path(&id, "/mermaid"), &[]),
        ExecutionAction::Show { id, mermaid: false } => {
            let execution = to.client.get(&path(&id, ""), &[])?;
            to.print(execution.raw.get(), || described(&execution.value));
            Ok(exit::DONE)
        }
        ExecutionAction::Summary { id } => {
            let summary = to.client.get(&path(&id, "/summary"), &[])?;
            to.print(summary.raw.get(), || plain(&summary.value["text"]).trim_end().to_string());
            Ok(exit::DONE)
        }
        ExecutionAction::History { id, page } => {
            let headers = ["PLACE", "REVISION", "NODE", "KIND", "VALUE", "RUN", "AT"];
            list::print(to, &path(&id, "/history"), Vec::new(), &page, &headers, change)
        }
        ExecutionAction::Retry { id, node } => on_node(to, &id, &node, "retry"),
        ExecutionAction::Abandon { id, node } => on_node(to, &id, &node, "abandon"),
        ExecutionAction::Archive { id } => archive(to, &id, "archive", "archived"),
        ExecutionAction::Unarchive { id } => archive(to, &id, "unarchive", "back from the archive"),
    }
}

fn path(id: &str, rest: &str) -> String {
    format!("/api/v1/executions/{}{rest}", escape(id))
}

/// What is sent to start an execution. JSON from the user goes as it was written.
#[derive(Serialize)]
struct Start {
    graph: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    values: BTreeMap<String, Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct Values {
    values: BTreeMap<String, Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Box<RawValue>>,
}

fn assigned(assignments: Vec<Assignment>) -> BTreeMap<String, Box<RawValue>> {
    assignments.into_iter().map(|Assignment { node, value }| (node, value)).collect()
}

fn read_values(given: &str) -> Result<BTreeMap<String, Box<RawValue>>, Failure> {
    let values = json("--values", given)?;
    serde_json::from_str(values.get()).map_err(|_| {
        let hint = "give the values by node, like '{\"price\": 5}'";
        Failure::usage(&Invalid::new("--values", values.get(), "is not an object", hint))
    })
}

fn read_metadata(given: Option<&str>) -> Result<Option<Box<RawValue>>, Failure> {
    given.map(|given| json("--metadata", given)).transpose()
}

fn written(body: &impl Serialize) -> Result<String, Failure> {
    let unwritable = |error| Failure::new(exit::USAGE, format!("the request cannot be written: {error}"), "");
    serde_json::to_string(body).map_err(unwritable)
}

fn start(to: &To, start: &Start, key: Option<&str>) -> Result<u8, Failure> {
    let headers: Vec<(&str, &str)> = key.map(|key| ("idempotency-key", key)).into_iter().collect();
    let execution = to.client.post("/api/v1/executions", Some(&written(start)?), &headers)?;
    let id = plain(&execution.value["id"]);
    if execution.status == 200 {
        term::say(&format!("execution {id} already stands for this; no new one was made"));
    }
    to.print(execution.raw.get(), || id);
    Ok(exit::DONE)
}

fn unset(to: &To, id: &str, nodes: &[String]) -> Result<u8, Failure> {
    let mut last = None;
    for node in nodes {
        last = Some(to.client.delete(&path(id, &format!("/values/{}", escape(node))), &[])?);
    }
    last.map_or(Ok(exit::DONE), |answer| said_revision(to, &answer))
}

fn said_revision(to: &To, answer: &Answer) -> Result<u8, Failure> {
    to.print(answer.raw.get(), || format!("revision {}", plain(&answer.value["revision"])));
    Ok(exit::DONE)
}

fn get(
    to: &To,
    id: &str,
    node: &str,
    wait: Option<WaitFor>,
    revision: Option<u64>,
    timeout: Option<Duration>,
) -> Result<u8, Failure> {
    let now = || to.client.get(&path(id, &format!("/values/{}", escape(node))), &[]);
    let newness = match (wait, revision) {
        (None, _) => None,
        (Some(WaitFor::NewerThan), Some(revision)) => Some(Newness::NewerThan(revision)),
        (Some(_), Some(revision)) => {
            let hint = "say --wait newer-than, or leave it out";
            return Err(Failure::usage(&Invalid::new("--revision", revision, "is only for --wait newer-than", hint)));
        }
        // Asked once, so that a wait in several rounds is for what is newer than at its beginning.
        (Some(WaitFor::Newer), None) => Some(match now() {
            Ok(value) => Newness::NewerThan(value.value["revision"].as_u64().unwrap_or(0)),
            Err(trouble) if trouble.is("not-set") => Newness::Any,
            Err(trouble) => return Err(not_got(trouble)),
        }),
        (Some(WaitFor::Any | WaitFor::NewerThan), None) => Some(Newness::Any),
    };
    let value = match newness {
        None => now().map_err(not_got)?,
        Some(newness) => {
            let again = match newness {
                Newness::Any => to.command(&format!("execution get {id} {node} --wait any")),
                Newness::NewerThan(revision) => {
                    to.command(&format!("execution get {id} {node} --wait newer-than --revision {revision}"))
                }
            };
            interrupt::with(format!("everbeat: execution {id} goes on; come back with {again}"));
            term::say(&format!("everbeat: waiting for node {node} of execution {id}"));
            let _company = Spinner::of(format!("node {node} of execution {}", crate::spinner::tail(id)));
            waiting::value(&to.client, id, node, newness, timeout).map_err(|ended| match ended {
                Ended::Failed(trouble) => not_got(trouble),
                Ended::Over(said) => over(id, node, timeout, said.as_ref()),
            })?
        }
    };
    to.print(value.raw.get(), || bare(&value));
    Ok(exit::DONE)
}

/// A node without a value, or with a failed computation, is an outcome and no error of the server.
fn not_got(trouble: Trouble) -> Failure {
    let outcome = trouble.is("not-set") || trouble.is("computation-failed");
    let failure = Failure::from(trouble);
    if outcome { failure.with_code(exit::FAILED) } else { failure }
}

fn over(id: &str, node: &str, limit: Option<Duration>, said: Option<&Trouble>) -> Failure {
    let span = format_duration(limit.unwrap_or_default());
    // The server tells of its own round; what it waits for is the same for the whole wait.
    let why = said.and_then(Trouble::detail).and_then(|detail| detail.split_once("; "));
    let why = why.map_or_else(String::new, |(_, why)| format!("; {why}"));
    let hint = format!("wait longer, or see `everbeat execution show {id}`");
    Failure::new(exit::TIMED_OUT, format!("node {node:?} has no such value after {span}{why}"), hint)
}

/// The value alone, as it came.
fn bare(answer: &Answer) -> String {
    #[derive(Deserialize)]
    struct Content {
        value: Box<RawValue>,
    }
    serde_json::from_str::<Content>(answer.raw.get())
        .map_or_else(|_| answer.value["value"].to_string(), |content| content.value.get().to_string())
}

fn on_node(to: &To, id: &str, node: &str, verb: &str) -> Result<u8, Failure> {
    let execution = to.client.post(&path(id, &format!("/nodes/{}/{verb}", escape(node))), None, &[])?;
    to.print(execution.raw.get(), || {
        format!("node {node} of execution {id} is {}", plain(&execution.value["nodes"][node]["state"]))
    });
    Ok(exit::DONE)
}

fn archive(to: &To, id: &str, verb: &str, said: &str) -> Result<u8, Failure> {
    let execution = to.client.post(&path(id, &format!("/{verb}")), None, &[])?;
    to.print(execution.raw.get(), || format!("execution {id} is {said}"));
    Ok(exit::DONE)
}

fn change(change: &Value) -> Vec<Cell> {
    let value = if change["kind"] == "set" { short(&change["value"]) } else { String::new() };
    vec![
        Cell::new(plain(&change["place"])),
        Cell::new(plain(&change["revision"])),
        Cell::new(plain(&change["node"])),
        Cell::new(plain(&change["kind"])),
        Cell::new(value),
        Cell::new(plain(&change["run_id"])),
        Cell::new(age(&change["at"])),
    ]
}

/// An execution with what each node has and does.
pub(super) fn described(execution: &Value) -> String {
    let all = [
        ("execution", plain(&execution["id"])),
        ("graph", format!("{}, version {}", plain(&execution["graph"]), plain(&execution["version"]))),
        ("revision", plain(&execution["revision"])),
        ("created", moment(&execution["created_at"])),
        ("updated", moment(&execution["updated_at"])),
        ("archived", moment(&execution["archived_at"])),
    ];
    let head: Vec<(&str, String)> = all.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let (values, nodes) = (&execution["values"], &execution["nodes"]);
    let rows = nodes.as_object().into_iter().flatten().map(|(name, node)| {
        let content = values.get(name);
        let note = match (&node["error"], &node["waiting_for"]) {
            (Value::String(error), _) => error.clone(),
            (_, waiting) => plain(waiting),
        };
        vec![
            Cell::new(name),
            Cell::new(plain(&node["kind"])),
            state(&plain(&node["state"])),
            Cell::new(content.map_or_else(String::new, |content| short(&content["value"]))),
            Cell::new(content.map_or_else(String::new, |content| plain(&content["revision"]))),
            Cell::new(note),
        ]
    });
    let headers = ["NODE", "KIND", "STATE", "VALUE", "REVISION", "WAITS FOR, OR ERROR"];
    format!("{}\n\n{}", fields(&head), table(&headers, rows.collect()))
}

/// Longer values are cut in tables; `execution get` prints them whole.
const LONGEST_VALUE: usize = 60;

fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(LONGEST_VALUE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
