//! What attempts stream, a batch in one statement.

use super::Postgres;
use super::arrays::{Column, array, arrays, given, names};
use super::chunk::chunks;
use super::claim::int_at;
use super::fault::{Fault, Outcome};
use super::link::Link;
use super::sql::now;
use crate::cells::stored;
use crate::decode::{OutputCells, readable, whole};
use crate::encode::limit;
use crate::halves::Halves;
use async_trait::async_trait;
use everbeat_model::lease::Shown;
use everbeat_store::{Keep, OutputFilter, OutputPage, Outputs, Piece, Result, Signed};
use std::collections::BTreeMap;
use std::sync::LazyLock;
use uuid::Uuid;

arrays! {
    /// Pieces, each under the lease that it shows, and no two of one run.
    Pieces of Row {
        run_id: Uuid as "uuid",
        token: Uuid as "uuid",
        owner: Uuid as "uuid",
        after: i64 as "bigint",
        count: i32 as "int",
        bytes: i64 as "bigint",
    }
}

arrays! {
    /// The items of all pieces; `nth` counts those of one piece from 1.
    Items of ItemRow<'a> {
        piece: Uuid as "uuid",
        nth: i32 as "int",
        kind: &'static str as "text",
        body: &'a str as "text",
    }
}

/// `select * from unnest($7::uuid[], …) as i(piece, …)`: these columns, after others.
fn given_after(before: &[Column], columns: &[Column]) -> String {
    let place = |nth: usize| before.len() + nth + 1;
    let arrays: Vec<String> =
        columns.iter().enumerate().map(|(nth, (_, sql))| format!("${}::{sql}[]", place(nth))).collect();
    format!("select * from unnest({}) as i({})", arrays.join(", "), names(columns))
}

/// The tally of a run says, under its lock, which numbers its new items have: none if the piece was appended before. The
/// row of the lease is written first, so that no ending comes in between.
static APPEND: LazyLock<String> = LazyLock::new(|| {
    let columns = Pieces::COLUMNS;
    let new = "o.token <> excluded.token or o.replica_id <> excluded.replica_id \
               or excluded.said - excluded.added >= o.said";
    format!(
        "with {now}, given as materialized ({given}), \
         beaten as (update lease l set last_heartbeat_at = (select now from t) \
           where l.run_id = any({run_ids}) \
             and ((l.run_id, l.token, l.replica_id) in (select g.run_id, g.token, g.owner from given g) or false) \
           returning l.run_id, l.token, l.replica_id, l.attempt, l.cancel_requested_at is not null as cancel_asked), \
         tallied as (insert into output_tally as o (run_id, first, last, bytes, token, replica_id, said, added) \
           select b.run_id, 1, g.count, g.bytes, b.token, b.replica_id, g.after + g.count, g.count \
           from beaten b join given g on g.run_id = b.run_id where g.count > 0 order by b.run_id \
           on conflict (run_id) do update set \
             last = o.last + case when {new} then excluded.added else 0 end, \
             bytes = o.bytes + case when {new} then excluded.bytes else 0 end, \
             said = case when {new} then excluded.said else o.said end, \
             added = case when {new} then excluded.added else 0 end, \
             token = excluded.token, replica_id = excluded.replica_id \
           returning o.run_id, o.first, o.last, o.bytes, o.added), \
         kept as (insert into output (run_id, seq, attempt, at, kind, bytes, body) \
           select b.run_id, a.last - a.added + i.nth, b.attempt, t.now, i.kind, octet_length(i.body), i.body \
           from ({items}) i join tallied a on a.run_id = i.piece join beaten b on b.run_id = i.piece, t \
           where a.added > 0) \
         select b.run_id, b.cancel_asked, b.token, b.replica_id, a.first, a.last, a.bytes \
         from beaten b left join tallied a on a.run_id = b.run_id",
        now = now!(),
        given = given(columns),
        run_ids = array(columns, "run_id"),
        items = given_after(columns, Items::COLUMNS),
    )
});

/// Drops the oldest items of a run until what is left is small enough ($2 bytes, $3 items), but never the newest.
const SHRINK: &str = "\
    with tally as materialized (select o.first, o.last, o.bytes from output_tally o where o.run_id = $1 for update), \
     cut as materialized (select coalesce(\
       (select i.seq from (\
          select p.seq, sum(p.bytes) over (order by p.seq rows between unbounded preceding and 1 preceding) as freed \
          from output p where p.run_id = $1) i, tally a \
        where a.bytes - coalesce(i.freed, 0) <= $2 and a.last - i.seq + 1 <= $3 order by i.seq limit 1), \
       (select a.last from tally a)) as seq), \
     gone as (delete from output p where p.run_id = $1 and p.seq < (select seq from cut) returning p.bytes) \
    update output_tally o set first = greatest(o.first, (select seq from cut)), \
      bytes = o.bytes - coalesce((select sum(bytes) from gone), 0) where o.run_id = $1";

/// The tally and the items in one statement, so that both are of one moment.
const PAGE: &str = "\
    select o.first, o.last, i.seq, i.attempt, i.at, i.kind, i.body from output_tally o left join lateral (\
      select q.* from (\
        select p.*, sum(p.bytes) over (order by p.seq rows between unbounded preceding and 1 preceding) as bytes_before \
        from (select p.* from output p where p.run_id = $1 and p.seq > $2 and ($3::text is null or p.kind = $3) \
          order by p.seq limit $4) p) q \
      where coalesce(q.bytes_before, 0) < $5::bigint) i on true \
    where o.run_id = $1 order by i.seq";

