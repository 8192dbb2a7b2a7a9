//! Records as they stand in a file.

use super::format::Format;
use crate::{Record, Rejected};
use serde_json::{Map, Value};

/// Turns records into the bytes of a file.
pub(super) struct Writer {
    pub(super) format: Format,
    /// Of CSV; those of the first record if nobody has named any.
    pub(super) columns: Option<Vec<String>>,
}

impl Writer {
    /// Appends the records to `bytes`, those that do not fit to `rejected`. How many were written.
    pub(super) fn write(
        &mut self,
        records: &[Record],
        at_beginning: bool,
        bytes: &mut Vec<u8>,
        rejected: &mut Vec<Rejected>,
    ) -> u64 {
        let mut written = 0;
        let mut needs_header = at_beginning && self.format == Format::Csv;
        for record in records {
            let length = bytes.len();
            let result = match self.format {
                Format::Ndjson => json(&record.value, bytes),
                Format::Csv => self.row(&record.value, &mut needs_header, bytes),
            };
            match result {
                Ok(()) => written += 1,
                Err(reason) => {
                    bytes.truncate(length);
                    rejected.push(Rejected::new(record.position.clone(), reason, record.value.to_string().as_bytes()));
                }
            }
        }
        written
    }

    fn row(&mut self, value: &Value, needs_header: &mut bool, bytes: &mut Vec<u8>) -> Result<(), String> {
        let Value::Object(fields) = value else { return Err("is not an object: CSV needs columns".to_string()) };
        if fields.is_empty() {
            return Err("has no fields".to_string());
        }
        let columns = self.columns.get_or_insert_with(|| fields.keys().cloned().collect());
        if let Some(strange) = fields.keys().find(|name| !columns.contains(name)) {
            return Err(format!("has the field {strange:?}, which is not a column of the file"));
        }
        if std::mem::take(needs_header) {
            line(columns.iter().map(|name| Some(name.clone())), bytes);
        }
        line(columns.iter().map(|name| field(fields, name)), bytes);
        Ok(())
    }
}

fn json(value: &Value, bytes: &mut Vec<u8>) -> Result<(), String> {
    serde_json::to_writer(&mut *bytes, value).map_err(|error| format!("cannot be written as JSON: {error}"))?;
    bytes.push(b'\n');
    Ok(())
}

/// Null and what is missing are empty; lists and objects stand as JSON.
fn field(fields: &Map<String, Value>, name: &str) -> Option<String> {
    match fields.get(name)? {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn line(fields: impl Iterator<Item = Option<String>>, bytes: &mut Vec<u8>) {
    for (number, field) in fields.enumerate() {
        if number > 0 {
            bytes.push(b',');
        }
        match field {
            None => {}
            // Empty text is told apart from nothing, and a row of one empty field from an empty line.
            Some(text) if text.is_empty() || text.contains(['"', ',', '\r', '\n']) => {
                bytes.push(b'"');
                bytes.extend_from_slice(text.replace('"', "\"\"").as_bytes());
                bytes.push(b'"');
            }
            Some(text) => bytes.extend_from_slice(text.as_bytes()),
        }
    }
    bytes.push(b'\n');
}
