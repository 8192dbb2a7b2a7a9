//! The systems that flows read from and write to: one file each, one line here.

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

pub const SOURCES: &[Known<dyn OpenSource>] = &[];

pub const SINKS: &[Known<dyn OpenSink>] = &[];
