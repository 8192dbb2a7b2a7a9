//! The log of events as a stream that can be taken up again where it broke off.

use crate::app::App;
use crate::limits::LONGEST_STREAM;
use crate::params::{Params, bad};
use crate::problem::{Kind, Problem, Result};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use everbeat_engine::within;
use everbeat_model::run::check_name;
use everbeat_model::{BootInstant, Event, Invalid, Json};
use everbeat_store::WakeSignal;
use futures_util::stream;
use serde_json::json;
use std::convert::Infallible;
use std::fmt::Write;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// Events as they happen, after `Last-Event-ID` (or `after`) if given, else from now on. The event
/// `gap` says that some in between are no longer kept. A place that this log has not reached is refused.
#[utoipa::path(get, path = "/api/v1/events", tag = "events",
    params(
        ("after" = Option<u64>, Query, description = "The id of the last event already seen"),
        ("Last-Event-ID" = Option<u64>, Header, description = "The same; it wins over `after`"),
        ("follow" = Option<bool>, Query, description = "`false` ends the stream at what is newest now; `true` if absent"),
        ("kind" = Option<Vec<String>>, Query, max_items = 50,
            description = "Only of this kind, like `run.failed`, or of all kinds of a noun, like `run`; if repeated, of any of them"),
        ("subject" = Option<Vec<String>>, Query, max_items = 50,
            description = "Only of what has this id or name; if repeated, of any of them"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 100000, description = "The stream ends after so many events"),
    ),
    responses((status = 200, body = String, content_type = "text/event-stream",
        description = "Server-sent events: `id`, `event` (the kind) and `data` (the event as JSON)")))]
