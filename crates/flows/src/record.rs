use serde_json::Value;

/// One record on its way.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub value: Value,
    /// Where it was found, for people: `orders.csv:17`, a message's id.
    pub position: Box<str>,
}

/// A record that was not understood, or that the sink refused. The flow goes on without it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rejected {
    pub position: Box<str>,
    pub reason: String,
    /// What was found there, as text; long ones are cut.
    pub raw: String,
}

/// Longer texts of rejected records are cut.
pub(crate) const MOST_RAW_BYTES: usize = 64 << 10;

impl Rejected {
    /// `raw` need not be text: what is not is shown with replacement characters, and so is NUL, which not every database
    /// takes: no rejected record may be refused by the sink of rejected records.
    pub fn new(position: impl Into<Box<str>>, reason: impl Into<String>, raw: &[u8]) -> Rejected {
        let raw = String::from_utf8_lossy(&raw[..raw.len().min(MOST_RAW_BYTES)]);
        let (position, reason): (Box<str>, String) = (position.into(), reason.into());
        Rejected { position: storable(&position).into(), reason: storable(&reason), raw: storable(&raw) }
    }
}

fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// How much a source may hand over at once. The first record counts even if it alone is larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub records: usize,
    pub bytes: usize,
}

/// What a source hands over.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    pub records: Vec<Record>,
    pub rejected: Vec<Rejected>,
    /// Stands for everything up to the end of this batch. A source that is opened with it goes on after it.
    pub cursor: Value,
    /// There is nothing after it, for now: the run is over when this batch is written.
    pub last: bool,
}

/// What became of records in the sink.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Written {
    /// New or changed in the sink.
    pub written: u64,
    /// Of these: replaced what was there.
    pub updated: u64,
    /// Were there already, exactly so.
    pub unchanged: u64,
    pub rejected: Vec<Rejected>,
}
