//! Durable reactive step graphs: definitions, gates, and the decisions that a change in an execution
//! leads to.
//!
//! A graph is data. A node computes itself when its gate holds and what it depends on has changed since
//! it was last computed. Nothing is ever computed from a mix of old and new values: a node waits while
//! anything that it depends on, however far up, is still to be computed.

mod decide;
mod definition;
mod describe;
mod execution;
mod filter;
mod gate;
mod kind;
mod mermaid;
mod node;
mod opening;
mod options;
mod plan;
mod rest;
mod staleness;
mod start;
mod validate;

pub use decide::{Change, Changes, Command, Start, Ticks, decide};
pub use definition::{Course, is_new};
pub use describe::{NodeView, ViewState, describe, summary};
pub use execution::{Cell, Computation, Execution, NodeState, Status};
pub use filter::{Condition, Direction, Field, Operator, Sort, compare, folded, searchable, sort_class};
pub use gate::{Comparison, Gate};
pub use kind::NodeKind;
pub use mermaid::{mermaid, mermaid_of};
pub use node::{Graph, Node};
pub use opening::{Opening, must_be_alone, not_alone, opening, repeated};
pub use options::NodeOptions;
pub use plan::{Defaults, Ended, Plan, Refusal, Snapshot, plan};

#[cfg(test)]
mod tests;
