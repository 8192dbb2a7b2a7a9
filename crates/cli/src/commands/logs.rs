//! The log of a run that is no job.

use super::To;
use crate::args::LogsArgs;
use crate::client::Trouble;
use crate::clock::Patience;
use crate::contact::Contact;
use crate::exit::{self, Failure};
use crate::spinner::Spinner;
use crate::streaming::{Item, Kind, Streaming};
use crate::{interrupt, output, waiting};
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
    let read = print_lines(to, args, id, contact)?;
    if !read {
        return Ok(exit::UNREAD);
    }
    if !args.exit_code {
        return Ok(exit::DONE);
    }
    let run = waiting::finished(&to.client, id, &format!("run {id}"), &Patience::new(None), true)?;
    drop(company);
    waiting::code(&to.client, &run.value)
}

/// Answers whether all was read by whoever reads our output.
fn print_lines(to: &To, args: &LogsArgs, id: &str, contact: &Contact) -> Result<bool, Trouble> {
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
            return Ok(false);
        }
    }
    loop {
        let page = next(args.follow.then_some(ROUND))?;
        if !page.items.iter().all(|item| print(to, item)) {
            return Ok(false);
        }
        if page.finished || (!args.follow && page.items.is_empty()) {
            return Ok(true);
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
