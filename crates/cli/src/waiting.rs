use crate::client::{Answer, Client, Trouble, escape};
use crate::clock::Patience;
use crate::exit::{self, Failure};
use crate::streaming::{Item, Kind, Streaming};
use crate::term;
use everbeat_model::time::format_duration;
use serde_json::Value;
use std::time::Duration;

/// One request waits no longer, so that a server which froze is noticed.
const ROUND: Duration = Duration::from_secs(30);
/// What a request may take beyond the wait it asks for.
const MARGIN: Duration = Duration::from_secs(15);
/// Between two tries to reach a server that is away.
const PAUSE: Duration = Duration::from_millis(500);
/// The same, for one that may be starting just now.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// How long to look for a server that was never reached, unless the wait itself is limited: a restart
/// takes less, and a wrong address is not waited for forever.
const FIRST_CONTACT: Duration = Duration::from_secs(10);

/// Asks a server that may have been started a moment ago, for as long as nobody is there: what is asked has not happened
/// then.
pub(crate) fn first_met<T>(limit: Option<Duration>, ask: impl Fn() -> Result<T, Trouble>) -> Result<T, Trouble> {
    let contact = Patience::new(Some(limit.unwrap_or(FIRST_CONTACT).min(FIRST_CONTACT)));
    let mut told = false;
    loop {
        match ask() {
            Err(trouble) if !trouble.met() && !contact.left().is_zero() => {
                if !told {
                    term::warn(&format!("everbeat: {trouble}; still waiting"));
                    told = true;
                }
                contact.pause(FIRST_PAUSE);
            }
            answer => return answer,
        }
    }
}

/// Waits until a run is finished, through restarts of the server. `what` is what people call it.
pub(crate) fn finished(
    client: &Client,
    id: &str,
    what: &str,
    patience: &Patience,
    met: bool,
) -> Result<Answer, Failure> {
    let path = format!("/api/v1/runs/{}", escape(id));
    let waited = patiently(patience, met, |span| {
        let timeout = format!("{}ms", span.as_millis());
        let run = client.get_within(&path, &[("wait", "finished"), ("timeout", &timeout)], span + MARGIN)?;
        Ok(Some(run).filter(|run| is_finished(&run.value)))
    });
    waited.map_err(|ended| unfinished(ended, id, what, patience))
}

fn unfinished(ended: Ended, id: &str, what: &str, patience: &Patience) -> Failure {
    match ended {
        Ended::Failed(trouble) => trouble.into(),
        Ended::Over(_) => {
            let limit = format_duration(patience.limit().unwrap_or_default());
            let hint = format!("it goes on; wait longer with `everbeat wait {id}`, or see `everbeat explain {id}`");
            Failure::new(exit::TIMED_OUT, format!("{what} is not finished after {limit}"), hint)
        }
    }
}

/// Hands on what a run streams, each item as it comes, until it is finished; through restarts of the server. `take`
/// answers whether anybody still reads. Answers whether all was read.
pub(crate) fn streamed(
    client: &Client,
    id: &str,
    what: &str,
    patience: &Patience,
    mut take: impl FnMut(&Item) -> bool,
) -> Result<bool, Failure> {
    let mut streaming = Streaming::new(client, id, Kind::Output);
    let read = patiently(patience, true, |span| {
        let page = streaming.next(Some(span))?;
        if !page.items.iter().all(&mut take) {
            return Ok(Some(false));
        }
        Ok(page.finished.then_some(true))
    });
    read.map_err(|ended| unfinished(ended, id, what, patience))
}

/// Which value of a node is waited for.
#[derive(Clone, Copy)]
pub(crate) enum Newness {
    Any,
    NewerThan(u64),
}

/// Waits for a value of an execution, through restarts of the server.
pub(crate) fn value(
    client: &Client,
    id: &str,
    node: &str,
    newness: Newness,
    limit: Option<Duration>,
) -> Result<Answer, Ended> {
    let path = format!("/api/v1/executions/{}/values/{}", escape(id), escape(node));
    let revision = match newness {
        Newness::Any => None,
        Newness::NewerThan(revision) => Some(revision.to_string()),
    };
    patiently(&Patience::new(limit), false, |span| {
        let timeout = format!("{}ms", span.as_millis());
        let mut query = vec![("timeout", timeout.as_str())];
        match &revision {
            None => query.push(("wait", "any")),
            Some(revision) => query.extend([("wait", "newer_than"), ("revision", revision.as_str())]),
        }
        client.get_within(&path, &query, span + MARGIN).map(Some)
    })
}

/// Why a wait has no answer.
pub(crate) enum Ended {
    /// The time is over; with what the server said last about it.
    Over(Option<Trouble>),
    Failed(Trouble),
}

/// Asks again and again, each time for a wait of the given span, until there is an answer.
fn patiently<T>(
    patience: &Patience,
    mut met: bool,
    mut ask: impl FnMut(Duration) -> Result<Option<T>, Trouble>,
) -> Result<T, Ended> {
    let contact = Patience::new(Some(patience.limit().unwrap_or(FIRST_CONTACT)));
    let (mut told, mut said) = (false, None);
    loop {
        match ask(patience.left().min(ROUND)) {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => (met, told) = (true, false),
            Err(trouble) if trouble.timed_out() => (met, told, said) = (true, false, Some(trouble)),
            Err(trouble) if trouble.passing() => {
                met |= trouble.met();
                if !told {
                    term::warn(&format!("everbeat: {trouble}; still waiting"));
                    told = true;
                }
                patience.pause(PAUSE);
                if !met && contact.left().is_zero() {
                    return Err(Ended::Failed(trouble));
                }
            }
            Err(trouble) => return Err(Ended::Failed(trouble)),
        }
        if patience.left().is_zero() {
            return Err(Ended::Over(said));
        }
    }
}

pub(crate) fn is_finished(run: &Value) -> bool {
    matches!(run["state"].as_str(), Some("succeeded" | "failed" | "cancelled"))
}

/// The exit code that a finished run stands for.
pub(crate) fn code(client: &Client, run: &Value) -> Result<u8, Failure> {
    Ok(match run["state"].as_str() {
        Some("succeeded") => exit::DONE,
        Some("cancelled") => exit::CANCELLED,
        _ if last_outcome(client, run)?.as_deref() == Some("lost") => exit::LOST,
        _ => exit::FAILED,
    })
}

fn last_outcome(client: &Client, run: &Value) -> Result<Option<String>, Failure> {
    let contact = Patience::new(Some(FIRST_CONTACT));
    let attempts = loop {
        match attempts(client, run["id"].as_str().unwrap_or_default()) {
            Err(trouble) if trouble.passing() && !contact.left().is_zero() => contact.pause(PAUSE),
            answer => break answer?,
        }
    };
    let last = attempts.iter().max_by_key(|attempt| attempt["attempt"].as_u64());
    Ok(last.and_then(|attempt| attempt["outcome"].as_str()).map(ToString::to_string))
}

/// All attempts of a run, oldest first.
pub(crate) fn attempts(client: &Client, id: &str) -> Result<Vec<Value>, Trouble> {
    let path = format!("/api/v1/runs/{}/attempts", escape(id));
    let mut all = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let query: Vec<(&str, &str)> = cursor.as_deref().map(|cursor| ("cursor", cursor)).into_iter().collect();
        let page = client.get(&path, &query)?.value;
        all.extend(page["items"].as_array().cloned().unwrap_or_default());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = Some(next.to_string()),
            None => return Ok(all),
        }
    }
}
