//! Checks, and what a job says of itself.

use super::To;
use super::files::{apply, diff};
use super::list;
use super::schedule::Noun;
use crate::args::{CheckAction, CheckFilterArgs, CheckPutArgs, PingArgs};
use crate::client::escape;
use crate::exit::{self, Failure};
use crate::output::{age, fields, moment, plain, rough, state};
use comfy_table::Cell;
use everbeat_model::Invalid;
use everbeat_model::check::BODY_LIMIT;
use serde_json::{Map, Value, json};
use std::io::Read;
use std::time::Duration;

const CHECK: Noun = Noun { one: "check", path: "/api/v1/checks" };

pub(crate) fn act(to: &To, action: CheckAction) -> Result<u8, Failure> {
    match action {
        CheckAction::Ls { which } => ls(to, which),
        CheckAction::Show { name } => show(to, &name),
        CheckAction::Put(args) => put(to, &args),
        CheckAction::Apply { files } => apply(to, CHECK, &files, &Map::new(), standing),
        CheckAction::Diff { files } => diff(to, CHECK, &files),
        CheckAction::Pause { name } => switch(to, &name, "pause"),
        CheckAction::Resume { name } => switch(to, &name, "resume"),
        CheckAction::Rm { name } => {
            to.client.delete(&CHECK.at(&name), &[])?;
            to.print(&json!({ "deleted": name }).to_string(), || format!("check {name} is deleted"));
            Ok(exit::DONE)
        }
        CheckAction::Pings { name, page } => {
            let headers = ["NUMBER", "KIND", "EXIT", "AT", "TOOK", "MESSAGE"];
            list::print(to, &format!("{}/pings", CHECK.at(&name)), Vec::new(), &page, &headers, ping_row)
        }
    }
}

pub(super) fn ls(to: &To, which: CheckFilterArgs) -> Result<u8, Failure> {
    let filter = which.state.into_iter().map(|state| ("state", state)).collect();
    let headers = ["NAME", "EXPECTED", "GRACE", "STATE", "STARTED", "LAST PING", "TOOK", "NEXT DUE"];
    list::print(to, CHECK.path, filter, &which.page, &headers, row)
}

/// Says what a job is at.
pub(crate) fn ping(to: &To, args: &PingArgs) -> Result<u8, Failure> {
    let signal = match (args.start, args.fail, args.log, args.exit) {
        (true, ..) => "/start".to_string(),
        (_, true, ..) => "/fail".to_string(),
        (_, _, true, _) => "/log".to_string(),
        (.., Some(code)) => format!("/{code}"),
        _ => String::new(),
    };
    let message = args.message.as_deref().map(message).transpose()?;
    let path = format!("/ping/{}{signal}", escape(&args.name));
    let answer = to.client.post_text(&path, message.as_deref())?;
    to.print(answer.raw.get(), || {
        let made = if answer.value["created"] == true { "made; it is " } else { "" };
        format!("check {} is {made}{}", args.name, plain(&answer.value["state"]))
    });
    Ok(exit::DONE)
}

/// No more is read than is kept.
fn message(given: &str) -> Result<String, Failure> {
    if given != "-" {
        return Ok(given.to_string());
    }
    let mut bytes = Vec::new();
    let read = std::io::stdin().take(BODY_LIMIT as u64).read_to_end(&mut bytes);
    read.map_err(|error| {
        Failure::usage(&Invalid::new("--message", "-", format!("cannot be read: {error}"), "pipe text into it"))
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn put(to: &To, args: &CheckPutArgs) -> Result<u8, Failure> {
    let given = [
        ("period", &args.period),
        ("cron", &args.cron),
        ("tz", &args.tz),
        ("grace", &args.grace),
        ("description", &args.description),
    ];
    let given = given.into_iter().filter_map(|(name, value)| Some((name.to_string(), json!(value.as_ref()?))));
    let answer = to.client.put(&CHECK.at(&args.name), &Value::Object(given.collect()).to_string())?;
    to.print(answer.raw.get(), || {
        let verb = if answer.status == 201 { "is new" } else { "is written" };
        format!("check {} {verb}; {}", args.name, standing(&answer.value))
    });
    Ok(exit::DONE)
}

/// How a check stands, in words.
fn standing(check: &Value) -> String {
    match (plain(&check["state"]).as_str(), moment(&check["next_due_at"])) {
        ("new", next) if next.is_empty() => "it waits for its first ping".to_string(),
        (state, next) if next.is_empty() => format!("it is {state}"),
        (state, next) => format!("it is {state}, a success is due {next}"),
    }
}

fn switch(to: &To, name: &str, verb: &str) -> Result<u8, Failure> {
    let answer = to.client.post(&format!("{}/{verb}", CHECK.at(name)), None, &[])?;
    to.print(answer.raw.get(), || format!("check {name} is {verb}d; {}", standing(&answer.value)));
    Ok(exit::DONE)
}

fn show(to: &To, name: &str) -> Result<u8, Failure> {
    let answer = to.client.get(&CHECK.at(name), &[])?;
    to.print(answer.raw.get(), || described(&answer.value));
    Ok(exit::DONE)
}

fn described(check: &Value) -> String {
    let all = [
        ("check", plain(&check["name"])),
        ("description", plain(&check["description"])),
        ("state", plain(&check["state"])),
        ("down since", moment(&check["down_since"])),
        ("why", plain(&check["down_why"])),
        ("expected", expected(check)),
        ("grace", plain(&check["grace"])),
        ("started", moment(&check["started_at"])),
        ("next due", moment(&check["next_due_at"])),
        ("last ping", moment(&check["last_ping_at"])),
        ("last success", moment(&check["last_success_at"])),
        ("took", took(&check["last_duration_ms"])),
        ("pings", plain(&check["pings"])),
        ("version", plain(&check["version"])),
        ("updated", moment(&check["updated_at"])),
    ];
    fields(&all.into_iter().filter(|(_, value)| !value.is_empty()).collect::<Vec<_>>())
}

/// `every 15m`, or `30 2 * * * Europe/Berlin`.
fn expected(check: &Value) -> String {
    match check["period"].as_str() {
        Some(period) => format!("every {period}"),
        None => format!("{} {}", plain(&check["cron"]), plain(&check["tz"])).trim().to_string(),
    }
}

fn took(millis: &Value) -> String {
    millis.as_u64().map(|millis| rough(Duration::from_millis(millis))).unwrap_or_default()
}

fn row(check: &Value) -> Vec<Cell> {
    vec![
        Cell::new(plain(&check["name"])),
        Cell::new(expected(check)),
        Cell::new(plain(&check["grace"])),
        state(&plain(&check["state"])),
        Cell::new(age(&check["started_at"])),
        Cell::new(age(&check["last_ping_at"])),
        Cell::new(took(&check["last_duration_ms"])),
        Cell::new(moment(&check["next_due_at"])),
    ]
}

fn ping_row(ping: &Value) -> Vec<Cell> {
    let first = plain(&ping["body"]).lines().next().unwrap_or_default().to_string();
    vec![
        Cell::new(plain(&ping["number"])),
        Cell::new(plain(&ping["kind"])),
        Cell::new(plain(&ping["exit_code"])),
        Cell::new(moment(&ping["at"])),
        Cell::new(took(&ping["duration_ms"])),
        Cell::new(first),
    ]
}
