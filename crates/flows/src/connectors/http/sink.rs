use super::client::{Ask, Client, refused};
use super::headers::Headers;
use crate::connectors::repeats;
use crate::{
    Fields, OpenSink, Promise, Record, Rejected, Settings, Sink, Surroundings, Target, Trouble, Written, target,
};
use async_trait::async_trait;
use everbeat_model::Invalid;
use hyper::{Method, StatusCode};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// Posts records as JSON, one by one or each batch as a list.
struct HttpSink {
    target: Target,
    headers: Headers,
    batch: bool,
    timeout: Duration,
}

pub(in crate::connectors) fn read(
    _name: &str,
    fields: &mut Fields<'_>,
    settings: &Settings,
) -> Result<Arc<dyn OpenSink>, Invalid> {
    let target = target(fields, settings, super::DEFAULT_CONNECTIONS)?;
    target.check(super::SCHEMES)?;
    let headers = Headers::parse(fields)?;
    let batch = fields.flag("batch")?.unwrap_or(false);
    let timeout = fields.span("timeout", super::LEAST_TIMEOUT, super::MOST_TIMEOUT)?.unwrap_or(super::DEFAULT_TIMEOUT);
    Ok(Arc::new(HttpSink { target, headers, batch, timeout }))
}

#[async_trait]
impl OpenSink for HttpSink {
    fn promise(&self) -> Promise {
        Promise::AtLeastOnce
    }

    async fn open(&self, around: &Surroundings) -> Result<Box<dyn Sink>, Trouble> {
        let client = Client::new(&self.target, &self.headers, self.timeout)?;
        Ok(Box::new(Writer { client, batch: self.batch, around: around.clone() }))
    }
}

struct Writer {
    client: Client,
    batch: bool,
    around: Surroundings,
}

#[async_trait]
impl Sink for Writer {
    async fn write(&mut self, records: Vec<Record>, _cursor: &Value) -> Result<Written, Trouble> {
        match self.batch {
            true if records.is_empty() => Ok(Written::default()),
            true => self.write_together(records).await,
            false => self.write_one_by_one(records).await,
        }
    }
}

impl Writer {
    async fn write_together(&mut self, records: Vec<Record>) -> Result<Written, Trouble> {
        let key = repeats::batch_key(&self.around, &records);
        let written = records.len() as u64;
        let body = Value::Array(records.into_iter().map(|record| record.value).collect()).to_string();
        let status = self.post(body, key).await?;
        match refused(self.client.base(), status) {
            None => Ok(Written { written, ..Written::default() }),
            Some(trouble) => Err(trouble),
        }
    }

    async fn write_one_by_one(&mut self, records: Vec<Record>) -> Result<Written, Trouble> {
        let mut written = Written::default();
        for (record, key) in records.iter().zip(repeats::keys(&self.around, &records)) {
            let body = record.value.to_string();
            let status = self.post(body.clone(), key).await?;
            match refused(self.client.base(), status) {
                None => written.written += 1,
                Some(_) if is_about_the_record(status) => {
                    let reason = format!("the sink answered {status}");
                    written.rejected.push(Rejected::new(record.position.clone(), reason, body.as_bytes()));
                }
                Some(trouble) => return Err(trouble),
            }
        }
        Ok(written)
    }

    async fn post(&mut self, body: String, key: String) -> Result<StatusCode, Trouble> {
        let url = self.client.base().clone();
        let ask = Ask { method: Method::POST, body: body.into(), key: Some(key) };
        Ok(self.client.ask(&url, &ask).await?.status)
    }
}

/// Whether another record may fare better.
fn is_about_the_record(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY)
}
