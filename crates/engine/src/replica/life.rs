//! One life of a replica: from joining under a new id until it leaves, or learns that it was judged
//! dead.

use super::crew::Crew;
use super::drain::Draining;
use super::locks::LockGuard;
use super::{attend, fence, others, renew, sweep};
use crate::Stop;
use crate::attempts::{Limits, Outbox, Post, Signer, Table, Unsettled, Unstored, claim, judge, outputs, settle, sign};
use crate::engine::{Core, lock};
use crate::env::{Task, within};
use crate::executions::advance;
use crate::schedules::tick;
use everbeat_model::replica::NewReplica;
use everbeat_model::run::Spec;
use everbeat_model::watch::Watch;
use everbeat_model::{BootInstant, Hole, ReplicaId};
use everbeat_store::Error as StoreError;
use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};

/// Makes a life the current one. When the replica's own task is dropped, its work ends with it.
struct Current<'a> {
    core: &'a Core,
    life: Arc<Life>,
}

impl Current<'_> {
    fn begin<'a>(core: &'a Core, life: &Arc<Life>) -> Current<'a> {
        core.set_life(Some(life.clone()));
        Current { core, life: life.clone() }
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        self.core.set_life(None);
        // What a judged life performed is given up with a word on each. Otherwise nothing may go on: the process may
        // live for long after its replica has left.
        let goes_on = self.core.settings.hole.is(Hole::LeftStillVouches);
        if self.life.phase() != Phase::Fenced && !goes_on {
            self.life.table().all().iter().for_each(|work| work.kill(Stop::Fenced));
        }
    }
}

/// One life of a replica.
pub(crate) struct Life {
    pub(crate) id: ReplicaId,
    pub(crate) core: Arc<Core>,
    /// The performers of the replica, each in its place.
    pub(super) crews: Vec<Crew>,
    table: Mutex<Table>,
    pub(crate) limits: Limits,
    pub(crate) watch: Mutex<Watch>,
    pulse: Mutex<Pulse>,
    phase: watch::Sender<Phase>,
    /// Bounded by the attempts of this life, of which each ends once: whoever judges an attempt never waits for the store.
    pub(crate) endings: mpsc::UnboundedSender<Unstored>,
    pub(crate) signer: Signer,
    pub(crate) outbox: Arc<Outbox>,
    /// A timer moved, or an attempt that must be watched began.
    pub(crate) rearmed: Notify,
    /// There are leases to take over.
    pub(crate) sweep_now: Notify,
    /// When these loops turned last, in microseconds of the boot clock.
    pub(super) settle_turned: AtomicU64,
    pub(super) sweep_turned: AtomicU64,
    /// Since when this life knows of each replica that is gone and has left work for which it had vouched.
    pub(super) mourned: Mutex<BTreeMap<ReplicaId, BootInstant>>,
    /// Tasks that end with this life.
    kept: Mutex<Vec<Task>>,
    /// Why no ending can be stored now, if so.
    unsettled: Mutex<Option<Unsettled>>,
    /// Renewing does not wait for its next beat.
    pub(crate) renew_now: Notify,
    /// There was a hint: the next beat should come soon.
    pub(crate) hinted: Notify,
    pub(super) draining: Draining,
}

/// Whether the store acknowledges this replica.
#[derive(Clone)]
pub(crate) struct Pulse {
    /// When the last acknowledged renewal was sent.
    pub(crate) renewed: BootInstant,
    /// Why the last renewal was not acknowledged, if it was not.
    pub(crate) trouble: Option<Trouble>,
}

/// Why a renewal was not acknowledged.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("a loop of this replica hangs")]
    Withheld,
    #[error("{0}")]
    Store(StoreError),
}

