use super::super::names::{list, quoted};
use super::super::sink::{
    CREATED, Extra, NOT_AN_OBJECT, OnConflict, STAMPS, Writing, fenced, no_column, no_key, no_table, rejected,
};
use super::bind::{Cell, cell};
use super::cursor;
use super::link::{self, Access, is_data, trouble};
use super::table::{self, Columns};
use crate::blocking::blocking;
use crate::{Committed, Record, Sink, Surroundings, Trouble, Written};
use async_trait::async_trait;
use rusqlite::{Connection, Statement, TransactionBehavior};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

pub(in super::super) async fn open(
    path: PathBuf,
    writing: Writing,
    around: Surroundings,
) -> Result<Box<dyn Sink>, Trouble> {
    let database = blocking(move || Database::open(path, writing, around)).await?;
    Ok(Box::new(Shared(Arc::new(Mutex::new(database)))))
}

/// Shared with the thread that writes, which goes on if nobody waits for it any more.
struct Shared(Arc<Mutex<Database>>);

impl Shared {
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Database) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, Trouble> {
        let shared = self.0.clone();
        blocking(move || work(&mut shared.lock().unwrap_or_else(PoisonError::into_inner))).await
    }
}

#[async_trait]
impl Sink for Shared {
    async fn committed(&mut self) -> Result<Option<Committed>, Trouble> {
        Ok(self.with(|database| database.committed()).await?.map(|(committed, _)| committed))
    }

    async fn outcome(&mut self) -> Result<Option<Written>, Trouble> {
        Ok(self.with(|database| database.committed()).await?.and_then(|(_, written)| written))
    }

    async fn write(&mut self, records: Vec<Record>, cursor: &Value) -> Result<Written, Trouble> {
        let cursor = cursor.clone();
        self.with(move |database| database.write(&records, &cursor)).await
    }
}

struct Database {
    connection: Connection,
    path: PathBuf,
    around: Surroundings,
    rows: Rows,
}

/// How records become rows of the table.
struct Rows {
    writing: Writing,
    /// None until the table is there.
    columns: Option<Columns>,
    /// By the columns that a record has.
    statements: BTreeMap<Vec<usize>, Sql>,
}

/// The statements for records with certain columns. Both take the same parameters.
#[derive(Clone)]
struct Sql {
    insert: Arc<str>,
    /// Changes the row that is there, if it differs.
    update: Option<Arc<str>>,
}

/// Records may each have other fields: so many statements are kept.
const MOST_SHAPES: usize = 1000;

enum Became {
    New,
    Updated,
    Unchanged,
    Rejected(String),
}

impl Database {
    fn open(path: PathBuf, writing: Writing, around: Surroundings) -> Result<Database, Trouble> {
        let access = if writing.create { Access::Create } else { Access::Write };
        let mut connection = link::open(&path, access)?;
        let failed = |error: rusqlite::Error| trouble(&path, "write to", &error);
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        cursor::take(&transaction, &around).map_err(failed)??;
        transaction.commit().map_err(failed)?;
        let schema = writing.table.schema.as_deref().unwrap_or("main");
        let columns = Columns::read(&connection, schema, &writing.table.name).map_err(failed)?;
        if columns.is_none() && !writing.create {
            return Err(no_table(&writing.table));
        }
        let mut rows = Rows { writing, columns: None, statements: BTreeMap::new() };
        if let Some(columns) = columns {
            rows.knows(columns)?;
        }
        Ok(Database { connection, path, around, rows })
    }

    fn committed(&self) -> Result<Option<(Committed, Option<Written>)>, Trouble> {
        cursor::committed(&self.connection, &self.around).map_err(|error| trouble(&self.path, "read", &error))
    }

    fn write(&mut self, records: &[Record], cursor: &Value) -> Result<Written, Trouble> {
        let failed = |error: rusqlite::Error| trouble(&self.path, "write to", &error);
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        if !cursor::holds(&transaction, &self.around).map_err(failed)? {
            return Err(fenced(&self.around));
        }
        if self.rows.columns.is_none() && records.iter().any(|record| record.value.is_object()) {
            transaction.execute_batch(&table::create(&self.rows.writing, records)).map_err(failed)?;
            let schema = self.rows.writing.table.schema.as_deref().unwrap_or("main");
            let columns = Columns::read(&transaction, schema, &self.rows.writing.table.name).map_err(failed)?;
            self.rows.knows(columns.ok_or_else(|| no_table(&self.rows.writing.table))?)?;
        }
        let mut written = Written::default();
        for record in records {
            match self.rows.write(&transaction, &record.value).map_err(failed)? {
                Became::New => written.written += 1,
                Became::Updated => (written.written, written.updated) = (written.written + 1, written.updated + 1),
                Became::Unchanged => written.unchanged += 1,
                Became::Rejected(reason) => written.rejected.push(rejected(record, reason)),
            }
            if transaction.is_autocommit() {
                let said = "a constraint or trigger of the table rolls the whole transaction back; use ABORT instead";
                return Err(Trouble::permanent(format!("cannot write to {}: {said}", self.rows.writing.table)));
            }
        }
        cursor::commit(&transaction, &self.around, cursor, &written).map_err(failed)?;
        transaction.commit().map_err(failed)?;
        Ok(written)
    }
}

impl Rows {
    fn knows(&mut self, columns: Columns) -> Result<(), Trouble> {
        let key = self.writing.key.iter().flatten();
        if let Some(missing) = key.into_iter().find(|name| columns.find(name).is_none()) {
            let table = &self.writing.table;
            return Err(Trouble::permanent(format!("the key {missing:?} is not a column of the sink's table {table}")));
        }
        self.columns = Some(columns);
        Ok(())
    }

