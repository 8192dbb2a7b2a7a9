use super::To;
use super::find::WORK;
use super::show;
use crate::args::SubmitArgs;
use crate::client::{Answer, escape};
use crate::clock::Patience;
use crate::exit::{self, Failure};
use crate::spinner::Spinner;
use crate::streaming::Item;
use crate::{clock, interrupt, output, term, waiting};
use everbeat_model::time::parse_duration;
use everbeat_model::{Invalid, Json, NotJson, StoreTime};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::io::Read;
use std::time::Duration;

/// What is sent to submit a run. JSON from the user goes as it was written.
#[derive(Serialize)]
struct Submission {
    task: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<i16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at: Option<StoreTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<SessionGiven>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    accept_unknown: bool,
}

#[derive(Serialize)]
struct SessionGiven {
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    affinity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<String>,
}

pub(crate) fn submit(to: &To, args: SubmitArgs) -> Result<u8, Failure> {
    let submission = Submission {
        input: args.input.as_deref().map(|given| json("--input", given)).transpose()?,
        policy: args.policy.as_deref().map(|given| json("--policy", given)).transpose()?,
        run_at: args.run_at.as_deref().map(time).transpose()?,
        task: args.task,
        queue: args.queue,
        priority: args.priority,
        unique_key: args.unique_key,
        session: args.session.map(|key| SessionGiven { key, affinity: args.session_affinity, ttl: args.session_ttl }),
        accept_unknown: args.accept_unknown,
    };
    let body = serde_json::to_string(&submission)
        .map_err(|error| Failure::new(exit::USAGE, format!("the request cannot be written: {error}"), ""))?;
    let headers: Vec<(&str, &str)> =
        args.idempotency_key.as_deref().map(|key| ("idempotency-key", key)).into_iter().collect();
    let ask = || to.client.post("/api/v1/runs", Some(&body), &headers);
    let accepted = if args.wait || args.follow { waiting::first_met(args.timeout, ask)? } else { ask()? };
    let id = accepted.value["id"].as_str().unwrap_or_default();
    if accepted.status == 200 {
        term::say(&format!("run {id} already stands for this; no new one was made"));
    }
    if args.follow {
        return followed(to, id, args.timeout);
    }
    if args.wait {
        return awaited(to, Some("run"), id, args.timeout, true);
    }
    to.print(accepted.raw.get(), || id.to_string());
    Ok(exit::DONE)
}

pub(crate) fn wait(to: &To, given: &str, timeout: Option<Duration>) -> Result<u8, Failure> {
    // A whole id is waited for even while the server is away; what it is the id of may not be known then.
    let whole = uuid::Uuid::try_parse(given).is_ok();
    let id = to.id(given, WORK)?;
    let path = format!("/api/v1/runs/{}", escape(&id));
    let asked = to.client.get_within(&path, &[], timeout.map_or(ASK_WITHIN, |timeout| timeout.min(ASK_WITHIN)));
    let noun = asked.as_ref().ok().map(|run| show::noun(&run.value));
    awaited(to, noun, &id, timeout, !whole || asked.is_ok())
}

/// To ask what it is that is waited for; who waits wants to read something soon.
const ASK_WITHIN: Duration = Duration::from_secs(2);

/// Waits until a run is finished, prints what it gave and ends as it did. `met`: the server was there before.
fn awaited(to: &To, noun: Option<&'static str>, id: &str, timeout: Option<Duration>, met: bool) -> Result<u8, Failure> {
    let what = noun.map_or_else(|| id.to_string(), |noun| format!("{noun} {id}"));
    let (again, stop) = (to.command(&format!("wait {id}")), to.command(&format!("cancel {id}")));
    interrupt::with(format!("everbeat: {what} goes on; come back to it with {again}, stop it with {stop}"));
    term::say(&format!("everbeat: waiting for {what}"));
    let company = Spinner::of_run(&to.client, noun, id);
    let run = waiting::finished(&to.client, id, &what, &Patience::new(timeout), met)?;
    drop(company);
    ended(to, id, run)
}

