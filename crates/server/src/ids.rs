use crate::app::App;
use crate::params::{Params, bad};
use crate::problem::Result;
use crate::schema::FindableName;
use axum::Json as Answer;
use axum::extract::State;
use everbeat_engine::{Findable, Match};
use everbeat_model::run::check_key;
use everbeat_model::{Invalid, StoreTime};
use serde::Serialize;
use std::borrow::Cow;
use utoipa::ToSchema;
use uuid::Uuid;

/// What fits, newest first.
#[derive(Serialize, ToSchema)]
#[schema(as = Matches)]
pub(crate) struct MatchesJson {
    items: Vec<MatchJson>,
    /// There are more than are told.
    more: bool,
}

/// Something that an id, a part of one or a name stands for.
#[derive(Serialize, ToSchema)]
#[schema(as = Match)]
struct MatchJson {
    id: Uuid,
    #[schema(value_type = FindableName)]
    kind: &'static str,
    /// Of a job its own or its program, of a run its task, of an execution its graph, of a replica its host, of a
    /// verdict its reason, of a worker its pool or its host.
    name: String,
    #[schema(value_type = String)]
    state: Cow<'static, str>,
    #[schema(value_type = String, format = DateTime)]
    created_at: StoreTime,
}

impl From<Match> for MatchJson {
    fn from(Match { id, kind, name, state, at }: Match) -> MatchJson {
        MatchJson { id, kind: kind.as_str(), name, state, created_at: at }
    }
}

/// What an id, at least four of its first or last characters, or the name of a job stands for. Last characters and
/// names are looked for among the newest 10,000 of each kind and among what runs.
#[utoipa::path(get, path = "/api/v1/ids", tag = "ids",
    params(
        ("match" = String, Query, min_length = 1, max_length = 500, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"),
        ("kind" = inline(Option<Vec<FindableName>>), Query, description = "Only these; repeatable"),
    ),
    responses((status = 200, body = MatchesJson)))]
pub(crate) async fn find_ids(State(app): State<App>, params: Params) -> Result<Answer<MatchesJson>> {
    let params = params.only_with(&["match"], &["kind"])?;
    let text = params.get("match", |text| check_key("match", text).map(|()| text.to_string()))?;
    let text = text.ok_or_else(|| {
        let hint = "give an id, a part of one, or the name of a job: ?match=nightly";
        bad(Invalid::new("match", "nothing", "is missing", hint))
    })?;
    let kinds = params.all("kind", |text| {
        Findable::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or_else(|| {
            let known = Findable::ALL.map(Findable::as_str).join(", ");
            Invalid::new("", format!("{text:?}"), "is not one of the known values", format!("use one of {known}"))
        })
    })?;
    let kinds = if kinds.is_empty() { Findable::ALL.to_vec() } else { kinds };
    let matches = app.engine.find(&text, &kinds).await?;
    Ok(Answer(MatchesJson { items: matches.found.into_iter().map(MatchJson::from).collect(), more: matches.more }))
}
