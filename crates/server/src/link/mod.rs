//! The link of workers: gRPC with one method, a stream in both directions, served on HTTP/2 itself.
//!
//! Nothing is decided about workers here: their words are passed to the engine, and the engine's to them. A worker is
//! read from only as fast as the engine listens, and written to only as fast as it reads.

mod connection;
mod door;
mod greet;
mod grpc;
mod proto;
mod strangers;
mod talk;
mod tls;
mod words;

pub use door::{WorkerDoors, serve_workers};
pub use tls::Tls;
