use super::Postgres;
use super::sql::{append_event, now};
use crate::columns::VERDICT_COLUMNS;
use crate::decode::{VerdictCells, readable};
use crate::encode::{int, limit, micros};
use async_trait::async_trait;
use everbeat_model::event::{EventKind, line};
use everbeat_model::{Verdict, VerdictId};
use everbeat_store::{Result, VerdictFilter, Verdicts};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio_postgres::Row;
use uuid::Uuid;

const RECORD: &str = concat!(
    "with ",
    now!(),
    ", given as materialized (select * from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], \
         $6::text[], $7::uuid[], $8::uuid[], $9::int[], $10::text[]) \
       as g(id, subject_kind, subject_id, judgement, reason, evidence, judged_by, run_id, attempt, followed_by)), \
     judged as (insert into verdict (id, at, subject_kind, subject_id, judgement, reason, evidence, judged_by, \
         run_id, attempt, followed_by) \
       select g.id, t.now, g.subject_kind, g.subject_id, g.judgement, g.reason, g.evidence, g.judged_by, \
         g.run_id, g.attempt, g.followed_by from given g, t order by g.id \
       on conflict (id) do update set at = excluded.at, subject_kind = excluded.subject_kind, \
         subject_id = excluded.subject_id, judgement = excluded.judgement, reason = excluded.reason, \
         evidence = excluded.evidence, judged_by = excluded.judged_by, run_id = excluded.run_id, \
         attempt = excluded.attempt, followed_by = excluded.followed_by returning 1), \
     logged as (",
    append_event!(),
    "t.now, $11 from t) \
     select count(*) from judged"
);

const FORGET: &str = concat!(
    "with ",
    now!(),
    ", old as materialized (select v.id from verdict v, t where v.at < t.now - $1 order by v.id limit $2), \
     forgotten as (delete from verdict v using old where v.id = old.id returning 1) \
     select count(*) from forgotten"
);

#[async_trait]
impl Verdicts for Postgres {
    async fn record(&self, verdicts: Vec<Verdict>) -> Result<()> {
        if verdicts.is_empty() {
            return Ok(());
        }
        let event = |v: &Verdict| line(EventKind::judged(v.judgement), &v.subject.id, v.attempt, None);
        let body = verdicts.iter().map(event).collect::<Vec<_>>().join("\n");
        // One statement may write a row only once: of the same id the last counts.
        let distinct: BTreeMap<VerdictId, &Verdict> = verdicts.iter().map(|verdict| (verdict.id, verdict)).collect();
        let columns = Columns::of(distinct.into_values());
        self.command
            .query(
                RECORD,
                &[
                    &columns.id,
                    &columns.subject_kind,
                    &columns.subject_id,
                    &columns.judgement,
                    &columns.reason,
                    &columns.evidence,
                    &columns.judged_by,
                    &columns.run_id,
                    &columns.attempt,
                    &columns.followed_by,
                    &body,
                ],
            )
            .await?;
        Ok(())
    }

    async fn verdict(&self, id: VerdictId) -> Result<Option<Verdict>> {
        let sql = format!("select {VERDICT_COLUMNS} from verdict where id = $1");
        let rows = self.read().query(&sql, &[&id.0]).await?;
        rows.first().map(|row| verdict_cells(row).read()).transpose()
    }

    async fn verdicts(&self, filter: VerdictFilter) -> Result<Vec<Verdict>> {
        // One statement for each way in, so that each goes through its own index.
        let by = match (filter.run_id, &filter.subject) {
            (Some(_), _) => "run_id = $2 and ($3::text is null or subject_id = $3)",
            (None, Some(_)) => "subject_id = $3 and $2::uuid is null",
            (None, None) => "$2::uuid is null and $3::text is null",
        };
        let sql = format!(
            "select {VERDICT_COLUMNS} from verdict where {by} and ($1::uuid is null or id < $1) \
             order by id desc limit $4"
        );
        let (before, run) = (filter.before.map(|before| before.0), filter.run_id.map(|run| run.0));
        let rows = self.read().query(&sql, &[&before, &run, &filter.subject, &limit(filter.limit)]).await?;
        Ok(readable(rows.iter().map(|row| verdict_cells(row).read())))
    }

    async fn forget_verdicts(&self, keep: Duration, most: usize) -> Result<usize> {
        let rows = self.slow.query(FORGET, &[&micros(keep), &limit(most)]).await?;
        Ok(rows.first().map_or(0, |row| usize::try_from(row.get::<_, i64>(0)).unwrap_or(0)))
    }
}

/// Verdicts as one array per column.
#[derive(Default)]
pub(super) struct Columns<'a> {
    pub(super) id: Vec<Uuid>,
    pub(super) subject_kind: Vec<&'a str>,
    pub(super) subject_id: Vec<&'a str>,
    pub(super) judgement: Vec<&'a str>,
    pub(super) reason: Vec<&'a str>,
    pub(super) evidence: Vec<&'a str>,
    pub(super) judged_by: Vec<Uuid>,
    pub(super) run_id: Vec<Option<Uuid>>,
    pub(super) attempt: Vec<Option<i32>>,
    pub(super) followed_by: Vec<&'a str>,
}

impl<'a> Columns<'a> {
    pub(super) fn of(verdicts: impl Iterator<Item = &'a Verdict>) -> Columns<'a> {
        let mut columns = Columns::default();
        for verdict in verdicts {
            columns.id.push(verdict.id.0);
            columns.subject_kind.push(verdict.subject.kind.as_str());
            columns.subject_id.push(&verdict.subject.id);
            columns.judgement.push(verdict.judgement.as_str());
            columns.reason.push(&verdict.reason);
            columns.evidence.push(verdict.evidence.as_str());
            columns.judged_by.push(verdict.judged_by.0);
            columns.run_id.push(verdict.run_id.map(|run| run.0));
            columns.attempt.push(verdict.attempt.map(int));
            columns.followed_by.push(&verdict.then);
        }
        columns
    }
}

fn verdict_cells(row: &Row) -> VerdictCells {
    VerdictCells {
        id: row.get(0),
        at: row.get(1),
        subject_kind: row.get(2),
        subject_id: row.get(3),
        judgement: row.get(4),
        reason: row.get(5),
        evidence: row.get(6),
        judged_by: row.get(7),
        run_id: row.get(8),
        attempt: row.get::<_, Option<i32>>(9).map(i64::from),
        followed_by: row.get(10),
    }
}
