use crate::{Held, OutputPage, Renewal, Streamed};
use everbeat_model::event::PER_BATCH;
use everbeat_model::lease::Shown;
use everbeat_model::run::Claimed;
use everbeat_model::{Attempt, Event, Lease, Replica, Run, RunId, StoreTime, Token, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// Retells what a store shows without what is its own: a time becomes the step in which it was first
/// seen (as microseconds), a token becomes whose it is, the number of an event its place in the log.
#[derive(Default)]
pub(super) struct View {
    pub(super) step: i64,
    pub(super) tokens: BTreeMap<(RunId, u32), Token>,
    times: BTreeMap<StoreTime, StoreTime>,
    batches: BTreeMap<u64, u64>,
    /// Batches of several executions at once: in which order these are told is the store's affair.
    unordered: BTreeSet<u64>,
    /// The present step writes such.
    pub(super) writes_several: bool,
}

impl View {
    pub(super) fn granted(&mut self, lease: &Lease) {
        let earlier = self.tokens.insert((lease.run_id, lease.attempt), lease.token);
        assert_eq!(earlier, None, "attempt {} of run {} was granted twice", lease.attempt, lease.run_id);
    }

    pub(super) fn at(&mut self, time: StoreTime) -> StoreTime {
        *self.times.entry(time).or_insert(StoreTime(self.step))
    }

    fn maybe(&mut self, time: Option<StoreTime>) -> Option<StoreTime> {
        time.map(|time| self.at(time))
    }

    pub(super) fn shown(&self, shown: &Shown) -> String {
        let own = self.tokens.get(&(shown.run_id, shown.attempt)) == Some(&shown.token);
        let Shown { run_id, attempt, replica_id, rescue, .. } = shown;
        format!("lease of {run_id} attempt {attempt} token {own} owner {replica_id} rescue {rescue}\n")
    }

    fn lease(&mut self, lease: &Lease) -> String {
        let granted_at = self.at(lease.granted_at);
        format!("{} tenure {} {granted_at:?}", self.shown(&lease.shown()).trim_end(), lease.tenure)
    }

    pub(super) fn claimed(&mut self, claimed: &Claimed) -> String {
        let Claimed { lease, spec, standing, checkpoint, due_at: _ } = claimed;
        format!("{} {standing:?} {checkpoint:?} {:?}\n", self.lease(lease), self.spec(spec))
    }

    pub(super) fn held(&mut self, held: Held) -> String {
        let Held { lease, spec, standing, cancel_asked, last_heartbeat_at, owner } = held;
        let heard = self.at(last_heartbeat_at);
        let owner = owner.map(|owner| self.replica(Replica { running: 0, ..owner }));
        let spec = self.spec(&spec);
        format!("{} {heard:?} {standing:?} {cancel_asked} {spec:?} {owner:?}\n", self.lease(&lease))
    }

    pub(super) fn run(&mut self, run: Run) -> String {
        let run = Run {
            spec: self.spec(&run.spec),
            created_at: self.at(run.created_at),
            run_at: self.maybe(run.run_at),
            started_at: self.maybe(run.started_at),
            finished_at: self.maybe(run.finished_at),
            last_heartbeat_at: self.maybe(run.last_heartbeat_at),
            cancel_requested_at: self.maybe(run.cancel_requested_at),
            ..run
        };
        format!("{run:?}\n")
    }

    pub(super) fn attempt(&mut self, attempt: Attempt) -> String {
        let attempt = Attempt {
            started_at: self.at(attempt.started_at),
            ended_at: self.maybe(attempt.ended_at),
            last_heartbeat_at: self.maybe(attempt.last_heartbeat_at),
            ..attempt
        };
        format!("{attempt:?}\n")
    }

    pub(super) fn output(&mut self, page: OutputPage) -> String {
        let OutputPage { items, first, last } = page;
        let items: Vec<Streamed> = items.into_iter().map(|item| Streamed { at: self.at(item.at), ..item }).collect();
        format!("kept from {first} to {last}: {items:?}\n")
    }

    pub(super) fn replica(&mut self, replica: Replica) -> String {
        let replica = Replica {
            started_at: self.at(replica.started_at),
            last_heartbeat_at: self.at(replica.last_heartbeat_at),
            clock_skew_ms: 0,
            ..replica
        };
        format!("{replica:?}\n")
    }

    pub(super) fn renewal(&mut self, renewal: Renewal) -> String {
        match renewal {
            Renewal::Renewed { now, state } => format!("renewed at {:?}, {state:?}", self.at(now)),
            Renewal::Fenced => "fenced".to_string(),
        }
    }

    pub(super) fn verdict(&mut self, verdict: Verdict) -> String {
        let verdict = Verdict { at: self.at(verdict.at), ..verdict };
        format!("{verdict:?}\n")
    }

    /// In the order of the log.
    pub(super) fn events(&mut self, events: Vec<Event>) -> String {
        let mut told: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for event in events {
            let batch = event.id / PER_BATCH;
            if !self.batches.contains_key(&batch) && self.writes_several {
                self.unordered.insert(batch);
            }
            let line = self.event(event);
            told.entry(batch).or_default().push(line);
        }
        let mut text = String::new();
        for (batch, mut lines) in told {
            if self.unordered.contains(&batch) {
                lines.sort();
            }
            text += &lines.concat();
        }
        text
    }

    fn event(&mut self, event: Event) -> String {
        let next = u64::try_from(self.batches.len()).unwrap_or(u64::MAX);
        let batch = event.id / PER_BATCH;
        let place = if self.unordered.contains(&batch) { 0 } else { event.id % PER_BATCH };
        let batch = *self.batches.entry(batch).or_insert(next);
        let event = Event { id: batch * PER_BATCH + place, at: self.at(event.at), ..event };
        format!("{event:?}\n")
    }

    /// A place in the log from which two stores go on alike.
    pub(super) fn whole_batch(&self, after: u64) -> u64 {
        let batch = after / PER_BATCH;
        if self.unordered.contains(&batch) { batch * PER_BATCH + PER_BATCH - 1 } else { after }
    }
}
