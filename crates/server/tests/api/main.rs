//! The API over the in-memory store, in this process.

mod auth;
mod checks;
mod common;
mod events;
mod executions;
mod flows;
mod graphs;
mod jobs;
mod json;
mod link;
mod logs;
mod openapi;
mod operate;
mod outputs;
mod pools;
mod problems;
#[path = "../../src/link/proto.rs"]
mod proto;
mod recovery;
mod runs;
mod serving;
mod sessions;
mod shims;
mod submit;
mod values;
mod worker;
