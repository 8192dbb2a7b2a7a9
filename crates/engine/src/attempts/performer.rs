//! The port for whoever performs attempts: tasks in this process, commands under shims, workers behind a link. What
//! claims, judges, settles, drains and sweeps knows performers by this port alone.

use super::conclusion::Conclusion;
use super::ctx::Ctx;
use super::work::Work;
use crate::Env;
use crate::replica::Life;
use async_trait::async_trait;
use everbeat_model::policy::{HeartbeatMode, Policy, WhenIsolated};
use everbeat_model::run::Spec;
use everbeat_model::{BootInstant, Outcome, ReplicaId};
use everbeat_store::{Error as StoreError, Held};
use futures_util::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// One kind of performer. Each has slots of its own, and so a claim loop of its own.
#[async_trait]
pub trait Performer: Send + Sync {
    /// For people, and for the names of loops: `tasks`, `jobs`.
    fn name(&self) -> &'static str;

    /// The names of the tasks that this performer performs, for whoever submits.
    fn tasks(&self) -> BTreeSet<String>;

    /// Whether a task of this name is among `tasks`.
    fn knows(&self, task: &str) -> bool {
        self.tasks().contains(task)
    }

    /// Whether this performer performs runs of this kind.
    fn performs(&self, spec: &Spec) -> bool;

    /// What the replica watches over while such a run is performed.
    fn terms(&self, spec: &Spec) -> Terms;

    /// How many attempts this performer can perform at once, and the setting that says so.
    fn capacity(&self) -> Capacity;

    /// Whether what this performer performs may go on for a while when the process of its replica has died.
    fn outlives_process(&self) -> bool {
        false
    }

    /// What this performer could take now. Asked before each claim.
    async fn offer(&self, post: &Post) -> Offer;

    /// An attempt is about to be performed.
    fn entered(&self, _work: &Work) {}

    /// Performs an attempt to its end. No conclusion: nothing is known of its end here, and the lease is looked at again.
    /// When the attempt is killed, this future is dropped at its next await.
    async fn perform(&self, post: &Post, work: &Arc<Work>) -> Option<Conclusion>;

    /// Ends whatever of a killed attempt is more than the dropped future, and returns when nothing of it goes on. Until
    /// then the attempt keeps its slot, and a judgement that waits for the end of its performer is not written.
    async fn end(&self, _post: &Post, _work: &Arc<Work>) {}

    /// What is left to do when the conclusion of an attempt is on its way to the store. The attempt keeps its slot
    /// until then.
    async fn afterwards(&self, _work: &Arc<Work>) {}

    /// An ending of an attempt was stored.
    fn settled(&self, _outcome: Outcome) {}

    /// A replica has joined. What its predecessors left is looked at before anything is offered.
    fn joined(&self, _post: &Post) {}

    /// Looks at what predecessors left behind. The replica calls `recover` again and again, also after a success.
    async fn recover(&self, _post: &Post) -> Result<(), StoreError> {
        Ok(())
    }

    /// Looks at what no attempt here stands for: what others left, what is nobody's any more. `whole`: it is time for
    /// a whole look; otherwise there is only something to take over.
    async fn sweep(&self, _post: &Post, _whole: bool) -> Result<(), StoreError> {
        Ok(())
    }

    /// Takes up an attempt whose lease is this replica's and that nobody performs. Gives the lease back if nothing of
    /// the attempt can go on: then the replica releases the lease.
    fn resume(&self, _post: &Post, held: Held) -> Option<Held> {
        Some(held)
    }

    /// Loops that this performer needs besides, each with its name.
    fn loops(&self, _post: &Post) -> Vec<(&'static str, BoxFuture<'static, ()>)> {
        Vec::new()
    }

    /// What people call such a run, as `job`; none: a run of its task.
    fn noun(&self) -> Option<&'static str> {
        None
    }

    /// Whether nothing can be seen of an attempt for a while after its claim: until then the attempt is starting.
    fn starts_unseen(&self) -> bool {
        false
    }

    /// After how much silence this performer itself judges an attempt, if it does so.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// Why this performer begins nothing now, and what a person can do about it.
    fn hindrance(&self, _env: &dyn Env) -> Option<Hindrance> {
        None
    }
}

/// The place of a performer in one life of a replica.
#[derive(Clone)]
pub struct Post {
    pub(crate) life: Arc<Life>,
    pub(crate) place: usize,
}

impl Post {
    /// The id of this life of the replica.
    pub fn replica(&self) -> ReplicaId {
        self.life.id
    }

