use crate::{Advance, Claim, Enqueue, ExecutionFilter, Keep, News, OutputFilter, RunFilter, Start, VerdictFilter};
use everbeat_model::graph::Graph;
use everbeat_model::output::Item;
use everbeat_model::replica::NewReplica;
use everbeat_model::run::Spec;
use everbeat_model::{Ending, ExecutionId, Json, Next, ReplicaId, RunId, Standing, StoreTime, Verdict, WorkerId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// One thing done to both stores. It names leases by run and attempt, because each store has tokens
/// of its own.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Enqueue(Vec<Enqueue>),
    Claim(Claim),
    Settle(Vec<Move>),
    Sign(Vec<Signal>),
    Append(Vec<Words>, Keep),
    Output(OutputFilter),
    WasSettled(Vec<Proof>),
    Cancel(RunId),
    Reopen(RunId, u32),
    Place(Proof, Option<String>),
    Unbind(&'static str, usize),
    Adopt(ReplicaId, usize),
    Promote,
    Join(NewReplica),
    Renew(ReplicaId),
    Bury(ReplicaId, Option<u64>, Verdict),
    Drain(ReplicaId),
    Leave(ReplicaId),
    Pause(String, bool),
    Offer(BTreeSet<String>),
    Record(Vec<Verdict>),
    Finished(Vec<RunId>),
    Runs(RunFilter),
    Verdicts(VerdictFilter),
    LeaseIndex(ReplicaId, Option<RunId>, usize),
    Detached(Option<RunId>, usize),
    Announce(Vec<News>),
    Events {
        back: usize,
        limit: usize,
    },
    SweepDue(&'static str, Duration),
    Forget(RunId),
    ForgetRuns(Duration),
    ForgetReplicas(Duration),
    ForgetVerdicts(Duration),
    TrimEvents(u64),
    Apply(Arc<Graph>),
    Start(Vec<Start>),
    Advance(Vec<Advance>),
    /// At each of these, then at whatever is due.
    Look(BTreeSet<ExecutionId>),
    Executions(ExecutionFilter),
    History(ExecutionId, u64, usize),
    Stamps(Vec<ExecutionId>),
    Value(ExecutionId, String),
    Analytics(&'static str),
    Graph(&'static str, Option<&'static str>),
}

impl Op {
    /// Whether it writes several executions at once: what happens to each is told in order, but not which of
    /// them comes first.
    pub(super) fn writes_several(&self) -> bool {
        match self {
            Op::Start(starts) => starts.len() > 1,
            Op::Advance(advances) => advances.len() > 1,
            Op::Look(_) => true,
            _ => false,
        }
    }

    /// The runs whose history it may change.
    pub(super) fn touched(&self) -> Vec<RunId> {
        match self {
            Op::Settle(moves) => moves.iter().map(|settle| settle.proof.run).collect(),
            Op::Sign(signals) => signals.iter().map(|signal| signal.proof.run).collect(),
            Op::Append(words, _) => words.iter().map(|words| words.proof.run).collect(),
            Op::Cancel(run) | Op::Reopen(run, _) | Op::Forget(run) => vec![*run],
            _ => Vec::new(),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Proof {
    pub(super) run: RunId,
    pub(super) attempt: u32,
    pub(super) secret: Secret,
    pub(super) owner: ReplicaId,
    pub(super) rescue: bool,
}

/// Whose token is shown.
#[derive(Clone, Debug)]
pub(super) enum Secret {
    Of(RunId, u32),
    Forged,
}

#[derive(Clone, Debug)]
pub(super) struct Move {
    pub(super) proof: Proof,
    pub(super) spec: Arc<Spec>,
    pub(super) ending: Ending,
    pub(super) next: Next,
    pub(super) standing: Standing,
    pub(super) last_heartbeat_at: Option<StoreTime>,
    pub(super) worker_id: Option<WorkerId>,
    pub(super) verdict: Option<Verdict>,
}

#[derive(Clone, Debug)]
pub(super) struct Signal {
    pub(super) proof: Proof,
    pub(super) progress: Option<Json>,
    pub(super) checkpoint: Option<Json>,
}

/// What an attempt streams.
#[derive(Clone, Debug)]
pub(super) struct Words {
    pub(super) proof: Proof,
    pub(super) after: u64,
    pub(super) items: Vec<Item>,
}