impl Pulse {
    /// The last renewal was acknowledged.
    pub(crate) fn connected(&self) -> bool {
        self.trouble.is_none()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Active,
    Draining,
    /// Judged dead by others.
    Fenced,
    Left,
}

impl Life {
    /// Lives until the replica leaves for good. A replica judged dead drops its work and joins again as another.
    pub(crate) async fn lead(core: Arc<Core>) {
        while !core.stopping() {
            let Some((life, endings, signs, _lock)) = Life::join(&core).await else { break };
            // From here on a drain finds this life; one asked for earlier is seen below.
            life.posts().for_each(|post| life.crew(post.place).performer.joined(&post));
            let guard = Current::begin(&core, &life);
            if core.stopping() {
                // The replica was told to stop while it joined: nothing was claimed yet.
                let _others_will_notice_by_silence = life.call(core.store.leave(life.id)).await;
                break;
            }
            let tasks = life.spawn_loops(endings, signs);
            let phase = life.wait_phase(|phase| matches!(phase, Phase::Fenced | Phase::Left)).await;
            drop(tasks);
            drop(guard);
            if phase == Phase::Left {
                break;
            }
            tracing::warn!(replica = %life.id, "judged dead by another replica: dropping its work");
            fence::all(&life).await;
            if life.draining.has_begun() {
                // The replica was leaving anyway.
                break;
            }
        }
        core.ended();
    }

    fn spawn_loops(
        self: &Arc<Life>,
        endings: mpsc::UnboundedReceiver<Unstored>,
        signs: mpsc::Receiver<sign::Request>,
    ) -> Vec<Task> {
        let spawn = |name, task| self.core.env.spawn(name, task);
        let mut tasks = vec![
            spawn("renew", renew::run(self.clone()).boxed()),
            spawn("watch", others::run(self.clone()).boxed()),
            spawn("settle", settle::run(self.clone(), endings).boxed()),
            spawn("sign", sign::run(self.clone(), signs).boxed()),
            spawn("outputs", outputs::run(self.clone()).boxed()),
            spawn("judge", judge::run(self.clone()).boxed()),
            spawn("attend", attend::run(self.clone()).boxed()),
            spawn("advance", advance::run(self.clone()).boxed()),
            spawn("tick", tick::run(self.clone()).boxed()),
            spawn("sweep", sweep::run(self.clone()).boxed()),
        ];
        for post in self.posts() {
            tasks.push(spawn("claim", claim::run(self.clone(), post.place).boxed()));
            let loops = self.crew(post.place).performer.loops(&post);
            tasks.extend(loops.into_iter().map(|(name, task)| spawn(name, task)));
        }
        tasks
    }

    async fn join(
        core: &Arc<Core>,
    ) -> Option<(Arc<Life>, mpsc::UnboundedReceiver<Unstored>, mpsc::Receiver<sign::Request>, Option<LockGuard>)> {
        let id = ReplicaId(core.new_id());
        let lock = core.locks.as_ref().and_then(|locks| {
            locks
                .hold(id)
                .inspect_err(|error| tracing::warn!(%error, "no kernel lock: successors must wait for the timeout"))
                .ok()
        });
        let settings = &core.settings;
        let renewed =
            if settings.hole.is(Hole::ClaimBeforeReplica) { core.env.boot() } else { Life::register(core, id).await? };
        let slots: usize = core.performers.iter().map(|performer| performer.capacity().slots).sum();
        let (endings, endings_received) = mpsc::unbounded_channel();
        let (signer, signs_received) = Signer::new(core.env.clone(), slots + 1);
        let now = core.env.boot().0.as_micros() as u64;
        let life = Life {
            id,
            core: core.clone(),
            crews: core.performers.iter().map(|performer| Crew::new(performer.clone(), now)).collect(),
            table: Mutex::default(),
            limits: Limits::new(&settings.queues, core.env.boot()),
            watch: Mutex::new(Watch::new(settings.hole)),
            pulse: Mutex::new(Pulse { renewed, trouble: None }),
            phase: watch::Sender::new(Phase::Active),
            endings,
            signer,
            outbox: Arc::default(),
            rearmed: Notify::new(),
            sweep_now: Notify::new(),
            settle_turned: AtomicU64::new(now),
            sweep_turned: AtomicU64::new(now),
            mourned: Mutex::default(),
            kept: Mutex::default(),
            unsettled: Mutex::default(),
            renew_now: Notify::new(),
            hinted: Notify::new(),
            draining: Draining::default(),
        };
        Some((Arc::new(life), endings_received, signs_received, lock))
    }

