//! Progress, checkpoints and heartbeats of attempts.

use super::arrays::{array, arrays, given};
use super::chunk::chunks;
use super::fault::{Fault, Outcome};
use super::link::Link;
use super::sql::now;
use crate::halves::Halves;
use everbeat_model::lease::Shown;
use everbeat_model::{Json, ReplicaId, RunId, Token};
use everbeat_store::{Result, Sign, Signed};
use std::collections::BTreeMap;
use std::sync::LazyLock;
use uuid::Uuid;

arrays! {
    Rows of Row<'a> {
        run_id: Uuid as "uuid",
        token: Uuid as "uuid",
        owner: Uuid as "uuid",
        progress: Option<&'a str> as "text",
        checkpoint: Option<&'a str> as "text",
    }
}

static SIGN: LazyLock<String> = LazyLock::new(|| {
    let columns = Rows::COLUMNS;
    format!(
        "with {now}, given as materialized ({given}), \
         beaten as (update lease l set last_heartbeat_at = (select now from t) \
           where l.run_id = any({run_ids}) \
             and ((l.run_id, l.token, l.replica_id) in (select g.run_id, g.token, g.owner from given g) or false) \
           returning l.run_id, l.token, l.replica_id, l.cancel_requested_at is not null as cancel_asked), \
         reported as (insert into run_sign as s (run_id, progress, checkpoint) \
           select b.run_id, g.progress, g.checkpoint from beaten b \
             join given g on g.run_id = b.run_id and g.token = b.token and g.owner = b.replica_id \
           where g.progress is not null or g.checkpoint is not null \
           on conflict (run_id) do update set progress = coalesce(excluded.progress, s.progress), \
             checkpoint = coalesce(excluded.checkpoint, s.checkpoint)) \
         select run_id, cancel_asked, token, replica_id from beaten",
        now = now!(),
        given = given(columns),
        run_ids = array(columns, "run_id"),
    )
});

pub(super) async fn sign(link: &Link, signs: &[Sign]) -> Result<Vec<Signed>> {
    let mut answers = vec![Signed::Fenced; signs.len()];
    for chunk in chunks(&merged(signs), Merged::size) {
        sign_chunk(link, signs, chunk.to_vec(), &mut answers).await?;
    }
    Ok(answers)
}

/// Signs under one lease, as one. One statement may write a row only once: the last value counts.
#[derive(Clone, Default)]
struct Merged<'a> {
    progress: Option<&'a Json>,
    checkpoint: Option<&'a Json>,
    /// Where the merged signs stand among all.
    places: Vec<usize>,
}

impl<'a> Merged<'a> {
    fn add(&mut self, place: usize, sign: &'a Sign) {
        self.progress = sign.progress.as_ref().or(self.progress);
        self.checkpoint = sign.checkpoint.as_ref().or(self.checkpoint);
        self.places.push(place);
    }

    fn size(&self) -> usize {
        [self.progress, self.checkpoint].into_iter().flatten().map(|json| json.as_str().len()).sum()
    }
}

/// Merges signs, by run, so that two servers lock in one order.
fn merged(signs: &[Sign]) -> Vec<Merged<'_>> {
    let mut merged: BTreeMap<(RunId, Token, ReplicaId), Merged<'_>> = BTreeMap::new();
    for (place, sign) in signs.iter().enumerate() {
        let shown = &sign.shown;
        merged.entry((shown.run_id, shown.token, shown.replica_id)).or_default().add(place, sign);
    }
    merged.into_values().collect()
}

/// Signs a chunk. Signs under one lease that cannot be stored together are taken apart: what can be stored is.
async fn sign_chunk<'a>(link: &Link, signs: &'a [Sign], chunk: Vec<Merged<'a>>, answers: &mut [Signed]) -> Result<()> {
    let mut open = Halves::of(chunk);
    while let Some(chunk) = open.next() {
        match write(link, signs, &chunk, answers).await {
            Ok(()) => {}
            Err(Fault::Data(reason)) => {
                let Some(merged) = open.halve(chunk) else { continue };
                if let [place] = merged.places[..] {
                    tracing::warn!(run = %signs[place].shown.run_id, reason, "a sign cannot be stored");
                    answers[place] = Signed::Unstorable;
                    continue;
                }
                for place in merged.places.into_iter().rev() {
                    let mut alone = Merged::default();
                    alone.add(place, &signs[place]);
                    open.add(vec![alone]);
                }
            }
            Err(fault) => return Err(fault.into()),
        }
    }
    Ok(())
}

async fn write(link: &Link, signs: &[Sign], chunk: &[Merged<'_>], answers: &mut [Signed]) -> Outcome<()> {
    let shown = |merged: &Merged<'_>| signs[merged.places[0]].shown;
    let mut given = Rows::default();
    for merged in chunk {
        let Shown { run_id, token, replica_id, .. } = shown(merged);
        given.push(Row {
            run_id: run_id.0,
            token: token.0,
            owner: replica_id.0,
            progress: merged.progress.map(Json::as_str),
            checkpoint: merged.checkpoint.map(Json::as_str),
        });
    }
    let rows = link.query(&SIGN, &given.params()).await?;
    let accepted: BTreeMap<(Uuid, Uuid, Uuid), bool> =
        rows.iter().map(|row| ((row.get(0), row.get(2), row.get(3)), row.get(1))).collect();
    for (at, merged) in chunk.iter().enumerate() {
        if let Some(cancel_asked) = accepted.get(&(given.run_id[at], given.token[at], given.owner[at])) {
            let answer = Signed::Accepted { cancel_asked: *cancel_asked };
            merged.places.iter().for_each(|place| answers[*place] = answer);
        }
    }
    Ok(())
}
