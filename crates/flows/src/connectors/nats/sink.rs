use super::link::{Link, SCHEMES};
use crate::connectors::repeats;
use crate::{
    Fields, OpenSink, Promise, Record, Rejected, Settings, Sink, Surroundings, Target, Trouble, Written, target,
};
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_trait::async_trait;
use everbeat_model::Invalid;
use serde_json::Value;
use std::sync::Arc;

/// Publishes each record to a subject of a stream. `Nats-Msg-Id` lets the server drop repeats.
struct NatsSink {
    target: Target,
    subject: String,
}

/// So many records at most are on their way before the server has stored them.
const MOST_ON_THE_WAY: usize = 256;

pub(in crate::connectors) fn read(
    _name: &str,
    fields: &mut Fields<'_>,
    settings: &Settings,
) -> Result<Arc<dyn OpenSink>, Invalid> {
    let target = target(fields, settings, super::DEFAULT_CONNECTIONS)?;
    target.check(SCHEMES)?;
    let subject = fields.required_text("subject")?;
    let plain = |token: &str| !token.is_empty() && !token.contains(|c: char| c.is_whitespace() || c.is_control());
    if !subject.split('.').all(|token| plain(token) && token != "*" && token != ">") {
        let hint = "write it like \"orders.new\", without wildcards";
        return Err(Invalid::new("subject", subject, "is not a subject to publish to", hint));
    }
    Ok(Arc::new(NatsSink { target, subject: subject.to_string() }))
}

#[async_trait]
impl OpenSink for NatsSink {
    fn promise(&self) -> Promise {
        Promise::AtLeastOnce
    }

    async fn open(&self, around: &Surroundings) -> Result<Box<dyn Sink>, Trouble> {
        let link = Link::open(&self.target).await?;
        Ok(Box::new(Writer { link, subject: self.subject.clone(), around: around.clone() }))
    }
}

struct Writer {
    link: Link,
    subject: String,
    around: Surroundings,
}

#[async_trait]
impl Sink for Writer {
    async fn write(&mut self, records: Vec<Record>, _cursor: &Value) -> Result<Written, Trouble> {
        let keys = repeats::keys(&self.around, &records);
        let keyed: Vec<(&Record, &String)> = records.iter().zip(&keys).collect();
        let mut written = Written::default();
        for some in keyed.chunks(MOST_ON_THE_WAY) {
            let mut stored = Vec::with_capacity(some.len());
            for (record, key) in some {
                let payload = record.value.to_string();
                let message = PublishMessage::build().message_id(key).payload(payload.clone().into());
                match self.link.context.send_publish(self.subject.clone(), message).await {
                    Ok(sent) => stored.push(sent),
                    Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                        let reason = format!("is larger than the NATS server takes: {error}");
                        written.rejected.push(Rejected::new(record.position.clone(), reason, payload.as_bytes()));
                    }
                    Err(error) => return Err(self.trouble(&error)),
                }
            }
            for sent in stored {
                match sent.await {
                    Ok(ack) if ack.duplicate => written.unchanged += 1,
                    Ok(_) => written.written += 1,
                    Err(error) => return Err(self.trouble(&error)),
                }
            }
        }
        Ok(written)
    }
}

impl Writer {
    fn trouble(&self, error: &PublishError) -> Trouble {
        match error.kind() {
            PublishErrorKind::StreamNotFound => {
                let remedy = format!("add a stream that takes the subject {:?}", self.subject);
                self.link.permanent(error, &remedy)
            }
            _ => self.link.transient(error),
        }
    }
}
