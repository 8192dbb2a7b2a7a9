//! No two live workers perform runs of one strict session at once.

use crate::executor::Owner;
use crate::process::{FIRST_REMOTE, FIRST_WORKER};
use crate::shared::Shared;
use crate::truth::{Performance, Truth};
use everbeat_model::run::Spec;
use everbeat_model::session::Affinity;

/// The strict session of a run that a worker performs. Workers of pools and those of none have sessions of their own.
pub(crate) fn strict(spec: &Spec, process: Owner) -> Option<String> {
    let session = spec.session.as_ref().filter(|session| session.affinity == Affinity::Strict)?;
    match process {
        FIRST_REMOTE.. => Some(format!("{} of no pool", session.key)),
        FIRST_WORKER.. => Some(session.key.clone()),
        _ => None,
    }
}

/// A worker begins to perform.
pub(crate) fn begins(shared: &Shared, truth: &mut Truth, begun: &Performance) {
    let Some(session) = &begun.session else { return };
    truth.report.worker("run of a strict session");
    let meets = |other: &&Performance| {
        other.session.as_ref() == Some(session)
            && other.process != begun.process
            && [*other, begun].into_iter().all(can_be_stopped)
            // A worker elsewhere that is stopped does nothing, and stops its work before it goes on.
            && !(other.process >= FIRST_REMOTE && truth.stopped.contains(&other.process))
            // What the store forgot, no replica can know.
            && (other.owner == begun.owner || (!truth.failed_over() && stands(shared, other) && stands(shared, begun)))
    };
    let Some(other) = truth.performing.values().find(meets) else { return };
    let (run, attempt, process, owner) = (other.run, other.attempt, other.process, other.owner);
    let (mine, its) = (truth.name(begun.run), truth.name(run));
    let detail = format!(
        "{mine} attempt {} begins in {} of {}, while {its} attempt {attempt} of the same strict session {session:?} is \
         performed in {} of {}",
        begun.attempt,
        truth.label(begun.process),
        truth.label(begun.owner),
        truth.label(process),
        truth.label(owner),
    );
    truth.violate("session", detail);
}

/// Nobody can stop what a worker elsewhere does that is cut off or hangs, and need not stop then: such work may begin or go
/// on after its worker was given up and its session began anew.
fn can_be_stopped(performance: &Performance) -> bool {
    performance.stops || performance.process < FIRST_REMOTE
}

/// Whether an attempt still has its lease, under a replica that nobody has judged.
fn stands(shared: &Shared, performance: &Performance) -> bool {
    shared.memory.inspect(|state| {
        let held = state.leases.get(&performance.run).filter(|held| held.lease.attempt == performance.attempt);
        let owner = held.and_then(|held| state.replicas.get(&held.lease.replica_id));
        owner.is_some_and(|owner| owner.state.holds_leases())
    })
}