    fn write(&mut self, connection: &Connection, value: &Value) -> Result<Became, rusqlite::Error> {
        let Value::Object(fields) = value else { return Ok(Became::Rejected(NOT_AN_OBJECT.to_string())) };
        // Without any object there is no table yet, and no other record either.
        let Some(columns) = &self.columns else { return Ok(Became::Rejected(NOT_AN_OBJECT.to_string())) };
        let (mut shape, mut cells) = (Vec::with_capacity(fields.len()), Vec::with_capacity(fields.len()));
        for (name, value) in fields {
            let Some(column) = columns.find(name) else {
                match self.writing.extra {
                    Extra::Ignore => continue,
                    Extra::Reject => return Ok(Became::Rejected(no_column(&self.writing.table, name))),
                }
            };
            match cell(columns.kinds[column], value) {
                Ok(cell) => cells.push(cell),
                Err(reason) => return Ok(Became::Rejected(format!("column {name:?} {reason}"))),
            }
            shape.push(column);
        }
        let given = |name: &String| {
            let place = shape.iter().position(|column| columns.names[*column].eq_ignore_ascii_case(name));
            place.is_some_and(|place| !matches!(cells[place], Cell::Null))
        };
        if let Some(missing) = self.writing.key.iter().flatten().find(|name| !given(name)) {
            return Ok(Became::Rejected(no_key(missing)));
        }
        if shape.is_empty() {
            return Ok(Became::Rejected("has no fields that are columns".to_string()));
        }
        let sql = match self.statements.get(&shape) {
            Some(sql) => sql.clone(),
            None => {
                let sql = self.sql(columns, &shape);
                if self.statements.len() == MOST_SHAPES {
                    self.statements.clear();
                }
                self.statements.insert(shape, sql.clone());
                sql
            }
        };
        sql.write(connection, &cells)
    }

    fn sql(&self, columns: &Columns, shape: &[usize]) -> Sql {
        let table = self.writing.table.quoted();
        let names: Vec<&str> = shape.iter().map(|column| columns.names[*column].as_str()).collect();
        let has = |name: &str| names.iter().any(|known| known.eq_ignore_ascii_case(name));
        let stamp = |name: &&str| self.writing.stamps && columns.find(name).is_some() && !has(name);
        let stamps: Vec<&str> = STAMPS.into_iter().filter(stamp).collect();
        let all = list(names.iter().chain(&stamps).copied());
        let values: Vec<String> = (1..=names.len()).map(|place| format!("?{place}")).collect();
        let values = values.into_iter().chain(stamps.iter().map(|_| NOW.to_string())).collect::<Vec<_>>().join(", ");
        let key = self.writing.key.as_ref().unwrap_or(&columns.primary);
        let keyed = !key.is_empty() && key.iter().all(|name| has(name));
        let conflict = if keyed {
            format!(" on conflict ({}) do nothing", list(key.iter().map(String::as_str)))
        } else {
            String::new()
        };
        let insert = format!("insert into {table} ({all}) values ({values}){conflict}").into();
        let is_key = |name: &str| key.iter().any(|known| known.eq_ignore_ascii_case(name));
        let rest: Vec<(usize, String)> = names
            .iter()
            .enumerate()
            .filter(|(_, name)| !is_key(name))
            .map(|(place, name)| (place + 1, quoted(name)))
            .collect();
        if !keyed || rest.is_empty() || self.writing.on_conflict == OnConflict::Ignore {
            return Sql { insert, update: None };
        }
        let mut set: Vec<String> = rest.iter().map(|(place, name)| format!("{name} = ?{place}")).collect();
        let renewed = stamps.iter().filter(|stamp| **stamp != CREATED);
        set.extend(renewed.map(|stamp| format!("{} = {NOW}", quoted(stamp))));
        let differs: Vec<String> = rest.iter().map(|(place, name)| format!("{name} is not ?{place}")).collect();
        let found = names.iter().enumerate().filter(|(_, name)| is_key(name));
        let found: Vec<String> = found.map(|(place, name)| format!("{} = ?{}", quoted(name), place + 1)).collect();
        let (set, found, differs) = (set.join(", "), found.join(" and "), differs.join(" or "));
        let update = format!("update {table} set {set} where {found} and ({differs})");
        Sql { insert, update: Some(update.into()) }
    }
}

/// As Rails writes times into SQLite.
const NOW: &str = "strftime('%Y-%m-%d %H:%M:%f000', 'now')";

impl Sql {
    fn write(&self, connection: &Connection, cells: &[Cell<'_>]) -> Result<Became, rusqlite::Error> {
        let run = |sql: &str| -> Result<Result<usize, String>, rusqlite::Error> {
            let mut statement = connection.prepare_cached(sql)?;
            match bound(&mut statement, cells) {
                Ok(changed) => Ok(Ok(changed)),
                Err(error) if is_data(&error) => Ok(Err(error.to_string())),
                Err(error) => Err(error),
            }
        };
        match run(&self.insert)? {
            Err(reason) => return Ok(Became::Rejected(reason)),
            Ok(1..) => return Ok(Became::New),
            Ok(0) => {}
        }
        let Some(update) = &self.update else { return Ok(Became::Unchanged) };
        Ok(match run(update)? {
            Err(reason) => Became::Rejected(reason),
            Ok(0) => Became::Unchanged,
            Ok(_) => Became::Updated,
        })
    }
}

fn bound(statement: &mut Statement<'_>, cells: &[Cell<'_>]) -> Result<usize, rusqlite::Error> {
    for (place, cell) in cells.iter().enumerate() {
        statement.raw_bind_parameter(place + 1, cell)?;
    }
    statement.raw_execute()
}
