//! The output of commands, as it is on the disk of their host.

use crate::app::App;
use crate::limits::LONGEST_STREAM;
use crate::outputs;
use crate::params::{Params, Segment, bad};
use crate::problem::Result;
use crate::schema::StreamName;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use everbeat_engine::{Error, LogChunk, LogFrom, RunView, Stream};
use everbeat_model::{BootInstant, Invalid, RunId};
use everbeat_store::Class;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream;
use std::io;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// Where in its stream a body begins, so that a client whose connection broke can go on.
const OFFSET: HeaderName = HeaderName::from_static("everbeat-log-offset");

/// The output of a job, byte for byte: `stdout`, then `stderr`; or only one of them.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/logs", tag = "jobs",
    params(
        ("id" = Uuid, Path),
        ("stream" = inline(Option<StreamName>), Query, description = "Both unless given"),
        ("tail" = Option<u32>, Query, minimum = 0, maximum = 1000000, description = "Only the last so many lines"),
        ("offset" = Option<u64>, Query, minimum = 0, maximum = 9223372036854775807_i64,
            description = "Where to begin, counted from the first byte that the job ever wrote to the `stream`, \
                which must be named"),
        ("follow" = Option<bool>, Query,
            description = "Go on until the job is finished. A body that breaks off is not complete: go on with `offset`"),
    ),
    responses(
        (status = 200, body = String, content_type = "text/plain",
            headers(("everbeat-log-offset" = u64, description = "With `stream`: where in it the body begins"))),
        (status = 404, description = "No such job"),
        (status = 409, description = "Its output is on another host, was cleaned, or cannot be read"),
    ))]
pub(crate) async fn get_job_logs(State(app): State<App>, id: Segment, params: Params) -> Result<Response> {
    let asked = Asked::read(params)?;
    let id: RunId = id.id()?;
    let missing = || Error::NotFound { what: "job", id: id.to_string() };
    let run = match app.engine.run(id).await {
        Err(Error::NotFound { .. }) => return Err(missing().into()),
        run => run?,
    };
    if !run.run.spec.detached() {
        return Err(missing().into());
    }
    answer(app, run, asked).await
}

/// The output of a run, as text: of a command what it wrote, byte for byte, of any other run the lines of its log. Those
/// have neither a `stream` nor an `offset`; whoever wants to go on with them where a connection broke follows
/// `/api/v1/runs/{id}/output?kind=log`.
#[utoipa::path(get, path = "/api/v1/runs/{id}/logs", tag = "runs",
    params(
        ("id" = Uuid, Path),
        ("stream" = inline(Option<StreamName>), Query, description = "Both unless given"),
        ("tail" = Option<u32>, Query, minimum = 0, maximum = 1000000, description = "Only the last so many lines"),
        ("offset" = Option<u64>, Query, minimum = 0, maximum = 9223372036854775807_i64,
            description = "Where to begin, counted from the first byte that the command ever wrote to the `stream`, \
                which must be named"),
        ("follow" = Option<bool>, Query,
            description = "Go on until the run is finished. A body that breaks off is not complete: go on with `offset`"),
    ),
    responses(
        (status = 200, body = String, content_type = "text/plain",
            headers(("everbeat-log-offset" = u64, description = "With `stream`: where in it the body begins"))),
        (status = 404, description = "No such run"),
        (status = 409, description = "Its output is on another host, was cleaned, or cannot be read"),
    ))]
pub(crate) async fn get_logs(State(app): State<App>, id: Segment, params: Params) -> Result<Response> {
    let asked = Asked::read(params)?;
    let run = app.engine.run(id.id()?).await?;
    if run.run.spec.detached() {
        return answer(app, run, asked).await;
    }
    let refuse = |name: &str, value: String| {
        let problem =
            format!("means nothing here: run {} is a {}, not a command", run.run.id, run.run.spec.kind.as_str());
        Err(bad(Invalid::new(name, value, problem, "leave it out, or follow /output?kind=log&after=SEQ")))
    };
    let tail = match (asked.stream, asked.from) {
        (Some(stream), _) => return refuse("stream", stream.as_str().to_string()),
        (None, LogFrom::Tail(lines)) => Some(lines),
        (None, LogFrom::Offset(_) | LogFrom::Attempt) => None,
    };
    outputs::log(app, run.run.id, tail, asked.follow).await
}

/// What a request for output wants.
struct Asked {
    stream: Option<Stream>,
    from: LogFrom,
    follow: bool,
}

