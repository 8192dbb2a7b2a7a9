//! Rows in the order of some columns are read page by page, so that nobody is locked out between two pages. Rows of a
//! query without a cursor column come from one statement.

use super::super::names::quoted;
use super::super::source::{Bounds, Place, Reading, Rows, condition, order};
use super::bind::Kind;
use super::link::{self, Access, trouble};
use super::table::Columns;
use super::value::{key_value, of_key, value_of};
use crate::blocking::{blocking, broke_off};
use crate::{Batch, Record, Room, Source, Trouble};
use async_trait::async_trait;
use rusqlite::types::Value as Cell;
use rusqlite::{Connection, Statement, params_from_iter};
use serde_json::{Map, Value};
use std::path::PathBuf;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinHandle;

pub(in super::super) async fn open(
    path: PathBuf,
    reading: Reading,
    bounds: Bounds,
) -> Result<Box<dyn Source>, Trouble> {
    let database = blocking(move || Database::open(path, reading, bounds)).await?;
    if database.order.is_empty() {
        return Ok(Box::new(Stream::Ready(Some(Box::new(database)))));
    }
    Ok(Box::new(Pages::Idle(Some(Box::new(database)))))
}

struct Database {
    connection: Connection,
    path: PathBuf,
    from: String,
    /// By these columns rows are read in order. Empty: as the query gives them.
    order: Vec<String>,
    bounds: Bounds,
}

impl Database {
    fn open(path: PathBuf, reading: Reading, bounds: Bounds) -> Result<Database, Trouble> {
        let connection = link::open(&path, Access::Read)?;
        let failed = |error: rusqlite::Error| trouble(&path, "read", &error);
        let order = match &reading.rows {
            Rows::Query(_) => reading.cursor.clone().into_iter().collect(),
            Rows::Table(table) => {
                let schema = table.schema.as_deref().unwrap_or("main");
                let columns = Columns::read(&connection, schema, &table.name).map_err(failed)?;
                let Some(columns) = columns else {
                    return Err(Trouble::permanent(format!("the source's table {table} does not exist in {path:?}")));
                };
                let catalogue =
                    format!("select 1 from {}.sqlite_master where name = ?1 and type = 'table'", quoted(schema));
                let is_table =
                    connection.prepare(&catalogue).and_then(|mut all| all.exists([&table.name])).map_err(failed)?;
                match &reading.cursor {
                    Some(cursor) if columns.find(cursor).is_none() => {
                        let known = columns.names.join(", ");
                        let said = format!("the cursor {cursor:?} is not a column of {table}; use one of {known}");
                        return Err(Trouble::permanent(said));
                    }
                    Some(cursor) => order(cursor, &columns.primary),
                    None if !columns.primary.is_empty() => columns.primary,
                    None if is_table => vec!["rowid".to_string()],
                    None => Vec::new(),
                }
            }
        };
        let from = reading.rows.from();
        Ok(Database { connection, path, from, order, bounds })
    }

    fn page(&mut self, room: Room) -> Result<Batch, Trouble> {
        let place = self.bounds.place.clone();
        let skip = if place.after.is_empty() { 0 } else { place.seen };
        let limit = (room.records as u64).saturating_add(skip);
        let (sql, cells) = self.sql(limit)?;
        let failed = |error: rusqlite::Error| trouble(&self.path, "read", &error);
        let mut statement = self.connection.prepare_cached(&sql).map_err(failed)?;
        let shape = Shape::of(&statement, self.order.len());
        let mut rows = statement.query(params_from_iter(cells)).map_err(failed)?;
        let (mut batch, mut bytes, mut found, mut skipped) = (Batch::default(), 0, 0, 0);
        let mut now = place.clone();
        batch.last = true;
        while let Some(row) = rows.next().map_err(failed)? {
            found += 1;
            let key = shape.key(row).map_err(failed)?;
            if skipped < skip && key == place.after {
                skipped += 1;
                continue;
            }
            bytes += shape.push(row, &key, &mut batch).map_err(failed)?;
            now.pass(key);
            if bytes >= room.bytes || batch.records.len() >= room.records {
                batch.last = false;
                break;
            }
        }
        batch.last &= found < limit;
        batch.cursor = now.to_value();
        self.bounds.place = now;
        Ok(batch)
    }

    fn sql(&self, limit: u64) -> Result<(String, Vec<Cell>), Trouble> {
        let mut cells = Vec::new();
        let mut wheres = Vec::new();
        if let Some(column) = self.order.first() {
            let column = format!("q.{}", quoted(column));
            wheres.push(format!("{column} is not null"));
            let range = self.bounds.range.as_ref();
            for (value, sign) in
                [(range.and_then(|range| range.from.as_ref()), ">="), (range.and_then(|range| range.to.as_ref()), "<")]
            {
                if let Some(value) = value {
                    cells.push(of_key(value)?);
                    wheres.push(format!("{column} {sign} ?{}", cells.len()));
                }
            }
        }
        let after = &self.bounds.place.after;
        if !after.is_empty() {
            let first = cells.len();
            for value in after {
                cells.push(of_key(value)?);
            }
            wheres.push(condition(&self.order, &mut |place| format!("?{}", first + place + 1)));
        }
        let keys: Vec<String> = self.order.iter().map(|name| format!("q.{}", quoted(name))).collect();
        let hidden = keys.iter().map(|key| format!(", {key}")).collect::<String>();
        let mut sql = format!("select q.*{hidden} from {}", self.from);
        if !keys.is_empty() {
            let (wheres, keys) = (wheres.join(" and "), keys.join(", "));
            sql.push_str(&format!(" where {wheres} order by {keys} limit {limit}"));
        }
        Ok((sql, cells))
    }

