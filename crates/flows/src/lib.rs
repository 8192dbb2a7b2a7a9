//! Data flows: records go from a source through transforms to a sink, in batches, and a run that was lost goes on where
//! the last committed batch ended.
//!
//! Each system is one file in `connectors`, behind [`Source`] and [`Sink`]. [`Configuration`] is what a flow says of
//! them, checked when it is written. Nothing here knows of replicas, leases or stores: what a run needs of its
//! surroundings stands in [`Surroundings`].

mod configuration;
mod connector;
pub mod connectors;
mod fields;
mod record;
mod settings;
mod surroundings;
mod trouble;

pub use configuration::Configuration;
pub use connector::{Committed, OpenSink, OpenSource, Promise, Sink, Source};
pub use fields::Fields;
pub use record::{Batch, Record, Rejected, Room, Written};
pub use settings::{Connection, Secret, Settings};
pub use surroundings::{Range, Surroundings};
pub use trouble::{Class, Trouble};
