use super::To;
use crate::args::EventsArgs;
use crate::client::Trouble;
use crate::clock;
use crate::exit::{self, Failure};
use crate::output::{self, plain};
use crate::term;
use serde_json::Value;
use std::io::{self, BufRead, BufReader};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;
use ureq::Body;

/// The server sends something at least every 15 s; silence beyond this is a connection that broke.
const SILENCE: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_secs(1);

enum Ended {
    /// The server ended it, or it broke.
    Over,
    /// What was asked for has been read, or nobody reads any more.
    Enough,
}

/// Prints the events that are kept; with `--follow`, those that happen from now on.
pub(crate) fn read(to: &To, asked: &EventsArgs) -> Result<u8, Failure> {
    let mut reading =
        Reading { to, asked, follow: asked.follow, last: asked.after, left: asked.limit, gaps: asked.after.is_some() };
    if !asked.follow {
        reading.last = Some(asked.after.unwrap_or(0));
        reading.stream()?;
        return Ok(exit::DONE);
    }
    let (mut met, mut told) = (false, false);
    loop {
        match reading.stream() {
            Ok(Ended::Enough) => return Ok(exit::DONE),
            Ok(Ended::Over) if reading.left == Some(0) => return Ok(exit::DONE),
            // Streams have an end; what follows is on the next one.
            Ok(Ended::Over) => {
                (met, told) = (true, false);
                clock::Patience::new(None).pause(AGAIN);
            }
            Err(trouble) if met && trouble.passing() => {
                if !told {
                    term::warn(&format!("everbeat: {trouble}; trying again"));
                    told = true;
                }
                clock::Patience::new(None).pause(PAUSE);
            }
            Err(trouble) => return Err(trouble.into()),
        }
    }
}

struct Reading<'a> {
    to: &'a To,
    asked: &'a EventsArgs,
    follow: bool,
    /// The last event seen; none: from now on.
    last: Option<u64>,
    /// So many more are asked for.
    left: Option<u64>,
    /// Whether events that are no longer kept are missed.
    gaps: bool,
}

impl Reading<'_> {
    /// Reads one stream to its end.
    fn stream(&mut self) -> Result<Ended, Trouble> {
        let after = self.last.map(|id| id.to_string());
        let mut query = vec![("follow", if self.follow { "true" } else { "false" })];
        query.extend(after.as_deref().map(|after| ("after", after)));
        query.extend(self.asked.kind.iter().map(|kind| ("kind", kind.as_str())));
        query.extend(self.asked.subject.iter().map(|subject| ("subject", subject.as_str())));
        let limit = self.left.map(|left| left.to_string());
        query.extend(limit.as_deref().map(|limit| ("limit", limit)));
        let lines = lines(self.to.client.stream("/api/v1/events", &query, SILENCE)?);
        let mut message = Message::default();
        loop {
            match lines.recv() {
                Ok(Ok(line)) if line.is_empty() => {
                    let message = std::mem::take(&mut message);
                    if !message.data.is_empty() && !self.tell(&message) {
                        return Ok(Ended::Enough);
                    }
                }
                Ok(Ok(line)) => message.add(&line),
                Ok(Err(error)) if !self.follow => return Err(self.to.client.broken(&error)),
                Ok(Err(_)) | Err(_) => return Ok(Ended::Over),
            }
        }
    }

    /// Prints one event; answers whether to go on.
    fn tell(&mut self, message: &Message) -> bool {
        let event: Value = serde_json::from_str(&message.data).unwrap_or_default();
        if message.event == "gap" {
            if self.gaps {
                let (after, next) = (&event["after"], &event["next"]);
                term::warn(&format!("some events between {after} and {next} are no longer kept"));
            }
            return true;
        }
        self.gaps = true;
        self.last = message.id.or(self.last);
        self.left = self.left.map(|left| left.saturating_sub(1));
        output::print(&if self.to.json() { message.data.clone() } else { line(&event) })
    }
}

/// The lines of a stream, read aside: whoever takes them can tell silence from slowness.
fn lines(body: Body) -> Receiver<io::Result<String>> {
    let (lines, read) = sync_channel(1000);
    std::thread::spawn(move || {
        for line in BufReader::new(body.into_reader()).lines() {
            let broken = line.is_err();
            if lines.send(line).is_err() || broken {
                return;
            }
        }
    });
    read
}

fn line(event: &Value) -> String {
    let attempt = event["attempt"].as_u64().map(|attempt| format!(" attempt {attempt}")).unwrap_or_default();
    let detail = if event["detail"].is_null() { String::new() } else { format!(" {}", event["detail"]) };
    let [id, at, kind, subject] = ["id", "at", "kind", "subject"].map(|name| plain(&event[name]));
    format!("{id} {at} {kind} {subject}{attempt}{detail}")
}

/// One server-sent event, as far as it has come.
#[derive(Default)]
struct Message {
    id: Option<u64>,
    event: String,
    data: String,
}

impl Message {
    fn add(&mut self, line: &str) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" => self.id = value.parse().ok(),
            "event" => self.event = value.to_string(),
            "data" if self.data.is_empty() => self.data = value.to_string(),
            "data" => self.data = format!("{}\n{value}", self.data),
            // Comments, and what a later version may add.
            _ => {}
        }
    }
}
