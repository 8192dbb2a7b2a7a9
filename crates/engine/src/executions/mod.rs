//! Executions of graphs: what users ask of them, and what is due for them.

pub(crate) mod advance;
mod ask;
mod graphs;

pub use ask::{ExecutionView, Got, StartExecution, Wait};

pub(crate) use advance::{Ask, ReplicaPlanner};
