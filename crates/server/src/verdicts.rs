use crate::app::App;
use crate::page::{FEW, Page, limit};
use crate::params::{Params, Segment};
use crate::problem::Result;
use crate::schema::{JudgementName, SubjectKindName};
use axum::extract::State;
use everbeat_engine::Error;
use everbeat_model::verdict::{Judgement, SubjectKind};
use everbeat_model::{Json, ReplicaId, RunId, StoreTime, Verdict, VerdictId};
use everbeat_store::VerdictFilter;
use serde::Serialize;
use utoipa::ToSchema;

/// A judgement with its evidence and what followed.
#[derive(Serialize, ToSchema)]
#[schema(as = Verdict)]
pub(crate) struct VerdictJson {
    #[schema(value_type = Uuid)]
    id: VerdictId,
    #[schema(value_type = String, format = DateTime)]
    at: StoreTime,
    subject: SubjectJson,
    #[schema(value_type = JudgementName)]
    judgement: Judgement,
    /// A stable code.
    reason: String,
    #[schema(value_type = Value)]
    evidence: Json,
    #[schema(value_type = Uuid)]
    judged_by: ReplicaId,
    #[schema(required, value_type = Option<Uuid>)]
    run_id: Option<RunId>,
    #[schema(required)]
    attempt: Option<u32>,
    /// What followed, in words.
    then: String,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Subject)]
struct SubjectJson {
    #[schema(value_type = SubjectKindName)]
    kind: SubjectKind,
    id: String,
}

impl From<Verdict> for VerdictJson {
    fn from(verdict: Verdict) -> VerdictJson {
        let Verdict { id, at, subject, judgement, reason, evidence, judged_by, run_id, attempt, then } = verdict;
        let subject = SubjectJson { kind: subject.kind, id: subject.id };
        VerdictJson { id, at, subject, judgement, reason, evidence, judged_by, run_id, attempt, then }
    }
}

/// Judgements, newest first.
#[utoipa::path(get, path = "/api/v1/verdicts", tag = "verdicts",
    params(
        ("run_id" = Option<Uuid>, Query),
        ("subject" = Option<String>, Query, min_length = 1, max_length = 500, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$", description = "The id of what was judged"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<Uuid>, Query, description = "`next_cursor` of the part before"),
    ),
    responses((status = 200, body = Page<VerdictJson>)))]
pub(crate) async fn list_verdicts(State(app): State<App>, params: Params) -> Result<axum::Json<Page<VerdictJson>>> {
    let params = params.only(&["run_id", "subject", "limit", "cursor"])?;
    let limit = limit(&params, FEW)?;
    let filter = VerdictFilter {
        run_id: params.id("run_id")?,
        subject: params.text("subject")?,
        before: params.id("cursor")?,
        limit: limit + 1,
    };
    let verdicts = app.engine.store().verdicts(filter).await?;
    let items = verdicts.into_iter().map(VerdictJson::from).collect();
    Ok(axum::Json(Page::cut(items, limit, |verdict| verdict.id.to_string())))
}

#[utoipa::path(get, path = "/api/v1/verdicts/{id}", tag = "verdicts", params(("id" = Uuid, Path)),
    responses((status = 200, body = VerdictJson), (status = 404, description = "No such verdict")))]
pub(crate) async fn get_verdict(
    State(app): State<App>,
    segment: Segment,
    params: Params,
) -> Result<axum::Json<VerdictJson>> {
    params.only(&[])?;
    let id: VerdictId = segment.id()?;
    let verdict = app.engine.store().verdict(id).await?;
    let missing = || Error::NotFound { what: "verdict", id: id.to_string() };
    Ok(axum::Json(verdict.ok_or_else(missing)?.into()))
}
