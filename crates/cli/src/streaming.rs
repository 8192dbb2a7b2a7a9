//! What a run streams, as it comes.

use crate::client::{Client, Trouble, escape};
use crate::term;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::time::Duration;

/// What a request may take beyond the wait it asks for.
const MARGIN: Duration = Duration::from_secs(15);

/// One reader of what a run streams.
pub(crate) struct Streaming {
    client: Client,
    path: String,
    kind: Kind,
    after: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Pieces of its result.
    Output,
    /// The lines of its log.
    Log,
}

/// A part of what a run has streamed.
#[derive(Deserialize)]
pub(crate) struct Page {
    pub(crate) items: Vec<Item>,
    first: u64,
    last: u64,
    /// The run is finished, and nothing follows.
    pub(crate) finished: bool,
}

#[derive(Deserialize)]
pub(crate) struct Item {
    pub(crate) seq: u64,
    pub(crate) attempt: u32,
    /// As it came.
    pub(crate) item: Box<RawValue>,
}

impl Streaming {
    pub(crate) fn new(client: &Client, id: &str, kind: Kind) -> Streaming {
        let path = format!("/api/v1/runs/{}/output", escape(id));
        Streaming { client: client.clone(), path, kind, after: 0 }
    }

    /// What follows what was read before. With `wait`, once there is something, at most so long.
    pub(crate) fn next(&mut self, wait: Option<Duration>) -> Result<Page, Trouble> {
        let (after, wait) = (self.after.to_string(), wait.map(|wait| (format!("{}ms", wait.as_millis()), wait)));
        let mut query = vec![("after", after.as_str()), ("limit", "1000"), ("kind", self.kind.as_str())];
        query.extend(wait.as_ref().map(|(text, _)| ("wait", text.as_str())));
        let span = wait.as_ref().map_or(MARGIN, |(_, span)| *span + MARGIN);
        let answer = self.client.get_within(&self.path, &query, span)?;
        let page: Page = serde_json::from_str(answer.raw.get()).map_err(|error| self.client.broken(&error))?;
        if page.first > self.after + 1 {
            let lost = page.first - self.after - 1;
            term::warn(&format!("everbeat: {lost} of the oldest items that the run streamed are no longer kept"));
        }
        self.after = page.items.last().map_or(page.last, |item| item.seq).max(self.after).max(page.first - 1);
        Ok(page)
    }
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Kind::Output => "output",
            Kind::Log => "log",
        }
    }
}
