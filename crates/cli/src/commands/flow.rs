//! Flows: written from files, compared with them, asked for.

use super::To;
use super::graph::read;
use super::schedule::{FLOW, common, differences, due, read_json, trigger};
use crate::args::FlowAction;
use crate::client::Trouble;
use crate::exit::{self, Failure};
use crate::output::plain;
use comfy_table::Cell;
use everbeat_model::Invalid;
use serde_json::{Map, Value, json};

pub(crate) fn act(to: &To, action: FlowAction) -> Result<u8, Failure> {
    match action {
        FlowAction::Apply { files, accept_unknown } => apply(to, &files, accept_unknown),
        FlowAction::Diff { files } => diff(to, &files),
        FlowAction::Test { which, limit } => test(to, &which, limit),
        FlowAction::Common(verb) => common(to, FLOW, verb),
        FlowAction::Backfill { name, from, to: until, cursor } => {
            let mut body = Map::new();
            for (field, given) in [("from", from), ("to", until)] {
                // What is no JSON is text.
                let value = given.map(|text| serde_json::from_str(&text).unwrap_or(Value::String(text)));
                value.map(|value| body.insert(field.to_string(), value));
            }
            if let Some(cursor) = cursor {
                body.insert("cursor".to_string(), read_json("--cursor", &cursor)?);
            }
            if body.is_empty() {
                let hint = "give --from, --to or --cursor; `everbeat flow trigger` asks for an ordinary run";
                return Err(Failure::usage(&Invalid::new("--from", "nothing", "is missing", hint)));
            }
            trigger(to, FLOW, &name, Some(&Value::Object(body)), Some(None))
        }
    }
}

/// Has every flow that is due looked at, as an outside scheduler does.
pub(crate) fn heartbeat(to: &To) -> Result<u8, Failure> {
    let answer = to.client.post("/dataflow/heartbeat", None, &[])?;
    to.print(answer.raw.get(), || {
        format!(
            "{} flows due, {} runs made",
            plain(&answer.value["flows_due"]),
            plain(&answer.value["flows_triggered"])
        )
    });
    Ok(exit::DONE)
}

/// A flow of a file, with its name.
struct Named {
    name: String,
    definition: Value,
}

/// The flows of a file: one, or several as a list `flow`.
fn flows_of(file: &str) -> Result<Vec<Named>, Failure> {
    let refuse = |field: &str, value: &Value, problem: &str, hint: &str| {
        Failure::usage(&Invalid::new(format!("{file}: {field}"), value, problem, hint))
    };
    let whole = read(file)?;
    let items = match whole.get("flow").or_else(|| whole.get("flows")) {
        Some(Value::Array(items)) => items.clone(),
        Some(other) => return Err(refuse("flow", other, "is not a list", "write each flow under [[flow]]")),
        None => vec![whole],
    };
    let named = |definition: Value| match definition["name"].as_str() {
        Some(name) => Ok(Named { name: name.to_string(), definition: definition.clone() }),
        None => Err(refuse("name", &definition["name"], "is not a name", "write name = \"…\"")),
    };
    items.into_iter().map(named).collect()
}

fn all_of(files: &[String]) -> Result<Vec<Named>, Failure> {
    let mut all: Vec<Named> = Vec::new();
    for file in files {
        for flow in flows_of(file)? {
            if all.iter().any(|known| known.name == flow.name) {
                let hint = "keep one of them";
                return Err(Failure::usage(&Invalid::new(file, &flow.name, "is the name of two flows", hint)));
            }
            all.push(flow);
        }
    }
    Ok(all)
}

fn apply(to: &To, files: &[String], accept_unknown: bool) -> Result<u8, Failure> {
    // All files are read before the first flow is written.
    let flows = all_of(files)?;
    let mut written = Vec::new();
    for Named { name, mut definition } in flows {
        if accept_unknown && let Value::Object(fields) = &mut definition {
            fields.insert("accept_unknown".to_string(), true.into());
        }
        let before = found(to, &name)?.map(|flow| flow["version"].clone());
        let answer = to.client.put(&FLOW.at(&name), &definition.to_string())?;
        let said = match before {
            None => "new",
            Some(version) if version == answer.value["version"] => "unchanged",
            Some(_) => "changed",
        };
        written.push((name, said, answer.value));
    }
    let json: Vec<Value> = written.iter().map(|(_, said, flow)| json!({ "became": said, "flow": flow })).collect();
    to.print(&json!({ "items": json }).to_string(), || {
        let lines = written.iter().map(|(name, said, flow)| format!("flow {name} is {said}; {}", due(flow)));
        lines.collect::<Vec<_>>().join("\n")
    });
    Ok(exit::DONE)
}

