//! What attempts stream.

use super::Sqlite;
use super::fault::{Fault, Outcome};
use super::writer::Tx;
use crate::cells::stored;
use crate::decode::{OutputCells, readable, whole};
use crate::encode::limit;
use crate::halves::Halves;
use async_trait::async_trait;
use everbeat_store::{Keep, OutputFilter, OutputPage, Outputs, Piece, Result, Signed};
use rusqlite::{Connection, OptionalExtension, params};
use std::sync::Arc;

#[async_trait]
impl Outputs for Sqlite {
    async fn append(&self, pieces: Vec<Piece>, keep: Keep) -> Result<Vec<Signed>> {
        let pieces: Arc<[Piece]> = pieces.into();
        let mut answers = vec![Signed::Fenced; pieces.len()];
        let mut open = Halves::of((0..pieces.len()).collect());
        while let Some(places) = open.next() {
            match self.append_some(&pieces, &places, keep).await {
                Ok(signed) => places.iter().zip(signed).for_each(|(place, signed)| answers[*place] = signed),
                Err(Fault::Data(reason)) => {
                    if let Some(place) = open.halve(places) {
                        tracing::warn!(run = %pieces[place].shown.run_id, reason, "streamed output cannot be stored");
                        answers[place] = Signed::Unstorable;
                    }
                }
                Err(fault) => return Err(fault.into()),
            }
        }
        Ok(answers)
    }

    async fn output(&self, filter: OutputFilter) -> Result<OutputPage> {
        self.readers.read(move |connection| page(connection, &filter)).await
    }
}

impl Sqlite {
    async fn append_some(&self, pieces: &Arc<[Piece]>, places: &[usize], keep: Keep) -> Outcome<Vec<Signed>> {
        let (all, places) = (pieces.clone(), places.to_vec());
        let bytes = places.iter().map(|place| all[*place].bytes()).sum();
        let append = move |tx: &Tx<'_>| places.iter().map(|place| append(tx, &all[*place], keep)).collect();
        self.writer.try_write(bytes, append).await
    }
}

/// How much a run has streamed.
struct Tally {
    first: i64,
    last: i64,
    bytes: i64,
    /// Of the same owner of the same lease.
    said: i64,
}

fn append(tx: &Tx<'_>, piece: &Piece, keep: Keep) -> Outcome<Signed> {
    let id = piece.shown.run_id.0.into_bytes();
    let (token, owner) = (piece.shown.token.0.into_bytes(), piece.shown.replica_id.0.into_bytes());
    let mut beat = tx.connection.prepare_cached(
        "update lease set last_heartbeat_at = ?4 where run_id = ?1 and token = ?2 and replica_id = ?3
         returning attempt, cancel_requested_at is not null",
    )?;
    let beaten = beat.query_row(params![id, token, owner, tx.now.0], |row| Ok((row.get(0)?, row.get(1)?)));
    let Some((attempt, cancel_asked)) = beaten.optional()? else { return Ok(Signed::Fenced) };
    let accepted = Signed::Accepted { cancel_asked };
    let mut find = tx.connection.prepare_cached(
        "select first, last, bytes, iif(token = ?2 and replica_id = ?3, said, 0) from output_tally where run_id = ?1",
    )?;
    let found = find.query_row(params![id, token, owner], |row| {
        Ok(Tally { first: row.get(0)?, last: row.get(1)?, bytes: row.get(2)?, said: row.get(3)? })
    });
    let mut tally = found.optional()?.unwrap_or(Tally { first: 1, last: 0, bytes: 0, said: 0 });
    if piece.items.is_empty() || stored(piece.after) < tally.said {
        return Ok(accepted);
    }
    write_items(tx, piece, attempt, &mut tally)?;
    if !keep.holds(whole(tally.bytes), whole(tally.last - tally.first + 1)) {
        shrink(tx, id, &mut tally, keep.left())?;
    }
    tx.connection
        .prepare_cached(
            "insert or replace into output_tally (run_id, first, last, bytes, token, replica_id, said)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![id, tally.first, tally.last, tally.bytes, token, owner, tally.said])?;
    Ok(accepted)
}

fn write_items(tx: &Tx<'_>, piece: &Piece, attempt: u32, tally: &mut Tally) -> Outcome<()> {
    let mut insert = tx.connection.prepare_cached(
        "insert into output (run_id, seq, attempt, at, kind, bytes, body) values (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    let id = piece.shown.run_id.0.into_bytes();
    for item in &piece.items {
        tally.last += 1;
        let bytes = limit(item.text.len());
        tally.bytes += bytes;
        insert.execute(params![id, tally.last, attempt, tx.now.0, item.kind.as_str(), bytes, &*item.text])?;
    }
    tally.said = stored(piece.after).saturating_add(limit(piece.items.len()));
    Ok(())
}

/// Drops the oldest items until what is left is small enough, but never the newest.
fn shrink(tx: &Tx<'_>, id: [u8; 16], tally: &mut Tally, to: Keep) -> Outcome<()> {
    let mut oldest = tx.connection.prepare_cached("select bytes from output where run_id = ?1 order by seq")?;
    let mut rows = oldest.query([id])?;
    while tally.first < tally.last
        && !to.holds(whole(tally.bytes), whole(tally.last - tally.first + 1))
        && let Some(row) = rows.next()?
    {
        tally.bytes -= row.get::<_, i64>(0)?;
        tally.first += 1;
    }
    tx.connection
        .prepare_cached("delete from output where run_id = ?1 and seq < ?2")?
        .execute(params![id, tally.first])?;
    Ok(())
}

fn page(connection: &Connection, filter: &OutputFilter) -> Outcome<OutputPage> {
    let id = filter.run.0.into_bytes();
    let mut tally = connection.prepare_cached("select first, last from output_tally where run_id = ?1")?;
    let found = tally.query_row([id], |row| Ok((whole(row.get(0)?), whole(row.get(1)?)))).optional()?;
    let Some((first, last)) = found else { return Ok(OutputPage::empty()) };
    let mut select = connection.prepare_cached(
        "select seq, attempt, at, kind, body from output
         where run_id = ?1 and seq > ?2 and (?3 is null or kind = ?3) order by seq limit ?4",
    )?;
    let kind = filter.kind.map(|kind| kind.as_str());
    let mut rows = select.query(params![id, stored(filter.after), kind, limit(filter.limit)])?;
    let (mut cells, mut bytes) = (Vec::new(), 0);
    while bytes < filter.bytes
        && let Some(row) = rows.next()?
    {
        let item = OutputCells {
            seq: row.get(0)?,
            attempt: row.get(1)?,
            at: row.get(2)?,
            kind: row.get(3)?,
            text: row.get(4)?,
        };
        bytes += item.text.len();
        cells.push(item);
    }
    Ok(OutputPage { items: readable(cells.into_iter().map(|cells| cells.read(filter.run.0))), first, last })
}
