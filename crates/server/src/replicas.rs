use crate::app::App;
use crate::page::{Page, whole_limit};
use crate::params::{Params, Segment};
use crate::problem::Result;
use crate::schema::{LivenessName, ReplicaStateName};
use axum::Json;
use axum::extract::State;
use everbeat_engine::{Engine, Error, Liveness};
use everbeat_model::replica::ReplicaState;
use everbeat_model::time::format_duration;
use everbeat_model::{Replica, ReplicaId, StoreTime};
use serde::Serialize;
use utoipa::ToSchema;

/// One boot of one server.
#[derive(Serialize, ToSchema)]
#[schema(as = Replica)]
pub(crate) struct ReplicaJson {
    #[schema(value_type = Uuid)]
    id: ReplicaId,
    host: String,
    /// The machine on which it runs; absent where it is not known.
    #[schema(required)]
    machine: Option<String>,
    /// What should be changed about how it was started.
    #[schema(required)]
    problem: Option<&'static str>,
    version: String,
    #[schema(value_type = ReplicaStateName)]
    state: ReplicaState,
    #[schema(value_type = String, format = DateTime)]
    started_at: StoreTime,
    #[schema(value_type = String, format = DateTime)]
    last_heartbeat_at: StoreTime,
    /// How many runs it holds.
    running: u64,
    /// As the answering replica sees it; absent of one that is gone.
    #[schema(required, value_type = Option<LivenessName>)]
    liveness: Option<Liveness>,
    /// Its wall clock against the store's when it joined.
    clock_skew_ms: i64,
    heartbeat_interval: String,
    heartbeat_timeout: String,
}

const ESTRANGED: &str = "another server of this store runs on its machine with another data folder: when one is killed, \
                         the other cannot take its jobs over; give both the same --data-dir";

impl ReplicaJson {
    fn of(engine: &Engine, replica: Replica, all: &[Replica]) -> ReplicaJson {
        ReplicaJson {
            problem: all.iter().any(|other| replica.estranged(other)).then_some(ESTRANGED),
            machine: replica.machine.clone(),
            liveness: engine.liveness_of(&replica),
            id: replica.id,
            host: replica.host,
            version: replica.version,
            state: replica.state,
            started_at: replica.started_at,
            last_heartbeat_at: replica.last_heartbeat_at,
            running: replica.running,
            clock_skew_ms: replica.clock_skew_ms,
            heartbeat_interval: format_duration(replica.heartbeat_interval),
            heartbeat_timeout: format_duration(replica.heartbeat_timeout),
        }
    }
}

/// Replicas by id, those that are gone included until they are forgotten.
#[utoipa::path(get, path = "/api/v1/replicas", tag = "replicas",
    params(
        ("state" = inline(Option<ReplicaStateName>), Query),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<Uuid>, Query, description = "`next_cursor` of the part before"),
    ),
    responses((status = 200, body = Page<ReplicaJson>)))]
pub(crate) async fn list_replicas(State(app): State<App>, params: Params) -> Result<Json<Page<ReplicaJson>>> {
    let params = params.only(&["state", "limit", "cursor"])?;
    let state = params.word("state", &ReplicaState::ALL, ReplicaState::as_str)?;
    let (limit, after) = (whole_limit(&params)?, params.id::<ReplicaId>("cursor")?);
    let replicas = app.engine.store().replicas().await?;
    let wanted = replicas.iter().filter(|replica| state.is_none_or(|state| replica.state == state));
    let items = wanted.map(|replica| ReplicaJson::of(&app.engine, replica.clone(), &replicas));
    Ok(Json(Page::of_whole(items, limit, after, |replica| replica.id)))
}

#[utoipa::path(get, path = "/api/v1/replicas/{id}", tag = "replicas", params(("id" = Uuid, Path)),
    responses((status = 200, body = ReplicaJson), (status = 404, description = "No such replica")))]
pub(crate) async fn get_replica(State(app): State<App>, id: Segment, params: Params) -> Result<Json<ReplicaJson>> {
    params.only(&[])?;
    show(&app, id.id()?).await
}

/// Asks a replica to stop claiming, let its work finish, and leave.
#[utoipa::path(post, path = "/api/v1/replicas/{id}/drain", tag = "replicas", params(("id" = Uuid, Path)),
    responses(
        (status = 200, body = ReplicaJson),
        (status = 404, description = "No such replica"),
        (status = 409, description = "It is not active"),
    ))]
pub(crate) async fn drain_replica(State(app): State<App>, id: Segment, params: Params) -> Result<Json<ReplicaJson>> {
    params.only(&[])?;
    let id = id.id()?;
    app.engine.drain_replica(id).await?;
    show(&app, id).await
}

async fn show(app: &App, id: ReplicaId) -> Result<Json<ReplicaJson>> {
    let replicas = app.engine.store().replicas().await?;
    let replica = replicas.iter().find(|replica| replica.id == id).cloned();
    let missing = || Error::NotFound { what: "replica", id: id.to_string() };
    Ok(Json(ReplicaJson::of(&app.engine, replica.ok_or_else(missing)?, &replicas)))
}
