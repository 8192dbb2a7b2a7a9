//! Streams of Redis, read through consumer groups.

mod id;
mod link;
mod message;
mod meter;
mod sink;
mod source;

pub(super) use sink::read as read_sink;
pub(super) use source::read as read_source;

pub(super) const NAMES: &[&str] = &["redis_stream", "Rafka"];

/// Connections that are taken when a flow names none.
fn default_connections(name: &str) -> &'static [&'static str] {
    if name == "Rafka" { &["rafka", "redis"] } else { &["redis"] }
}
