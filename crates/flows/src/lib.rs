//! Data flows: records go from a source through transforms to a sink, in batches, and a run that was lost goes on where
//! the last committed batch ended.
//!
//! Each system is one file in `connectors`, behind [`Source`] and [`Sink`]. [`Configuration`] is what a flow says of
//! them, checked when it is written. Nothing here knows of replicas, leases or stores: what a run needs of its
//! surroundings stands in [`Surroundings`].

mod blocking;
mod configuration;
mod connector;
pub mod connectors;
mod counts;
mod dial;
mod fields;
mod guard;
pub mod jq;
mod ledger;
mod outcome;
pub mod raw;
mod record;
mod runner;
mod secret;
mod settings;
mod surroundings;
mod target;
mod timely;
mod tolerance;
mod transform;
mod trouble;

pub use configuration::Configuration;
pub use connector::{Committed, OpenSink, OpenSource, Promise, Sink, Source};
pub use counts::Counts;
pub use fields::Fields;
pub use guard::Guard;
pub use ledger::{Ledger, Stop};
pub use record::{Batch, Record, Rejected, Room, Written};
pub use runner::{Attempt, DryRun, Halt, PATIENCE, Report, dry_run, run};
pub use secret::Secret;
pub use settings::{Connection, Settings};
pub use surroundings::{Range, Surroundings};
pub use target::{Target, shown, target};
pub use tolerance::MaxRejected;
pub use transform::{Addition, Evaluate, PerformTask, Ports, Transform};
pub use trouble::{Class, Trouble};
