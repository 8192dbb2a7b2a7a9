//! What really happened, as nobody in the world can know it: who was up, frozen or cut off when, who
//! performed what, and what was promised to whom. The checker compares the store with it.

use crate::executor::Owner;
use crate::output_checker::Speech;
use crate::process::FIRST_WORKER;
use crate::report::Report;
use everbeat_engine::JobAttempt;
use everbeat_model::job::Exit;
use everbeat_model::{ExecutionId, Json, ReplicaId, RunId, Token, VerdictId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(crate) struct Truth {
    /// Clients of healed replicas that have not got all they ask for.
    pub(crate) clients: usize,
    pub(crate) tracing: bool,
    pub(crate) trace: Vec<String>,
    pub(crate) report: Report,
    pub(crate) boots: BTreeMap<Owner, Boot>,
    pub(crate) lives: BTreeMap<ReplicaId, LifeTruth>,
    /// What is being performed now, by the nonce that its result would carry.
    pub(crate) performing: BTreeMap<u64, Performance>,
    pub(crate) performing_changed: bool,
    pub(crate) last_nonce: u64,
    /// Worker processes that are stopped: they do nothing.
    pub(crate) stopped: BTreeSet<Owner>,
    /// Replicas that were asked to leave.
    pub(crate) leaving: BTreeSet<Owner>,
    /// Whoever performed or performs under a nonce.
    pub(crate) performers: BTreeMap<u64, (Owner, RunId, u32)>,
    /// Leases that the store granted, by who asked, run and attempt.
    pub(crate) grants: BTreeMap<(Owner, RunId, u32), Vec<Token>>,
    pub(crate) granted_at: BTreeMap<Token, u64>,
    /// Grants that a failover took back without anybody knowing.
    pub(crate) voided: BTreeSet<Token>,
    /// Until then, acknowledged renewals that a failover took back may make somebody look silent who
    /// cannot know it.
    pub(crate) unsure_until: u64,
    /// Jobs whose folder was removed, by retention or by somebody else.
    pub(crate) folders_gone: BTreeSet<RunId>,
    /// Runs whose acceptance was acknowledged to a client.
    pub(crate) accepted: BTreeSet<RunId>,
    /// What each idempotency key was answered with.
    pub(crate) keys: BTreeMap<String, RunId>,
    /// The furthest checkpoint that a performer was told is stored, by run.
    pub(crate) checkpoints: BTreeMap<RunId, u64>,
    /// What attempts streamed, by the nonce of who performed them.
    pub(crate) said: BTreeMap<u64, Speech>,
    /// Reopenings that the store carried out and the checker has not seen yet.
    pub(crate) reopenings: BTreeMap<RunId, u32>,
    /// Runs whose cancel the store took, until they are reopened.
    pub(crate) cancelled: BTreeSet<RunId>,
    /// Before this time an attempt may not be called silent, stalled or late, whatever clocks show.
    pub(crate) not_silent_before: BTreeMap<(Owner, RunId, u32), u64>,
    pub(crate) not_stalled_before: BTreeMap<(Owner, RunId, u32), u64>,
    /// What attempts of nodes gave, by run and attempt, with who made it.
    pub(crate) made: BTreeMap<(RunId, u32), Vec<(Owner, Json)>>,
    /// Executions whose start was acknowledged to a client.
    pub(crate) executions: BTreeSet<ExecutionId>,
    /// What each idempotency key of a start was answered with.
    pub(crate) started: BTreeMap<String, ExecutionId>,
    /// The last number that a client set.
    pub(crate) last_value: u64,
    /// Since when each node of each execution has the value that it has.
    pub(crate) value_since: BTreeMap<(ExecutionId, String), u64>,
    /// The call after each saved value, by execution, node and revision.
    pub(crate) callbacks: BTreeMap<(String, String, u64), RunId>,
    /// The runs that occurrences of schedules became, or will become.
    pub(crate) occurred: BTreeSet<RunId>,
    /// Runs of flows that were made, and those that heartbeats said they made.
    pub(crate) flow_runs: u64,
    pub(crate) heard: u64,
    /// Commands that began, by their attempt's token.
    pub(crate) commands: BTreeMap<Token, CommandTruth>,
    /// How they ended, as far as their shims recorded it.
    pub(crate) exits: BTreeMap<Token, Exit>,
    /// Attempts of which an owner was told that they could not begin for want of something.
    pub(crate) short: BTreeSet<Token>,
    /// Who holds the lease of each attempt, as the store granted it or passed it on, and since when.
    pub(crate) owners: BTreeMap<Token, (ReplicaId, u64)>,
    /// When nobody could renew.
    pub(crate) common: Vec<Window>,
    pub(crate) broken: Option<(&'static str, String)>,
    pub(crate) names: BTreeMap<RunId, usize>,
    pub(crate) execution_names: BTreeMap<ExecutionId, usize>,
}

/// One boot of one replica: the process, which may live several lives.
pub(crate) struct Boot {
    pub(crate) label: String,
    pub(crate) machine: usize,
    pub(crate) state: BootState,
    pub(crate) slots: usize,
    /// When it was frozen or cut off.
    pub(crate) windows: Vec<Window>,
    /// The last time that a call of its own went wrong.
    pub(crate) troubled_at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BootState {
    Up,
    Crashed,
    /// It left, in order.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) kind: WindowKind,
    pub(crate) from: u64,
    pub(crate) to: Option<u64>,
}

impl Window {
    pub(crate) fn overlaps(&self, from: u64, to: u64) -> bool {
        self.from <= to && self.to.is_none_or(|end| end >= from)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowKind {
    Frozen,
    Cut,
}

pub(crate) struct LifeTruth {
    pub(crate) owner: Owner,
    pub(crate) joined_at: u64,
    /// When its beat last changed in the store.
    pub(crate) beat_at: u64,
    pub(crate) beat: u64,
    /// It learned that it was judged, or its process joined anew.
    pub(crate) over: bool,
    /// When its last acknowledged renewal was sent.
    pub(crate) renewed: u64,
    pub(crate) looked: Look,
    /// What each of its verdicts on others rests on.
    pub(crate) burials: BTreeMap<VerdictId, Look>,
}

/// One reading of all replicas by one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Look {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// When the reader's last renewal acknowledged by then was sent.
    pub(crate) renewed: u64,
}

/// A detached command that began.
pub(crate) struct CommandTruth {
    pub(crate) job: RunId,
    pub(crate) attempt: u32,
    pub(crate) machine: usize,
    /// Its policy says `when_isolated = stop`.
    pub(crate) stops: bool,
    pub(crate) runs: bool,
    /// Its shim hung, once.
    pub(crate) hung: bool,
}

/// One attempt under way in a handler.
pub(crate) struct Performance {
    pub(crate) owner: Owner,
    /// Whose tasks perform it: those of the replica, or of its worker.
    pub(crate) process: Owner,
    pub(crate) run: RunId,
    pub(crate) attempt: u32,
    pub(crate) queue: String,
    /// Its policy says `when_isolated = stop`.
    pub(crate) stops: bool,
    /// The strict session that it belongs to.
    pub(crate) session: Option<String>,
}

impl Truth {
    pub(crate) fn violate(&mut self, guarantee: &'static str, detail: String) {
        if self.broken.is_none() {
            self.broken = Some((guarantee, detail));
        }
    }

    /// A short name for a run, by the order in which they appeared.
    pub(crate) fn name(&mut self, run: RunId) -> String {
        let next = self.names.len() + 1;
        format!("run {}", self.names.entry(run).or_insert(next))
    }

    /// A short name for an execution, by the order in which they appeared.
    pub(crate) fn execution(&mut self, id: ExecutionId) -> String {
        let next = self.execution_names.len() + 1;
        format!("execution {}", self.execution_names.entry(id).or_insert(next))
    }

    pub(crate) fn label(&self, owner: Owner) -> String {
        let other = || if owner < FIRST_WORKER { "world".to_string() } else { format!("worker {owner}") };
        self.boots.get(&owner).map_or_else(other, |boot| boot.label.clone())
    }

    pub(crate) fn label_of(&self, life: ReplicaId) -> String {
        self.lives.get(&life).map_or_else(|| life.to_string(), |life| self.label(life.owner))
    }

    pub(crate) fn attempt(&mut self, attempt: &JobAttempt) -> String {
        format!("{} attempt {}", self.name(attempt.job), attempt.attempt)
    }

    pub(crate) fn command_ends(&mut self, token: Token) {
        if let Some(command) = self.commands.get_mut(&token) {
            command.runs = false;
        }
    }

    pub(crate) fn machine_of(&self, life: ReplicaId) -> Option<usize> {
        self.lives.get(&life).and_then(|life| self.boots.get(&life.owner)).map(|boot| boot.machine)
    }

    /// Whether nobody stands behind this life any more.
    pub(crate) fn over(&self, life: ReplicaId) -> bool {
        self.lives
            .get(&life)
            .is_none_or(|life| life.over || self.boots.get(&life.owner).is_none_or(|boot| boot.state != BootState::Up))
    }

    pub(crate) fn open(&mut self, owner: Owner, kind: WindowKind, now: u64) {
        if let Some(boot) = self.boots.get_mut(&owner) {
            boot.windows.push(Window { kind, from: now, to: None });
        }
    }

    pub(crate) fn close(&mut self, owner: Owner, kind: WindowKind, now: u64) {
        if let Some(boot) = self.boots.get_mut(&owner) {
            let open = boot.windows.iter_mut().filter(|window| window.kind == kind && window.to.is_none());
            open.for_each(|window| window.to = Some(now));
        }
    }

    /// Whether the store has ever forgotten something.
    pub(crate) fn failed_over(&self) -> bool {
        self.unsure_until > 0
    }

    /// Whether a failover took back the lease under which this is performed; then nobody can know.
    pub(crate) fn is_void(&self, performance: &Performance) -> bool {
        let grants = self.grants.get(&(performance.owner, performance.run, performance.attempt));
        grants.is_none_or(|tokens| tokens.iter().any(|token| self.voided.contains(token)))
    }
}
