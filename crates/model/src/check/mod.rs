//! Checks: outside jobs that ping when they run, and are missed when they do not.
//!
//! A check says how often a success is expected. Its vitals are what its pings have told. What a ping or the passing of
//! time makes of them is decided here, at the store's time.

mod definition;
mod ping;
mod vitals;
#[cfg(test)]
mod vitals_tests;

pub use definition::Check;
pub use ping::{BODY_LIMIT, Ping, PingKind, Signal, repaired};
pub use vitals::{Change, CheckNews, CheckState, Health, Vitals, WhyDown};

/// So many checks there may be: whoever may ping can make one by its first ping.
pub const MOST_CHECKS: usize = 10_000;

/// So many pings of a check are kept; the oldest go.
pub const MOST_PINGS: usize = 100;
