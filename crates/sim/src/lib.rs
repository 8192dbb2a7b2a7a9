//! Deterministic simulation of several replicas on one store, under faults.
//!
//! The real engine runs on an executor with simulated time. The simulation breaks things around it
//! and compares what the store holds with what really happened; it claims, settles, sweeps and judges
//! nothing itself. The same seed gives the same history.

mod agenda;
mod checker;
mod clients;
mod course;
mod deaths;
mod env;
mod executor;
mod faults;
mod faulty_checks;
mod faulty_graphs;
mod faulty_outputs;
mod faulty_runs;
mod faulty_schedules;
mod faulty_sessions;
mod faulty_shims;
mod faulty_store;
mod faulty_workers;
mod graph_checker;
mod graph_clients;
mod graph_rest;
mod graphs;
mod guardians;
mod handler;
mod healing;
mod job_checker;
mod machine;
mod machine_faults;
mod message;
mod moves;
mod network;
mod nodes;
mod output_checker;
mod plan;
mod process;
mod report;
mod rng;
mod schedule_checker;
mod schedule_clients;
mod schedule_definitions;
mod schedule_looks;
mod schedule_rest;
mod session_checker;
mod shared;
mod shim;
mod shortage;
mod truth;
mod wire;
mod worker;
mod worker_faults;
mod workload;
mod world;

pub use report::{FAULTS, Report, Violation};

use everbeat_model::Planted;
use world::World;

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The mistake to plant.
    pub hole: Planted,
    /// What this world is about, if not about everything.
    pub focus: Option<Focus>,
    /// Keep the whole history, not only the end of one that went wrong.
    pub whole_history: bool,
}

/// A world in which one kind of trouble is frequent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Focus {
    /// Hosts without replicas, shims that hang, and jobs that must stop when they are isolated.
    Absence,
    /// Failovers of the store that lose commits, and jobs that are tried again soon.
    Failover,
    /// Replicas that share one machine and crash, and shims that are slow to start.
    TakeOver,
    /// Workers, their links and their guardians.
    Workers,
}

impl Focus {
    pub const ALL: [Focus; 4] = [Focus::Absence, Focus::Failover, Focus::TakeOver, Focus::Workers];
}

/// So many last lines are shown of a history that went wrong.
const TAIL: usize = 50;

/// Lives through the world of one seed. A broken guarantee is answered with the end of its history.
pub fn run_seed(seed: u64, options: Options) -> Result<Report, Box<Violation>> {
    let (report, violation) = World::new(seed, options, false).run();
    if violation.is_none() {
        return Ok(report);
    }
    // The same seed gives the same history: this time somebody writes it down.
    let (_, violation) = World::new(seed, options, true).run();
    let mut violation = violation.unwrap_or_else(|| Violation {
        seed,
        guarantee: "determinism".to_string(),
        detail: "the same seed gave another history the second time".to_string(),
        at_ms: 0,
        trace: Vec::new(),
    });
    let skip = if options.whole_history { 0 } else { violation.trace.len().saturating_sub(TAIL) };
    violation.trace.drain(..skip);
    Err(Box::new(violation))
}

/// The history of one seed, line by line, with its end.
pub fn tell_seed(seed: u64, options: Options) -> (Vec<String>, Report, Option<Violation>) {
    World::new(seed, options, true).recount()
}
