use super::client::{Ask, Client, refused};
use super::headers::Headers;
use super::next::{Next, Place};
use crate::connectors::parts::refuse_range;
use crate::{Batch, Fields, OpenSource, Record, Room, Settings, Source, Surroundings, Target, Trouble, shown, target};
use async_trait::async_trait;
use bytes::Bytes;
use everbeat_model::Invalid;
use hyper::Method;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// Pages of JSON. Each run reads all of them.
struct HttpSource {
    target: Target,
    headers: Headers,
    records: Option<String>,
    next: Next,
    timeout: Duration,
}

/// Pages that never end are a mistake of the server.
const MOST_PAGES: u64 = 1_000_000;

/// Where records are looked for in an answer that is no list.
const USUAL_NAMES: [&str; 3] = ["items", "data", "results"];

pub(in crate::connectors) fn read(
    _name: &str,
    fields: &mut Fields<'_>,
    settings: &Settings,
) -> Result<Arc<dyn OpenSource>, Invalid> {
    let target = target(fields, settings, super::DEFAULT_CONNECTIONS)?;
    target.check(super::SCHEMES)?;
    let headers = Headers::parse(fields)?;
    let records = fields.text("records")?.map(str::to_string);
    if let Some(pointer) = records.as_ref().filter(|pointer| !pointer.starts_with('/')) {
        return Err(Invalid::new("records", pointer, "is not a JSON pointer", "write it like \"/result/items\""));
    }
    let next = Next::parse(fields.get("next"))?;
    let timeout = fields.span("timeout", super::LEAST_TIMEOUT, super::MOST_TIMEOUT)?.unwrap_or(super::DEFAULT_TIMEOUT);
    Ok(Arc::new(HttpSource { target, headers, records, next, timeout }))
}

#[async_trait]
impl OpenSource for HttpSource {
    fn goes_on(&self) -> bool {
        false
    }

    async fn open(&self, around: &Surroundings, cursor: Option<&Value>) -> Result<Box<dyn Source>, Trouble> {
        refuse_range(around, "http")?;
        let client = Client::new(&self.target, &self.headers, self.timeout)?;
        let (records, next) = (self.records.clone(), self.next.clone());
        let (place, skip, pages) = match cursor {
            None => (Some(Place::First), 0, 0),
            Some(cursor) => decode(cursor)?,
        };
        Ok(Box::new(Reader { client, records, next, place, skip, pages, page: None }))
    }
}

struct Reader {
    client: Client,
    records: Option<String>,
    next: Next,
    /// The present page; none after the last.
    place: Option<Place>,
    /// So many records of it were handed over.
    skip: usize,
    /// So many pages were left behind.
    pages: u64,
    page: Option<Page>,
}

/// A page that was read.
struct Page {
    /// In reverse, so that the next record is the last.
    records: Vec<(Value, usize)>,
    next: Option<Place>,
}

#[async_trait]
impl Source for Reader {
    async fn read(&mut self, room: Room) -> Result<Batch, Trouble> {
        let mut batch = Batch::default();
        let mut bytes = 0;
        while let Some(place) = self.place.clone() {
            if self.page.is_none() {
                if !batch.records.is_empty() {
                    break;
                }
                self.page = Some(self.fetch(&place).await?);
            }
            let Some(page) = &mut self.page else { break };
            while let Some((_, size)) = page.records.last() {
                bytes += size;
                if !batch.records.is_empty() && (batch.records.len() >= room.records || bytes > room.bytes) {
                    batch.cursor = encode(self.place.as_ref(), self.skip, self.pages);
                    return Ok(batch);
                }
                let Some((value, _)) = page.records.pop() else { break };
                let position = format!("page {}, record {}", self.pages + 1, self.skip + 1).into();
                batch.records.push(Record { value, position });
                self.skip += 1;
            }
            self.place = page.next.take();
            self.page = None;
            self.skip = 0;
            self.pages += 1;
        }
        batch.cursor = encode(self.place.as_ref(), self.skip, self.pages);
        batch.last = self.place.is_none();
        Ok(batch)
    }
}

impl Reader {
    async fn fetch(&mut self, place: &Place) -> Result<Page, Trouble> {
        let base = self.client.base().clone();
        if self.pages >= MOST_PAGES {
            let shown = shown(base.as_str());
            return Err(Trouble::permanent(format!("{shown} has more than {MOST_PAGES} pages: make them larger")));
        }
        let Some(url) = self.next.url(&base, place) else { return Err(foreign_cursor()) };
        let ask = Ask { method: Method::GET, body: Bytes::new(), key: None };
        let answer = self.client.ask(&url, &ask).await?;
        if let Some(trouble) = refused(&url, answer.status) {
            return Err(trouble);
        }
        let mut value: Value = serde_json::from_slice(&answer.body).map_err(|error| {
            let shown = shown(url.as_str());
            Trouble::permanent(format!("the answer of {shown} is not JSON: {error}: check the url"))
        })?;
        let records = self.take_records(&mut value, &url)?;
        let next = self.next.after(&base, (place, &url), &answer, &value, records.len());
        let next = next.map_err(|why| Trouble::permanent(format!("{}: {why}: check next", shown(url.as_str()))))?;
        let sized = records.into_iter().map(|value| (size(&value), value)).map(|(size, value)| (value, size));
        let mut records: Vec<(Value, usize)> = sized.skip(self.skip).collect();
        records.reverse();
        Ok(Page { records, next })
    }

    fn take_records(&self, answer: &mut Value, url: &Url) -> Result<Vec<Value>, Trouble> {
        let shown = || shown(url.as_str());
        let found = match &self.records {
            Some(pointer) => answer.pointer_mut(pointer),
            None if answer.is_array() => Some(answer),
            None => {
                let name = USUAL_NAMES.into_iter().find(|name| answer.get(name).is_some_and(Value::is_array));
                name.and_then(|name| answer.get_mut(name))
            }
        };
        match (found.map(Value::take), &self.records) {
            (Some(Value::Array(records)), _) => Ok(records),
            (Some(_), Some(pointer)) => {
                Err(Trouble::permanent(format!("{pointer} in the answer of {} is no list", shown())))
            }
            (None, Some(pointer)) => Err(Trouble::permanent(format!("the answer of {} has no {pointer}", shown()))),
            (_, None) => Err(Trouble::permanent(format!(
                "the answer of {} is no list and has none as items, data or results: say with records where they are",
                shown()
            ))),
        }
    }
}

/// About as many bytes as the value has as JSON.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(values) => 2 + values.iter().map(|value| size(value) + 1).sum::<usize>(),
        Value::Object(fields) => 2 + fields.iter().map(|(name, value)| name.len() + size(value) + 4).sum::<usize>(),
        _ => 8,
    }
}

fn encode(place: Option<&Place>, skip: usize, pages: u64) -> Value {
    json!({"at": place.map_or(Value::Null, Place::to_value), "skip": skip, "pages": pages})
}

fn decode(cursor: &Value) -> Result<(Option<Place>, usize, u64), Trouble> {
    let read = || {
        let place = match cursor.get("at")? {
            Value::Null => None,
            place => Some(Place::from_value(place)?),
        };
        let skip = usize::try_from(cursor.get("skip")?.as_u64()?).ok()?;
        Some((place, skip, cursor.get("pages")?.as_u64()?))
    };
    read().ok_or_else(foreign_cursor)
}

fn foreign_cursor() -> Trouble {
    Trouble::permanent("the cursor of this run is not that of its http source: start a new run")
}
