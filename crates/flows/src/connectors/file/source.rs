use super::compression;
use super::format;
use super::types;
use super::walk::{Files, Scope, Walk, is_pattern};
use crate::blocking::{blocking, broke_off, of_io};
use crate::{Batch, Fields, OpenSource, Record, Rejected, Room, Settings, Source, Surroundings, Trouble};
use async_trait::async_trait;
use everbeat_model::Invalid;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// A record may have a field of some MiB, and is in memory as a whole.
const DEFAULT_RECORD_BYTES: usize = 4 << 20;
const MOST_RECORD_BYTES: u64 = 64 << 20;

const SCOPES: &[(&str, Scope)] = &[("all", Scope::All), ("new", Scope::New)];

pub(crate) fn read(_: &str, fields: &mut Fields<'_>, _: &Settings) -> Result<Arc<dyn OpenSource>, Invalid> {
    let path = fields.required_text("path")?.to_string();
    if is_pattern(&path) {
        glob::Pattern::new(&path).map_err(|error| {
            Invalid::new("path", &path, format!("is no pattern: {error}"), "write it like in/*.ndjson")
        })?;
    }
    let files = Files {
        format: fields.choice("format", format::NAMES)?,
        compression: fields.choice("compression", compression::NAMES)?,
        types: types::read(fields)?,
        max_record_bytes: fields
            .count("max_record_bytes", MOST_RECORD_BYTES)?
            .map_or(DEFAULT_RECORD_BYTES, |bytes| bytes as usize),
        scope: fields.choice("read", SCOPES)?.unwrap_or(Scope::All),
        path,
    };
    if files.format.is_none() && format::Format::of(Path::new(&files.path)).is_none() && !is_pattern(&files.path) {
        let hint = "say \"format\": \"ndjson\" or \"csv\"";
        return Err(Invalid::new("path", &files.path, "does not tell the format of the file", hint));
    }
    Ok(Arc::new(FileSource(files)))
}

struct FileSource(Files);

#[async_trait]
impl OpenSource for FileSource {
    fn goes_on(&self) -> bool {
        self.0.scope == Scope::New
    }

    async fn open(&self, around: &Surroundings, cursor: Option<&Value>) -> Result<Box<dyn Source>, Trouble> {
        if around.range.is_some() {
            let said = "a source of files has no cursor column: it cannot read a range; use a source of type \"sql\"";
            return Err(Trouble::permanent(said));
        }
        let (files, cursor) = (self.0.clone(), cursor.cloned());
        let walk = blocking(move || Walk::begin(files, cursor.as_ref())).await?;
        Ok(Box::new(Reading { state: State::Idle(Some(Box::new(walk))) }))
    }
}

struct Reading {
    state: State,
}

type Answer = (Box<Walk>, Result<Batch, Trouble>);

/// A batch is read in a thread for such work. If the future that waits for it is dropped, the next one gets the batch.
enum State {
    Idle(Option<Box<Walk>>),
    Busy(JoinHandle<Answer>),
}

#[async_trait]
impl Source for Reading {
    async fn read(&mut self, room: Room) -> Result<Batch, Trouble> {
        if let State::Idle(walk) = &mut self.state {
            let Some(mut walk) = walk.take() else {
                return Err(Trouble::permanent("a source of files was read after it broke off"));
            };
            self.state = State::Busy(tokio::task::spawn_blocking(move || {
                let batch = fill(&mut walk, room);
                (walk, batch)
            }));
        }
        let State::Busy(handle) = &mut self.state else {
            return Err(Trouble::permanent("a source of files was read after it broke off"));
        };
        match handle.await {
            Ok((walk, batch)) => {
                self.state = State::Idle(Some(walk));
                batch
            }
            Err(error) => {
                self.state = State::Idle(None);
                Err(broke_off(&error))
            }
        }
    }
}

fn fill(walk: &mut Walk, room: Room) -> Result<Batch, Trouble> {
    let mut batch = Batch::default();
    let mut bytes = 0;
    while batch.records.len() + batch.rejected.len() < room.records && bytes < room.bytes {
        let Some(current) = walk.current()? else {
            batch.last = true;
            break;
        };
        let found = current.reader.next().map_err(|error| of_io("read", Path::new(&*current.path), &error))?;
        let Some(found) = found else {
            walk.leave();
            continue;
        };
        bytes += found.bytes;
        let position = format!("{}:{}", current.path, found.line);
        match found.content {
            Ok(value) => batch.records.push(Record { value, position: position.into() }),
            Err(bad) => batch.rejected.push(Rejected::new(position, bad.reason, &bad.raw)),
        }
    }
    walk.note();
    batch.cursor = walk.cursor();
    Ok(batch)
}
