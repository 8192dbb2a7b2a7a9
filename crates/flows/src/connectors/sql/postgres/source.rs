//! Rows in the order of some columns are read page by page. Other rows come from one statement.

use super::super::names::quoted;
use super::super::source::{Bounds, Reading, Rows, condition, order};
use super::cell::{Kind, from_text, selected};
use super::fault::trouble;
use super::link::Link;
use super::table::Columns;
use crate::{Batch, Guard, Record, Room, Source, Trouble};
use async_trait::async_trait;
use futures_util::TryStreamExt;
use serde_json::{Map, Value};
use std::pin::Pin;
use tokio_postgres::{Row, RowStream, Statement};

pub(in super::super) async fn open(
    url: &str,
    guard: Guard,
    reading: Reading,
    bounds: Bounds,
) -> Result<Box<dyn Source>, Trouble> {
    let link = Link::open(url, guard, "").await?;
    let failed = |error: tokio_postgres::Error| trouble(&error);
    let order = match &reading.rows {
        Rows::Query(_) => reading.cursor.clone().into_iter().collect(),
        Rows::Table(table) => {
            let Some(columns) = Columns::read(&link.client, table).await? else {
                return Err(Trouble::permanent(format!("the source's table {table} does not exist; check its name")));
            };
            reading.cursor.as_ref().map_or(columns.primary.clone(), |cursor| order(cursor, &columns.primary))
        }
    };
    let from = reading.rows.from();
    let described = link.client.prepare(&format!("select q.* from {from} limit 0")).await.map_err(failed)?;
    let columns: Vec<Column> = described
        .columns()
        .iter()
        .map(|column| Column {
            name: column.name().to_string(),
            kind: Kind::named(column.type_().name()),
            cast: cast(column.type_()),
        })
        .collect();
    if let Some(missing) = order.iter().find(|name| columns.iter().all(|column| column.name != **name)) {
        let known = columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ");
        let said = format!("the cursor {missing:?} is not a column of what the source reads; use one of {known}");
        return Err(Trouble::permanent(said));
    }
    let unordered =
        |column: &&Column| order.contains(&column.name) && matches!(column.kind, Kind::Bytes | Kind::Json | Kind::List);
    if let Some(column) = columns.iter().find(unordered) {
        let said = "holds bytes, lists or JSON, which a cursor cannot keep; use a column of numbers, texts or times";
        return Err(Trouble::permanent(format!("the cursor {:?} {said}", column.name)));
    }
    Ok(Box::new(Reader { link, from, order, columns, bounds, stream: None, statement: None }))
}

struct Column {
    name: String,
    kind: Kind,
    cast: String,
}

/// A type as it is written in a cast.
fn cast(kind: &tokio_postgres::types::Type) -> String {
    format!("{}.{}", quoted(kind.schema()), quoted(kind.name()))
}

struct Reader {
    link: Link,
    from: String,
    /// By these columns rows are read in order. Empty: as the query gives them.
    order: Vec<String>,
    columns: Vec<Column>,
    bounds: Bounds,
    /// The rows of a query without an order, once it is under way.
    stream: Option<(Pin<Box<RowStream>>, Pending)>,
    /// The statement of a page, for the parameters that it has.
    statement: Option<(String, Statement)>,
}

/// What was read and not handed over: the future that reads may be dropped.
#[derive(Default)]
struct Pending {
    batch: Batch,
    bytes: usize,
}

#[async_trait]
impl Source for Reader {
    async fn read(&mut self, room: Room) -> Result<Batch, Trouble> {
        if self.order.is_empty() { self.next_of_stream(room).await } else { self.page(room).await }
    }
}

