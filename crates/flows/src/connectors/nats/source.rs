use super::ack::{self, Deliveries, Form};
use super::link::{LONGEST_ANSWER, Link, SCHEMES};
use crate::connectors::parts::{Appetite, refuse_range};
use crate::timely::{Stopwatch, within};
use crate::{
    Batch, Fields, OpenSource, Record, Rejected, Room, Settings, Source, Surroundings, Target, Trouble, target,
};
use async_nats::jetstream::consumer::pull::{Batch as Pull, Config};
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer};
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::stream::{ConsumerErrorKind, Stream};
use async_trait::async_trait;
use bytes::Bytes;
use everbeat_model::Invalid;
use futures_util::StreamExt;
use serde_json::Value;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Messages of a stream, for one durable consumer.
struct NatsSource {
    target: Target,
    stream: String,
    /// The flow's name, if none is given.
    durable: Option<String>,
    filter: Option<String>,
    ack_wait: Duration,
    follow: bool,
}

const DEFAULT_ACK_WAIT: Duration = Duration::from_secs(60);
const LEAST_ACK_WAIT: Duration = Duration::from_millis(100);
const MOST_ACK_WAIT: Duration = Duration::from_secs(86_400);
/// Batches that are read while others are written must not use up what the server hands out.
const MOST_UNACKNOWLEDGED: i64 = 10_000;
const ACK: &[u8] = b"+ACK";
/// How long the server is asked to wait for messages, at a time.
const WAIT: Duration = Duration::from_secs(1);
/// A message comes again some time after its `ack_wait`.
const LATE: Duration = Duration::from_secs(5);

pub(in crate::connectors) fn read(
    _name: &str,
    fields: &mut Fields<'_>,
    settings: &Settings,
) -> Result<Arc<dyn OpenSource>, Invalid> {
    let target = target(fields, settings, super::DEFAULT_CONNECTIONS)?;
    target.check(SCHEMES)?;
    let stream = fields.required_text("stream")?.to_string();
    let durable = fields.text("durable")?.map(str::to_string);
    for (field, name) in [("stream", Some(&stream)), ("durable", durable.as_ref())] {
        if let Some(name) = name.filter(|name| !is_name(name)) {
            return Err(Invalid::new(field, name, "is not a name", "leave out spaces and the characters . * > / \\"));
        }
    }
    Ok(Arc::new(NatsSource {
        target,
        stream,
        durable,
        filter: fields.text("filter_subject")?.map(str::to_string),
        ack_wait: fields.span("ack_wait", LEAST_ACK_WAIT, MOST_ACK_WAIT)?.unwrap_or(DEFAULT_ACK_WAIT),
        follow: fields.flag("follow")?.unwrap_or(false),
    }))
}

/// Whether streams and consumers can be named so.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && !b".*>/\\".contains(&byte))
}

#[async_trait]
impl OpenSource for NatsSource {
    fn goes_on(&self) -> bool {
        true
    }

    async fn open(&self, around: &Surroundings, cursor: Option<&Value>) -> Result<Box<dyn Source>, Trouble> {
        refuse_range(around, "nats_jetstream")?;
        let durable = self.durable.as_deref().unwrap_or(&around.flow);
        if !is_name(durable) {
            return Err(Trouble::permanent(format!("{durable:?} cannot name a NATS consumer: give one with durable")));
        }
        let link = Link::open(&self.target).await?;
        let stream = self.stream(&link).await?;
        let consumer = self.consumer(&link, &stream, durable).await?;
        let info = stream.cached_info();
        let mut reader = Reader {
            link,
            stream: self.stream.clone(),
            created: info.created.unix_timestamp_nanos().to_string(),
            ack_wait: consumer.cached_info().config.ack_wait.max(LEAST_ACK_WAIT),
            consumer,
            end: if self.follow { u64::MAX } else { info.state.last_sequence },
            reached: false,
            over: false,
            waiting: None,
            refreshed: Stopwatch::start(),
            pull: None,
            appetite: Appetite::new(),
            form: None,
            ready: VecDeque::new(),
            handed: Deliveries::new(),
            committed: Deliveries::new(),
            settled: BTreeSet::new(),
        };
        reader.take_up(cursor).await?;
        Ok(Box::new(reader))
    }

