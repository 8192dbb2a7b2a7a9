//! The systems that flows read from and write to: one file or folder each, one line here.

mod http;
mod nats;
mod parts;
mod redis_stream;
mod repeats;

mod file;
mod sql;
mod stdout;

use crate::{Fields, OpenSink, OpenSource, Settings};
use everbeat_model::Invalid;
use std::sync::Arc;

/// A type of source or sink.
pub struct Known<T: ?Sized> {
    /// The first is its own, the others are accepted for it.
    pub names: &'static [&'static str],
    /// Reads its fields; the first argument is the name that was used.
    pub read: Read<T>,
}

pub type Read<T> = fn(&str, &mut Fields<'_>, &Settings) -> Result<Arc<T>, Invalid>;

pub const SOURCES: &[Known<dyn OpenSource>] = &[
    Known { names: &["file"], read: file::read_source },
    Known { names: &["sql"], read: sql::read_source },
    Known { names: redis_stream::NAMES, read: redis_stream::read_source },
    Known { names: nats::NAMES, read: nats::read_source },
    Known { names: http::NAMES, read: http::read_source },
];

pub const SINKS: &[Known<dyn OpenSink>] = &[
    Known { names: &["file"], read: file::read_sink },
    Known { names: &["sql", "ActiveRecord"], read: sql::read_sink },
    Known { names: &["stdout"], read: stdout::read_sink },
    Known { names: redis_stream::NAMES, read: redis_stream::read_sink },
    Known { names: nats::NAMES, read: nats::read_sink },
    Known { names: http::NAMES, read: http::read_sink },
];
