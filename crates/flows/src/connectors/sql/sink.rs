use super::address::{Address, Database};
use super::inflect::table_of;
use super::names::Table;
use super::{postgres, sqlite};
use crate::{Fields, OpenSink, Promise, Record, Rejected, Settings, Sink, Surroundings, Trouble};
use async_trait::async_trait;
use everbeat_model::Invalid;
use std::sync::Arc;

/// The name under which the classes of Rails are accepted.
pub(super) const ACTIVE_RECORD: &str = "ActiveRecord";

/// What a flow says of the table that it writes.
#[derive(Clone, Debug)]
pub(super) struct Writing {
    pub(super) table: Table,
    /// The columns by which a row is found again. None: those of the primary key.
    pub(super) key: Option<Vec<String>>,
    pub(super) on_conflict: OnConflict,
    pub(super) extra: Extra,
    pub(super) create: bool,
    /// The columns of [`STAMPS`] are filled.
    pub(super) stamps: bool,
}

/// Columns that hold when a row was made, changed and came through a flow.
pub(super) const STAMPS: [&str; 3] = [CREATED, "updated_at", "processed_at"];
/// It stays when a row is changed.
pub(super) const CREATED: &str = "created_at";

/// What becomes of a row that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnConflict {
    Update,
    Ignore,
}

/// What becomes of fields that are not columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extra {
    Reject,
    Ignore,
}

pub(crate) fn read(name: &str, fields: &mut Fields<'_>, settings: &Settings) -> Result<Arc<dyn OpenSink>, Invalid> {
    let rails = name == ACTIVE_RECORD;
    let address = Address::read(fields, settings, if rails { &["database", "sql"] } else { &[] })?;
    let table = match fields.text("table")? {
        Some(table) => table.to_string(),
        None if rails => table_of(fields.required_text("model_name")?),
        None => fields.required_text("table")?.to_string(),
    };
    let choice = [("update", OnConflict::Update), ("ignore", OnConflict::Ignore)];
    let writing = Writing {
        table: Table::read(&table)?,
        key: fields.texts("key")?,
        on_conflict: fields.choice("on_conflict", &choice)?.unwrap_or(OnConflict::Update),
        extra: fields
            .choice("extra", &[("reject", Extra::Reject), ("ignore", Extra::Ignore)])?
            .unwrap_or(Extra::Reject),
        create: fields.flag("create")?.unwrap_or(false),
        stamps: rails,
    };
    // Where a table is named, a model is beside the point, but not wrong.
    if rails {
        fields.text("model_name")?;
    }
    Ok(Arc::new(SqlSink { address, writing }))
}

struct SqlSink {
    address: Address,
    writing: Writing,
}

#[async_trait]
impl OpenSink for SqlSink {
    fn promise(&self) -> Promise {
        Promise::ExactlyOnce
    }

    async fn open(&self, around: &Surroundings) -> Result<Box<dyn Sink>, Trouble> {
        match self.address.database()? {
            Database::Sqlite(path) => sqlite::sink::open(path, self.writing.clone(), around.clone()).await,
            Database::Postgres { url, guard } => {
                postgres::sink::open(&url, guard, self.writing.clone(), around.clone()).await
            }
        }
    }
}

/// The table where sinks keep their cursors.
pub(super) const CURSORS: &str = "everbeat_flow_cursor";

/// Of each flow, so many runs are remembered.
pub(super) const KEPT_RUNS: i64 = 100;

pub(super) fn fenced(around: &Surroundings) -> Trouble {
    let Surroundings { flow, fence, .. } = around;
    let said = "may no longer write: a later attempt has taken over, or its row in everbeat_flow_cursor was removed";
    Trouble::fenced(format!("attempt {fence} of a run of the flow {flow:?} {said}"))
}

pub(super) fn no_table(table: &Table) -> Trouble {
    let hint = "create it, or write \"create\": true in the sink";
    Trouble::permanent(format!("the sink's table {table} does not exist; {hint}"))
}

pub(super) fn rejected(record: &Record, reason: impl Into<String>) -> Rejected {
    Rejected::new(record.position.clone(), reason, record.value.to_string().as_bytes())
}

pub(super) const NOT_AN_OBJECT: &str = "is not an object: a table needs columns";

pub(super) fn no_column(table: &Table, name: &str) -> String {
    format!("has the field {name:?}, which is not a column of the table {table}")
}

pub(super) fn no_key(name: &str) -> String {
    format!("lacks the key {name:?}")
}
