//! Pools with real processes: guardians and workers are started, killed, stopped and swept.

mod harness;
mod server;

mod deaths;
mod handed;
mod looking;
mod output;
mod sweeping;
mod workers;
