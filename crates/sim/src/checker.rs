//! Compares the store, after every change, with what it held before and with what really happened.

use crate::deaths;
use crate::graph_checker::GraphChecker;
use crate::moves::Place;
use crate::output_checker::OutputChecker;
use crate::report::passed;
use crate::schedule_checker::ScheduleChecker;
use crate::shared::Shared;
use crate::truth::Truth;
use everbeat_model::replica::ReplicaState;
use everbeat_model::{Outcome, Reason, ReplicaId, RunId, Verdict, VerdictId, WorkerId};
use everbeat_store::Audits;
use everbeat_store::memory::State;
use futures_util::FutureExt;
use std::collections::{BTreeMap, BTreeSet};

/// What the checker knows of the store from its last look.
#[derive(Default)]
pub(crate) struct Checker {
    version: u64,
    sizes: [usize; 7],
    places: Places,
    pub(crate) attempts: BTreeSet<(RunId, u32)>,
    replicas: BTreeMap<ReplicaId, ReplicaState>,
    verdicts: BTreeSet<VerdictId>,
    /// The replica that lost a run's last attempt, until another is granted.
    pub(crate) lost_by: BTreeMap<RunId, ReplicaId>,
    /// Burials by judge and look: how long each of them had been watched.
    burials: BTreeMap<(ReplicaId, u64), Vec<u64>>,
    graphs: GraphChecker,
    outputs: OutputChecker,
    schedules: ScheduleChecker,
}

impl Checker {
    /// Looks at the store if it changed.
    pub(crate) fn look(&mut self, shared: &Shared) {
        shared.memory.inspect(|state| {
            if state.version == self.version {
                return;
            }
            self.version = state.version;
            shared.executor.note(state.version);
            let now = shared.now();
            let mut truth = shared.truth();
            self.replicas(state, &mut truth, now);
            let places = &self.places;
            self.outputs.look(state, &mut truth, |run| match place_of(places, run) {
                Some(Place::Leased { attempt, .. }) => Some(attempt),
                _ => None,
            });
            let sizes = sizes(state);
            if sizes != self.sizes {
                self.sizes = sizes;
                truth.report.checks += 1;
                self.verdicts(shared, state, &mut truth, now);
                self.runs(state, &mut truth, now);
                self.outputs.finished(state, &mut truth);
            }
            self.graphs.look(state, &mut truth, now);
            self.schedules.look(state, &mut truth, shared.clocks.store(now));
            checkpoints(state, &mut truth);
        });
    }

    /// The whole audit of the store itself.
    pub(crate) fn audit(&self, shared: &Shared) {
        if let Some(Ok(audit)) = shared.memory.audit().now_or_never()
            && let Some(violation) = audit.violations.first()
        {
            let detail = format!("the audit of the store says {}: {}", violation.subject, violation.detail);
            shared.truth().violate("audit", format!("{} {detail}", violation.guarantee));
        }
    }

    /// Starts from what a failover left: what it took is not held against anybody.
    pub(crate) fn rebase(&mut self, shared: &Shared) {
        shared.memory.inspect(|state| {
            let mut truth = shared.truth();
            let places = all_places(state, &mut truth);
            *self = Checker {
                version: state.version,
                sizes: sizes(state),
                places,
                attempts: state.attempts.keys().copied().collect(),
                replicas: state.replicas.iter().map(|(id, row)| (*id, row.state)).collect(),
                verdicts: state.verdicts.keys().copied().collect(),
                lost_by: BTreeMap::new(),
                burials: std::mem::take(&mut self.burials),
                graphs: GraphChecker::rebased(state, &mut truth, shared.now()),
                outputs: OutputChecker::rebased(state, &mut truth),
                schedules: ScheduleChecker::rebased(state),
            };
        });
    }

    fn replicas(&mut self, state: &State, truth: &mut Truth, now: u64) {
        for (id, row) in &state.replicas {
            if let Some(life) = truth.lives.get_mut(id)
                && life.beat != row.beat
            {
                life.beat = row.beat;
                life.beat_at = now;
            }
            let before = self.replicas.insert(*id, row.state);
            if before == Some(row.state) {
                continue;
            }
            if before.is_some_and(|before| !before.holds_leases()) {
                let label = truth.label_of(*id);
                truth.violate("G3", format!("{label} was {before:?} for good, and is {:?} now", row.state));
            }
            if row.state == ReplicaState::Dead {
                match deaths::check(truth, state, *id, now) {
                    Ok(Some((look, watched))) => self.masses(truth, look, watched),
                    Ok(None) => {}
                    Err((guarantee, detail)) => truth.violate(guarantee, detail),
                }
            }
        }
        self.replicas.retain(|id, _| state.replicas.contains_key(id));
    }