    /// All rows of a query, batch by batch, until nobody wants more.
    fn stream(self, room: Room, batches: &Sender<Result<Batch, Trouble>>) -> Result<(), Trouble> {
        let failed = |error: rusqlite::Error| trouble(&self.path, "read", &error);
        let (sql, _) = self.sql(0)?;
        let mut statement = self.connection.prepare(&sql).map_err(failed)?;
        let shape = Shape::of(&statement, 0);
        let mut rows = statement.query([]).map_err(failed)?;
        let mut place: Place = self.bounds.place.clone();
        for _ in 0..place.seen {
            if rows.next().map_err(failed)?.is_none() {
                break;
            }
        }
        let (mut batch, mut bytes) = (Batch::default(), 0);
        loop {
            let row = rows.next().map_err(failed)?;
            if let Some(row) = row {
                let number = Value::from(place.seen + 1);
                bytes += shape.push(row, &[number], &mut batch).map_err(failed)?;
                place.pass(Vec::new());
            }
            batch.last = row.is_none();
            if batch.last || bytes >= room.bytes || batch.records.len() >= room.records {
                batch.cursor = place.to_value();
                let last = batch.last;
                let wanted = batches.blocking_send(Ok(std::mem::take(&mut batch))).is_ok();
                bytes = 0;
                if last || !wanted {
                    return Ok(());
                }
            }
        }
    }
}

/// The columns of a statement; the last ones are those of the order.
struct Shape {
    columns: Vec<(String, Kind)>,
    keys: usize,
}

impl Shape {
    fn of(statement: &Statement<'_>, keys: usize) -> Shape {
        let columns = statement.columns();
        let known = columns.len().saturating_sub(keys);
        let kind = |declared: Option<&str>| declared.map_or(Kind::Any, Kind::declared);
        let named = columns.take(known).map(|column| (column.name().to_string(), kind(column.decl_type())));
        Shape { columns: named.collect(), keys }
    }

    fn key(&self, row: &rusqlite::Row<'_>) -> Result<Vec<Value>, rusqlite::Error> {
        (0..self.keys).map(|place| Ok(key_value(row.get_ref(self.columns.len() + place)?))).collect()
    }

    /// Appends a row. About how many bytes it takes.
    fn push(&self, row: &rusqlite::Row<'_>, key: &[Value], batch: &mut Batch) -> Result<usize, rusqlite::Error> {
        let (mut record, mut bytes) = (Map::new(), 0);
        for (place, (name, kind)) in self.columns.iter().enumerate() {
            let (value, size) = value_of(*kind, row.get_ref(place)?);
            bytes += size + name.len();
            record.insert(name.clone(), value);
        }
        let position = key.iter().map(Value::to_string).collect::<Vec<_>>().join(",");
        batch.records.push(Record { value: Value::Object(record), position: position.into() });
        Ok(bytes)
    }
}

/// Reads a page in a thread for such work. If the future that waits for it is dropped, the next one gets the page.
enum Pages {
    Idle(Option<Box<Database>>),
    Busy(JoinHandle<(Box<Database>, Result<Batch, Trouble>)>),
}

const BROKEN: &str = "a source of rows was read after it broke off";

#[async_trait]
impl Source for Pages {
    async fn read(&mut self, room: Room) -> Result<Batch, Trouble> {
        if let Pages::Idle(database) = self {
            let mut database = database.take().ok_or_else(|| Trouble::permanent(BROKEN))?;
            *self = Pages::Busy(tokio::task::spawn_blocking(move || {
                let page = database.page(room);
                (database, page)
            }));
        }
        let Pages::Busy(handle) = self else { return Err(Trouble::permanent(BROKEN)) };
        let (next, page) = match handle.await {
            Ok((database, page)) => (Some(database), page),
            Err(error) => (None, Err(broke_off(&error))),
        };
        *self = Pages::Idle(next);
        page
    }
}

/// Reads a query in a thread of its own, one batch ahead.
enum Stream {
    Ready(Option<Box<Database>>),
    Flowing(Receiver<Result<Batch, Trouble>>),
}

#[async_trait]
impl Source for Stream {
    async fn read(&mut self, room: Room) -> Result<Batch, Trouble> {
        if let Stream::Ready(database) = self {
            let database = database.take().ok_or_else(|| Trouble::permanent(BROKEN))?;
            let (sender, receiver) = mpsc::channel(1);
            let _ends_with_its_receiver = tokio::task::spawn_blocking(move || {
                if let Err(trouble) = database.stream(room, &sender) {
                    let _nobody_may_wait = sender.blocking_send(Err(trouble));
                }
            });
            *self = Stream::Flowing(receiver);
        }
        let Stream::Flowing(receiver) = self else { return Err(Trouble::permanent(BROKEN)) };
        receiver.recv().await.unwrap_or_else(|| Err(Trouble::permanent(BROKEN)))
    }
}
