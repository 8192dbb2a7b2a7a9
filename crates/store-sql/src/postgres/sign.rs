use super::link::Link;
use super::sql::now;
use everbeat_model::{Json, RunId, Token};
use everbeat_store::{Result, Sign, Signed};
use std::collections::BTreeMap;
use uuid::Uuid;

/// Signs in one statement, and their text.
const STATEMENT_ROWS: usize = 5_000;

const SIGN: &str = concat!(
    "with ",
    now!(),
    ", given as materialized (select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[]) \
       as g(run_id, token, progress, checkpoint)), \
     beaten as (update lease l set last_heartbeat_at = (select now from t) \
       where l.run_id = any($1::uuid[]) \
         and ((l.run_id, l.token) in (select g.run_id, g.token from given g) or false) \
       returning l.run_id, l.token, l.cancel_requested_at is not null as cancel_asked), \
     reported as (insert into run_sign as s (run_id, progress, checkpoint) \
       select b.run_id, g.progress, g.checkpoint from beaten b \
         join given g on g.run_id = b.run_id and g.token = b.token \
       where g.progress is not null or g.checkpoint is not null \
       on conflict (run_id) do update set progress = coalesce(excluded.progress, s.progress), \
         checkpoint = coalesce(excluded.checkpoint, s.checkpoint)) \
     select run_id, cancel_asked, token from beaten"
);

/// Progress and checkpoint.
type Report<'a> = (Option<&'a Json>, Option<&'a Json>);

pub(super) async fn sign(link: &Link, signs: &[Sign]) -> Result<Vec<Signed>> {
    // One statement may write a row only once: of several signs under one lease the last value counts.
    // By run, so that two servers lock in one order.
    let mut merged: BTreeMap<(RunId, Token), Report<'_>> = BTreeMap::new();
    for sign in signs {
        let entry = merged.entry((sign.shown.run_id, sign.shown.token)).or_default();
        entry.0 = sign.progress.as_ref().or(entry.0);
        entry.1 = sign.checkpoint.as_ref().or(entry.1);
    }
    let merged: Vec<_> = merged.into_iter().collect();
    let mut accepted: BTreeMap<(RunId, Token), bool> = BTreeMap::new();
    for chunk in merged.chunks(STATEMENT_ROWS) {
        let run_id: Vec<Uuid> = chunk.iter().map(|((run, _), _)| run.0).collect();
        let token: Vec<Uuid> = chunk.iter().map(|((_, token), _)| token.0).collect();
        let progress: Vec<Option<&str>> = chunk.iter().map(|(_, (progress, _))| progress.map(Json::as_str)).collect();
        let checkpoint: Vec<Option<&str>> = chunk.iter().map(|(_, (_, last))| last.map(Json::as_str)).collect();
        let rows = link.query(SIGN, &[&run_id, &token, &progress, &checkpoint]).await?;
        for row in rows {
            accepted.insert((RunId(row.get(0)), Token(row.get(2))), row.get(1));
        }
    }
    let answer = |sign: &Sign| match accepted.get(&(sign.shown.run_id, sign.shown.token)) {
        Some(cancel_asked) => Signed::Accepted { cancel_asked: *cancel_asked },
        None => Signed::Fenced,
    };
    Ok(signs.iter().map(answer).collect())
}
