use super::address::{Address, Database};
use super::names::{Table, quoted};
use super::{postgres, sqlite};
use crate::{Fields, OpenSource, Settings, Source, Surroundings, Trouble};
use async_trait::async_trait;
use everbeat_model::Invalid;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// What a flow says of the rows that it reads.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) rows: Rows,
    /// The column by which rows are read in order, and a run goes on.
    pub(super) cursor: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) enum Rows {
    Table(Table),
    Query(String),
}

impl Rows {
    /// What stands behind `from`.
    pub(super) fn from(&self) -> String {
        match self {
            Rows::Table(table) => format!("{} as q", table.quoted()),
            Rows::Query(query) => format!("({query}) as q"),
        }
    }

    /// For people, and to tell whether a cursor is one of these rows.
    pub(super) fn name(&self) -> String {
        match self {
            Rows::Table(table) => table.to_string(),
            Rows::Query(query) => query.clone(),
        }
    }
}

const LONGEST_QUERY: usize = 64 << 10;

pub(crate) fn read(_: &str, fields: &mut Fields<'_>, settings: &Settings) -> Result<Arc<dyn OpenSource>, Invalid> {
    let address = Address::read(fields, settings, &[])?;
    let (table, query) = (fields.text("table")?, fields.text("query")?);
    let rows = match (table, query) {
        (Some(table), None) => Rows::Table(Table::read(table)?),
        (None, Some(query)) => {
            let query = query.trim().trim_end_matches(';').trim_end();
            if query.len() > LONGEST_QUERY || query.contains('\0') {
                return Err(Invalid::new("query", query, "is too long, or holds a NUL", "make it a view"));
            }
            // A comment at its end would swallow what is written behind it.
            Rows::Query(format!("{query}\n"))
        }
        (Some(_), Some(query)) => {
            return Err(Invalid::new("query", query, "stands beside a table", "give one of both, not both"));
        }
        (None, None) => return Err(Invalid::new("table", "nothing", "is missing", "name a table, or give a query")),
    };
    let cursor = fields.text("cursor")?.map(str::to_string);
    Ok(Arc::new(SqlSource { address, reading: Reading { rows, cursor } }))
}

struct SqlSource {
    address: Address,
    reading: Reading,
}

#[async_trait]
impl OpenSource for SqlSource {
    fn goes_on(&self) -> bool {
        self.reading.cursor.is_some()
    }

    async fn open(&self, around: &Surroundings, cursor: Option<&Value>) -> Result<Box<dyn Source>, Trouble> {
        if around.range.is_some() && self.reading.cursor.is_none() {
            let said = "a range can be read only by a cursor column; name one in the source, like \"cursor\": \"id\"";
            return Err(Trouble::permanent(said));
        }
        let place = Place::of(cursor, &self.reading)?;
        let bounds = Bounds { place, range: around.range.clone() };
        match self.address.database()? {
            Database::Sqlite(path) => sqlite::source::open(path, self.reading.clone(), bounds).await,
            Database::Postgres { url, guard } => {
                postgres::source::open(&url, guard, self.reading.clone(), bounds).await
            }
        }
    }
}

/// From where to where rows are read.
pub(super) struct Bounds {
    pub(super) place: Place,
    pub(super) range: Option<crate::Range>,
}

/// The cursor: how far rows were handed over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Place {
    /// The table or query.
    rows: String,
    column: Option<String>,
    /// The last value of the cursor column, and of the columns that tell equal ones apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) after: Vec<Value>,
    /// Rows handed over, of those with exactly these values; without a cursor column, of all.
    pub(super) seen: u64,
}

impl Place {
    fn of(cursor: Option<&Value>, reading: &Reading) -> Result<Place, Trouble> {
        let begin = Place { rows: reading.rows.name(), column: reading.cursor.clone(), after: Vec::new(), seen: 0 };
        let Some(cursor) = cursor else { return Ok(begin) };
        let place: Place = serde_json::from_value(cursor.clone()).map_err(|error| {
            let said = "is none of a source of rows: the flow's source was changed; trigger it as a new flow";
            Trouble::permanent(format!("the cursor {cursor} {said} ({error})"))
        })?;
        // Other rows were never read.
        Ok(if (&place.rows, &place.column) == (&begin.rows, &begin.column) { place } else { begin })
    }

    pub(super) fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// One more row was handed over.
    pub(super) fn pass(&mut self, key: Vec<Value>) {
        if self.after == key {
            self.seen += 1;
        } else {
            (self.after, self.seen) = (key, 1);
        }
    }
}

/// The columns that rows are read in the order of: the cursor's, then those of the primary key, which tell rows apart
/// whose cursor is equal.
pub(super) fn order(cursor: &str, primary: &[String]) -> Vec<String> {
    let rest = primary.iter().filter(|name| *name != cursor).cloned();
    // A cursor column that is the whole key needs no help.
    if primary == [cursor] {
        vec![cursor.to_string()]
    } else {
        std::iter::once(cursor.to_string()).chain(rest).collect()
    }
}

/// The rows after a place, with a parameter for each value. Rows that are exactly there come first again, since others
/// may be equal to them: `seen` of them are passed over.
pub(super) fn condition(order: &[String], parameter: &mut dyn FnMut(usize) -> String) -> String {
    let names = order.iter().map(|name| format!("q.{}", quoted(name))).collect::<Vec<_>>().join(", ");
    let values = (0..order.len()).map(parameter).collect::<Vec<_>>().join(", ");
    format!("({names}) >= ({values})")
}
