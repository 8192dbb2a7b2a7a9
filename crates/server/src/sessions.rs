//! Sessions: what a run says of its own, and those that a pool holds.

use crate::app::App;
use crate::page::{FEW, Page, limit, text_cursor};
use crate::params::{OfPool, Params, Segment, bad};
use crate::pools::find;
use crate::problem::Result;
use crate::schema::AffinityName;
use axum::Json;
use axum::extract::State;
use everbeat_engine::pools::SessionView;
use everbeat_model::session::{Affinity, check_session_key};
use everbeat_model::time::format_duration;
use everbeat_model::{Session, SessionId, StoreTime, WorkerId};
use serde::Serialize;
use utoipa::ToSchema;

/// The session that a run belongs to: runs of the same key are performed by the same worker of a pool.
#[derive(Serialize, ToSchema)]
#[schema(as = RunSession)]
pub(crate) struct OfRun {
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    key: String,
    /// With `hint`, which counts unless given, another worker performs the run if that of the session is busy, and the
    /// session moves there. With `strict` the run waits for the worker of the session for as long as that lives.
    #[schema(value_type = Option<AffinityName>)]
    affinity: &'static str,
    /// The session is over after so long without a run: 1 s to 7 d. As its pool says, unless given.
    ttl: Option<String>,
}

impl From<&Session> for OfRun {
    fn from(session: &Session) -> OfRun {
        OfRun { key: session.key.clone(), affinity: session.affinity.as_str(), ttl: session.ttl.map(format_duration) }
    }
}

/// A session of a pool of the replica that answers.
#[derive(Serialize, ToSchema)]
#[schema(as = Session)]
pub(crate) struct SessionJson {
    key: String,
    /// Another one each time that a session of this key begins.
    #[schema(value_type = Uuid)]
    id: SessionId,
    #[schema(value_type = Uuid)]
    worker_id: WorkerId,
    #[schema(value_type = AffinityName)]
    affinity: &'static str,
    #[schema(value_type = String, format = DateTime)]
    begun_at: StoreTime,
    #[schema(value_type = String, format = DateTime)]
    last_used_at: StoreTime,
    /// When it is over unless it is used; absent while something is performed in it.
    #[schema(required, value_type = Option<String>, format = DateTime)]
    expires_at: Option<StoreTime>,
    /// Somebody has asked for its end: it is over when nothing is performed in it.
    ending: bool,
}

impl From<SessionView> for SessionJson {
    fn from(view: SessionView) -> SessionJson {
        let affinity = if view.strict { Affinity::Strict } else { Affinity::Hint };
        SessionJson {
            key: view.key,
            id: view.id,
            worker_id: view.worker,
            affinity: affinity.as_str(),
            begun_at: view.begun_at,
            last_used_at: view.last_used_at,
            expires_at: view.expires_at,
            ending: view.ending,
        }
    }
}

/// The sessions that the workers of a pool hold, by key.
#[utoipa::path(get, path = "/api/v1/pools/{name}/sessions", tag = "pools",
    params(
        ("name" = String, Path, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the part before"),
    ),
    responses((status = 200, body = Page<SessionJson>), (status = 404, description = "This replica has no such pool")))]
pub(crate) async fn list_sessions(
    State(app): State<App>,
    name: Segment,
    params: Params,
) -> Result<Json<Page<SessionJson>>> {
    let params = params.only(&["limit", "cursor"])?;
    let (limit, after) = (limit(&params, FEW)?, text_cursor(&params)?);
    let pool = find(&app, name)?;
    let sessions = app.engine.sessions(&pool.name, after.as_deref(), limit + 1).unwrap_or_default();
    let sessions = sessions.into_iter().map(SessionJson::from).collect();
    Ok(Json(Page::cut(sessions, limit, |session: &SessionJson| session.key.clone())))
}

/// Ends a session: at once, or when what is performed in it has ended. The next run of its key begins another.
#[utoipa::path(delete, path = "/api/v1/pools/{name}/sessions/{key}", tag = "pools",
    params(
        ("name" = String, Path, min_length = 1, max_length = 200, pattern = r"^[^\s\x00-\x1f\x7f-\x9f]+$"),
        ("key" = String, Path, min_length = 1, max_length = 200, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"),
    ),
    responses(
        (status = 200, body = SessionJson, description = "As it was"),
        (status = 404, description = "This replica has no such pool, or the pool no such session"),
    ))]
pub(crate) async fn end_session(State(app): State<App>, of: OfPool, params: Params) -> Result<Json<SessionJson>> {
    params.only(&[])?;
    let pool = find(&app, Segment(of.name))?;
    check_session_key("key", &of.key).map_err(bad)?;
    Ok(Json(app.engine.end_session(&pool.name, &of.key)?.into()))
}