const MOST_TAIL: usize = 1_000_000;

impl Asked {
    fn read(params: Params) -> Result<Asked> {
        let params = params.only(&["stream", "tail", "offset", "follow"])?;
        let stream = params.word("stream", &Stream::BOTH, Stream::as_str)?;
        let tail = params.get("tail", |text| {
            let hint = format!("use a number of lines from 0 to {MOST_TAIL}");
            let lines = text.parse().ok().filter(|lines| *lines <= MOST_TAIL);
            lines.ok_or_else(|| Invalid::new("", format!("{text:?}"), "is out of range", hint))
        })?;
        let offset = params.get("offset", |text| {
            let hint = "use a number of bytes, like the one in the header everbeat-log-offset";
            let offset = text.parse::<u64>().ok().filter(|offset| i64::try_from(*offset).is_ok());
            offset.ok_or_else(|| Invalid::new("", format!("{text:?}"), "is not an offset", hint))
        })?;
        let follow = params.flag("follow")?.unwrap_or(false);
        let refuse = |offset: u64, problem, hint| Err(bad(Invalid::new("offset", offset, problem, hint)));
        let from = match (tail, offset, stream) {
            (Some(_), Some(offset), _) => return refuse(offset, "stands beside tail", "give one of the two"),
            (_, Some(offset), None) => {
                return refuse(offset, "does not say of which stream", "add stream=stdout or stream=stderr");
            }
            (None, Some(offset), Some(_)) => LogFrom::Offset(offset),
            (Some(lines), None, _) => LogFrom::Tail(lines),
            (None, None, _) => LogFrom::Offset(0),
        };
        Ok(Asked { stream, from, follow })
    }
}

