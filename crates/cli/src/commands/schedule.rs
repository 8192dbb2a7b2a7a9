//! Schedules, and what flows have in common with them.

use super::To;
use super::list;
use super::run::json as given_json;
use crate::args::{PutArgs, ScheduleAction, ScheduleVerb};
use crate::client::escape;
use crate::clock::Patience;
use crate::exit::{self, Failure};
use crate::output::{age, fields, moment, plain, rough, state};
use comfy_table::Cell;
use everbeat_model::Invalid;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// A noun of the interface.
#[derive(Clone, Copy)]
pub(super) struct Noun {
    pub(super) one: &'static str,
    pub(super) path: &'static str,
}

const SCHEDULE: Noun = Noun { one: "schedule", path: "/api/v1/schedules" };
pub(super) const FLOW: Noun = Noun { one: "flow", path: "/api/v1/flows" };

impl Noun {
    pub(super) fn at(self, name: &str) -> String {
        format!("{}/{}", self.path, escape(name))
    }
}

pub(crate) fn act(to: &To, action: ScheduleAction) -> Result<u8, Failure> {
    match action {
        ScheduleAction::Put(args) => put(to, &args),
        ScheduleAction::Common(verb) => common(to, SCHEDULE, verb),
    }
}

fn put(to: &To, args: &PutArgs) -> Result<u8, Failure> {
    let mut body = Map::new();
    let mut set = |name: &str, value: Option<Value>| value.map(|value| body.insert(name.to_string(), value));
    let text = |given: &Option<String>| given.as_ref().map(|text| Value::String(text.clone()));
    set("task", Some(json!(args.task)));
    if let Some(input) = &args.input {
        set("input", Some(read_json("--input", given_json("--input", input)?.get())?));
    }
    set("schedule", args.every.as_ref().map(|every| json!({ "every": every })));
    set(
        "schedule",
        args.cron.as_ref().map(|cron| match &args.tz {
            Some(tz) => json!({ "cron": cron, "tz": tz }),
            None => json!({ "cron": cron }),
        }),
    );
    set("overlap", text(&args.overlap));
    set("catch_up", text(&args.catch_up));
    set("queue", text(&args.queue));
    set("late_after", text(&args.late_after));
    if let Some(policy) = &args.policy {
        set("policy", Some(read_json("--policy", policy)?));
    }
    set("accept_unknown", args.accept_unknown.then_some(Value::Bool(true)));
    let answer = to.client.put(&SCHEDULE.at(&args.name), &Value::Object(body).to_string())?;
    to.print(answer.raw.get(), || {
        let verb = if answer.status == 201 { "is new" } else { "is written" };
        format!("schedule {} {verb}; {}", args.name, due(&answer.value))
    });
    Ok(exit::DONE)
}

pub(super) fn read_json(field: &str, text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text).map_err(|error| {
        Failure::usage(&Invalid::new(field, text, format!("is not valid JSON: {error}"), "quote texts like '\"this\"'"))
    })
}

/// When it is due next, in words.
pub(super) fn due(schedule: &Value) -> String {
    match (schedule["enabled"] == true, moment(&schedule["next_due_at"])) {
        (false, _) => "it is not enabled".to_string(),
        (true, next) if next.is_empty() => "nothing is due by the clock".to_string(),
        (true, next) => format!("next due {next}"),
    }
}

pub(super) fn common(to: &To, noun: Noun, verb: ScheduleVerb) -> Result<u8, Failure> {
    match verb {
        ScheduleVerb::Trigger { name, wait, timeout } => trigger(to, noun, &name, None, wait.then_some(timeout)),
        ScheduleVerb::Enable { name } => switch(to, noun, &name, "enable"),
        ScheduleVerb::Disable { name } => switch(to, noun, &name, "disable"),
        ScheduleVerb::Next { name, limit } => next(to, noun, &name, limit),
        ScheduleVerb::Runs { name, page } => {
            let headers = ["ID", "STATUS", "DUE", "STARTED", "TOOK", "READ", "WRITTEN", "REJECTED", "ERROR"];
            list::print(to, &format!("{}/runs", noun.at(&name)), Vec::new(), &page, &headers, run_row)
        }
        ScheduleVerb::Show { name } => show(to, noun, &name),
        ScheduleVerb::Rm { name } => {
            to.client.delete(&noun.at(&name), &[])?;
            to.print(&json!({ "deleted": name }).to_string(), || {
                format!("{} {name} is deleted; its runs stay", noun.one)
            });
            Ok(exit::DONE)
        }
    }
}

/// Asks for a run. `wait` is how long it is waited for, if at all.
pub(super) fn trigger(
    to: &To,
    noun: Noun,
    name: &str,
    body: Option<&Value>,
    wait: Option<Option<Duration>>,
) -> Result<u8, Failure> {
    let body = body.map(Value::to_string);
    let answer = to.client.post(&format!("{}/trigger", noun.at(name)), body.as_deref(), &[])?;
    let id = plain(&answer.value["id"]);
    let Some(limit) = wait else {
        to.print(answer.raw.get(), || {
            let waits = if answer.status == 202 { "; it waits for its turn" } else { "" };
            format!("run {id} of {} {name} is made{waits}", noun.one)
        });
        return Ok(exit::DONE);
    };
    if answer.status == 202 {
        begun(to, &id, limit)?;
    }
    super::run::wait(to, &id, limit)
}

