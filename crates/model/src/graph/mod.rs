//! Durable reactive step graphs: definitions, gates, and the decisions that a change in an execution
//! leads to.
//!
//! A graph is data. A node computes itself when its gate holds and what it depends on has changed since
//! it was last computed. Nothing is ever computed from a mix of old and new values: a node waits while
//! anything that it depends on, however far up, is still to be computed.

mod decide;
mod execution;
mod gate;
mod kind;
mod node;
mod options;
mod validate;

pub use decide::{Changes, Command, Start, Ticks, decide};
pub use execution::{Cell, Computation, Execution, NodeState, Status};
pub use gate::Gate;
pub use kind::NodeKind;
pub use node::{Graph, Node};
pub use options::NodeOptions;

#[cfg(test)]
mod tests;
