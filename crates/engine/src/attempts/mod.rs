//! Attempts of this replica, from their claim to their stored end: claim → perform → settle. Whoever performs them is
//! behind the port [`Performer`].

mod builtin;
pub(crate) mod claim;
mod conclusion;
mod ctx;
mod handler;
mod held;
pub(crate) mod judge;
mod limits;
pub(crate) mod outputs;
mod perform;
mod performer;
mod said;
pub(crate) mod settle;
pub(crate) mod sign;
mod table;
mod tasks;
mod timers;
mod work;
mod write;

pub use builtin::builtin;
pub use conclusion::Conclusion;
pub use ctx::{Beat, Ctx, Stop};
pub use handler::{Failure, Handler, Tasks};
pub use performer::{Beats, Capacity, Hindrance, Line, Offer, Parting, Performer, Post, Terms};
pub use work::Work;

pub(crate) use conclusion::Draft;
pub(crate) use ctx::{MOST_ITEM_BYTES, MOST_VALUE_BYTES};
pub(crate) use limits::Limits;
pub(crate) use outputs::Outbox;
pub(crate) use settle::{Unsettled, Unstored};
pub(crate) use sign::Signer;
pub(crate) use table::Table;
pub(crate) use tasks::InProcess;
pub(crate) use work::Condemned;
