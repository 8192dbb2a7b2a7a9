use super::super::sink::{Extra, NOT_AN_OBJECT, Writing, no_column, no_key, no_table, rejected};
use super::cell::{Kind, to_text};
use super::cursor::{self, Held};
use super::fault::{Fault, trouble};
use super::link::Link;
use super::statement::{key, upsert};
use super::table::{self, Columns};
use crate::{Committed, Guard, Record, Sink, Surroundings, Trouble, Written};
use async_trait::async_trait;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use tokio_postgres::Statement;
use tokio_postgres::types::ToSql;

/// An attempt that is stopped in the midst of a transaction must not hold its row for ever.
const SETUP: &str = "set statement_timeout to '10min'; set lock_timeout to '30s'; \
                     set idle_in_transaction_session_timeout to '60s';";

pub(in super::super) async fn open(
    url: &str,
    guard: Guard,
    writing: Writing,
    around: Surroundings,
) -> Result<Box<dyn Sink>, Trouble> {
    let link = Link::open(url, guard, SETUP).await?;
    let columns = Columns::read(&link.client, &writing.table).await?;
    if columns.is_none() && !writing.create {
        return Err(no_table(&writing.table));
    }
    cursor::take(&link.client, &around).await?;
    let held = Held::prepare(&link.client).await?;
    let mut database = Database { link, writing, around, held, columns: None, statements: BTreeMap::new() };
    if let Some(columns) = columns {
        database.knows(columns)?;
    }
    Ok(Box::new(database))
}

struct Database {
    link: Link,
    writing: Writing,
    around: Surroundings,
    held: Held,
    /// None until the table is there.
    columns: Option<Columns>,
    /// By the columns that records have.
    statements: BTreeMap<Vec<usize>, Statement>,
}

/// Records may each have other fields: so many statements are kept.
const MOST_SHAPES: usize = 200;

/// The texts of a row. None is null.
type Cells<'a> = Vec<Option<Cow<'a, str>>>;

/// A record on its way into the table.
struct Row<'a> {
    record: &'a Record,
    cells: Cells<'a>,
}

/// Rows that one statement writes: the same columns, no key twice.
type Groups<'a> = BTreeMap<(usize, Vec<usize>), Vec<Row<'a>>>;

