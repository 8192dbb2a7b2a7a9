//! Checks: what users ask of them, what their jobs say, and what time makes of them.

mod ask;
pub(crate) mod look;

pub use ask::WriteCheck;
