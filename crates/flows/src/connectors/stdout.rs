//! The standard output of the server: each record is one line of JSON.

use crate::blocking::blocking;
use crate::{Fields, OpenSink, Promise, Record, Settings, Sink, Surroundings, Trouble, Written};
use async_trait::async_trait;
use everbeat_model::Invalid;
use serde_json::Value;
use std::io::Write;
use std::sync::Arc;

pub(super) fn read_sink(_: &str, _: &mut Fields<'_>, _: &Settings) -> Result<Arc<dyn OpenSink>, Invalid> {
    Ok(Arc::new(Stdout))
}

struct Stdout;

#[async_trait]
impl OpenSink for Stdout {
    fn promise(&self) -> Promise {
        Promise::AtLeastOnce
    }

    async fn open(&self, _: &Surroundings) -> Result<Box<dyn Sink>, Trouble> {
        Ok(Box::new(Stdout))
    }
}

#[async_trait]
impl Sink for Stdout {
    async fn write(&mut self, records: Vec<Record>, _: &Value) -> Result<Written, Trouble> {
        let written = records.len() as u64;
        // Whoever reads may be slow.
        blocking(move || {
            let mut lines = String::new();
            for record in &records {
                lines.push_str(&record.value.to_string());
                lines.push('\n');
            }
            let mut stdout = std::io::stdout().lock();
            let said = stdout.write_all(lines.as_bytes()).and_then(|()| stdout.flush());
            said.map_err(|error| Trouble::transient(format!("cannot write to stdout: {error}")))
        })
        .await?;
        Ok(Written { written, ..Written::default() })
    }
}
