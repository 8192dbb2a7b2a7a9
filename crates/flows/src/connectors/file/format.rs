use super::compression::Compression;
use serde_json::Value;
use std::io;
use std::path::Path;

/// How records stand in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Ndjson,
    Csv,
}

pub(super) const NAMES: &[(&str, Format)] = &[("ndjson", Format::Ndjson), ("csv", Format::Csv)];

impl Format {
    /// By the end of a file's name, before that of its compression.
    pub(super) fn of(path: &Path) -> Option<Format> {
        let plain = if Compression::of(path) == Compression::Plain { path } else { Path::new(path.file_stem()?) };
        match plain.extension()?.to_str()? {
            "ndjson" | "jsonl" | "json" => Some(Format::Ndjson),
            "csv" => Some(Format::Csv),
            _ => None,
        }
    }
}

/// Where a reader stands: everything before is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Bytes from the beginning, unpacked.
    pub(super) offset: u64,
    /// The number of the next line, from 1.
    pub(super) line: u64,
}

pub(super) const BEGINNING: Place = Place { offset: 0, line: 1 };

/// One record of a file.
pub(super) struct Found {
    pub(super) line: u64,
    /// How many bytes it took.
    pub(super) bytes: usize,
    pub(super) content: Result<Value, Bad>,
}

/// What is no record.
pub(super) struct Bad {
    pub(super) reason: String,
    pub(super) raw: Vec<u8>,
}

/// Reads the records of one file.
pub(super) trait ReadFormat: Send {
    /// None at the end. An error is one of the disk; damage in the file is a bad record, and the file's end.
    fn next(&mut self) -> io::Result<Option<Found>>;

    fn place(&self) -> Place;
}

/// So much of a line that is too long is kept, for people.
pub(super) const KEPT_BYTES: usize = 4 << 10;

pub(super) fn too_long(most: usize) -> String {
    format!("is longer than {most} bytes; raise max_record_bytes of the source if that is right")
}

pub(super) fn damaged(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the compressed data ends too early: the file is cut off".to_string(),
        _ => format!("the compressed data is damaged: {error}"),
    }
}

/// The text, or why the bytes are none.
pub(super) fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|error| format!("is not UTF-8: byte {} cannot be read", error.valid_up_to() + 1))
}