async fn answer(app: App, run: RunView, asked: Asked) -> Result<Response> {
    // Without a place its body breaks off where there is nothing new, and its client comes again.
    let place = asked.follow.then(|| app.followers.clone().try_acquire_owned().ok()).flatten();
    let mut reader = Reader::new(app, place, run, &asked);
    // What cannot be read at all is refused before anything is sent.
    let (offset, first) = reader.begin().await?;
    let body = Body::from_stream(stream::unfold((Some(first), reader), |(first, mut reader)| async {
        let piece = match first.filter(|first| !first.is_empty()) {
            Some(first) => Ok(first),
            None => reader.next().await.transpose()?,
        };
        Some((piece, (None, reader)))
    }));
    let mut response = ([(CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response();
    if asked.stream.is_some() {
        response.headers_mut().insert(OFFSET, HeaderValue::from(offset));
    }
    Ok(response)
}

/// One reader of a job's output. Whoever follows gets all of it, or a body that breaks off.
struct Reader {
    app: App,
    /// Its place among those who follow.
    place: Option<OwnedSemaphorePermit>,
    run: RunView,
    places: Vec<Place>,
    /// The stream that is looked at next.
    turn: usize,
    follow: bool,
    /// The run was finished before the last look at its output began.
    over: bool,
    waiting: Option<Waiting>,
    slice: Duration,
    ends: BootInstant,
}

type Waiting = BoxFuture<'static, everbeat_engine::Result<RunView>>;

/// How far a stream is read.
struct Place {
    stream: Stream,
    from: LogFrom,
    /// Where it ended when it was first looked at.
    end: Option<u64>,
}

/// One look reads no more, in bytes.
const CHUNK: usize = 256 << 10;
/// So long somebody without a place among the followers is kept before it may ask again.
const WITHOUT_PLACE: Duration = Duration::from_millis(500);
/// So often somebody who follows looks for more.
const POLL: Duration = Duration::from_millis(150);
/// So long the end of a run is awaited before the run itself is looked at again.
const SLICE: Duration = Duration::from_secs(10);
/// The same before it has begun anywhere: at first, and at most.
const FIRST_SLICE: Duration = Duration::from_millis(100);
const LONGEST_SLICE: Duration = Duration::from_secs(2);
/// A store that is out is asked again after this.
const AGAIN: Duration = Duration::from_secs(1);

impl Reader {
    fn new(app: App, place: Option<OwnedSemaphorePermit>, run: RunView, asked: &Asked) -> Reader {
        let streams = Stream::BOTH.into_iter().filter(|stream| asked.stream.is_none_or(|wanted| wanted == *stream));
        Reader {
            ends: app.engine.env().boot() + LONGEST_STREAM,
            place,
            places: streams.map(|stream| Place { stream, from: asked.from, end: None }).collect(),
            turn: 0,
            follow: asked.follow,
            over: run.run.state.finished(),
            waiting: None,
            slice: FIRST_SLICE,
            app,
            run,
        }
    }

    /// The first look, and where in its stream it begins.
    async fn begin(&mut self) -> everbeat_engine::Result<(u64, Bytes)> {
        let chunk = self.look(0).await?;
        let offset = chunk.offset;
        Ok((offset, self.take(0, chunk)))
    }

    /// The next piece; none at the end.
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        if self.follow { self.next_as_it_comes().await } else { self.next_of_what_is_there().await }
    }

    /// One stream after the other, each as far as it went when it was first looked at.
    async fn next_of_what_is_there(&mut self) -> io::Result<Option<Bytes>> {
        while self.turn < self.places.len() {
            let place = &self.places[self.turn];
            let read_all = matches!((place.from, place.end), (LogFrom::Offset(at), Some(end)) if at >= end);
            let piece = if read_all { Bytes::new() } else { self.piece(self.turn).await? };
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
            self.turn += 1;
        }
        Ok(None)
    }

    /// From all streams, until the run is finished and nothing more comes.
    async fn next_as_it_comes(&mut self) -> io::Result<Option<Bytes>> {
        let app = self.app.clone();
        let env = app.engine.env().clone();
        loop {
            if app.closing() {
                return Err(io::Error::other("the server ends"));
            }
            if env.boot() >= self.ends {
                return Err(io::Error::other("the stream was open for long enough"));
            }
            for _ in 0..self.places.len() {
                let turn = self.turn;
                // The other stream is next, so that a busy one does not silence it.
                self.turn = (turn + 1) % self.places.len();
                let piece = self.piece(turn).await?;
                if !piece.is_empty() {
                    return Ok(Some(piece));
                }
            }
            if self.over {
                return Ok(None);
            }
            if self.place.is_none() {
                env.sleep(WITHOUT_PLACE).await;
                return Err(io::Error::other("too many follow: come again"));
            }
            let waiting = self.waiting();
            let looked = tokio::select! {
                biased;
                () = app.closed() => continue,
                looked = waiting => looked,
                () = env.sleep(POLL) => continue,
            };
            self.waiting = None;
            match looked {
                Ok(run) => {
                    self.over = run.run.state.finished();
                    self.run = run;
                }
                Err(error) if error.class() == Class::Unavailable => env.sleep(AGAIN).await,
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }

    /// A wait for the end of the run, taken up again with every look.
    fn waiting(&mut self) -> &mut Waiting {
        self.waiting.get_or_insert_with(|| {
            let span = match self.run.run.spec.host {
                Some(_) => SLICE,
                None => {
                    let longer = (self.slice * 2).min(LONGEST_SLICE);
                    std::mem::replace(&mut self.slice, longer)
                }
            };
            let (engine, id) = (self.app.engine.clone(), self.run.run.id);
            async move { engine.wait(id, span).await }.boxed()
        })
    }

    /// What is new in a stream. What a single stream has lost since the last look breaks the body off: its
    /// client counts bytes, and learns from a new answer where it is.
    async fn piece(&mut self, turn: usize) -> io::Result<Bytes> {
        let chunk = self.look(turn).await.map_err(io::Error::other)?;
        let expected = match self.places[turn].from {
            LogFrom::Offset(at) => at,
            LogFrom::Tail(_) | LogFrom::Attempt => chunk.offset,
        };
        if self.places.len() == 1 && !chunk.bytes.is_empty() && chunk.offset != expected {
            return Err(io::Error::other("the output was rotated away before it was sent"));
        }
        Ok(self.take(turn, chunk))
    }

    async fn look(&mut self, turn: usize) -> everbeat_engine::Result<LogChunk> {
        let place = &self.places[turn];
        self.app.engine.output_of(&self.run, place.stream, place.from, CHUNK).await
    }

    /// Notes how far a stream is read.
    fn take(&mut self, turn: usize, chunk: LogChunk) -> Bytes {
        let place = &mut self.places[turn];
        let mut bytes = chunk.bytes;
        let first = place.end.is_none();
        let end = *place.end.get_or_insert(chunk.end);
        if !self.follow {
            let left = usize::try_from(end.saturating_sub(chunk.offset)).unwrap_or(usize::MAX);
            bytes.truncate(left);
        }
        if first || !bytes.is_empty() {
            place.from = LogFrom::Offset(chunk.offset + bytes.len() as u64);
        }
        bytes.into()
    }
}
