//! What a person means by an id, a part of one, or the name of a job.

use super::To;
use crate::exit::{self, Failure};
use crate::output::{age, plain};
use serde_json::Value;

/// What is waited for, stopped and tried again.
pub(crate) const WORK: &[&str] = &["job", "run"];
pub(crate) const EXECUTION: &[&str] = &["execution"];
pub(crate) const REPLICA: &[&str] = &["replica"];
/// What verdicts are about.
pub(crate) const SUBJECTS: &[&str] = &["run", "job", "replica"];
pub(crate) const WORKER: &[&str] = &["worker"];
/// What can say why it is as it is.
pub(crate) const EXPLAINED: &[&str] = &["job", "run", "execution", "replica", "verdict"];
pub(crate) const ANYTHING: &[&str] = &["job", "run", "execution", "worker", "replica", "verdict"];

pub(crate) struct Found {
    pub(crate) id: String,
    pub(crate) kind: String,
}

impl To {
    /// The id of what is meant. A whole id is taken as it is.
    pub(crate) fn id(&self, given: &str, kinds: &[&str]) -> Result<String, Failure> {
        match uuid::Uuid::try_parse(given) {
            Ok(_) => Ok(given.to_string()),
            Err(_) => self.find(given, kinds).map(|found| found.id),
        }
    }

    /// What is meant, asked of the server.
    pub(crate) fn find(&self, given: &str, kinds: &[&str]) -> Result<Found, Failure> {
        let mut query = vec![("match", given)];
        query.extend(kinds.iter().map(|kind| ("kind", *kind)));
        let answer = self.client.get("/api/v1/ids", &query)?.value;
        match answer["items"].as_array().map(Vec::as_slice).unwrap_or_default() {
            [] => Err(nothing(given, kinds)),
            [only] => Ok(Found { id: plain(&only["id"]), kind: plain(&only["kind"]) }),
            several => Err(ambiguous(given, several, answer["more"] == true)),
        }
    }
}

fn nothing(given: &str, kinds: &[&str]) -> Failure {
    let (last, first) = kinds.split_last().map_or(("", String::new()), |(last, first)| (*last, first.join(", ")));
    let kinds = if first.is_empty() { last.to_string() } else { format!("{first} or {last}") };
    let hint = format!(
        "an id may be cut to its first or last characters (4 or more), and a job may be called by its name; \
         `everbeat ls {}s` lists what there is",
        if last == "verdict" { "run" } else { last }
    );
    Failure::server(format!("no {kinds} has the id or name {given:?}"), hint)
}

fn ambiguous(given: &str, several: &[Value], more: bool) -> Failure {
    let mut message = format!("{given:?} fits {}{} things:", if more { "more than " } else { "" }, several.len());
    for found in several {
        let [kind, id, name, state] = ["kind", "id", "name", "state"].map(|field| plain(&found[field]));
        message += &format!("\n  {kind:<9}  {id}  {name}  {state}  {}", age(&found["created_at"]));
    }
    Failure::new(exit::USAGE, message, "give more characters of the id, or all of it")
}
