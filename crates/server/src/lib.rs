//! The outer contract over HTTP: commands and views of the engine, events, metrics, and who may ask; and the link
//! that workers dial.
//!
//! Every refusal is a problem document with a stable type; the class of an error alone decides its
//! status. Nothing here decides anything about runs.

mod app;
mod attempts;
mod auth;
mod body;
mod checks;
mod client;
mod config;
mod connections;
mod events;
mod executions;
mod flow_runs;
mod flows;
mod graphs;
mod health;
mod home;
mod ids;
mod invariants;
mod jobs;
mod limits;
mod link;
mod logs;
mod metrics;
mod nodes;
mod openapi;
mod outputs;
mod page;
mod params;
mod pings;
mod pools;
mod problem;
mod queues;
mod recovery;
mod replicas;
mod routes;
mod runs;
mod schedules;
mod schema;
mod sentinels;
mod serve;
mod sessions;
mod submit;
mod tasks;
mod values;
mod verdicts;
mod workers;

pub use config::{Config, Scope, Token};
pub use link::{Tls, WorkerDoors, serve_workers};
pub use metrics::measure;
pub use serve::{router, serve};
