//! A job's output, as it comes, through restarts of the server.

use crate::args::Stream;
use crate::client::{Client, Log, Trouble, escape};
use crate::clock::Patience;
use crate::contact::{Contact, Pauses};
use crate::{spinner, term};
use serde_json::json;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// A job may be silent for as long as it likes; after so long the connection is made anew, in case it
/// broke and nobody said so.
const SILENCE: Duration = Duration::from_secs(60);
const CHUNK: usize = 64 << 10;

/// What is read of a job's output.
#[derive(Clone)]
pub(crate) struct Reading {
    pub(crate) client: Client,
    pub(crate) contact: Arc<Contact>,
    pub(crate) id: String,
    pub(crate) from: From,
    /// Until the job is finished, not only what is there.
    pub(crate) follow: bool,
}

/// Where reading begins.
#[derive(Clone, Copy)]
pub(crate) enum From {
    Offset(u64),
    /// The last so many lines.
    Tail(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Whole,
    /// Whoever read our output has closed it.
    Unread,
}

/// Where output goes.
pub(crate) enum Sink {
    Stdout,
    Stderr,
    /// To stdout, each line as an object; this is the line that has no end yet.
    Lines(Vec<u8>),
}

impl Reading {
    /// Reads each stream to its end, side by side.
    pub(crate) fn read(&self, streams: Vec<(Stream, Sink)>) -> Result<Ended, Trouble> {
        let (ends, ended) = channel();
        let count = streams.len();
        for (stream, mut sink) in streams {
            let (reading, ends) = (self.clone(), ends.clone());
            std::thread::spawn(move || {
                let end = reading.stream(stream, &mut sink);
                let _nobody_waits_any_more = ends.send(end);
            });
        }
        drop(ends);
        for end in ended.iter().take(count) {
            match end? {
                Ended::Whole => {}
                Ended::Unread => return Ok(Ended::Unread),
            }
        }
        Ok(Ended::Whole)
    }

    fn stream(&self, stream: Stream, sink: &mut Sink) -> Result<Ended, Trouble> {
        let mut from = self.from;
        let mut pauses = Pauses::default();
        loop {
            let log = self.contact.ask(|| self.open(stream, from))?;
            let begins = log.offset;
            if let From::Offset(asked) = from
                && begins > asked
            {
                let (lost, stream) = (begins - asked, stream.as_str());
                term::warn(&format!("everbeat: {lost} bytes of {stream} are no longer kept"));
            }
            let (ended, received) = copy(log, stream, sink);
            if let Some(ended) = ended {
                return Ok(ended);
            }
            from = From::Offset(begins + received);
            if received > 0 {
                pauses = Pauses::default();
            }
            Patience::new(None).pause(pauses.next());
        }
    }

    fn open(&self, stream: Stream, from: From) -> Result<Log, Trouble> {
        let (name, number) = match from {
            From::Offset(offset) => ("offset", offset),
            From::Tail(lines) => ("tail", lines),
        };
        let number = number.to_string();
        let mut query = vec![("stream", stream.as_str()), (name, &number)];
        query.extend(self.follow.then_some(("follow", "true")));
        self.client.log(&format!("/api/v1/jobs/{}/logs", escape(&self.id)), &query, SILENCE)
    }
}

/// Hands on what comes, at once. No end: the connection broke. With it, how many bytes came.
fn copy(mut log: Log, stream: Stream, sink: &mut Sink) -> (Option<Ended>, u64) {
    let mut buffer = vec![0; CHUNK];
    let mut received = 0;
    loop {
        let length = match log.body.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return (None, received),
        };
        if sink.write(stream, &buffer[..length]).is_err() {
            return (Some(Ended::Unread), received);
        }
        received += length as u64;
    }
    let ended = if sink.end(stream).is_ok() { Ended::Whole } else { Ended::Unread };
    (Some(ended), received)
}

impl Sink {
    fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        spinner::give_way();
        match self {
            Sink::Stdout => write_out(io::stdout().lock(), bytes),
            Sink::Stderr => write_out(io::stderr().lock(), bytes),
            Sink::Lines(line) => {
                for part in bytes.split_inclusive(|byte| *byte == b'\n') {
                    line.extend_from_slice(part);
                    if part.ends_with(b"\n") {
                        tell(stream, line)?;
                    }
                }
                Ok(())
            }
        }
    }

    fn end(&mut self, stream: Stream) -> io::Result<()> {
        match self {
            Sink::Lines(line) if !line.is_empty() => tell(stream, line),
            _ => Ok(()),
        }
    }
}

fn write_out(mut to: impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

fn tell(stream: Stream, line: &mut Vec<u8>) -> io::Result<()> {
    let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line));
    let object = format!("{}\n", json!({ "stream": stream.as_str(), "line": text }));
    line.clear();
    write_out(io::stdout().lock(), object.as_bytes())
}