    /// Whoever sees many die at once must have doubted itself for a whole timeout more.
    fn masses(&mut self, truth: &mut Truth, look: (ReplicaId, u64), watched: u64) {
        let burials = self.burials.entry(look).or_default();
        burials.push(watched);
        if burials.len() >= 3 && burials.iter().any(|watched| *watched < 2 * deaths::TIMEOUT) {
            let detail = format!("{} were judged dead in one look, watched for {burials:?} us", burials.len());
            truth.violate("G4", detail);
        }
    }

    fn verdicts(&mut self, shared: &Shared, state: &State, truth: &mut Truth, now: u64) {
        if state.verdicts.len() == self.verdicts.len() {
            return;
        }
        for (id, verdict) in &state.verdicts {
            if self.verdicts.insert(*id) {
                let kind = passed(verdict.judgement, &verdict.reason);
                *truth.report.verdicts.entry(kind).or_default() += 1;
                truth.report.fenced += u64::from(verdict.judgement == everbeat_model::verdict::Judgement::Fenced);
                self.true_verdict(state, truth, verdict, now);
                of_worker(shared, truth, verdict);
            }
        }
    }

    /// The owner's own judgements must be true by the common time, whatever the wall clocks did.
    fn true_verdict(&self, state: &State, truth: &mut Truth, verdict: &Verdict, now: u64) {
        let (Some(run), Some(attempt)) = (verdict.run_id, verdict.attempt) else { return };
        let Some(owner) = truth.lives.get(&verdict.judged_by).map(|life| life.owner) else { return };
        let key = (owner, run, attempt);
        // After a failover one replica may have held two leases of the same number.
        if truth.grants.get(&key).map_or(0, Vec::len) > 1 {
            return;
        }
        let deadline = state.runs.get(&run).and_then(|row| row.spec.policy.deadline);
        let earliest = match Reason::parse(&verdict.reason) {
            Some(Reason::AttemptSilent) => truth.not_silent_before.get(&key).copied(),
            Some(Reason::NoProgress) => truth.not_stalled_before.get(&key).copied(),
            Some(Reason::Deadline) => match place_of(&self.places, run) {
                Some(Place::Leased { token, .. }) => {
                    truth.granted_at.get(&token).zip(deadline).map(|(at, span)| at + span.as_micros() as u64)
                }
                _ => None,
            },
            _ => None,
        };
        if earliest.is_some_and(|earliest| now < earliest) {
            let name = truth.name(run);
            truth.violate("G5", format!("{name} attempt {attempt}: verdict {} came too early", verdict.reason));
        }
        if verdict.judgement == everbeat_model::verdict::Judgement::Fenced && counted(state, verdict) {
            let name = truth.name(run);
            truth.violate("G15", format!("{name} attempt {attempt} is called fenced, yet its ending was accepted"));
        }
    }

    fn runs(&mut self, state: &State, truth: &mut Truth, now: u64) {
        let places = all_places(state, truth);
        let earlier = std::mem::take(&mut self.places);
        let mut known = earlier.iter().peekable();
        for (id, place) in &places {
            while known.next_if(|(before, _)| before < id).is_some() {}
            let before = known.next_if(|(before, _)| before == id).map(|(_, place)| *place);
            if before == Some(*place) {
                continue;
            }
            if let Err((guarantee, detail)) = self.moved(state, truth, *id, before, *place, now) {
                let name = truth.name(*id);
                truth.violate(guarantee, format!("{name}: {detail}"));
            }
        }
        self.attempts.extend(state.attempts.keys().copied());
        self.places = places;
        let missing = truth.accepted.iter().find(|id| !state.runs.contains_key(id)).copied();
        if let Some(id) = missing {
            let name = truth.name(id);
            truth.violate("G2", format!("{name} was accepted, and is gone"));
        }
        check_unique(state, truth);
    }
}

/// What is said of a worker must be what was really done to it.
fn of_worker(shared: &Shared, truth: &mut Truth, verdict: &Verdict) {
    let Some(reason) = Reason::parse(&verdict.reason) else { return };
    let evidence = verdict.evidence.value();
    let worker = evidence["worker_id"].as_str().and_then(|id| id.parse().ok()).map(WorkerId);
    let process = worker.and_then(|worker| shared.pools().by_worker.get(&worker).cloned());
    if let Some(process) = process
        && let Err(detail) = process.fits(reason, evidence["class"].as_str().unwrap_or_default())
    {
        truth.violate("G15", detail);
    }
}

