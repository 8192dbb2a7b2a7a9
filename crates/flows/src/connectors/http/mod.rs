//! JSON over HTTP: pages that are read, requests that take records.

mod client;
mod headers;
mod line;
mod next;
mod sink;
mod source;

pub(super) use sink::read as read_sink;
pub(super) use source::read as read_source;

use std::time::Duration;

pub(super) const NAMES: &[&str] = &["http"];

/// Connections that are taken when a flow names none.
const DEFAULT_CONNECTIONS: &[&str] = &["http"];
const SCHEMES: &[&str] = &["https", "http"];
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
const LEAST_TIMEOUT: Duration = Duration::from_millis(1);
const MOST_TIMEOUT: Duration = Duration::from_secs(600);
