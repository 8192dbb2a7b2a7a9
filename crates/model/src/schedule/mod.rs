//! When something is due again and again, and what becomes of each time that it is.
//!
//! A rhythm says when. An occurrence is one due time. Each occurrence is decided once: it begins, it waits for its turn,
//! or it is left out, with the reason. All of that is decided here, from what the store knows, at the store's time.

mod decide;
mod definition;
mod look;
#[cfg(test)]
mod look_tests;
mod rhythm;

pub use decide::{Begun, Left, Look, MOST_WAITING, Room, Standing, Terms, WhyLeft, ask, decide};
pub use definition::{FLOW, Schedule, ScheduleKind, ScheduledWork};
pub use look::{Decision, DueBy, Occurrence, OccurrenceState, Others, RunDefaults, Situation, Wish, look, rearm};
pub use rhythm::{Cron, MOST_COUNTED, Rhythm};

use crate::spelled::spelled;

spelled! {
    /// What becomes of an occurrence that is due while an earlier one is not over.
    pub enum Overlap {
        /// It is left out.
        Skip = "skip",
        /// It waits for its turn.
        Queue = "queue",
        /// It begins beside the other.
        Allow = "allow",
    }
}

spelled! {
    /// What becomes of occurrences that came due while nobody looked.
    pub enum CatchUp {
        /// Only the last of them is made up for.
        Latest = "latest",
        /// All are made up for, one after the other.
        All = "all",
        /// None is.
        None = "none",
    }
}
