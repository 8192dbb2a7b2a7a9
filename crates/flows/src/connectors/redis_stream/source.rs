use super::id::{self, Id};
use super::link::{Link, SCHEMES};
use super::message::{self, Message};
use crate::connectors::parts::{Appetite, refuse_range};
use crate::{Batch, Fields, OpenSource, Room, Settings, Source, Surroundings, Target, Trouble, target};
use async_trait::async_trait;
use everbeat_model::Invalid;
use redis::{Cmd, cmd};
use serde_json::{Value, json};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Messages of a stream, for one consumer of a group.
struct RedisSource {
    target: Target,
    stream: String,
    /// The flow's name, if none is given.
    group: Option<String>,
    consumer: Option<String>,
    payload: Option<String>,
    claim_idle: Duration,
    follow: bool,
}

const DEFAULT_CLAIM_IDLE: Duration = Duration::from_secs(60);
const MOST_CLAIM_IDLE: Duration = Duration::from_secs(30 * 86_400);

pub(in crate::connectors) fn read(
    name: &str,
    fields: &mut Fields<'_>,
    settings: &Settings,
) -> Result<Arc<dyn OpenSource>, Invalid> {
    let target = target(fields, settings, super::default_connections(name))?;
    target.check(SCHEMES)?;
    let text = |text: Option<&str>| text.map(str::to_string);
    Ok(Arc::new(RedisSource {
        target,
        stream: fields.required_text("stream_name")?.to_string(),
        group: text(fields.text("consumer_group")?),
        consumer: text(fields.text("consumer_name")?),
        payload: text(fields.text("payload")?),
        claim_idle: fields.span("claim_idle", Duration::ZERO, MOST_CLAIM_IDLE)?.unwrap_or(DEFAULT_CLAIM_IDLE),
        follow: fields.flag("follow")?.unwrap_or(false),
    }))
}

#[async_trait]
impl OpenSource for RedisSource {
    fn goes_on(&self) -> bool {
        true
    }

    async fn open(&self, around: &Surroundings, cursor: Option<&Value>) -> Result<Box<dyn Source>, Trouble> {
        refuse_range(around, "redis_stream")?;
        let or_flow = |name: &Option<String>| name.clone().unwrap_or_else(|| around.flow.to_string());
        let mut reader = Reader {
            link: Link::open(&self.target).await?,
            stream: self.stream.clone(),
            group: or_flow(&self.group),
            consumer: or_flow(&self.consumer),
            payload: self.payload.clone(),
            claim_idle: self.claim_idle,
            end: None,
            place: Place::Own { after: Id::ZERO },
            asked: false,
            appetite: Appetite::new(),
            ready: VecDeque::new(),
            deleted: Vec::new(),
            handed: BTreeSet::new(),
            committed: BTreeSet::new(),
        };
        reader.prepare(cursor, self.follow).await?;
        Ok(Box::new(reader))
    }

    /// The oldest messages of the stream, read by the group or not.
    async fn look(&self, _around: &Surroundings, room: Room) -> Result<Batch, Trouble> {
        let mut link = Link::open(&self.target).await?;
        let answer = link.ask(cmd("XRANGE").arg(&self.stream).arg("-").arg("+").arg("COUNT").arg(room.records)).await?;
        let found = message::of_range(answer).ok_or_else(|| strange(&link, "XRANGE"))?;
        let mut batch = Batch { last: true, ..Batch::default() };
        for message in found {
            match message.record(&self.stream, self.payload.as_deref()) {
                Ok(record) => batch.records.push(record),
                Err(rejected) => batch.rejected.push(rejected),
            }
        }
        Ok(batch)
    }
}

/// One run's way through the stream.
struct Reader {
    link: Link,
    stream: String,
    group: String,
    consumer: String,
    payload: Option<String>,
    claim_idle: Duration,
    /// The last message when the run began. The run does not chase a stream that grows, unless it was asked to.
    end: Option<Id>,
    place: Place,
    /// The server was asked, and its answer is not known: the future was dropped.
    asked: bool,
    appetite: Appetite,
    /// Read, not handed over. The server counts these as pending with this consumer.
    ready: VecDeque<Message>,
    /// Messages of others that were deleted; the server has forgotten them.
    deleted: Vec<Id>,
    /// Handed over, not acknowledged.
    handed: BTreeSet<Id>,
    /// In the sink already when the run was opened.
    committed: BTreeSet<Id>,
}

/// What is read next. The order is: what this consumer left behind, what dead consumers left behind, what is new.
#[derive(Clone, Copy)]
enum Place {
    Own { after: Id },
    Others { from: Id },
    New,
    End,
}

#[async_trait]
impl Source for Reader {
    async fn read(&mut self, room: Room) -> Result<Batch, Trouble> {
        if self.asked {
            // What the lost answer held is pending with this consumer, as is what was read and not handed over.
            self.ready.clear();
            self.place = Place::Own { after: Id::ZERO };
        }
        while self.ready.is_empty() && self.deleted.is_empty() && !matches!(self.place, Place::End) {
            self.asked = true;
            self.fetch(self.appetite.messages(room)).await?;
            self.asked = false;
        }
        Ok(self.hand_over(room))
    }

    async fn acknowledge(&mut self, cursor: &Value) -> Result<(), Trouble> {
        let ids = decode(cursor)?;
        self.confirm(&ids).await?;
        self.handed.retain(|id| !ids.contains(id));
        Ok(())
    }
}

