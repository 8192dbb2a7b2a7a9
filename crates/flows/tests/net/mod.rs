//! What the tests of connectors share.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod server;

use everbeat_flows::{
    Batch, Class, Configuration, Connection, Record, Rejected, Room, Secret, Settings, Sink, Source, Surroundings,
    Trouble,
};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU32, Ordering};

/// The URL of a throw-away server, from the environment.
pub(crate) fn server_url(variable: &str, example: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set: run scripts/test, or set it to the URL of a throw-away server, such as {example}"
        )
    })
}

/// A name that no other test uses.
pub(crate) fn fresh(what: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("{what}_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Settings of an operator who named one connection.
pub(crate) fn operator(name: &str, url: &str) -> Settings {
    let connections = [(name.to_string(), Connection::new(Secret::Given(url.to_string())))].into_iter().collect();
    Settings { connections, allow_private_targets: false }
}

/// Settings of an operator who lets flows connect anywhere.
pub(crate) fn careless() -> Settings {
    Settings { allow_private_targets: true, ..Settings::default() }
}

pub(crate) fn around(run: &str, fence: u64) -> Surroundings {
    Surroundings { flow: "tested".into(), run: run.into(), fence, range: None }
}

pub(crate) const ROOM: Room = Room { records: 100, bytes: 1 << 20 };

pub(crate) fn configure(value: Value, settings: &Settings) -> Configuration {
    Configuration::parse(&value, settings).unwrap_or_else(|invalid| panic!("{invalid} ({})", invalid.hint))
}

pub(crate) async fn open_source(
    source: &Value,
    settings: &Settings,
    cursor: Option<&Value>,
) -> Result<Box<dyn Source>, Trouble> {
    let value = json!({"source": source, "sink": {"type": "http", "url": "https://unused.example"}});
    configure(value, settings).source.open(&around("run", 1), cursor).await
}

pub(crate) async fn open_sink(sink: &Value, settings: &Settings, fence: u64) -> Result<Box<dyn Sink>, Trouble> {
    let value = json!({"source": {"type": "http", "url": "https://unused.example"}, "sink": sink});
    configure(value, settings).sink.open(&around("run", fence)).await
}

/// What a whole run gives, each batch acknowledged.
#[derive(Default)]
pub(crate) struct Run {
    pub(crate) records: Vec<Record>,
    pub(crate) rejected: Vec<Rejected>,
    pub(crate) cursors: Vec<Value>,
}

impl Run {
    pub(crate) fn values(&self) -> Vec<Value> {
        self.records.iter().map(|record| record.value.clone()).collect()
    }
}

pub(crate) async fn run_to_end(source: &mut dyn Source, room: Room) -> Result<Run, Trouble> {
    const MOST_BATCHES: usize = 1000;
    let mut run = Run::default();
    for _ in 0..MOST_BATCHES {
        let Batch { records, rejected, cursor, last } = source.read(room).await?;
        run.records.extend(records);
        run.rejected.extend(rejected);
        source.acknowledge(&cursor).await?;
        run.cursors.push(cursor);
        if last {
            return Ok(run);
        }
    }
    panic!("the run does not end");
}

/// The trouble of whatever fails first: opening, or reading all.
pub(crate) async fn trouble_of(source: &Value, settings: &Settings) -> Trouble {
    let mut source = match open_source(source, settings, None).await {
        Ok(source) => source,
        Err(trouble) => return trouble,
    };
    match run_to_end(&mut *source, ROOM).await {
        Ok(run) => panic!("no trouble, but {:?}", run.values()),
        Err(trouble) => trouble,
    }
}

pub(crate) fn assert_trouble(trouble: &Trouble, class: Class, said: &str) {
    assert_eq!(trouble.class, class, "{trouble}");
    assert!(trouble.message.contains(said), "{trouble}");
    assert!(!trouble.message.contains("hunter2"), "{trouble}");
}

pub(crate) fn records(values: impl IntoIterator<Item = Value>) -> Vec<Record> {
    let record = |(number, value)| Record { value, position: format!("in:{number}").into() };
    values.into_iter().enumerate().map(record).collect()
}