/// What was acknowledged is not replaced by something earlier.
fn checkpoints(state: &State, truth: &mut Truth) {
    let stored = |run: &RunId| {
        let checkpoint = state.signs.get(run).and_then(|(_, checkpoint)| checkpoint.as_ref());
        checkpoint.and_then(|checkpoint| checkpoint.read::<u64>().ok()).unwrap_or(0)
    };
    let replaced =
        truth.checkpoints.iter().find(|(run, known)| state.leases.contains_key(run) && stored(run) < **known);
    if let Some((run, known)) = replaced.map(|(run, known)| (*run, *known)) {
        let (name, stored) = (truth.name(run), stored(&run));
        truth.violate("G1", format!("{name} has checkpoint {stored}, yet {known} was acknowledged"));
    }
}

/// Whether the ending that a fenced verdict speaks of did count: the same attempt, ended by its own
/// replica, other than by a rescue.
fn counted(state: &State, verdict: &Verdict) -> bool {
    let (Some(run), Some(number)) = (verdict.run_id, verdict.attempt) else { return false };
    let ended = state.attempts.get(&(run, number)).map(|(attempt, _)| attempt);
    let last = state.done.get(&run).and_then(|done| done.attempt.as_ref()).map(|(attempt, _)| attempt);
    let attempt = ended.or(last.filter(|attempt| attempt.attempt == number));
    attempt.is_some_and(|attempt| {
        attempt.replica_id == verdict.judged_by
            && matches!(attempt.outcome, Some(Outcome::Succeeded | Outcome::Failed | Outcome::Cancelled))
    })
}

fn sizes(state: &State) -> [usize; 7] {
    [
        state.runs.len(),
        state.scheduled.len(),
        state.ready.len(),
        state.leases.len(),
        state.done.len(),
        state.attempts.len(),
        state.verdicts.len(),
    ]
}

/// Where every run is, by id.
type Places = Vec<(RunId, Place)>;

fn place_of(places: &Places, run: RunId) -> Option<Place> {
    places.binary_search_by_key(&run, |(id, _)| *id).ok().map(|place| places[place].1)
}

/// Where every run is; a run in two places, or in none, is a violation.
fn all_places(state: &State, truth: &mut Truth) -> Places {
    let mut places = Places::with_capacity(state.runs.len());
    let mut put = |id: RunId, place: Place| places.push((id, place));
    state.scheduled.iter().for_each(|((_, id), standing)| put(*id, Place::Scheduled { attempt: standing.attempt }));
    state.ready.iter().for_each(|((.., id), standing)| put(*id, Place::Ready { attempt: standing.attempt }));
    for (id, row) in &state.leases {
        let lease = &row.lease;
        put(*id, Place::Leased { attempt: lease.attempt, token: lease.token, replica: lease.replica_id });
    }
    for (id, done) in &state.done {
        let token = done.attempt.as_ref().map(|(_, token)| *token);
        let (attempt, finished_at) = (done.standing.attempt, done.finished_at.0);
        put(*id, Place::Done { attempt, token, state: done.state, finished_at });
    }
    places.sort_unstable_by_key(|(id, _)| *id);
    let twice = places.windows(2).find(|pair| pair[0].0 == pair[1].0).map(|pair| pair[0].0);
    let everywhere = places.iter().map(|(id, _)| id).eq(state.runs.keys());
    let nowhere = || state.runs.keys().find(|id| place_of(&places, **id).is_none()).copied();
    if let Some(id) = twice.or_else(|| if everywhere { None } else { nowhere() }) {
        let name = truth.name(id);
        truth.violate("G2", format!("{name} is in two places, or in none"));
    }
    places
}

/// A unique key holds among unfinished runs.
fn check_unique(state: &State, truth: &mut Truth) {
    let mut holders: BTreeMap<&str, RunId> = BTreeMap::new();
    for (id, row) in &state.runs {
        if let Some(key) = &row.spec.unique_key
            && !state.done.contains_key(id)
            && let Some(other) = holders.insert(key, *id)
        {
            let (one, two) = (truth.name(*id), truth.name(other));
            truth.violate("G1", format!("{one} and {two} are unfinished and share the unique key {key:?}"));
        }
    }
}