    /// The oldest messages of the stream, by a consumer that acknowledges nothing and is forgotten soon.
    async fn look(&self, _around: &Surroundings, room: Room) -> Result<Batch, Trouble> {
        let link = Link::open(&self.target).await?;
        let config = Config {
            ack_policy: AckPolicy::None,
            filter_subject: self.filter.clone().unwrap_or_default(),
            inactive_threshold: LATE,
            ..Config::default()
        };
        let consumer = self.stream(&link).await?.create_consumer(config).await;
        let consumer = consumer.map_err(|error| link.transient(&error))?;
        let asked = within(LONGEST_ANSWER, consumer.fetch().max_messages(room.records).messages()).await;
        let mut messages =
            asked.ok_or_else(|| link.transient(&"no answer"))?.map_err(|error| link.transient(&error))?;
        let mut batch = Batch { last: true, ..Batch::default() };
        while let Some(message) = within(LONGEST_ANSWER, messages.next()).await.flatten() {
            let message = message.map_err(|error| link.transient(&error))?;
            let number = message.info().map(|info| info.stream_sequence).unwrap_or_default();
            stow(&mut batch, &self.stream, number, &message.payload);
        }
        Ok(batch)
    }
}

impl NatsSource {
    async fn stream(&self, link: &Link) -> Result<Stream, Trouble> {
        link.context.get_stream(&self.stream).await.map_err(|error| match error.kind() {
            GetStreamErrorKind::JetStream(inner) if inner.code() == 404 => {
                link.permanent(&format!("there is no stream {:?}", self.stream), "create it")
            }
            GetStreamErrorKind::EmptyName | GetStreamErrorKind::InvalidStreamName => {
                link.permanent(&error, "give the name of a stream")
            }
            _ => link.transient(&error),
        })
    }

    async fn consumer(&self, link: &Link, stream: &Stream, durable: &str) -> Result<PullConsumer, Trouble> {
        let config = Config {
            durable_name: Some(durable.to_string()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.ack_wait,
            filter_subject: self.filter.clone().unwrap_or_default(),
            max_ack_pending: MOST_UNACKNOWLEDGED,
            ..Config::default()
        };
        let consumer = stream.get_or_create_consumer(durable, config).await.map_err(|error| match error.kind() {
            ConsumerErrorKind::InvalidConsumerType => {
                link.permanent(&format!("the consumer {durable:?} pushes messages"), "name one that is pulled from")
            }
            ConsumerErrorKind::JetStream(inner) if inner.code() < 500 => {
                link.permanent(&error, "change what the message names")
            }
            _ => link.transient(&error),
        })?;
        let found = &consumer.cached_info().config;
        if found.ack_policy != AckPolicy::Explicit {
            let what = format!("the consumer {durable:?} does not want each message acknowledged");
            return Err(link.permanent(&what, "name one with explicit acknowledgement"));
        }
        if let Some(filter) = self.filter.as_ref().filter(|filter| **filter != found.filter_subject) {
            let what = format!("the consumer {durable:?} is for {:?}, not for {filter:?}", found.filter_subject);
            return Err(link.permanent(&what, "name another consumer, or delete this one"));
        }
        Ok(consumer)
    }
}

/// One run's way through the stream.
struct Reader {
    link: Link,
    stream: String,
    created: String,
    consumer: PullConsumer,
    ack_wait: Duration,
    /// The last message when the run began. The run does not chase a stream that grows, unless it was asked to.
    end: u64,
    reached: bool,
    over: bool,
    /// Since when the run waits for messages that were delivered to somebody else: an attempt that was lost.
    waiting: Option<Stopwatch>,
    /// When the server was told last that messages are worked on.
    refreshed: Stopwatch,
    /// Messages that were asked for. Kept here, so that none is lost with a dropped future.
    pull: Option<Pull>,
    appetite: Appetite,
    form: Option<Form>,
    /// Delivered, not handed over.
    ready: VecDeque<(u64, Bytes)>,
    /// Delivered and not acknowledged, `ready` included.
    handed: Deliveries,
    /// In the sink already when the run was opened; the server has not confirmed that it knows.
    committed: Deliveries,
    /// Acknowledged since the present messages were asked for: an earlier delivery may be among them.
    settled: BTreeSet<u64>,
}

#[async_trait]
impl Source for Reader {
    async fn read(&mut self, room: Room) -> Result<Batch, Trouble> {
        self.refresh().await?;
        while self.ready.is_empty() && !self.over {
            if !self.reached && self.pull(self.appetite.messages(room), None).await? > 0 {
                continue;
            }
            if self.is_over().await? {
                self.over = true;
            } else if self.pull(self.appetite.messages(room), Some(WAIT)).await? == 0 {
                self.refresh().await?;
                // Whoever reads gets a chance to acknowledge: that may be what the server waits for.
                if !self.handed.is_empty() {
                    break;
                }
            }
        }
        Ok(self.hand_over(room))
    }

