//! The API over the in-memory store, in this process.

mod auth;
mod common;
mod events;
mod executions;
mod graphs;
mod openapi;
mod operate;
mod problems;
mod runs;
mod serving;
mod submit;
mod values;
