use super::chunk::chunks;
use super::fault::{Fault, Outcome};
use super::link::Link;
use super::sql::now;
use everbeat_model::{Json, ReplicaId, RunId, Token};
use everbeat_store::{Result, Sign, Signed};
use std::collections::BTreeMap;
use uuid::Uuid;

const SIGN: &str = concat!(
    "with ",
    now!(),
    ", given as materialized (select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[]) \
       as g(run_id, token, owner, progress, checkpoint)), \
     beaten as (update lease l set last_heartbeat_at = (select now from t) \
       where l.run_id = any($1::uuid[]) \
         and ((l.run_id, l.token, l.replica_id) in (select g.run_id, g.token, g.owner from given g) or false) \
       returning l.run_id, l.token, l.replica_id, l.cancel_requested_at is not null as cancel_asked), \
     reported as (insert into run_sign as s (run_id, progress, checkpoint) \
       select b.run_id, g.progress, g.checkpoint from beaten b \
         join given g on g.run_id = b.run_id and g.token = b.token and g.owner = b.replica_id \
       where g.progress is not null or g.checkpoint is not null \
       on conflict (run_id) do update set progress = coalesce(excluded.progress, s.progress), \
         checkpoint = coalesce(excluded.checkpoint, s.checkpoint)) \
     select run_id, cancel_asked, token, replica_id from beaten"
);

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
    /// Where they stand among all.
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

/// By run, so that two servers lock in one order.
fn merged(signs: &[Sign]) -> Vec<Merged<'_>> {
    let mut merged: BTreeMap<(RunId, Token, ReplicaId), Merged<'_>> = BTreeMap::new();
    for (place, sign) in signs.iter().enumerate() {
        let shown = &sign.shown;
        merged.entry((shown.run_id, shown.token, shown.replica_id)).or_default().add(place, sign);
    }
    merged.into_values().collect()
}

/// Signs a chunk; one that cannot be stored is halved until the bad item stands alone, and that one is
/// taken apart into its signs: what can be stored is.
async fn sign_chunk<'a>(link: &Link, signs: &'a [Sign], chunk: Vec<Merged<'a>>, answers: &mut [Signed]) -> Result<()> {
    let mut open = vec![chunk];
    while let Some(mut chunk) = open.pop() {
        match write(link, signs, &chunk, answers).await {
            Ok(()) => {}
            Err(Fault::Data(_)) if chunk.len() > 1 => {
                let second = chunk.split_off(chunk.len() / 2);
                open.extend([second, chunk]);
            }
            Err(Fault::Data(reason)) => match &chunk[0].places[..] {
                [place] => {
                    tracing::warn!(run = %signs[*place].shown.run_id, reason, "a sign cannot be stored");
                    answers[*place] = Signed::Unstorable;
                }
                places => open.extend(places.iter().rev().map(|place| {
                    let mut alone = Merged::default();
                    alone.add(*place, &signs[*place]);
                    vec![alone]
                })),
            },
            Err(fault) => return Err(fault.into()),
        }
    }
    Ok(())
}

async fn write(link: &Link, signs: &[Sign], chunk: &[Merged<'_>], answers: &mut [Signed]) -> Outcome<()> {
    let shown = |merged: &Merged<'_>| signs[merged.places[0]].shown;
    let run_id: Vec<Uuid> = chunk.iter().map(|merged| shown(merged).run_id.0).collect();
    let token: Vec<Uuid> = chunk.iter().map(|merged| shown(merged).token.0).collect();
    let owner: Vec<Uuid> = chunk.iter().map(|merged| shown(merged).replica_id.0).collect();
    let progress: Vec<Option<&str>> = chunk.iter().map(|merged| merged.progress.map(Json::as_str)).collect();
    let checkpoint: Vec<Option<&str>> = chunk.iter().map(|merged| merged.checkpoint.map(Json::as_str)).collect();
    let rows = link.query(SIGN, &[&run_id, &token, &owner, &progress, &checkpoint]).await?;
    let accepted: BTreeMap<(Uuid, Uuid, Uuid), bool> =
        rows.iter().map(|row| ((row.get(0), row.get(2), row.get(3)), row.get(1))).collect();
    for (at, merged) in chunk.iter().enumerate() {
        if let Some(cancel_asked) = accepted.get(&(run_id[at], token[at], owner[at])) {
            let answer = Signed::Accepted { cancel_asked: *cancel_asked };
            merged.places.iter().for_each(|place| answers[*place] = answer);
        }
    }
    Ok(())
}