    async fn acknowledge(&mut self, cursor: &Value) -> Result<(), Trouble> {
        let (_, _, written) = ack::decode(cursor).ok_or_else(foreign_cursor)?;
        let mut acks = Deliveries::new();
        for message in written.keys() {
            // A message that came again meanwhile is acknowledged by its last delivery.
            let known = self.handed.get(message).or_else(|| self.committed.get(message));
            acks.extend(known.map(|delivery| (*message, *delivery)));
        }
        let unconfirmed = self.confirm(&acks).await;
        for message in acks.keys().filter(|message| !unconfirmed.contains_key(message)) {
            self.handed.remove(message);
            self.committed.remove(message);
            self.settled.insert(*message);
        }
        match unconfirmed.len() {
            0 => Ok(()),
            some => Err(self.link.transient(&format!("{some} acknowledgements were not confirmed"))),
        }
    }
}

impl Reader {
    /// Acknowledges what the cursor stands for. What is not confirmed stays in the cursors of this run.
    async fn take_up(&mut self, cursor: Option<&Value>) -> Result<(), Trouble> {
        let Some(cursor) = cursor else { return Ok(()) };
        let (created, form, mut deliveries) = ack::decode(cursor).ok_or_else(foreign_cursor)?;
        if created != self.created {
            // Another stream of the same name, whose messages have the same numbers.
            return Ok(());
        }
        let floor = self.consumer.cached_info().ack_floor.stream_sequence;
        deliveries.retain(|message, _| *message > floor);
        self.form = form;
        self.committed = self.confirm(&deliveries).await;
        Ok(())
    }

    /// Acknowledges, and gives back what the server did not confirm.
    ///
    /// The server takes the acknowledgements of one connection in their order, so that it has taken all when it confirms the
    /// last. Whatever happened if the connection was made anew meanwhile: nothing counts as confirmed then.
    async fn confirm(&self, deliveries: &Deliveries) -> Deliveries {
        let (Some(form), Some((_, last))) = (&self.form, deliveries.last_key_value()) else {
            return deliveries.clone();
        };
        let client = self.link.context.client();
        let connections = || client.statistics().connects.load(Ordering::SeqCst);
        let before = connections();
        for delivery in deliveries.values().take(deliveries.len() - 1) {
            if client.publish(form.subject(delivery), Bytes::from_static(ACK)).await.is_err() {
                return deliveries.clone();
            }
        }
        let asked = client.request(form.subject(last), Bytes::from_static(ACK));
        match within(LONGEST_ANSWER, asked).await {
            Some(Ok(_)) if connections() == before => Deliveries::new(),
            _ => deliveries.clone(),
        }
    }

    /// Tells the server now and then that what was delivered is worked on.
    async fn refresh(&mut self) -> Result<(), Trouble> {
        if self.refreshed.elapsed() < self.ack_wait / 4 {
            return Ok(());
        }
        self.refreshed = Stopwatch::start();
        let Some(form) = &self.form else { return Ok(()) };
        let client = self.link.context.client();
        let subjects: Vec<String> = self.handed.values().map(|delivery| form.subject(delivery)).collect();
        for subject in subjects {
            let told = client.publish(subject, Bytes::from_static(b"+WPI"));
            told.await.map_err(|error| self.link.transient(&error))?;
        }
        Ok(())
    }

