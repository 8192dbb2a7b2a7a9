//! Stopping and trying again: one, several, or all that fit.

use super::To;
use super::find::WORK;
use super::show;
use crate::args::Which;
use crate::client::{Answer, Trouble, escape};
use crate::contact::Contact;
use crate::exit::{self, Failure};
use crate::output::{self, plain};
use crate::spinner::Spinner;
use crate::term;
use everbeat_model::Invalid;
use serde_json::{Value, json};
use std::cell::Cell;
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Cancel,
    Retry,
}

impl Verb {
    fn as_str(self) -> &'static str {
        match self {
            Verb::Cancel => "cancel",
            Verb::Retry => "retry",
        }
    }

    /// The states that it is for, unless one is named.
    fn states(self) -> &'static [&'static str] {
        match self {
            Verb::Cancel => &["scheduled", "ready", "running"],
            Verb::Retry => &["failed"],
        }
    }

    fn said(self, run: &Value) -> String {
        match (self, plain(&run["state"]).as_str()) {
            (Verb::Cancel, "cancelled") => "cancelled".to_string(),
            (Verb::Cancel, state) => format!("asked to stop; it is still {state}"),
            (Verb::Retry, state) => format!("open again: {state}"),
        }
    }
}

pub(crate) fn act(to: &To, verb: Verb, given: &[String], state: Option<String>, which: Which) -> Result<u8, Failure> {
    let filter = Filter::new(verb, state, &which);
    match (given, filter.narrows()) {
        ([], false) => Err(usage("nothing", "was named", "give ids, or a filter like --task or --queue")),
        ([_, ..], true) => Err(usage(&given.join(" "), "stands beside a filter", "give ids or a filter, not both")),
        ([_, ..], false) if which.all => Err(usage("--all", "stands beside ids", "it is for filters")),
        ([one], false) => single(to, verb, &to.id(one, WORK)?),
        (several, false) => {
            let ids = several.iter().map(|given| to.id(given, WORK)).collect::<Result<Vec<_>, _>>()?;
            each(to, verb, &ids)
        }
        ([], true) => {
            let ids = filter.find(to)?;
            if which.all { each(to, verb, &ids) } else { Ok(would(to, verb, &filter, &ids)) }
        }
    }
}

fn usage(value: &str, problem: &str, hint: &str) -> Failure {
    Failure::usage(&Invalid::new("ID", value, problem, hint))
}

fn single(to: &To, verb: Verb, id: &str) -> Result<u8, Failure> {
    let run = do_it(to, verb, id)?;
    let noun = show::noun(&run.value);
    to.print(run.raw.get(), || format!("{noun} {id} is {}", verb.said(&run.value)));
    Ok(exit::DONE)
}

/// One after the other. What is refused is told, and keeps none of the others from it.
fn each(to: &To, verb: Verb, ids: &[String]) -> Result<u8, Failure> {
    let company = Spinner::of(format!("{} of {} jobs and runs", verb.as_str(), ids.len()));
    let mut results = Vec::new();
    let mut refused = 0;
    for id in ids {
        let (ok, outcome, state) = match do_it(to, verb, id) {
            Ok(run) => (true, verb.said(&run.value), run.value["state"].clone()),
            Err(trouble) => match trouble.detail() {
                Some(why) => (false, why.to_string(), Value::Null),
                None => return Err(trouble.into()),
            },
        };
        match (ok, to.json()) {
            (true, false) => {
                output::print(&format!("{id} is {outcome}"));
            }
            (true, true) => {}
            (false, _) => {
                refused += 1;
                term::warn(&format!("{id}: {outcome}"));
            }
        }
        results.push(json!({ "id": id, "ok": ok, "outcome": outcome, "state": state }));
    }
    drop(company);
    if to.json() {
        output::print(&output::pretty(&json!({ "results": results }).to_string()));
    }
    term::say(&format!("{}: {} of {} done", verb.as_str(), ids.len() - refused, ids.len()));
    Ok(if refused == 0 { exit::DONE } else { exit::SERVER })
}

/// What `--all` would be done to. Nothing is done by asking.
fn would(to: &To, verb: Verb, filter: &Filter, ids: &[String]) -> u8 {
    let count = ids.len();
    let more = if count == MOST { "at least " } else { "" };
    if to.json() {
        output::print(&output::pretty(&json!({ "would": verb.as_str(), "count": count, "ids": ids }).to_string()));
    }
    term::say(&match count {
        0 => format!("none that fit {}", filter.words()),
        _ => {
            let them = if count == 1 { "job or run" } else { "jobs and runs" };
            let command = to.command(&format!("{} {} --all", verb.as_str(), filter.words()));
            format!("nothing was changed: {more}{count} {them} would be hit\n  to do it: {command}")
        }
    });
    exit::DONE
}

/// One call takes no more; the same call again takes the next.
const MOST: usize = 10_000;
const PAGE: &str = "1000";

struct Filter {
    states: Vec<String>,
    narrowed: Vec<(&'static str, String)>,
}

impl Filter {
    fn new(verb: Verb, state: Option<String>, which: &Which) -> Filter {
        let named = [("state", &state), ("task", &which.task), ("queue", &which.queue), ("kind", &which.kind)];
        let narrowed = named.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
        let usual = || verb.states().iter().map(ToString::to_string).collect();
        Filter { states: state.map_or_else(usual, |state| vec![state]), narrowed }
    }

    fn narrows(&self) -> bool {
        !self.narrowed.is_empty()
    }

    /// As it was written.
    fn words(&self) -> String {
        let word = |(name, value): &(&str, String)| format!("--{name} {value}");
        self.narrowed.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    fn find(&self, to: &To) -> Result<Vec<String>, Failure> {
        let mut ids = Vec::new();
        for state in &self.states {
            let mut cursor: Option<String> = None;
            loop {
                let mut query = vec![("state", state.as_str()), ("limit", PAGE)];
                let others = self.narrowed.iter().filter(|(name, _)| *name != "state");
                query.extend(others.map(|(name, value)| (*name, value.as_str())));
                query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
                let page = to.client.get("/api/v1/runs", &query)?.value;
                ids.extend(page["items"].as_array().into_iter().flatten().map(|run| plain(&run["id"])));
                if ids.len() >= MOST {
                    ids.truncate(MOST);
                    return Ok(ids);
                }
                match page["next_cursor"].as_str() {
                    Some(next) => cursor = Some(next.to_string()),
                    None => break,
                }
            }
        }
        Ok(ids)
    }
}

/// A server that restarts is back within this time, and is told then.
const CANCEL_PATIENCE: Duration = Duration::from_secs(30);

fn do_it(to: &To, verb: Verb, id: &str) -> Result<Answer, Trouble> {
    let ask = || to.client.post(&format!("/api/v1/runs/{}/{}", escape(id), verb.as_str()), None, &[]);
    if verb == Verb::Retry {
        return ask();
    }
    let asked = Cell::new(0);
    let run = Contact::new(CANCEL_PATIENCE).ask(|| {
        asked.set(asked.get() + 1);
        ask()
    });
    match run {
        // An earlier request, whose answer was lost, may have done it.
        Err(trouble) if asked.get() > 1 => cancelled(to, id).ok_or(trouble),
        run => run,
    }
}

fn cancelled(to: &To, id: &str) -> Option<Answer> {
    let run = to.client.get(&format!("/api/v1/runs/{}", escape(id)), &[]).ok()?;
    Some(run).filter(|run| run.value["state"] == "cancelled")
}
