use super::link::{Link, SCHEMES};
use crate::connectors::repeats;
use crate::{Fields, OpenSink, Promise, Record, Settings, Sink, Surroundings, Target, Trouble, Written, target};
use async_trait::async_trait;
use everbeat_model::Invalid;
use redis::{Pipeline, cmd};
use serde_json::Value;
use std::sync::Arc;

/// Appends each record to a stream: `data` is the record as JSON, `id` tells repeats.
struct RedisSink {
    target: Target,
    stream: String,
    most: Option<u64>,
}

/// So many records at most are on their way before the server answers.
const MOST_ON_THE_WAY: usize = 500;

pub(in crate::connectors) fn read(
    name: &str,
    fields: &mut Fields<'_>,
    settings: &Settings,
) -> Result<Arc<dyn OpenSink>, Invalid> {
    let target = target(fields, settings, super::default_connections(name))?;
    target.check(SCHEMES)?;
    let stream = fields.required_text("stream_name")?.to_string();
    let most = fields.count("maxlen", i64::MAX as u64)?;
    Ok(Arc::new(RedisSink { target, stream, most }))
}

#[async_trait]
impl OpenSink for RedisSink {
    fn promise(&self) -> Promise {
        Promise::AtLeastOnce
    }

    async fn open(&self, around: &Surroundings) -> Result<Box<dyn Sink>, Trouble> {
        let link = Link::open(&self.target).await?;
        Ok(Box::new(Writer { link, stream: self.stream.clone(), most: self.most, around: around.clone() }))
    }
}

struct Writer {
    link: Link,
    stream: String,
    most: Option<u64>,
    around: Surroundings,
}

#[async_trait]
impl Sink for Writer {
    async fn write(&mut self, records: Vec<Record>, _cursor: &Value) -> Result<Written, Trouble> {
        let keys = repeats::keys(&self.around, &records);
        let keyed: Vec<(&Record, &String)> = records.iter().zip(&keys).collect();
        for some in keyed.chunks(MOST_ON_THE_WAY) {
            let mut commands = Pipeline::with_capacity(some.len());
            for (record, key) in some {
                let mut command = cmd("XADD");
                command.arg(&self.stream);
                if let Some(most) = self.most {
                    command.arg("MAXLEN").arg("~").arg(most);
                }
                command.arg("*").arg("data").arg(record.value.to_string()).arg("id").arg(key.as_str());
                commands.add_command(command);
            }
            self.link.ask_all(&commands).await?;
        }
        Ok(Written { written: records.len() as u64, ..Written::default() })
    }
}
