//! Flows: written from files, compared with them, asked for.

use super::To;
use super::files::{apply, diff, of_file};
use super::schedule::{FLOW, common, due, read_json, trigger};
use crate::args::FlowAction;
use crate::exit::{self, Failure};
use crate::output::plain;
use everbeat_model::Invalid;
use serde_json::{Map, Value};

pub(crate) fn act(to: &To, action: FlowAction) -> Result<u8, Failure> {
    match action {
        FlowAction::Apply { files, accept_unknown } => {
            let besides = accept_unknown.then(|| ("accept_unknown".to_string(), true.into()));
            apply(to, FLOW, &files, &besides.into_iter().collect(), due)
        }
        FlowAction::Diff { files } => diff(to, FLOW, &files),
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

/// Tries flows: those of a file, or the one of that name.
fn test(to: &To, which: &str, limit: u32) -> Result<u8, Failure> {
    let is_file = which == "-" || std::path::Path::new(which).is_file();
    let tried: Vec<(String, Option<Value>)> = match is_file {
        true => of_file(FLOW, which)?.into_iter().map(|flow| (flow.name, Some(flow.definition))).collect(),
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