    /// Takes messages that are there, or that come within a while; how many are new.
    async fn pull(&mut self, count: usize, wait: Option<Duration>) -> Result<usize, Trouble> {
        if self.pull.is_none() {
            self.settled.clear();
            let asked = async {
                match wait {
                    None => self.consumer.fetch().max_messages(count).messages().await,
                    Some(wait) => self.consumer.batch().max_messages(count).expires(wait).messages().await,
                }
            };
            let Some(asked) = within(LONGEST_ANSWER, asked).await else {
                return Err(self.link.transient(&"no answer"));
            };
            self.pull = Some(asked.map_err(|error| self.link.transient(&error))?);
        }
        let (before, mut bytes) = (self.ready.len(), 0);
        while let Some(pull) = &mut self.pull {
            match within(LONGEST_ANSWER, pull.next()).await {
                Some(Some(Ok(message))) => {
                    bytes += message.payload.len();
                    let reply = message.reply.as_ref().map(|reply| reply.as_str()).unwrap_or_default();
                    let Some((form, delivery)) = ack::parse(reply) else {
                        self.pull = None;
                        return Err(self
                            .link
                            .permanent(&"a message cannot be acknowledged", "is JetStream in use there?"));
                    };
                    self.form = Some(form);
                    self.reached |= delivery.message >= self.end;
                    if let Some(committed) = self.committed.get_mut(&delivery.message) {
                        *committed = delivery;
                    } else if !self.settled.contains(&delivery.message)
                        && self.handed.insert(delivery.message, delivery).is_none()
                    {
                        self.ready.push_back((delivery.message, message.payload.clone()));
                    }
                }
                Some(None) => self.pull = None,
                Some(Some(Err(error))) => {
                    self.pull = None;
                    return Err(self.link.transient(&error));
                }
                None => {
                    self.pull = None;
                    return Err(self.link.transient(&"no answer"));
                }
            }
        }
        let new = self.ready.len() - before;
        self.appetite.learn(new, bytes);
        if !self.committed.is_empty() && new == 0 {
            // What came again although it is in the sink is acknowledged once more.
            let unconfirmed = self.confirm(&self.committed).await;
            self.settled.extend(self.committed.keys().filter(|message| !unconfirmed.contains_key(message)));
            self.committed = unconfirmed;
        }
        Ok(new)
    }

    /// Whether nothing is left: nothing undelivered up to the end, and nothing that a lost attempt left unacknowledged.
    async fn is_over(&mut self) -> Result<bool, Trouble> {
        let asked = within(LONGEST_ANSWER, self.consumer.get_info()).await;
        let Some(asked) = asked else { return Err(self.link.transient(&"no answer")) };
        let info = asked.map_err(|error| self.link.transient(&error))?;
        let held_back = !self.reached && info.num_pending > 0 && info.delivered.stream_sequence < self.end;
        let elsewhere = info.num_ack_pending > self.handed.len() + self.committed.len();
        if !held_back && !elsewhere {
            return Ok(true);
        }
        let since = *self.waiting.get_or_insert_with(Stopwatch::start);
        // Whoever holds them for longer is alive, and will acknowledge them.
        Ok(since.elapsed() > self.ack_wait + LATE && self.handed.is_empty())
    }

    fn hand_over(&mut self, room: Room) -> Batch {
        let mut batch = Batch::default();
        let mut bytes = 0;
        while let Some((message, payload)) = self.ready.front() {
            bytes += payload.len();
            let handed = batch.records.len() + batch.rejected.len();
            if handed > 0 && (batch.records.len() >= room.records || bytes > room.bytes) {
                break;
            }
            stow(&mut batch, &self.stream, *message, payload);
            self.ready.pop_front();
        }
        // All that is not acknowledged, not only this batch: an acknowledgement that fails must not be forgotten.
        let mut written = self.handed.clone();
        for (message, _) in &self.ready {
            written.remove(message);
        }
        written.extend(self.committed.iter().map(|(message, delivery)| (*message, *delivery)));
        batch.cursor = ack::encode(&self.created, self.form.as_ref(), &written);
        batch.last = self.over && self.ready.is_empty();
        batch
    }
}

/// Reads a message.
fn stow(batch: &mut Batch, stream: &str, number: u64, payload: &[u8]) {
    let position = format!("{stream}:{number}").into_boxed_str();
    match serde_json::from_slice(payload) {
        Ok(value) => batch.records.push(Record { value, position }),
        Err(error) => batch.rejected.push(Rejected::new(position, format!("is not JSON: {error}"), payload)),
    }
}

fn foreign_cursor() -> Trouble {
    Trouble::permanent("the cursor of this flow is not that of a nats_jetstream source: reset the flow's cursor")
}
