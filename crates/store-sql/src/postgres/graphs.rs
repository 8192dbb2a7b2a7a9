//! Definitions of graphs.

use super::Postgres;
use super::enqueue::APPEND;
use super::fault::{Fault, Outcome};
use super::idempotency::{TAKE_KEY, seen};
use super::link::again;
use super::sql::now;
use super::transaction::Transaction;
use crate::cells::{Definitions, number, stored};
use crate::encode::limit;
use async_trait::async_trait;
use everbeat_model::event::{EventKind, line};
use everbeat_model::graph::{Graph, is_new};
use everbeat_model::{Json, StoreTime};
use everbeat_store::{Applied, Definition, Error, Graphs, Idempotency, Result};
use std::sync::Arc;
use tokio_postgres::Row;

/// Two keys, which no batch of events ever locks. Starts share the lock of their graph's name, so that
/// none slips past a definition that is being applied; definitions take turns, so that their serials rise
/// in the order in which they are committed.
const LOCK_ALL: &str = "select pg_advisory_xact_lock(hashtext(current_schema() || '.graphs'), 0)";
const LOCK_ONE: &str = "select pg_advisory_xact_lock(hashtext(current_schema() || '.graph'), hashtext($1))";

const STORE: &str = concat!(
    "with ",
    now!(),
    " insert into graph (serial, name, version, shape, definition, applied_at) \
      select coalesce((select max(serial) from graph), 0) + 1, $1, $2, $3, $4, t.now from t \
      returning serial, applied_at"
);

const NOTE_STANDING: &str = "\
    insert into agenda (execution_id, due_at) \
    select e.id, 0 from execution e where e.graph = $1 and e.archived_at is null";

const LATEST: &str = "\
    select serial, definition, applied_at from graph \
    where name = $1 and ($2::text is null or version = $2) order by serial desc limit 1";

const BY_SERIAL: &str = "select serial, definition, applied_at from graph where serial = $1";

const LIST: &str = "\
    select distinct on (name) serial, definition, applied_at from graph \
    where $1::text is null or name > $1 order by name, serial desc limit $2";

#[async_trait]
impl Graphs for Postgres {
    async fn apply(&self, graph: Arc<Graph>, idempotency: Option<Idempotency>) -> Result<Applied> {
        again!(async {
            let transaction = self.advance.begin().await?;
            let answer = apply_once(&transaction, &self.definitions, &graph, idempotency.as_ref()).await;
            transaction.close(answer).await
        })?
    }

    async fn graph(&self, name: &str, version: Option<&str>) -> Result<Option<Definition>> {
        let rows = self.read().query(LATEST, &[&name, &version]).await?;
        rows.first().map(|row| read(&self.definitions, row)).transpose()
    }

    async fn graphs(&self, after: Option<&str>, most: usize) -> Result<Vec<Definition>> {
        let rows = self.read().query(LIST, &[&after, &limit(most)]).await?;
        Ok(crate::decode::readable(rows.iter().map(|row| read(&self.definitions, row))))
    }
}

/// The inner result is the request's; the outer one is the transaction's.
async fn apply_once(
    transaction: &Transaction<'_>,
    known: &Definitions,
    graph: &Arc<Graph>,
    idempotency: Option<&Idempotency>,
) -> Outcome<Result<Applied>> {
    let Some(idempotency) = idempotency else { return apply(transaction, known, graph).await.map(Ok) };
    let taken = transaction.query(TAKE_KEY, &[&idempotency.key, &idempotency.fingerprint]).await?;
    if taken.is_empty() {
        let ids = match seen(transaction, idempotency).await? {
            Ok(ids) => ids,
            Err(error) => return Ok(Err(error)),
        };
        let serial = ids.first().map_or(0, |id| Definition::serial_of(*id));
        let rows = transaction.query(BY_SERIAL, &[&stored(serial)]).await?;
        let reused = || Error::KeyReused { key: idempotency.key.clone() };
        let definition = rows.first().map(|row| read(known, row));
        return Ok(definition.unwrap_or_else(|| Err(reused())).map(|definition| Applied { definition, new: false }));
    }
    let applied = apply(transaction, known, graph).await?;
    let ids = vec![applied.definition.key_id()];
    transaction.query("update idempotency set run_ids = $2 where key = $1", &[&idempotency.key, &ids]).await?;
    Ok(Ok(applied))
}

async fn apply(transaction: &Transaction<'_>, known: &Definitions, graph: &Arc<Graph>) -> Outcome<Applied> {
    let name = &graph.name;
    transaction.all(&[(LOCK_ALL, &[]), (LOCK_ONE, &[name])]).await?;
    let rows = transaction.query(LATEST, &[name, &None::<&str>]).await?;
    // A definition that cannot be read any more is none.
    let latest = rows.first().and_then(|row| read(known, row).ok());
    if let Some(definition) = latest.filter(|latest| !is_new(graph, Some(&latest.graph))) {
        return Ok(Applied { definition, new: false });
    }
    let definition = Json::of(&graph.to_value());
    let rows = transaction.query(STORE, &[name, &graph.version, &graph.shape(), &definition.as_str()]).await?;
    let Some(row) = rows.first() else { return Err(Fault::Bug(format!("the graph {name:?} was not stored"))) };
    let (serial, applied_at): (i64, i64) = (row.get(0), row.get(1));
    let event = line(EventKind::GraphApplied, name, None, None);
    transaction.all(&[(NOTE_STANDING, &[name]), (APPEND, &[&event])]).await?;
    let definition = Definition { serial: number(serial), graph: graph.clone(), applied_at: StoreTime(applied_at) };
    Ok(Applied { definition, new: true })
}

fn read(known: &Definitions, row: &Row) -> Result<Definition> {
    let serial = number(row.get(0));
    Ok(Definition { serial, graph: known.read(serial, row.get(1))?, applied_at: StoreTime(row.get(2)) })
}

/// How the names of graphs are held: shared by starts, alone to bring an execution back.
#[derive(Clone, Copy)]
pub(super) enum Hold {
    Shared,
    Alone,
}

/// Holds names until the end of the transaction; locks are taken in one order.
pub(super) async fn hold(transaction: &Transaction<'_>, names: &[&str], hold: Hold) -> Outcome<()> {
    let sql = match hold {
        Hold::Shared => {
            "select pg_advisory_xact_lock_shared(hashtext(current_schema() || '.graph'), k) from (\
               select distinct hashtext(n) as k from unnest($1::text[]) as n order by k offset 0) x"
        }
        Hold::Alone => {
            "select pg_advisory_xact_lock(hashtext(current_schema() || '.graph'), k) from (\
               select distinct hashtext(n) as k from unnest($1::text[]) as n order by k offset 0) x"
        }
    };
    transaction.query(sql, &[&names]).await.map(|_| ())
}