#[async_trait]
impl Outputs for Postgres {
    async fn append(&self, pieces: Vec<Piece>, keep: Keep) -> Result<Vec<Signed>> {
        let mut answers = vec![Signed::Fenced; pieces.len()];
        for round in rounds(&pieces) {
            for chunk in chunks(&round, |place| size(&pieces[*place])) {
                append_chunk(&self.append, &pieces, chunk.to_vec(), keep, &mut answers).await?;
            }
        }
        Ok(answers)
    }

    async fn output(&self, filter: OutputFilter) -> Result<OutputPage> {
        let kind = filter.kind.map(|kind| kind.as_str());
        let after = stored(filter.after);
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&filter.run.0, &after, &kind, &limit(filter.limit), &limit(filter.bytes)];
        let rows = self.read().query(PAGE, &params).await?;
        let Some(tally) = rows.first() else { return Ok(OutputPage::empty()) };
        let (first, last) = (whole(tally.get(0)), whole(tally.get(1)));
        let there = rows.iter().filter(|row| row.get::<_, Option<i64>>(2).is_some());
        let cells = there.map(|row| OutputCells {
            seq: row.get(2),
            attempt: int_at(row, 3),
            at: row.get(4),
            kind: row.get(5),
            text: row.get(6),
        });
        Ok(OutputPage { items: readable(cells.map(|cells| cells.read(filter.run.0))), first, last })
    }
}

/// Places of pieces, by run, so that two servers lock in one order. One statement may write a row only once: further
/// pieces of a run are in further rounds.
fn rounds(pieces: &[Piece]) -> Vec<Vec<usize>> {
    let mut places: BTreeMap<Uuid, Vec<usize>> = BTreeMap::new();
    for (place, piece) in pieces.iter().enumerate() {
        places.entry(piece.shown.run_id.0).or_default().push(place);
    }
    let most = places.values().map(Vec::len).max().unwrap_or(0);
    (0..most).map(|round| places.values().filter_map(|of_run| of_run.get(round).copied()).collect()).collect()
}

/// What a piece takes in a statement: its text, and about so much besides for each item.
fn size(piece: &Piece) -> usize {
    piece.bytes() + piece.items.len() * 64
}

/// Appends a chunk. A piece that cannot be stored spoils no other.
async fn append_chunk(
    link: &Link,
    pieces: &[Piece],
    chunk: Vec<usize>,
    keep: Keep,
    answers: &mut [Signed],
) -> Result<()> {
    let mut open = Halves::of(chunk);
    while let Some(chunk) = open.next() {
        match write(link, pieces, &chunk, answers).await {
            Ok(tallies) => shrink(link, tallies, keep).await?,
            Err(Fault::Data(reason)) => {
                if let Some(place) = open.halve(chunk) {
                    tracing::warn!(run = %pieces[place].shown.run_id, reason, "streamed output cannot be stored");
                    answers[place] = Signed::Unstorable;
                }
            }
            Err(fault) => return Err(fault.into()),
        }
    }
    Ok(())
}

/// How much a run keeps.
struct Tally {
    run: Uuid,
    items: i64,
    bytes: i64,
}

async fn write(link: &Link, pieces: &[Piece], chunk: &[usize], answers: &mut [Signed]) -> Outcome<Vec<Tally>> {
    let (mut given, mut items) = (Pieces::default(), Items::default());
    for piece in chunk.iter().map(|place| &pieces[*place]) {
        let Shown { run_id, token, replica_id, .. } = piece.shown;
        given.push(Row {
            run_id: run_id.0,
            token: token.0,
            owner: replica_id.0,
            after: stored(piece.after),
            count: i32::try_from(piece.items.len()).unwrap_or(i32::MAX),
            bytes: limit(piece.bytes()),
        });
        for (nth, item) in (1..).zip(&piece.items) {
            items.push(ItemRow { piece: run_id.0, nth, kind: item.kind.as_str(), body: &item.text });
        }
    }
    let mut params = given.params();
    params.extend(items.params());
    let rows = link.query(&APPEND, &params).await?;
    let accepted: BTreeMap<(Uuid, Uuid, Uuid), bool> =
        rows.iter().map(|row| ((row.get(0), row.get(2), row.get(3)), row.get(1))).collect();
    for (at, place) in chunk.iter().enumerate() {
        if let Some(cancel_asked) = accepted.get(&(given.run_id[at], given.token[at], given.owner[at])) {
            answers[*place] = Signed::Accepted { cancel_asked: *cancel_asked };
        }
    }
    let tallied = rows.iter().filter(|row| row.get::<_, Option<i64>>(4).is_some());
    let tally = tallied.map(|row| {
        let (first, last): (i64, i64) = (row.get(4), row.get(5));
        Tally { run: row.get(0), items: last - first + 1, bytes: row.get(6) }
    });
    Ok(tally.collect())
}

async fn shrink(link: &Link, tallies: Vec<Tally>, keep: Keep) -> Result<()> {
    let left = keep.left();
    for tally in tallies.iter().filter(|tally| !keep.holds(whole(tally.bytes), whole(tally.items))) {
        link.query(SHRINK, &[&tally.run, &stored(left.bytes), &stored(left.items)]).await?;
    }
    Ok(())
}