    /// Writes the replica's row, which must exist before its first claim. Answers when that request was sent.
    pub(crate) async fn register(core: &Core, id: ReplicaId) -> Option<BootInstant> {
        let settings = &core.settings;
        let mut pause = FIRST_PAUSE;
        while !core.stopping() {
            let replica = NewReplica {
                id,
                host: settings.host.clone(),
                machine: settings.machine.clone(),
                version: settings.version.clone(),
                heartbeat_interval: settings.heartbeat_interval,
                heartbeat_timeout: settings.heartbeat_timeout,
                wall: core.env.wall(),
            };
            let sent = core.env.boot();
            match within(&*core.env, settings.call_limit(), core.store.join(replica)).await {
                Some(Ok(joined)) => {
                    core.clock.set(joined.now, core.env.boot());
                    core.set_trouble(None);
                    core.offer().await;
                    tracing::info!(replica = %id, clock_skew_ms = joined.clock_skew_ms, "joined");
                    return Some(sent);
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "cannot join yet");
                    core.set_trouble(Some(error));
                }
                None => {
                    tracing::warn!("cannot join yet: the store does not answer");
                    core.set_trouble(Some(StoreError::no_answer()));
                }
            }
            core.env.sleep(pause).await;
            pause = (pause * 2).min(settings.heartbeat_interval);
        }
        None
    }

    pub(crate) fn crew(&self, place: usize) -> &Crew {
        &self.crews[place]
    }

    pub(crate) fn post(self: &Arc<Life>, place: usize) -> Post {
        Post { life: self.clone(), place }
    }

    pub(crate) fn posts(self: &Arc<Life>) -> impl Iterator<Item = Post> {
        (0..self.crews.len()).map(|place| self.post(place))
    }

    /// The place of the performer of such runs, if this replica has one.
    pub(crate) fn crew_of(&self, spec: &Spec) -> Option<usize> {
        self.crews.iter().position(|crew| crew.performer.performs(spec))
    }

    /// Wakes the claim loops of all performers: there may be something to claim for each.
    pub(crate) fn all_freed(&self) {
        self.crews.iter().for_each(|crew| crew.freed.notify_one());
    }

    /// Slots of these performers became free.
    pub(crate) fn freed(&self, crews: impl IntoIterator<Item = usize>) {
        crews.into_iter().for_each(|crew| self.crew(crew).freed.notify_one());
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    pub(crate) fn pulse(&self) -> MutexGuard<'_, Pulse> {
        lock(&self.pulse)
    }

    pub(crate) fn unsettled(&self) -> MutexGuard<'_, Option<Unsettled>> {
        lock(&self.unsettled)
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Whether the store has acknowledged this replica so recently that nobody else may have judged it, and it has not
    /// left. The last answer alone does not say: there may be nobody any more who asks.
    pub(crate) fn acknowledged(&self) -> bool {
        let pulse = self.pulse();
        let recently = self.core.env.boot() < pulse.renewed + self.core.settings.renew_deadline();
        pulse.connected() && recently && matches!(self.phase(), Phase::Active | Phase::Draining)
    }

    /// Before this time nobody else takes over what is performed here.
    pub(crate) fn vouched_until(&self) -> BootInstant {
        self.pulse().renewed + self.core.settings.renew_deadline()
    }

    /// Moves on; nothing leads back, and nothing leads out of `Fenced` or `Left`.
    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let moves = matches!(
                (*now, phase),
                (Phase::Active, _) | (Phase::Draining, Phase::Fenced) | (Phase::Draining, Phase::Left)
            ) && *now != phase;
            if moves {
                *now = phase;
            }
            moves
        });
    }

    pub(crate) async fn wait_phase(&self, reached: impl Fn(Phase) -> bool) -> Phase {
        let mut phase = self.phase.subscribe();
        let found = phase.wait_for(|phase| reached(*phase)).await.map(|phase| *phase);
        found.unwrap_or(Phase::Left)
    }

    /// Keeps a task until this life is over.
    pub(crate) fn keep(&self, task: Task) {
        lock(&self.kept).push(task);
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(50);