/// Prints what a run streams as it comes, then what it gave, and ends as it did.
fn followed(to: &To, id: &str, timeout: Option<Duration>) -> Result<u8, Failure> {
    let what = format!("run {id}");
    let (again, stop) = (to.command(&format!("wait {id}")), to.command(&format!("cancel {id}")));
    interrupt::with(format!("everbeat: {what} goes on; come back to it with {again}, stop it with {stop}"));
    term::say(&format!("everbeat: following {what}"));
    let patience = Patience::new(timeout);
    let company = Spinner::of_run(&to.client, Some("run"), id);
    let mut attempt = None;
    let read = waiting::streamed(&to.client, id, &what, &patience, |item| {
        if attempt.replace(item.attempt).is_some_and(|before| before != item.attempt) {
            term::warn(&format!("everbeat: attempt {} begins; what it streams may repeat", item.attempt));
        }
        let Item { seq, attempt, item } = item;
        match to.json() {
            true => output::print(&format!("{{\"seq\":{seq},\"attempt\":{attempt},\"item\":{item}}}")),
            false => output::print(item.get()),
        }
    })?;
    if !read {
        return Ok(exit::UNREAD);
    }
    let run = waiting::finished(&to.client, id, &what, &patience, true)?;
    drop(company);
    if to.json() {
        // One line, as each item is.
        output::print(run.raw.get());
        return waiting::code(&to.client, &run.value);
    }
    ended(to, id, run)
}

/// Prints what a finished run gave, and ends as it did.
fn ended(to: &To, id: &str, run: Answer) -> Result<u8, Failure> {
    let run = match run.value["kind"] == "job" {
        // It is over: its own fields are for showing, and not worth another wait.
        true => to.client.get(&format!("/api/v1/jobs/{}", escape(id)), &[]).unwrap_or(run),
        false => run,
    };
    if to.json() {
        to.print(run.raw.get(), String::new);
    } else {
        term::say(&show::brief(&run.value));
        if let Some(result) = result(&run) {
            output::print(result.get());
        }
    }
    waiting::code(&to.client, &run.value)
}

/// What a run gave, as it came. Of a job its exit is all there is to tell.
fn result(run: &Answer) -> Option<Box<RawValue>> {
    #[derive(Deserialize)]
    struct Content {
        result: Option<Box<RawValue>>,
    }
    let content = serde_json::from_str::<Content>(run.raw.get()).ok().filter(|_| run.value["kind"] != "job");
    content.and_then(|content| content.result).filter(|_| run.value["state"] == "succeeded")
}

/// JSON that was given as itself, as `@FILE`, or on stdin as `-`.
pub(super) fn json(flag: &str, given: &str) -> Result<Box<RawValue>, Failure> {
    let text = match given.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path).map_err(|error| unreadable(flag, given, &error))?,
        None if given == "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map_err(|error| unreadable(flag, given, &error))?;
            text
        }
        None => given.to_string(),
    };
    let refused = |error: NotJson| {
        let hint = match error {
            NotJson::Syntax(_) => "give one JSON value; text needs double quotes inside single ones, like '\"hello\"'",
            _ => error.hint(),
        };
        Failure::usage(&Invalid::new(flag, text.trim(), error.problem(), hint))
    };
    Json::read_text(&text).map_err(refused)?;
    serde_json::from_str(&text).map_err(|error| refused(NotJson::Syntax(error.to_string())))
}

fn unreadable(flag: &str, given: &str, error: &std::io::Error) -> Failure {
    let problem = format!("cannot be read: {error}");
    Failure::usage(&Invalid::new(flag, given, problem, "give JSON, @FILE with a readable file, or - for stdin"))
}

fn time(given: &str) -> Result<StoreTime, Failure> {
    let relative = || parse_duration(given.trim_start_matches('+')).map(|span| clock::wall().plus(span));
    StoreTime::parse(given).or_else(|_| relative()).map_err(|_| {
        let hint = "write it like 2026-12-01T06:00:00Z, or as a duration from now like 10m";
        Failure::usage(&Invalid::new("--run-at", format!("{given:?}"), "is not a time", hint))
    })
}