impl Reader {
    async fn prepare(&mut self, cursor: Option<&Value>, follow: bool) -> Result<(), Trouble> {
        let mut create = cmd("XGROUP");
        create.arg("CREATE").arg(&self.stream).arg(&self.group).arg("0").arg("MKSTREAM");
        self.link.ask_unless("BUSYGROUP", &create).await?;
        if let Some(cursor) = cursor {
            self.committed = decode(cursor)?;
            let committed = self.committed.clone();
            self.confirm(&committed).await?;
        }
        if !follow {
            let answer = self.link.ask(cmd("XINFO").arg("STREAM").arg(&self.stream)).await?;
            self.end = Some(message::last_id(answer).ok_or_else(|| self.strange("XINFO"))?);
        }
        Ok(())
    }

    /// Asks for messages of the present place, and goes to the next place when there are no more.
    async fn fetch(&mut self, count: usize) -> Result<(), Trouble> {
        let before = self.ready.len();
        match self.place {
            Place::Own { after } => {
                let found = self.read_group(&after.to_string(), count).await?;
                self.place = match found.last() {
                    Some(last) => Place::Own { after: last.id },
                    None => Place::Others { from: Id::ZERO },
                };
                self.keep(found);
            }
            Place::Others { from } => {
                let answer = self.link.ask(&self.claim(from, count)).await?;
                let (next, found, deleted) = message::of_claim(answer).ok_or_else(|| self.strange("XAUTOCLAIM"))?;
                let over = next == Id::ZERO || self.end.is_some_and(|end| next > end);
                self.place = if over { Place::New } else { Place::Others { from: next } };
                self.deleted.extend(deleted);
                self.keep(found);
            }
            Place::New => {
                let found = self.read_group(">", count).await?;
                let reached = |last: &Message| self.end.is_some_and(|end| last.id >= end);
                if found.len() < count || found.last().is_none_or(reached) {
                    self.place = Place::End;
                }
                self.keep(found);
            }
            Place::End => {}
        }
        let fresh = self.ready.iter().skip(before);
        let (messages, bytes) = (fresh.len(), fresh.map(Message::bytes).sum());
        self.appetite.learn(messages, bytes);
        Ok(())
    }

    async fn read_group(&mut self, after: &str, count: usize) -> Result<Vec<Message>, Trouble> {
        let mut command = cmd("XREADGROUP");
        command.arg("GROUP").arg(&self.group).arg(&self.consumer).arg("COUNT").arg(count);
        command.arg("STREAMS").arg(&self.stream).arg(after);
        let answer = self.link.ask(&command).await?;
        message::of_streams(answer).ok_or_else(|| self.strange("XREADGROUP"))
    }

    fn claim(&self, from: Id, count: usize) -> Cmd {
        let mut command = cmd("XAUTOCLAIM");
        let idle = u64::try_from(self.claim_idle.as_millis()).unwrap_or(u64::MAX);
        command.arg(&self.stream).arg(&self.group).arg(&self.consumer).arg(idle);
        command.arg(from.to_string()).arg("COUNT").arg(count);
        command
    }

    /// Keeps what is to be handed over: nothing that is on its way to the sink or in it.
    fn keep(&mut self, found: Vec<Message>) {
        let known = |id: &Id| self.handed.contains(id) || self.committed.contains(id);
        self.ready.extend(found.into_iter().filter(|message| !known(&message.id)));
    }

    fn hand_over(&mut self, room: Room) -> Batch {
        let mut batch = Batch::default();
        let gone = |id| Message { id, fields: None };
        for message in self.deleted.drain(..).map(gone) {
            batch.rejected.extend(message.record(&self.stream, None).err());
        }
        let mut bytes = 0;
        while let Some(message) = self.ready.front() {
            bytes += message.bytes();
            let handed = batch.records.len() + batch.rejected.len();
            if handed > 0 && (batch.records.len() >= room.records || bytes > room.bytes) {
                break;
            }
            match message.record(&self.stream, self.payload.as_deref()) {
                Ok(record) => batch.records.push(record),
                Err(rejected) => batch.rejected.push(rejected),
            }
            self.handed.insert(message.id);
            self.ready.pop_front();
        }
        // All that is not acknowledged, not only this batch: an acknowledgement that fails must not be forgotten.
        batch.cursor = json!({"ids": id::encode(self.handed.iter().copied())});
        batch.last = self.ready.is_empty() && matches!(self.place, Place::End);
        batch
    }

    async fn confirm(&mut self, ids: &BTreeSet<Id>) -> Result<(), Trouble> {
        const MOST_IDS: usize = 1000;
        let ids: Vec<String> = ids.iter().map(Id::to_string).collect();
        for ids in ids.chunks(MOST_IDS) {
            self.link.ask(cmd("XACK").arg(&self.stream).arg(&self.group).arg(ids)).await?;
        }
        Ok(())
    }

    fn strange(&self, command: &str) -> Trouble {
        strange(&self.link, command)
    }
}

fn strange(link: &Link, command: &str) -> Trouble {
    Trouble::permanent(format!("{} answered {command} in an unknown form: is it a Redis server?", link.shown()))
}

fn decode(cursor: &Value) -> Result<BTreeSet<Id>, Trouble> {
    let ids = cursor.get("ids").and_then(Value::as_str).and_then(id::decode);
    ids.ok_or_else(|| {
        Trouble::permanent("the cursor of this flow is not that of a redis_stream source: reset the flow's cursor")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_of_another_source_is_refused() {
        for cursor in [json!(null), json!({"ids": 5}), json!({"ids": "x"}), json!({"offset": 5})] {
            assert!(decode(&cursor).is_err(), "{cursor}");
        }
        assert!(decode(&json!({"ids": ""})).unwrap().is_empty());
    }
}
