//! Runs as users see them: how they are accepted, asked about, waited for and explained.

mod commands;
mod enqueue;
mod explain;
mod find;
mod outputs;
mod view;
mod waiters;
mod waits;

pub use commands::{Submission, Submit};
pub use explain::Explanation;
pub use find::{FIND_WINDOW, Findable, Match, Matches, SHORTEST_PART};
pub use outputs::OutputView;
pub use view::{Liveness, RunView};

pub(crate) use waiters::{Awaited, Waiters, run as wait};