impl Reader {
    async fn page(&mut self, room: Room) -> Result<Batch, Trouble> {
        let failed = |error: tokio_postgres::Error| trouble(&error);
        let place = self.bounds.place.clone();
        let skip = if place.after.is_empty() { 0 } else { place.seen };
        let limit = i64::try_from((room.records as u64).saturating_add(skip)).unwrap_or(i64::MAX);
        let (sql, texts) = self.sql(Some(limit))?;
        let statement = match &self.statement {
            Some((known, statement)) if *known == sql => statement.clone(),
            _ => {
                let statement = self.link.client.prepare(&sql).await.map_err(failed)?;
                self.statement = Some((sql, statement.clone()));
                statement
            }
        };
        let rows = self.link.client.query_raw(&statement, texts).await.map_err(failed)?;
        let mut rows = std::pin::pin!(rows);
        let (mut batch, mut bytes, mut found, mut skipped) = (Batch { last: true, ..Batch::default() }, 0, 0, 0);
        let mut now = place.clone();
        while let Some(row) = rows.try_next().await.map_err(failed)? {
            found += 1;
            let (value, size) = record(&self.columns, &row);
            let key: Vec<Value> = self.order.iter().map(|name| value.get(name).cloned().unwrap_or_default()).collect();
            if skipped < skip && key == place.after {
                skipped += 1;
                continue;
            }
            let position = key.iter().map(Value::to_string).collect::<Vec<_>>().join(",");
            batch.records.push(Record { value, position: position.into() });
            now.pass(key);
            bytes += size;
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

    /// The statement, and the texts of its parameters.
    fn sql(&self, limit: Option<i64>) -> Result<(String, Vec<String>), Trouble> {
        let (mut texts, mut wheres) = (Vec::new(), Vec::new());
        let cast_of =
            |name: &String| self.columns.iter().find(|column| column.name == *name).map(|column| &column.cast);
        let mut parameter = |value: &Value, name: &String| -> Result<String, Trouble> {
            texts.push(match value {
                Value::String(text) => text.clone(),
                Value::Number(_) | Value::Bool(_) => value.to_string(),
                other => {
                    let said = format!("{other} is no value of the column {name:?}; use a number or text");
                    return Err(Trouble::permanent(said));
                }
            });
            Ok(format!("${}::text::{}", texts.len(), cast_of(name).map_or("text", String::as_str)))
        };
        if let Some(column) = self.order.first() {
            let named = format!("q.{}", quoted(column));
            wheres.push(format!("{named} is not null"));
            let range = self.bounds.range.as_ref();
            for (value, sign) in
                [(range.and_then(|range| range.from.as_ref()), ">="), (range.and_then(|range| range.to.as_ref()), "<")]
            {
                if let Some(value) = value {
                    wheres.push(format!("{named} {sign} {}", parameter(value, column)?));
                }
            }
        }
        let after = &self.bounds.place.after;
        if !after.is_empty() {
            let values: Result<Vec<String>, Trouble> =
                after.iter().zip(&self.order).map(|(value, name)| parameter(value, name)).collect();
            let values = values?;
            wheres.push(condition(&self.order, &mut |place| values.get(place).cloned().unwrap_or_default()));
        }
        let cells: Vec<String> =
            self.columns.iter().map(|column| selected(column.kind, &format!("q.{}", quoted(&column.name)))).collect();
        let mut sql = format!("select {} from {}", cells.join(", "), self.from);
        if let (false, Some(limit)) = (self.order.is_empty(), limit) {
            let keys = self.order.iter().map(|name| format!("q.{}", quoted(name))).collect::<Vec<_>>().join(", ");
            sql.push_str(&format!(" where {} order by {keys} limit {limit}", wheres.join(" and ")));
        }
        Ok((sql, texts))
    }

    async fn next_of_stream(&mut self, room: Room) -> Result<Batch, Trouble> {
        let failed = |error: tokio_postgres::Error| trouble(&error);
        if self.stream.is_none() {
            let (sql, texts) = self.sql(None)?;
            let mut rows = Box::pin(self.link.client.query_raw(&sql, texts).await.map_err(failed)?);
            for _ in 0..self.bounds.place.seen {
                if rows.try_next().await.map_err(failed)?.is_none() {
                    break;
                }
            }
            self.stream = Some((rows, Pending::default()));
        }
        let Reader { stream, columns, bounds, .. } = self;
        let Some((rows, pending)) = stream else { return Ok(Batch::default()) };
        while !pending.batch.last && pending.bytes < room.bytes && pending.batch.records.len() < room.records {
            let Some(row) = rows.try_next().await.map_err(failed)? else {
                pending.batch.last = true;
                break;
            };
            let (value, size) = record(columns, &row);
            pending.bytes += size;
            bounds.place.pass(Vec::new());
            pending.batch.records.push(Record { value, position: bounds.place.seen.to_string().into() });
        }
        pending.bytes = 0;
        Ok(Batch { cursor: bounds.place.to_value(), ..std::mem::take(&mut pending.batch) })
    }
}

/// A row as JSON, and about how many bytes it takes.
fn record(columns: &[Column], row: &Row) -> (Value, usize) {
    let (mut record, mut bytes) = (Map::new(), 0);
    for (place, column) in columns.iter().enumerate() {
        let text: Option<&str> = row.get(place);
        bytes += column.name.len() + text.map_or(4, str::len);
        record.insert(column.name.clone(), text.map_or(Value::Null, |text| from_text(column.kind, text)));
    }
    (Value::Object(record), bytes)
}
