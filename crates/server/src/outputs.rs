//! What runs stream: pieces of their results, and the lines of their logs.

use crate::app::App;
use crate::limits::LONGEST_STREAM;
use crate::page::{FEW, limit};
use crate::params::{Params, Segment};
use crate::problem::Result;
use crate::runs::read_timeout;
use crate::schema::OutputKindName;
use axum::Json as Answer;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use everbeat_engine::OutputView;
use everbeat_model::output::OutputKind;
use everbeat_model::{BootInstant, Invalid, Json, RunId, StoreTime};
use everbeat_store::{Class, OutputFilter, Streamed};
use futures_util::stream;
use serde::Serialize;
use std::collections::VecDeque;
use std::io;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use utoipa::ToSchema;

/// A part of what a run has streamed.
#[derive(Serialize, ToSchema)]
#[schema(as = Output)]
pub(crate) struct OutputJson {
    /// Oldest first. To go on, ask for those `after` the last of these; if there is none, `after` `last`.
    items: Vec<ItemJson>,
    /// The number of the oldest item that is kept, of whatever kind. Of much only the newest is kept.
    first: u64,
    /// The number of the newest item of the run, of whatever kind; 0 if there is none.
    last: u64,
    /// The run is finished, and nothing follows these items.
    finished: bool,
}

/// Something that an attempt streamed.
#[derive(Serialize, ToSchema)]
#[schema(as = OutputItem)]
struct ItemJson {
    /// Rises within the run, across its attempts.
    seq: u64,
    attempt: u32,
    /// When it was stored.
    #[schema(value_type = String, format = DateTime)]
    at: StoreTime,
    /// As it was streamed; a line of a log is a string.
    #[schema(value_type = Value)]
    item: Json,
}

impl From<Streamed> for ItemJson {
    fn from(streamed: Streamed) -> ItemJson {
        let Streamed { seq, attempt, at, kind, text } = streamed;
        let item = match kind {
            OutputKind::Output => Json::stored(&*text),
            OutputKind::Log => Json::of(&*text),
        };
        ItemJson { seq, attempt, at, item }
    }
}

/// An answer ends with the item by which it has as many bytes.
const MOST_BYTES: usize = 4 << 20;

/// What a run has streamed, from any attempt, while it runs and as long as it is kept. With `wait`, once there is more.
#[utoipa::path(get, path = "/api/v1/runs/{id}/output", tag = "runs",
    params(
        ("id" = Uuid, Path),
        ("kind" = inline(Option<OutputKindName>), Query,
            description = "Pieces of the result, unless given; `log` for the lines of the log"),
        ("after" = Option<u64>, Query, minimum = 0, maximum = 9223372036854775807_i64,
            description = "Only items with a higher `seq`"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("wait" = Option<String>, Query, pattern = r"^[0-9]",
            description = "If there is nothing yet, wait so long for more or for the end of the run, at most `5m`; \
                a number means seconds. Then the answer has no items"),
    ),
    responses((status = 200, body = OutputJson), (status = 404, description = "No such run")))]
pub(crate) async fn get_output(State(app): State<App>, id: Segment, params: Params) -> Result<Answer<OutputJson>> {
    let params = params.only(&["kind", "after", "limit", "wait"])?;
    let filter = OutputFilter {
        run: id.id()?,
        kind: Some(params.word("kind", OutputKind::ALL, OutputKind::as_str)?.unwrap_or(OutputKind::Output)),
        after: params.get("after", read_after)?.unwrap_or(0),
        limit: limit(&params, FEW)?,
        bytes: MOST_BYTES,
    };
    let wait = params.get("wait", read_timeout)?;
    let OutputView { page, finished } = match wait {
        Some(wait) => app.wait(app.engine.streamed(filter, wait)).await?,
        None => app.engine.streamed(filter, Duration::ZERO).await?,
    };
    let items = page.items.into_iter().map(ItemJson::from).collect();
    Ok(Answer(OutputJson { items, first: page.first, last: page.last, finished }))
}

