//! The log of a run that is no job.

use super::To;
use crate::args::LogsArgs;
use crate::client::Trouble;
use crate::clock::Patience;
use crate::contact::Contact;
use crate::exit::{self, Failure};
use crate::spinner::Spinner;
use crate::streaming::{Item, Kind, Streaming};
use crate::{interrupt, output, term, waiting};
use everbeat_model::Invalid;
use serde_json::json;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

/// One request waits no longer, so that a server which froze is noticed.
const ROUND: Duration = Duration::from_secs(30);

pub(super) fn of_run(to: &To, args: &LogsArgs, id: &str, contact: &Contact) -> Result<u8, Failure> {
    if let Some(stream) = args.stream {
        let hint = "leave it out: only jobs have a stdout and a stderr";
        return Err(Failure::usage(&Invalid::new("--stream", stream.as_str(), "means nothing for this run", hint)));
    }
    let company = args.follow.then(|| {
        let (follow, stop) = (to.command(&format!("logs -f {id}")), to.command(&format!("cancel {id}")));
        interrupt::with(format!("everbeat: run {id} goes on; follow it with {follow}, stop it with {stop}"));
        Spinner::of_run(&to.client, Some("run"), id)
    });
    match print_lines(to, args, id, contact)? {
        Read::Unread => return Ok(exit::UNREAD),
        Read::Nothing if !to.json() => {
            term::say(&format!("run {id} has logged nothing so far; what a worker prints is in the log of its server"));
        }
        Read::Nothing | Read::Lines => {}
    }
    if !args.exit_code {
        return Ok(exit::DONE);
    }
    let run = waiting::finished(&to.client, id, &format!("run {id}"), &Patience::new(None), true)?;
    drop(company);
    waiting::code(&to.client, &run.value)
}

/// What came of a log.
enum Read {
    /// Whoever read our output has closed it.
    Unread,
    Nothing,
    Lines,
}

fn print_lines(to: &To, args: &LogsArgs, id: &str, contact: &Contact) -> Result<Read, Trouble> {
    let mut read = Read::Nothing;
    let streaming = RefCell::new(Streaming::new(&to.client, id, Kind::Log));
    let next = |wait: Option<Duration>| contact.ask(|| streaming.borrow_mut().next(wait));
    if let Some(most) = args.tail {
        let mut last: VecDeque<Item> = VecDeque::new();
        loop {
            let page = next(None)?;
            if page.items.is_empty() {
                break;
            }
            last.extend(page.items);
            last.drain(..last.len().saturating_sub(usize::try_from(most).unwrap_or(usize::MAX)));
        }
        if !last.iter().all(|item| print(to, item)) {
            return Ok(Read::Unread);
        }
        if !last.is_empty() {
            read = Read::Lines;
        }
    }
    loop {
        let page = next(args.follow.then_some(ROUND))?;
        if !page.items.iter().all(|item| print(to, item)) {
            return Ok(Read::Unread);
        }
        if !page.items.is_empty() {
            read = Read::Lines;
        }
        if page.finished || (!args.follow && page.items.is_empty()) {
            return Ok(read);
        }
    }
}

fn print(to: &To, item: &Item) -> bool {
    let line: String = serde_json::from_str(item.item.get()).unwrap_or_else(|_| item.item.get().to_string());
    if to.json() {
        let said = json!({ "stream": "log", "line": line, "seq": item.seq, "attempt": item.attempt });
        return output::print(&said.to_string());
    }
    output::print(&line)
}
