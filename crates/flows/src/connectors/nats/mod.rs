//! Streams of NATS JetStream.

mod ack;
mod link;
mod sink;
mod source;

pub(super) use sink::read as read_sink;
pub(super) use source::read as read_source;

pub(super) const NAMES: &[&str] = &["nats_jetstream", "nats"];

/// Connections that are taken when a flow names none.
const DEFAULT_CONNECTIONS: &[&str] = &["nats"];
