//! One replica: how it joins, beats, watches the others, takes over from them, drains and leaves.

pub(crate) mod attend;
mod crew;
mod drain;
pub(crate) mod fence;
mod life;
mod locks;
pub(crate) mod others;
mod readiness;
pub(crate) mod reconcile;
mod renew;
pub(crate) mod rescue;
mod sweep;
mod turn;

pub(crate) use life::Life;
pub use locks::{LockGuard, Locks};
pub use readiness::{Check, CheckName, CheckStatus, Readiness};

pub(crate) use life::{Phase, Trouble};
pub(crate) use turn::Turn;