pub(crate) async fn follow_events(State(app): State<App>, headers: HeaderMap, params: Params) -> Result<Response> {
    let params = params.only_with(&["after", "follow", "limit"], &["kind", "subject"])?;
    let filter = Filter { kinds: words(&params, "kind")?, subjects: words(&params, "subject")? };
    let limit = params.get("limit", read_limit)?;
    let follow = params.flag("follow")?.unwrap_or(true);
    let in_query = params.get("after", read_id)?;
    let in_header = headers.get("last-event-id").map(|value| read_id(value.to_str().unwrap_or("?")));
    let named = |invalid: Invalid| bad(Invalid { field: "Last-Event-ID".to_string(), ..invalid });
    let asked = in_header.transpose().map_err(named)?.or(in_query);
    let place = app.streams.clone().try_acquire_owned().map_err(|_| {
        let hint = "end another stream, or ask another replica";
        Problem::new(Kind::TooBusy, "too many streams of events are open", hint)
    })?;
    let newest = app.engine.store().last_event().await?;
    if let Some(ahead) = asked.filter(|asked| *asked > newest) {
        // The client knows of events that this store does not: another store, or an older copy.
        let field = if headers.contains_key("last-event-id") { "Last-Event-ID" } else { "after" };
        let hint = "use the id of an event of this log; without it events are told from now on";
        return Err(bad(Invalid::new(field, ahead, format!("is beyond the newest event, {newest}"), hint)));
    }
    let mut follower = Follower::new(app, place, asked.unwrap_or(newest));
    (follower.filter, follower.left) = (filter, limit);
    follower.until = (!follow).then_some(newest);
    let body = Body::from_stream(stream::unfold(follower, |mut follower| async {
        let chunk = follower.next().await?;
        Some((Ok::<Bytes, Infallible>(chunk), follower))
    }));
    Ok(([(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")], body).into_response())
}

fn read_id(text: &str) -> std::result::Result<u64, Invalid> {
    let hint = "use the id of an event, a whole number";
    // Stores count in 64 bits with a sign.
    let id = text.parse::<u64>().ok().filter(|id| i64::try_from(*id).is_ok());
    id.ok_or_else(|| Invalid::new("", format!("{text:?}"), "is not an event id", hint))
}

/// More than this is followed in several streams.
const MOST_EVENTS: u64 = 100_000;
/// Kinds and subjects that one stream is told apart by.
const MOST_WORDS: usize = 50;

fn read_limit(text: &str) -> std::result::Result<u64, Invalid> {
    let limit = text.parse().ok().filter(|limit| (1..=MOST_EVENTS).contains(limit));
    let hint = format!("use a whole number from 1 to {MOST_EVENTS}");
    limit.ok_or_else(|| Invalid::new("", format!("{text:?}"), "is out of range", hint))
}

fn words(params: &Params, name: &str) -> Result<Vec<String>> {
    let words = params.all(name, |text| check_name("", text).map(|()| text.to_string()))?;
    if words.len() > MOST_WORDS {
        let hint = format!("give at most {MOST_WORDS}, or leave it out and choose yourself");
        return Err(bad(Invalid::new(name, words.len(), "is given too often", hint)));
    }
    Ok(words)
}

/// Which events are told. An empty list asks for all.
#[derive(Default)]
struct Filter {
    kinds: Vec<String>,
    subjects: Vec<String>,
}

impl Filter {
    fn takes(&self, event: &Event) -> bool {
        let noun = event.kind.split('.').next().unwrap_or_default();
        (self.kinds.is_empty() || self.kinds.iter().any(|kind| *kind == event.kind || kind == noun))
            && (self.subjects.is_empty() || self.subjects.contains(&event.subject))
    }
}

/// One follower: where it is in the log, and what it has to say first.
struct Follower {
    app: App,
    wakes: WakeSignal,
    _place: OwnedSemaphorePermit,
    after: u64,
    /// The last event that is asked for; none: whatever comes.
    until: Option<u64>,
    filter: Filter,
    /// So many more are told; none: all.
    left: Option<u64>,
    /// The place in the log for which a gap was already told.
    gap_told: Option<u64>,
    pending: String,
    ends: BootInstant,
}

/// Events in one look at the store, more or less.
const LOOK: usize = 500;
/// Hints close together are answered by one look.
const PAUSE: Duration = Duration::from_millis(20);
/// A silent stream says so, for the proxies in between.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

impl Follower {
    fn new(app: App, place: OwnedSemaphorePermit, after: u64) -> Follower {
        Follower {
            wakes: app.engine.store().wakes(),
            ends: app.engine.env().boot() + LONGEST_STREAM,
            app,
            _place: place,
            after,
            until: None,
            filter: Filter::default(),
            left: None,
            gap_told: None,
            // Answers at once, so that the client knows that it is connected.
            pending: "retry: 1000\n\n".to_string(),
        }
    }

    /// The next piece of the stream; none at its end.
    async fn next(&mut self) -> Option<Bytes> {
        let env = self.app.engine.env().clone();
        let poll = self.app.engine.settings().poll_interval.max(PAUSE);
        let silent_until = env.boot() + KEEP_ALIVE;
        loop {
            if !self.pending.is_empty() {
                return Some(std::mem::take(&mut self.pending).into());
            }
            let now = env.boot();
            let read_all = self.until.is_some_and(|until| self.after >= until) || self.left == Some(0);
            if read_all || self.app.closing() || now >= self.ends {
                return None;
            }
            if self.look().await {
                continue;
            }
            if now >= silent_until {
                return Some(Bytes::from_static(b":\n\n"));
            }
            let app = self.app.clone();
            let hinted = async {
                tokio::select! {
                    biased;
                    () = app.closed() => {}
                    () = self.wakes.wait() => env.sleep(PAUSE).await,
                }
            };
            within(&*env, poll, hinted).await;
        }
    }

    /// Takes what is new from the store; answers whether there was something, told or not. A store that is out
    /// is asked again later.
    async fn look(&mut self) -> bool {
        let page = match self.app.engine.store().events(self.after, LOOK).await {
            Ok(page) => page,
            Err(error) => {
                tracing::debug!(%error, "a follower of events could not look");
                return false;
            }
        };
        if page.gap && self.gap_told != Some(self.after) {
            self.tell_gap(page.events.first().map_or(self.after, |event| event.id));
        }
        for event in page.events.iter().filter(|event| self.until.is_none_or(|until| event.id <= until)) {
            if self.left == Some(0) {
                break;
            }
            self.after = event.id;
            if self.filter.takes(event) {
                self.left = self.left.map(|left| left - 1);
                tell(&mut self.pending, event);
            }
        }
        if let (Some(until), Some(last)) = (self.until, page.events.last())
            && last.id > until
        {
            // What it ends at is not kept any more.
            self.after = self.after.max(until);
        }
        !page.events.is_empty() || !self.pending.is_empty()
    }

    fn tell_gap(&mut self, next: u64) {
        self.gap_told = Some(self.after);
        let data = json!({ "after": self.after, "next": next });
        _ = write!(self.pending, "event: gap\ndata: {data}\n\n");
    }
}

fn tell(text: &mut String, event: &Event) {
    _ = write!(text, "id: {}\nevent: {}\ndata: {}\n\n", event.id, event.kind, Json::of(event));
}