/// Integers that are written otherwise are the same key: their records must keep their order.
fn same_key(kind: Kind, cell: Option<Cow<'_, str>>) -> Option<Cow<'_, str>> {
    let number = cell.as_ref().filter(|_| kind == Kind::Integer).and_then(|text| text.trim().parse::<i64>().ok());
    number.map(|number| number.to_string().into()).or(cell)
}

#[async_trait]
impl Sink for Database {
    async fn committed(&mut self) -> Result<Option<Committed>, Trouble> {
        Ok(cursor::committed(&self.link.client, &self.around).await?.map(|(committed, _)| committed))
    }

    async fn outcome(&mut self) -> Result<Option<Written>, Trouble> {
        Ok(cursor::committed(&self.link.client, &self.around).await?.and_then(|(_, written)| written))
    }

    async fn write(&mut self, records: Vec<Record>, cursor: &Value) -> Result<Written, Trouble> {
        match self.write_all(&records, cursor).await {
            Ok(written) => Ok(written),
            Err(trouble) => {
                // The trouble is what counts; a broken connection rolls back by itself.
                let _best_effort = self.execute("rollback").await;
                self.statements.clear();
                Err(trouble)
            }
        }
    }
}

impl Database {
    fn knows(&mut self, columns: Columns) -> Result<(), Trouble> {
        let mut key = self.writing.key.iter().flatten();
        if let Some(missing) = key.find(|name| columns.find(name).is_none()) {
            let table = &self.writing.table;
            return Err(Trouble::permanent(format!("the key {missing:?} is not a column of the sink's table {table}")));
        }
        self.columns = Some(columns);
        Ok(())
    }

    async fn execute(&self, sql: &str) -> Result<(), Trouble> {
        self.link.client.batch_execute(sql).await.map_err(|error| trouble(&error))
    }

    async fn write_all(&mut self, records: &[Record], cursor: &Value) -> Result<Written, Trouble> {
        // Sent together, in this order, as are the last two: answers take longer than the work.
        let (begun, locked) =
            tokio::join!(biased; self.execute("begin"), self.held.lock(&self.link.client, &self.around));
        begun.and(locked)?;
        if self.columns.is_none() && records.iter().any(|record| record.value.is_object()) {
            self.execute(&table::create(&self.writing, records)?).await?;
            let columns = Columns::read(&self.link.client, &self.writing.table).await?;
            self.knows(columns.ok_or_else(|| no_table(&self.writing.table))?)?;
        }
        let mut written = Written::default();
        let groups = self.groups(records, &mut written);
        for ((_, shape), rows) in groups {
            self.write_group(&shape, &rows, &mut written).await?;
        }
        // If the first fails, PostgreSQL makes a rollback of the second.
        let (kept, committed) = tokio::join!(biased; self.held.commit(&self.link.client, &self.around, cursor, &written), self.execute("commit"));
        kept.and(committed)?;
        Ok(written)
    }

    /// Records by their columns; the second record of a key comes after the first, in a group of its own.
    fn groups<'a>(&self, records: &'a [Record], written: &mut Written) -> Groups<'a> {
        let mut groups = Groups::new();
        let mut seen: BTreeMap<Cells<'a>, usize> = BTreeMap::new();
        for record in records {
            let (shape, cells) = match self.row(&record.value) {
                Ok(row) => row,
                Err(reason) => {
                    written.rejected.push(rejected(record, reason));
                    continue;
                }
            };
            let wave = self.columns.as_ref().and_then(|columns| {
                let key = key(&self.writing, columns, &shape)?;
                let cell = |name: &String| {
                    let place = shape.iter().position(|place| columns.columns[*place].name == *name);
                    place.and_then(|place| same_key(columns.columns[shape[place]].kind, cells[place].clone()))
                };
                let wave = seen.entry(key.iter().map(cell).collect()).or_default();
                *wave += 1;
                Some(*wave)
            });
            groups.entry((wave.unwrap_or_default(), shape)).or_default().push(Row { record, cells });
        }
        groups
    }

    fn row<'a>(&self, value: &'a Value) -> Result<(Vec<usize>, Cells<'a>), String> {
        let (Value::Object(fields), Some(columns)) = (value, &self.columns) else {
            return Err(NOT_AN_OBJECT.to_string());
        };
        let (mut shape, mut cells) = (Vec::with_capacity(fields.len()), Vec::with_capacity(fields.len()));
        for (name, value) in fields {
            let Some(column) = columns.find(name) else {
                match self.writing.extra {
                    Extra::Ignore => continue,
                    Extra::Reject => return Err(no_column(&self.writing.table, name)),
                }
            };
            let cell = to_text(columns.columns[column].kind, value);
            cells.push(cell.map_err(|reason| format!("column {name:?} {reason}"))?);
            shape.push(column);
        }
        let given = |name: &String| {
            let place = shape.iter().position(|place| columns.columns[*place].name == *name);
            place.is_some_and(|place| cells[place].is_some())
        };
        if let Some(missing) = self.writing.key.iter().flatten().find(|name| !given(name)) {
            return Err(no_key(missing));
        }
        if shape.is_empty() {
            return Err("has no fields that are columns".to_string());
        }
        Ok((shape, cells))
    }

    /// Writes all rows in one statement. If PostgreSQL refuses some of them, halves are tried, down to the culprits.
    async fn write_group(&mut self, shape: &[usize], rows: &[Row<'_>], written: &mut Written) -> Result<(), Trouble> {
        let mut ahead = vec![rows];
        while let Some(rows) = ahead.pop() {
            let statement = self.statement(shape).await?;
            let (saved, answer) =
                tokio::join!(biased; self.execute("savepoint rows"), self.write_rows(&statement, shape.len(), rows));
            saved?;
            let fault = match answer {
                Ok((new, updated)) => {
                    written.written += new + updated;
                    written.updated += updated;
                    written.unchanged += rows.len() as u64 - new - updated;
                    continue;
                }
                Err(fault) => fault,
            };
            match fault {
                Fault::Trouble(trouble) => return Err(trouble),
                Fault::Data(reason) if rows.len() == 1 => written.rejected.push(rejected(rows[0].record, reason)),
                Fault::Twice if rows.len() == 1 => {
                    let reason = "would change one row twice: a rule or trigger of the table makes more of it";
                    written.rejected.push(rejected(rows[0].record, reason));
                }
                Fault::Data(_) | Fault::Twice => {
                    let (first, second) = rows.split_at(rows.len() / 2);
                    ahead.extend([second, first]);
                }
            }
            self.execute("rollback to savepoint rows").await?;
        }
        Ok(())
    }

    async fn statement(&mut self, shape: &[usize]) -> Result<Statement, Trouble> {
        if let Some(statement) = self.statements.get(shape) {
            return Ok(statement.clone());
        }
        let columns = self.columns.as_ref().ok_or_else(|| no_table(&self.writing.table))?;
        let sql = upsert(&self.writing, columns, shape);
        let statement = self.link.client.prepare(&sql).await.map_err(|error| trouble(&error))?;
        if self.statements.len() == MOST_SHAPES {
            self.statements.clear();
        }
        self.statements.insert(shape.to_vec(), statement.clone());
        Ok(statement)
    }

    /// How many rows are new, and how many were changed.
    async fn write_rows(&self, statement: &Statement, width: usize, rows: &[Row<'_>]) -> Result<(u64, u64), Fault> {
        let column = |place: usize| rows.iter().map(move |row| row.cells[place].as_deref()).collect::<Vec<_>>();
        let arrays: Vec<Vec<Option<&str>>> = (0..width).map(column).collect();
        let parameters: Vec<&(dyn ToSql + Sync)> = arrays.iter().map(|array| array as &(dyn ToSql + Sync)).collect();
        let answer = self.link.client.query_one(statement, &parameters).await?;
        let count = |place: usize| u64::try_from(answer.get::<_, i64>(place)).unwrap_or_default();
        Ok((count(0), count(1)))
    }
}