    pub fn env(&self) -> &Arc<dyn Env> {
        &self.life.core.env
    }

    /// What the code of an attempt may ask and say.
    pub fn ctx(&self, work: &Arc<Work>) -> Ctx {
        Ctx { work: work.clone(), signer: self.life.signer.clone(), outbox: self.life.outbox.clone() }
    }

    /// Before this time nobody else takes over what is performed here, whatever becomes of this replica. Work that
    /// must not meet its successor stops by then.
    pub fn vouched_until(&self) -> BootInstant {
        self.life.vouched_until()
    }

    /// The attempts of this performer.
    pub(crate) fn works(&self) -> Vec<Arc<Work>> {
        self.life.table().of_crew(self.place).cloned().collect()
    }

    /// There may be something to claim: what this performer offers has grown.
    pub fn freed(&self) {
        self.life.freed([self.place]);
    }
}

/// Why a performer begins nothing now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hindrance {
    /// What is in the way, to follow a colon.
    pub reason: String,
    /// What a person can do about it.
    pub remedy: String,
}

/// How many attempts a performer can perform at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub slots: usize,
    /// The setting that a person would change.
    pub setting: &'static str,
}

/// What a performer could take now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// No more than this, besides what its slots allow.
    pub most: usize,
    pub lines: Vec<Line>,
    /// Only what waits in these queues; none means in all.
    pub queues: Option<BTreeSet<String>>,
    /// So long after a claim hints are not heard: hints come in floods.
    pub pause: Duration,
}

/// A line in which runs wait in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// As the store calls the line.
    pub name: String,
    /// The task whose limits count.
    pub task: String,
    /// No more than this from the line.
    pub most: usize,
}

impl Line {
    /// The line of a task, from which as much may be taken as there are slots.
    pub fn of(task: String) -> Line {
        Line { name: task.clone(), task, most: usize::MAX }
    }
}

/// What a replica watches over while an attempt is performed. What its performer keeps by itself is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Without a heartbeat by hand for so long, an attempt is lost.
    pub silence: Option<Duration>,
    /// Without progress for so long, an attempt has stalled.
    pub stall: Option<Duration>,
    /// No attempt takes longer than this.
    pub deadline: Option<Duration>,
    /// So long an attempt may take to stop after it was asked to; then the attempt is killed.
    pub grace: Option<Duration>,
    /// An attempt is stopped when the store has not acknowledged this replica in time.
    pub isolation: bool,
    /// A verdict is written only when the performer has really ended: no successor may begin before.
    pub verdict_waits: bool,
    pub beats: Beats,
    pub parting: Parting,
}

/// Whose sign of life counts for an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beats {
    /// The beat of the replica, which performs the attempt in its own process.
    Replica,
    /// The attempt's own, which the replica judges.
    ByHand,
    /// The attempt's own, which its performer judges.
    Performer,
}

/// What becomes of an attempt when its replica goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    /// The attempt ends with the replica: a drain awaits the attempt, and releases it when the grace is over.
    Ends,
    /// The attempt goes on, and waits for another replica that takes it over.
    GoesOn,
}

impl Terms {
    /// Everything that the policy says is watched over by the replica.
    pub fn of(policy: &Policy) -> Terms {
        let by_hand = policy.heartbeat == HeartbeatMode::Manual;
        let isolation = policy.when_isolated == WhenIsolated::Stop;
        Terms {
            silence: policy.heartbeat_timeout.filter(|_| by_hand),
            stall: policy.stall_timeout,
            deadline: policy.deadline,
            grace: Some(policy.cancel_grace),
            isolation,
            // Side effects of the attempt are not fenced: a successor must not meet it.
            verdict_waits: isolation,
            beats: if by_hand { Beats::ByHand } else { Beats::Replica },
            parting: Parting::Ends,
        }
    }

    /// An attempt in another process, which ends with the replica. Its performer sees whether that process lives.
    pub fn apart(policy: &Policy) -> Terms {
        let terms = Terms::of(policy);
        match terms.beats {
            Beats::Replica => Terms { beats: Beats::Performer, ..terms },
            Beats::ByHand | Beats::Performer => terms,
        }
    }

    /// An attempt that outlives its replica, under a performer that keeps its times.
    pub fn outliving(policy: &Policy) -> Terms {
        Terms {
            silence: None,
            stall: policy.stall_timeout,
            deadline: None,
            grace: None,
            isolation: false,
            verdict_waits: true,
            beats: Beats::Performer,
            parting: Parting::GoesOn,
        }
    }
}
