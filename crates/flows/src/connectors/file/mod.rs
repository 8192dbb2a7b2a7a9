//! Files: lines of JSON, or CSV with a header, plain or compressed.

mod compression;
mod csv;
mod format;
mod identity;
mod lines;
mod sidecar;
mod sink;
mod source;
mod types;
mod walk;
mod written;

pub(super) use sink::read as read_sink;
pub(super) use source::read as read_source;