fn read_after(text: &str) -> std::result::Result<u64, Invalid> {
    let hint = "use the seq of an item, or 0";
    let after = text.parse::<u64>().ok().filter(|after| i64::try_from(*after).is_ok());
    after.ok_or_else(|| Invalid::new("", format!("{text:?}"), "is not a number of an item", hint))
}

/// The log of a run that is no command, as text, line by line.
pub(crate) async fn log(app: App, run: RunId, tail: Option<usize>, follow: bool) -> Result<Response> {
    // Without a place its body breaks off where there is nothing new, and its client comes again.
    let place = follow.then(|| app.followers.clone().try_acquire_owned().ok()).flatten();
    let ends = app.engine.env().boot() + LONGEST_STREAM;
    let mut lines = Lines { app, place, run, after: 0, follow, over: false, ends };
    let first = match tail {
        Some(most) => lines.tail(most).await?,
        None => Bytes::new(),
    };
    let body = Body::from_stream(stream::unfold((Some(first), lines), |(first, mut lines)| async {
        let piece = match first.filter(|first| !first.is_empty()) {
            Some(first) => Ok(first),
            None => lines.next().await.transpose()?,
        };
        Some((piece, (None, lines)))
    }));
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response())
}

/// One reader of a run's log. Whoever follows gets all that is kept of it, or a body that breaks off.
struct Lines {
    app: App,
    /// Its place among those who follow.
    place: Option<OwnedSemaphorePermit>,
    run: RunId,
    after: u64,
    follow: bool,
    over: bool,
    ends: BootInstant,
}

/// One look reads no more, in lines and in bytes.
const LINES: usize = 1000;
const CHUNK: usize = 256 << 10;
/// So long more is awaited before it is looked whether the reader should end.
const SLICE: Duration = Duration::from_secs(10);
/// So long somebody without a place among the followers is kept before it may ask again.
const WITHOUT_PLACE: Duration = Duration::from_millis(500);
/// A store that is out is asked again after this.
const AGAIN: Duration = Duration::from_secs(1);

impl Lines {
    /// The last lines that are there.
    async fn tail(&mut self, most: usize) -> everbeat_engine::Result<Bytes> {
        let mut last: VecDeque<Streamed> = VecDeque::new();
        loop {
            let view = self.look(Duration::ZERO).await?;
            if view.page.items.is_empty() {
                break;
            }
            last.extend(view.page.items);
            last.drain(..last.len().saturating_sub(most));
        }
        Ok(text(last.iter()))
    }

    /// The next piece; none at the end.
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        let env = self.app.engine.env().clone();
        while !self.over {
            if self.app.closing() {
                return Err(io::Error::other("the server ends"));
            }
            if env.boot() >= self.ends {
                return Err(io::Error::other("the stream was open for long enough"));
            }
            let waits = self.follow && self.place.is_some();
            let app = self.app.clone();
            let looked = tokio::select! {
                biased;
                () = app.closed() => continue,
                looked = self.look(if waits { SLICE } else { Duration::ZERO }) => looked,
            };
            match looked {
                Ok(view) if !view.page.items.is_empty() => return Ok(Some(text(view.page.items.iter()))),
                Ok(_) if !self.follow => return Ok(None),
                Ok(_) if self.over || waits => {}
                Ok(_) => {
                    env.sleep(WITHOUT_PLACE).await;
                    return Err(io::Error::other("too many follow: come again"));
                }
                Err(error) if error.class() == Class::Unavailable && self.follow => env.sleep(AGAIN).await,
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(None)
    }

    /// What is new, and how far the log is read then.
    async fn look(&mut self, wait: Duration) -> everbeat_engine::Result<OutputView> {
        let (run, after) = (self.run, self.after);
        let filter = OutputFilter { run, kind: Some(OutputKind::Log), after, limit: LINES, bytes: CHUNK };
        let view = self.app.engine.streamed(filter, wait).await?;
        self.after = view.page.items.last().map_or(view.page.last.max(after), |item| item.seq);
        self.over = view.finished;
        Ok(view)
    }
}

fn text<'a>(items: impl Iterator<Item = &'a Streamed>) -> Bytes {
    items.fold(String::new(), |text, item| text + &item.text + "\n").into()
}