/// Tries flows: those of a file, or the one of that name.
fn test(to: &To, which: &str, limit: u32) -> Result<u8, Failure> {
    let is_file = which == "-" || std::path::Path::new(which).is_file();
    let tried: Vec<(String, Option<Value>)> = match is_file {
        true => flows_of(which)?.into_iter().map(|flow| (flow.name, Some(flow.definition))).collect(),
        false => vec![(which.to_string(), None)],
    };
    for (name, definition) in tried {
        let body = definition.map(|definition| definition.to_string());
        let path = format!("{}/test?limit={limit}", FLOW.at(&name));
        let answer = to.client.post(&path, body.as_deref(), &[])?;
        to.print(answer.raw.get(), || tested(&answer.value));
    }
    Ok(exit::DONE)
}

fn tested(answer: &Value) -> String {
    let items = |field: &str| answer[field].as_array().cloned().unwrap_or_default();
    let (records, rejected) = (items("records"), items("rejected"));
    let mut lines: Vec<String> = records.iter().map(Value::to_string).collect();
    for one in &rejected {
        lines.push(format!("rejected: {}: {}", plain(&one["position"]), plain(&one["reason"])));
    }
    let dropped = answer["dropped"].as_u64().filter(|dropped| *dropped > 0);
    let dropped = dropped.map(|dropped| format!(", {dropped} dropped")).unwrap_or_default();
    let (would, refused) = (records.len(), rejected.len());
    lines.push(format!(
        "{} read, {would} would be written ({}), {refused} rejected{dropped}; nothing was written",
        plain(&answer["read"]),
        plain(&answer["promise"]).replace('_', " ")
    ));
    lines.join("\n")
}

/// The flow of that name, if there is one.
fn found(to: &To, name: &str) -> Result<Option<Value>, Failure> {
    match to.client.get(&FLOW.at(name), &[]) {
        Ok(flow) => Ok(Some(flow.value)),
        Err(trouble @ Trouble::Refused { .. }) if trouble.is("not-found") => Ok(None),
        Err(trouble) => Err(trouble.into()),
    }
}

fn diff(to: &To, files: &[String]) -> Result<u8, Failure> {
    let mut rows = Vec::new();
    let mut json = Vec::new();
    for Named { name, definition } in all_of(files)? {
        let there = found(to, &name)?;
        let fields = definition.as_object().into_iter().flatten();
        let mut differing: Vec<(String, Value, Value)> = match &there {
            None => vec![("(new)".to_string(), Value::Null, Value::Null)],
            Some(there) => {
                let differs = |(field, value): (&String, &Value)| {
                    let known = there.get(field).cloned().unwrap_or(Value::Null);
                    (!same(field, &known, value)).then(|| (field.clone(), known, value.clone()))
                };
                fields.filter_map(differs).collect()
            }
        };
        differing.retain(|(field, ..)| field != "name");
        for (field, server, file) in differing {
            let cell = |value: &Value| Cell::new(if value.is_null() { String::new() } else { value.to_string() });
            rows.push(vec![Cell::new(&name), Cell::new(&field), cell(&server), cell(&file)]);
            json.push(json!({ "flow": name, "field": field, "server": server, "file": file }));
        }
    }
    let differ = !rows.is_empty();
    if !differ && !to.json() {
        crate::term::say("nothing differs");
    } else {
        to.print(&json!({ "items": json }).to_string(), || differences(rows));
    }
    Ok(if differ { exit::FAILED } else { exit::DONE })
}

/// Whether two ways to write a field mean the same.
fn same(field: &str, server: &Value, file: &Value) -> bool {
    let span = |value: &Value| everbeat_model::time::duration_from(value).ok();
    match field {
        "schedule" => {
            match (everbeat_model::schedule::Rhythm::parse(server), everbeat_model::schedule::Rhythm::parse(file)) {
                (Ok(server), Ok(file)) => server == file,
                _ => server == file,
            }
        }
        "late_after" => span(server) == span(file),
        _ => server == file,
    }
}