/// Waits until the run is there whose turn has to come first.
fn begun(to: &To, id: &str, limit: Option<Duration>) -> Result<(), Failure> {
    crate::term::say(&format!("everbeat: run {id} waits for its turn"));
    let patience = Patience::new(limit);
    loop {
        match to.client.get(&format!("/api/v1/runs/{id}"), &[]) {
            Err(trouble) if trouble.is("not-found") && !patience.left().is_zero() => patience.pause(LOOK_AGAIN),
            answer => return Ok(answer.map(|_| ())?),
        }
    }
}

const LOOK_AGAIN: Duration = Duration::from_millis(300);

fn switch(to: &To, noun: Noun, name: &str, verb: &str) -> Result<u8, Failure> {
    let answer = to.client.post(&format!("{}/{verb}", noun.at(name)), None, &[])?;
    to.print(answer.raw.get(), || format!("{} {name} is {verb}d; {}", noun.one, due(&answer.value)));
    Ok(exit::DONE)
}

fn next(to: &To, noun: Noun, name: &str, limit: u32) -> Result<u8, Failure> {
    let limit = limit.to_string();
    let answer = to.client.get(&format!("{}/next", noun.at(name)), &[("limit", &limit)])?;
    let times: Vec<String> = answer.value["items"].as_array().into_iter().flatten().map(plain).collect();
    if times.is_empty() && !to.json() {
        crate::term::say(&format!(
            "{} {name} is not due by the clock: it has no schedule, or is not enabled",
            noun.one
        ));
        return Ok(exit::DONE);
    }
    to.print(answer.raw.get(), || times.join("\n"));
    Ok(exit::DONE)
}

fn show(to: &To, noun: Noun, name: &str) -> Result<u8, Failure> {
    let answer = to.client.get(&noun.at(name), &[])?;
    to.print(answer.raw.get(), || described(noun, &answer.value));
    Ok(exit::DONE)
}

fn described(noun: Noun, schedule: &Value) -> String {
    let names = |field: &str| {
        let names: Vec<String> = schedule[field].as_array().into_iter().flatten().map(plain).collect();
        names.join(", ")
    };
    let late = schedule["late_ms"].as_u64().map(|late| rough(Duration::from_millis(late))).unwrap_or_default();
    let json = |field: &str| match &schedule[field] {
        Value::Null => String::new(),
        Value::Object(fields) if fields.is_empty() => String::new(),
        value => value.to_string(),
    };
    let all = [
        (noun.one, plain(&schedule["name"])),
        ("description", plain(&schedule["description"])),
        ("enabled", if schedule["enabled"] == true { "yes".to_string() } else { "no".to_string() }),
        ("schedule", rhythm(&schedule["schedule"])),
        ("overlap", plain(&schedule["overlap"])),
        ("catch up", plain(&schedule["catch_up"])),
        ("late after", plain(&schedule["late_after"])),
        ("after", names("after")),
        ("group", plain(&schedule["group"])),
        ("concurrency", plain(&schedule["concurrency"])),
        ("task", plain(&schedule["task"])),
        ("input", json("input")),
        ("configuration", json("configuration")),
        ("policy", json("policy")),
        ("next due", moment(&schedule["next_due_at"])),
        ("late", late),
        ("waiting", plain(&schedule["waiting"])),
        ("running", plain(&schedule["running"])),
        ("last run", moment(&schedule["last_run_at"])),
        ("last status", plain(&schedule["last_run_status"])),
        ("last error", plain(&schedule["last_run_error"])),
        ("version", plain(&schedule["version"])),
        ("updated", moment(&schedule["updated_at"])),
    ];
    fields(&all.into_iter().filter(|(_, value)| !value.is_empty()).collect::<Vec<_>>())
}

/// `every 15m`, or `30 2 * * * Europe/Berlin`.
fn rhythm(schedule: &Value) -> String {
    match schedule.get("every") {
        Some(every) => format!("every {}", plain(every)),
        None => format!("{} {}", plain(&schedule["cron"]), plain(&schedule["tz"])).trim().to_string(),
    }
}

pub(super) const HEADERS: [&str; 8] = ["NAME", "SCHEDULE", "ENABLED", "LAST", "STATUS", "NEXT DUE", "LATE", "ERROR"];

pub(super) fn row(schedule: &Value) -> Vec<Cell> {
    let late = schedule["late_ms"].as_u64().map(|late| rough(Duration::from_millis(late))).unwrap_or_default();
    vec![
        Cell::new(plain(&schedule["name"])),
        Cell::new(rhythm(&schedule["schedule"])),
        Cell::new(if schedule["enabled"] == true { "yes" } else { "no" }),
        Cell::new(age(&schedule["last_run_at"])),
        state(&plain(&schedule["last_run_status"])),
        Cell::new(moment(&schedule["next_due_at"])),
        Cell::new(late),
        Cell::new(plain(&schedule["last_run_error"])),
    ]
}

fn run_row(run: &Value) -> Vec<Cell> {
    let count = |name: &str| Cell::new(plain(&run["counts"][name]));
    let took = run["duration_ms"].as_u64().map(|millis| rough(Duration::from_millis(millis))).unwrap_or_default();
    vec![
        Cell::new(plain(&run["id"])),
        state(&plain(&run["status"])),
        Cell::new(moment(&run["due_at"])),
        Cell::new(age(&run["started_at"])),
        Cell::new(took),
        count("read"),
        count("written"),
        count("rejected"),
        Cell::new(plain(&run["error_message"])),
    ]
}
