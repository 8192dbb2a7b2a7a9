use crate::Result;
use async_trait::async_trait;
use everbeat_model::lease::Shown;
use everbeat_model::policy::HeartbeatMode;
use everbeat_model::run::{Claimed, Kind, Spec};
use everbeat_model::{
    Attempt, Enqueue, Enqueued, Json, Lease, Policy, Reopened, Replica, ReplicaId, Run, RunId, RunState, ScheduleId,
    Settled, Settlement, Standing, StoreTime, Token,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Runs and their leases.
#[async_trait]
pub trait Runs {
    /// Accepts requests, each all or none, and answers each in the order given, as if they had come one after the
    /// other. A run whose unique key an unfinished run holds is answered with that one, a run whose id is known with
    /// itself; a request whose idempotency key was seen (kept for a day) is answered with what it made then. A request
    /// that is refused, or that the store cannot hold, makes nothing and says nothing about the others. An outer error
    /// says nothing about any of them: some may have been accepted.
    async fn enqueue(&self, requests: Vec<Enqueue>) -> Result<Vec<Result<Vec<Enqueued>>>>;

    /// Takes up to `limit` ready runs, highest priority first, then oldest. Nothing, if the replica
    /// is not active.
    async fn claim(&self, request: Claim) -> Result<Vec<Claimed>>;

    /// Ends attempts, each only under the lease it shows. Answers in the order given.
    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>>;

    /// Whether these leases were settled by whoever held them: asked after a settle whose answer was
    /// lost.
    async fn was_settled(&self, leases: Vec<(RunId, Token)>) -> Result<Vec<bool>>;

    /// Records progress, checkpoints and manual heartbeats, each only under the lease it shows. Answers
    /// in the order given.
    async fn sign(&self, signs: Vec<Sign>) -> Result<Vec<Signed>>;

    /// Asks for a run's end. One that is not running ends at once.
    async fn cancel(&self, run: RunId) -> Result<Cancelled>;

    /// The leases of a replica whose runs somebody asked to cancel.
    async fn cancel_asked(&self, replica: ReplicaId) -> Result<Vec<Shown>>;

    /// Opens a finished run again, once: only if `attempt` is still its last one.
    async fn reopen(&self, run: RunId, attempt: u32) -> Result<Reopened>;

    /// Notes where a detached run has begun (or, with none, that it belongs nowhere any more), only under
    /// the lease shown. From then on it is claimed by its lane there. Answers whether it did.
    async fn place(&self, shown: Shown, host: Option<String>) -> Result<bool>;

    /// The hosts that runs which are not running belong to, each once.
    async fn bound_hosts(&self) -> Result<Vec<String>>;

    /// Lets ready and scheduled runs that belong to a host begin anywhere, at most `limit`; answers how many.
    async fn unbind(&self, host: String, limit: usize) -> Result<usize>;

    /// Passes leases of detached runs on to a replica that may hold leases, from dead and left ones of the
    /// same host, at most `limit`, oldest run first. The token stays, the tenure rises, and the former
    /// owner's proofs are worth nothing from then on. Answers what was passed on.
    async fn adopt(&self, to: ReplicaId, limit: usize) -> Result<Vec<Held>>;

    /// Moves due scheduled runs to ready, at most `limit`.
    async fn promote(&self, limit: usize) -> Result<Promoted>;

    /// The proofs of a replica's leases in order of run id, after `after`.
    async fn lease_index(&self, replica: ReplicaId, after: Option<RunId>, limit: usize) -> Result<Vec<Shown>>;

    /// Leases with all that settling them needs.
    async fn held(&self, which: Which) -> Result<Vec<Held>>;

    async fn run(&self, id: RunId) -> Result<Option<Run>>;

    /// Which of these runs are finished or no longer known, in the order given: whoever waits for one of
    /// them looks again.
    async fn finished(&self, runs: Vec<RunId>) -> Result<Vec<RunId>>;

    /// Newest first. No more than [`LIST_BYTES`] besides the last one: runs may be large, and a list of them is read as
    /// a whole.
    async fn runs(&self, filter: RunFilter) -> Result<Part<Run>>;

    /// Oldest first, the running one included.
    async fn attempts(&self, run: RunId) -> Result<Vec<Attempt>>;

    /// Forgets one run if it is finished and no execution still waits for it; answers whether it did.
    async fn forget(&self, run: RunId) -> Result<bool>;

    /// Forgets runs that finished more than `keep` ago, at most `limit`, and fewer where they have streamed much
    /// ([`FORGET_ITEMS`](crate::FORGET_ITEMS)); answers how many. When it answers 0 there are none left.
    async fn forget_runs(&self, keep: Duration, limit: usize) -> Result<usize>;
}

#[derive(Clone, Debug)]
pub struct Claim {
    pub replica: ReplicaId,
    pub limit: usize,
    /// Tasks this replica can perform, each with how many more it may start.
    pub tasks: BTreeMap<String, usize>,
    /// Queues with a limit, each with how many more may start; queues not named have none.
    pub queues: BTreeMap<String, usize>,
    /// Only what waits in these queues is taken; none means in all.
    pub among: Option<BTreeSet<String>>,
}

impl Claim {
    /// Whether anything is taken from this queue.
    pub fn takes_from(&self, queue: &str) -> bool {
        self.among.as_ref().is_none_or(|among| among.contains(queue))
    }
}

#[derive(Clone, Debug)]
pub struct Sign {
    pub shown: Shown,
    pub progress: Option<Json>,
    pub checkpoint: Option<Json>,
}

impl Sign {
    /// How much text it is.
    pub fn bytes(&self) -> usize {
        [&self.progress, &self.checkpoint].into_iter().flatten().map(|json| json.as_str().len()).sum()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signed {
    Accepted {
        cancel_asked: bool,
    },
    Fenced,
    /// The store cannot hold what the sign carries: nothing of it was recorded, and trying again does not
    /// help. It says nothing about the lease or the other signs. The in-memory store, which has no such
    /// limit, never answers so.
    Unstorable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It was not running and has ended.
    Ended,
    /// It is running; its owner will be told.
    Asked,
    AlreadyFinished,
    NotFound,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promoted {
    pub moved: usize,
    /// How long until the next one is due.
    pub next_in: Option<Duration>,
}

#[derive(Clone, Debug)]
pub enum Which {
    /// Whose replica is dead, left or unknown, but for detached ones; by run id after the one given, at most this many.
    Orphaned(Option<RunId>, usize),
    /// Detached ones whose replica is dead, left or unknown, by run id after the one given; at most this
    /// many.
    Detached(Option<RunId>, usize),
    Of(Vec<RunId>),
}

/// A lease as a rescuer sees it.
#[derive(Clone, Debug)]
pub struct Held {
    pub lease: Lease,
    pub spec: Arc<Spec>,
    pub standing: Standing,
    pub cancel_asked: bool,
    pub last_heartbeat_at: StoreTime,
    /// Its owner's row, if there is one.
    pub owner: Option<Replica>,
}

/// When a running attempt was last heard of. Its replica's beat speaks for it, unless it promised to
/// beat by hand: then only its own signs count, and a silent one cannot look alive.
pub fn last_heartbeat(policy: &Policy, signed: StoreTime, owner: Option<StoreTime>) -> StoreTime {
    match policy.heartbeat {
        HeartbeatMode::Auto => owner.map_or(signed, |beat| beat.max(signed)),
        HeartbeatMode::Manual => signed,
    }
}

/// A list ends with the run, or schedule, by which it has as many bytes of inputs, results and checkpoints.
pub const LIST_BYTES: usize = 16 << 20;

/// A part of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Part<T> {
    pub items: Vec<T>,
    /// It would have had more, had they not been so large.
    pub cut_short: bool,
}

impl<T> Part<T> {
    pub fn map<U>(self, each: impl FnMut(T) -> U) -> Part<U> {
        Part { items: self.items.into_iter().map(each).collect(), cut_short: self.cut_short }
    }
}

#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    pub state: Option<RunState>,
    pub task: Option<String>,
    pub queue: Option<String>,
    pub kind: Option<Kind>,
    /// Only those of this schedule.
    pub schedule: Option<ScheduleId>,
    /// Only older than this one.
    pub before: Option<RunId>,
    pub limit: usize,
}
