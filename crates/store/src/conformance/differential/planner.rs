use crate::Planner;
use everbeat_model::graph::{Command, Defaults, NodeState, Plan, Snapshot, plan};
use everbeat_model::{Planted, Policy, RunId};
use std::fmt::Write;
use std::sync::Arc;
use uuid::Uuid;

/// Gives runs ids that follow from what is decided upon, and from nothing else: two stores that decide alike
/// make the same runs, whatever order they look in and however often they try. No decision that makes a run
/// is ever made upon the same state twice, because the run is then part of it.
pub(super) struct SameRuns(Defaults);

impl Default for SameRuns {
    fn default() -> SameRuns {
        SameRuns(Defaults {
            policy: Arc::new(Policy::BASELINE),
            queue: "default".to_string(),
            hole: Planted::default(),
        })
    }
}

impl Planner for SameRuns {
    fn plan(&self, snapshot: Snapshot, commands: Vec<Command>) -> Plan {
        let mut ground = format!("{} {} {:?}", snapshot.id, snapshot.graph.version, snapshot.ended);
        let execution = &snapshot.execution;
        let _ = write!(ground, "{} {} {commands:?}", execution.revision, execution.archived_at.is_some());
        // A node that is neither set nor computed any more is as good as one that never was.
        for (name, state) in execution.nodes.iter().filter(|(_, state)| **state != NodeState::default()) {
            let _ = write!(ground, "{name} {:?}", state.computation);
        }
        let mut nth = 0_u32;
        plan(snapshot, commands, &self.0, &mut || {
            nth += 1;
            RunId(named(&format!("{ground}{nth}")))
        })
    }
}

/// An id of version 7 from Fowler, Noll and Vo's hash (1a, 128 bits).
fn named(text: &str) -> Uuid {
    let mut hash = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    for byte in text.bytes() {
        hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    let (high, low) = ((hash >> 64) & 0xfff, hash & ((1 << 62) - 1));
    Uuid::from_u128(1_767_225_600_000 << 80 | 7 << 76 | high << 64 | 0b10 << 62 | low)
}
