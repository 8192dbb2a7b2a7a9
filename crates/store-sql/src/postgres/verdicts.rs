//! Verdicts: recording, finding and forgetting them.

use super::Postgres;
use super::arrays::{after, arrays, given};
use super::sql::{append_event, now};
use crate::columns::VERDICT_COLUMNS;
use crate::decode::{VerdictCells, readable};
use crate::encode::{int, limit, micros};
use async_trait::async_trait;
use everbeat_model::event::{EventKind, line};
use everbeat_model::{Verdict, VerdictId};
use everbeat_store::{Result, VerdictFilter, Verdicts};
use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;
use uuid::Uuid;

arrays! {
    /// Verdicts as one array per column.
    Rows of Row<'a> {
        id: Uuid as "uuid",
        subject_kind: &'a str as "text",
        subject_id: &'a str as "text",
        judgement: &'a str as "text",
        reason: &'a str as "text",
        evidence: &'a str as "text",
        judged_by: Uuid as "uuid",
        run_id: Option<Uuid> as "uuid",
        attempt: Option<i32> as "int",
        followed_by: &'a str as "text",
    }
}

static RECORD: LazyLock<String> = LazyLock::new(|| {
    let columns = Rows::COLUMNS;
    format!(
        "with {now}, given as materialized ({given}), \
         judged as (insert into verdict (id, at, subject_kind, subject_id, judgement, reason, evidence, judged_by, \
             run_id, attempt, followed_by) \
           select g.id, t.now, g.subject_kind, g.subject_id, g.judgement, g.reason, g.evidence, g.judged_by, \
             g.run_id, g.attempt, g.followed_by from given g, t order by g.id \
           on conflict (id) do update set at = excluded.at, subject_kind = excluded.subject_kind, \
             subject_id = excluded.subject_id, judgement = excluded.judgement, reason = excluded.reason, \
             evidence = excluded.evidence, judged_by = excluded.judged_by, run_id = excluded.run_id, \
             attempt = excluded.attempt, followed_by = excluded.followed_by returning 1), \
         logged as ({append} t.now, {body} from t) \
         select count(*) from judged",
        now = now!(),
        given = given(columns),
        append = append_event!(),
        body = after(columns),
    )
});

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
        let mut rows = Rows::default();
        distinct.into_values().for_each(|verdict| rows.push(Row::of(verdict)));
        let mut params = rows.params();
        params.push(&body);
        self.command.query(&RECORD, &params).await?;
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

impl<'a> Row<'a> {
    fn of(verdict: &'a Verdict) -> Row<'a> {
        Row {
            id: verdict.id.0,
            subject_kind: verdict.subject.kind.as_str(),
            subject_id: &verdict.subject.id,
            judgement: verdict.judgement.as_str(),
            reason: &verdict.reason,
            evidence: verdict.evidence.as_str(),
            judged_by: verdict.judged_by.0,
            run_id: verdict.run_id.map(|run| run.0),
            attempt: verdict.attempt.map(int),
            followed_by: &verdict.then,
        }
    }
}

fn verdict_cells(row: &tokio_postgres::Row) -> VerdictCells {
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
