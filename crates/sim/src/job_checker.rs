//! What must hold of detached commands, whoever watches them: where they run, how they end, who may end them.

use crate::machine::Machine;
use crate::shared::Shared;
use crate::truth::{Boot, CommandTruth, Truth};
use crate::workload::REATTACH_WINDOW;
use everbeat_engine::{JobAttempt, LAST_WORD};
use everbeat_model::job::KnownExit;
use everbeat_model::lease::Shown;
use everbeat_model::{Attempt, Json, Outcome, Reason, ReplicaId, RunId, Token};
use everbeat_store::Held;
use everbeat_store::memory::State;
use std::sync::Arc;

type Checked = Result<(), (&'static str, String)>;

/// A command begins: no other of its job may run, unless that one's host was given up.
pub(crate) fn begins(shared: &Shared, attempt: &JobAttempt, machine: usize, stops: bool) {
    shared.trace(|truth| format!("the command of {} begins on host {machine}", truth.attempt(attempt)));
    let failed_over = shared.network().epoch > 0;
    shared.memory.inspect(|state| {
        let mut truth = shared.truth();
        truth.report.jobs_started += 1;
        let found = never_again(state, attempt)
            .and_then(|()| alone(state, &truth, attempt, machine, failed_over))
            .map_err(|(guarantee, detail)| (guarantee, format!("{}: {detail}", truth.attempt(attempt))));
        if let Err((guarantee, detail)) = found {
            truth.violate(guarantee, detail);
        }
        let command =
            CommandTruth { job: attempt.job, attempt: attempt.attempt, machine, stops, runs: true, hung: false };
        truth.commands.insert(attempt.token, command);
    });
}

/// An attempt of which the store says that it never began never begins.
fn never_again(state: &State, attempt: &JobAttempt) -> Checked {
    let earlier = state.attempts.get(&(attempt.job, attempt.attempt));
    let last = state.done.get(&attempt.job).and_then(|done| done.attempt.as_ref());
    let mut ended = earlier.into_iter().chain(last).filter(|(_, token)| *token == attempt.token);
    match ended.find(|(ended, _)| never_began(ended)) {
        Some((ended, _)) => {
            Err(("G10", format!("its command begins, and the store says {:?} {}", ended.outcome, word(ended))))
        }
        None => Ok(()),
    }
}

fn alone(state: &State, truth: &Truth, attempt: &JobAttempt, machine: usize, failed_over: bool) -> Checked {
    let others = truth.commands.values().filter(|command| command.job == attempt.job && command.runs);
    for other in others {
        let number = other.attempt;
        if other.machine == machine {
            return Err(("G9", format!("it begins while attempt {number} runs on the same host")));
        }
        // A store that forgot a grant may give it again, and nobody can know.
        if failed_over {
            continue;
        }
        // The earlier of the two; its shim may have been slow to start.
        let earlier = number.min(attempt.attempt);
        let given_up = state.verdicts.values().any(|verdict| {
            let of_it = verdict.run_id == Some(attempt.job) && verdict.attempt == Some(earlier);
            of_it && Reason::parse(&verdict.reason) == Some(Reason::HostAway)
        });
        if !given_up {
            return Err(("G9", format!("it begins while attempt {number} runs on host {}", other.machine)));
        }
        if other.stops {
            let detail = format!("it begins while attempt {number} runs on host {}, isolated", other.machine);
            return Err(("G6", detail));
        }
    }
    Ok(())
}

/// Somebody's wish for the end reached a shim, or was left for it.
pub(crate) fn stopped(shared: &Shared, attempt: &JobAttempt) {
    if attempt.tenure == LAST_WORD {
        nobodys(shared, attempt);
    }
}

/// A shim is about to be killed, which had heard of that tenure.
pub(crate) fn killed(shared: &Shared, attempt: &JobAttempt, heard: u32) {
    if attempt.tenure == LAST_WORD {
        return nobodys(shared, attempt);
    }
    shared.truth().report.jobs_killed += 1;
    if attempt.tenure < heard {
        let mut truth = shared.truth();
        let name = truth.attempt(attempt);
        truth.violate("adoption", format!("{name} is killed by a former owner, of tenure {}", attempt.tenure));
    }
}

/// A shim stops its command since nobody vouched for it: not one whose owner was well all the while.
pub(crate) fn isolated(shared: &Shared, attempt: &JobAttempt, span: u64) {
    let now = shared.now();
    let troubled_at = shared.network().shims_troubled_at;
    let mut truth = shared.truth();
    // Whoever was in trouble before may take a while until the store has acknowledged it again.
    let since = now.saturating_sub(span + crate::deaths::TIMEOUT);
    let owner = truth.owners.get(&attempt.token).filter(|(_, at)| *at + span / 2 < now).map(|(owner, _)| *owner);
    let well = owner.is_some_and(|owner| is_well(&truth, owner, since, now));
    let common = truth.common.iter().any(|window| window.overlaps(since, now));
    let hung = truth.commands.get(&attempt.token).is_some_and(|command| command.hung);
    if well && !common && !hung && troubled_at < since && now >= truth.unsure_until {
        let (name, owner) = (truth.attempt(attempt), owner.map(|owner| truth.label_of(owner)));
        truth.violate("G3", format!("{name} is stopped as isolated, and its owner {owner:?} is well"));
    }
}

/// Whether a life was there all the time, and nothing kept it from working.
fn is_well(truth: &Truth, life: ReplicaId, since: u64, now: u64) -> bool {
    let Some(known) = truth.lives.get(&life) else { return false };
    let well = |boot: &Boot| boot.troubled_at < since && boot.windows.iter().all(|window| !window.overlaps(since, now));
    known.joined_at < since && !truth.over(life) && truth.boots.get(&known.owner).is_some_and(well)
}

/// Whoever is ended as nobody's has no lease.
fn nobodys(shared: &Shared, attempt: &JobAttempt) {
    let stands = shared
        .memory
        .inspect(|state| state.leases.get(&attempt.job).is_some_and(|held| held.lease.token == attempt.token));
    if stands && shared.network().epoch == 0 {
        let mut truth = shared.truth();
        let name = truth.attempt(attempt);
        truth.violate("G3", format!("{name} is ended as nobody's, and its lease stands"));
    }
}

/// Leases passed on to another replica of their host.
pub(crate) fn adopted(shared: &Shared, adopted: &[Held]) {
    for held in adopted {
        let lease = &held.lease;
        let mut truth = shared.truth();
        truth.owners.insert(lease.token, (lease.replica_id, shared.now()));
        let runs = truth.commands.get(&lease.token).is_some_and(|command| command.runs);
        truth.report.jobs_reattached += u64::from(runs);
        truth.report.jobs_recovered += u64::from(!runs && truth.exits.contains_key(&lease.token));
        drop(truth);
        shared.trace(|truth| {
            let (name, label) = (truth.name(lease.run_id), truth.label_of(lease.replica_id));
            format!("{label} takes {name} attempt {} over, tenure {}", lease.attempt, lease.tenure)
        });
    }
}

/// A settlement or a sign was accepted: from the owner that the lease had, as it was passed on.
pub(crate) fn accepted(truth: &mut Truth, shown: &Shown) {
    let owner = truth.owners.get(&shown.token);
    if owner.is_some_and(|(owner, _)| *owner != shown.replica_id) {
        let (name, label) = (truth.name(shown.run_id), truth.label_of(shown.replica_id));
        let detail = format!("{name} attempt {} counts what {label} says, a former owner", shown.attempt);
        truth.violate("adoption", detail);
    }
}

/// The end of a job's attempt, as it is stored, is what happened.
pub(crate) fn ended(
    state: &State,
    truth: &mut Truth,
    id: RunId,
    ended: &Attempt,
    token: Token,
    result: Option<&Json>,
    now: u64,
) -> Checked {
    let number = ended.attempt;
    let known = KnownExit::of(result, ended.error.as_ref());
    let exit = truth.exits.get(&token);
    let command = truth.commands.get(&token);
    let is = exit.map_or((None, None), |exit| (exit.code(), exit.exit_signal));
    let said = (known.exit_code, known.exit_signal);
    if said != (None, None) && said != is {
        return Err(("G10", format!("attempt {number} exited {is:?}, and the store says {said:?}")));
    }
    if ended.outcome == Some(Outcome::Succeeded) && said.0 != Some(0) {
        return Err(("G10", format!("attempt {number} succeeded with {said:?}")));
    }
    let (reason, word) = (reason(ended), word(ended));
    if ended.outcome == Some(Outcome::Failed) && truth.short.contains(&token) {
        return Err(("G16", format!("attempt {number} has failed ({word}) for a shortage of its host's")));
    }
    let given_up = reason == Some(Reason::HostAway);
    if command.is_some_and(|command| command.runs) && !given_up {
        return Err(("G3", format!("attempt {number} is {:?} {word}, and its command runs", ended.outcome)));
    }
    // With the folder gone, and what the store had noted of its place, nobody can know that it ran.
    let unknowable = truth.folders_gone.contains(&id) && truth.failed_over();
    if command.is_some() && !unknowable && never_began(ended) {
        return Err(("G10", format!("attempt {number} is {:?} {word}, and its command ran", ended.outcome)));
    }
    let unknown = reason.is_some_and(|reason| UNKNOWN.contains(&reason));
    let on_disk = exit.is_some() && !truth.folders_gone.contains(&id);
    if ended.outcome == Some(Outcome::Lost) && unknown && on_disk {
        return Err(("G10", format!("attempt {number} is lost ({word}), and its exit is on the disk")));
    }
    truth.report.jobs_lost += u64::from(ended.outcome == Some(Outcome::Lost));
    if given_up {
        truth.report.jobs_given_up += 1;
        return away(truth, state, id, ended, now);
    }
    Ok(())
}

/// A host is given up only if it had no healthy replica for the whole window, and its own owner was not heard of.
fn away(truth: &mut Truth, state: &State, id: RunId, ended: &Attempt, now: u64) -> Checked {
    let window = REATTACH_WINDOW.as_micros() as u64;
    if let Some(heard) = truth.lives.get(&ended.replica_id).map(|life| life.renewed).filter(|at| now - at < window) {
        let (name, ago) = (truth.name(id), (now - heard) / 1000);
        return Err(("G3", format!("{name} was given up {ago} ms after its owner was last acknowledged")));
    }
    let Some(machine) = truth.machine_of(ended.replica_id) else { return Ok(()) };
    let since = now.saturating_sub(REATTACH_WINDOW.as_micros() as u64 + crate::deaths::TIMEOUT);
    let stands = |life: &ReplicaId| state.replicas.get(life).is_some_and(|row| row.state.holds_leases());
    let here = |life: &ReplicaId| truth.machine_of(*life) == Some(machine);
    let healthy = truth.lives.keys().find(|life| here(life) && stands(life) && is_well(truth, **life, since, now));
    let Some(label) = healthy.map(|life| truth.label_of(*life)) else { return Ok(()) };
    let name = truth.name(id);
    Err(("G3", format!("{name} was given up, and {label} is on its host and well")))
}

/// What is said of a lost attempt whose exit nobody could read.
const UNKNOWN: [Reason; 6] = [
    Reason::ShimDied,
    Reason::Rebooted,
    Reason::ShimHung,
    Reason::StartUnclear,
    Reason::NeverStarted,
    Reason::Forgotten,
];

fn never_began(ended: &Attempt) -> bool {
    ended.outcome == Some(Outcome::Released) || reason(ended) == Some(Reason::NotStarted)
}

fn reason(ended: &Attempt) -> Option<Reason> {
    ended.error.as_ref().and_then(Reason::of)
}

fn word(ended: &Attempt) -> &'static str {
    reason(ended).map_or("", Reason::as_str)
}

/// A shim whose command still runs, if there is one. Whose run the store does not know is left alone.
pub(crate) fn running(shared: &Shared, machines: &[Arc<Machine>]) -> Option<String> {
    machines.iter().find_map(|machine| {
        let disk = machine.disk();
        let known = |job: RunId| shared.memory.inspect(|state| state.runs.contains_key(&job));
        let mut shims = disk.folders.values().filter_map(|folder| folder.shim.as_ref());
        let shim = shims.find(|shim| shim.runs() && known(shim.attempt.job))?;
        let name = shared.truth().attempt(&shim.attempt);
        Some(format!("the shim of {name} still runs on host {}", machine.place))
    })
}
