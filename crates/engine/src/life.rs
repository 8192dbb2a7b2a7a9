//! One life of a replica: from joining under a new id until it leaves, or learns that it was judged
//! dead.

use crate::claim::Lane;
use crate::ctx::MOST_VALUE_BYTES;
use crate::engine::{Core, lock};
use crate::env::{Task, within};
use crate::locks::LockGuard;
use crate::perform::{Condemned, Entry, Table};
use crate::settle::{Draft, Ended, Unsettled};
use crate::sign::Signer;
use crate::{Ctx, Failure, Stop, advance, attend, claim, figures, jobs, judge, renew, settle, sign, sweep};
use everbeat_model::policy::HeartbeatMode;
use everbeat_model::replica::NewReplica;
use everbeat_model::run::Claimed;
use everbeat_model::time::format_duration;
use everbeat_model::verdict::Judgement;
use everbeat_model::watch::Watch;
use everbeat_model::{BootInstant, Ending, Hole, Json, Outcome, ReplicaId, StoreTime, Verdict};
use everbeat_store::Error as StoreError;
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
        let goes_on = self.core.settings.hole == Some(Hole::LeftStillVouches);
        if self.life.phase() != Phase::Fenced && !goes_on {
            self.life.table().all().iter().for_each(|entry| entry.kill(Stop::Fenced));
        }
    }
}

pub(crate) struct Life {
    pub(crate) id: ReplicaId,
    pub(crate) core: Arc<Core>,
    table: Mutex<Table>,
    pub(crate) watch: Mutex<Watch>,
    pulse: Mutex<Pulse>,
    phase: watch::Sender<Phase>,
    endings: mpsc::Sender<Ended>,
    pub(crate) signer: Signer,
    /// A slot became free.
    pub(crate) freed: Notify,
    /// The same of those for jobs.
    pub(crate) freed_jobs: Notify,
    /// A timer moved, or an attempt that must be watched began.
    pub(crate) rearmed: Notify,
    /// There are leases to take over.
    pub(crate) sweep_now: Notify,
    turns: [AtomicU64; Turn::ALL.len()],
    claims: [Claims; 2],
    /// Tasks that end with this life.
    kept: Mutex<Vec<Task>>,
    tally: Mutex<Tally>,
    /// Why no ending can be stored now, if so.
    unsettled: Mutex<Option<Unsettled>>,
    /// Renewing does not wait for its next beat.
    pub(crate) renew_now: Notify,
    /// There was a hint: the next beat should come soon.
    pub(crate) hinted: Notify,
    /// It was asked to drain, through the store.
    told_to_drain: AtomicBool,
    /// It drains: only one does that for it.
    drains: AtomicBool,
    /// It watches over jobs no more: they wait for another replica.
    left_jobs: AtomicBool,
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

/// What became of the work of a replica that drains.
#[derive(Clone, Copy, Default)]
struct Tally {
    finished: u64,
    released: u64,
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

/// The loops whose turning proves that this replica works.
#[derive(Clone, Copy)]
pub(crate) enum Turn {
    Claim,
    ClaimJobs,
    Settle,
    Sweep,
}

impl Turn {
    const ALL: [Turn; 4] = [Turn::Claim, Turn::ClaimJobs, Turn::Settle, Turn::Sweep];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Turn::Claim => "claim",
            Turn::ClaimJobs => "claim jobs",
            Turn::Settle => "settle",
            Turn::Sweep => "sweep",
        }
    }
}

/// How many claims of one loop were sent, and how many of them are over.
#[derive(Default)]
struct Claims {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// How many claims had been sent by then, by loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begun([u64; 2]);

impl Life {
    /// Lives until it leaves for good. A replica judged dead drops its work and joins again as another.
    pub(crate) async fn lead(core: Arc<Core>) {
        while !core.stopping() {
            let Some((life, endings, signs, _lock)) = Life::join(&core).await else { break };
            // From here on a drain finds this life; one asked for earlier is seen below.
            core.jobs.begin();
            let guard = Current::begin(&core, &life);
            if core.stopping() {
                // Told to stop while it was joining: nothing was claimed yet.
                let _others_will_notice_by_silence = life.call(core.store.leave(life.id)).await;
                break;
            }
            let spawn = |name, task| core.env.spawn(name, task);
            let tasks = vec![
                spawn("renew", renew::run(life.clone()).boxed()),
                spawn("watch", renew::watch(life.clone()).boxed()),
                spawn("settle", settle::run(life.clone(), endings).boxed()),
                spawn("sign", sign::run(life.clone(), signs).boxed()),
                spawn("judge", judge::run(life.clone()).boxed()),
                spawn("attend", attend::run(life.clone()).boxed()),
                spawn("advance", advance::run(life.clone()).boxed()),
                spawn("sweep", sweep::run(life.clone()).boxed()),
                spawn("claim", claim::run(life.clone(), Lane::Tasks).boxed()),
                spawn("claim jobs", claim::run(life.clone(), Lane::Jobs).boxed()),
                spawn("check jobs", jobs::check(life.clone()).boxed()),
                spawn("clean jobs", jobs::clean(life.clone()).boxed()),
            ];
            let phase = life.wait_phase(|phase| matches!(phase, Phase::Fenced | Phase::Left)).await;
            drop(tasks);
            drop(guard);
            if phase == Phase::Left {
                break;
            }
            tracing::warn!(replica = %life.id, "judged dead by another replica: dropping its work");
            life.abandon().await;
            if life.drains.load(Ordering::SeqCst) {
                // It was leaving anyway.
                break;
            }
        }
        core.ended();
    }

    async fn join(
        core: &Arc<Core>,
    ) -> Option<(Arc<Life>, mpsc::Receiver<Ended>, mpsc::Receiver<sign::Request>, Option<LockGuard>)> {
        let id = ReplicaId(core.new_id());
        let lock = core.locks.as_ref().and_then(|locks| {
            locks
                .hold(id)
                .inspect_err(|error| tracing::warn!(%error, "no kernel lock: successors must wait for the timeout"))
                .ok()
        });
        let settings = &core.settings;
        let renewed = if settings.hole == Some(Hole::ClaimBeforeReplica) {
            core.env.boot()
        } else {
            Life::register(core, id).await?
        };
        let (endings, endings_received) = mpsc::channel(settings.slots + settings.jobs.slots + 1);
        let (signer, signs_received) = Signer::new(core.env.clone(), settings.slots + settings.jobs.slots + 1);
        let now = core.env.boot().0.as_micros() as u64;
        let life = Life {
            id,
            core: core.clone(),
            table: Mutex::default(),
            watch: Mutex::new(Watch::new(settings.hole)),
            pulse: Mutex::new(Pulse { renewed, trouble: None }),
            phase: watch::Sender::new(Phase::Active),
            endings,
            signer,
            freed: Notify::new(),
            freed_jobs: Notify::new(),
            rearmed: Notify::new(),
            sweep_now: Notify::new(),
            turns: [const { AtomicU64::new(0) }; Turn::ALL.len()],
            claims: Default::default(),
            kept: Mutex::default(),
            tally: Mutex::default(),
            unsettled: Mutex::default(),
            renew_now: Notify::new(),
            hinted: Notify::new(),
            told_to_drain: AtomicBool::new(false),
            drains: AtomicBool::new(false),
            left_jobs: AtomicBool::new(false),
        };
        life.turns.iter().for_each(|turn| turn.store(now, Ordering::Relaxed));
        Some((Arc::new(life), endings_received, signs_received, lock))
    }

    /// Writes the replica's row, which must exist before its first claim. Answers when it was sent.
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

    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pulse(&self) -> MutexGuard<'_, Pulse> {
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// A store call of a loop, bounded.
    pub(crate) async fn call<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let limit = self.core.settings.call_limit();
        let late = || Err(StoreError::no_answer());
        within(&*self.core.env, limit, call).await.unwrap_or_else(late)
    }

    /// The same for a loop that must be seen to turn: every answer, of whatever kind, is a turn.
    pub(crate) async fn call_in<T>(
        &self,
        turn: Turn,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let answer = self.call(call).await;
        self.turned(turn);
        answer
    }

    pub(crate) fn turned(&self, turn: Turn) {
        self.turns[turn as usize].store(self.core.env.boot().0.as_micros() as u64, Ordering::Relaxed);
    }

    /// A loop that has not turned for half a timeout: wedged is not alive.
    pub(crate) fn wedged(&self) -> Option<Turn> {
        let now = self.core.env.boot();
        let half = self.core.settings.heartbeat_timeout / 2;
        let last = |turn: Turn| Duration::from_micros(self.turns[turn as usize].load(Ordering::Relaxed));
        Turn::ALL.into_iter().find(|turn| now.since(BootInstant(last(*turn))) > half)
    }

    pub(crate) fn claim_begins(&self, lane: Lane) {
        self.claims[lane as usize].begun.fetch_add(1, Ordering::SeqCst);
    }

    /// After what it was granted is being performed.
    pub(crate) fn claim_ends(&self, lane: Lane) {
        self.claims[lane as usize].ended.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn claims_begun(&self) -> Begun {
        Begun(self.claims.each_ref().map(|claims| claims.begun.load(Ordering::SeqCst)))
    }

    /// Whether all claims that had begun by then are over.
    pub(crate) fn claims_over(&self, begun: Begun) -> bool {
        self.claims.iter().zip(begun.0).all(|(claims, begun)| claims.ended.load(Ordering::SeqCst) >= begun)
    }

    /// The last sign of life of an attempt: by hand, or its replica's own.
    pub(crate) fn last_heartbeat_at(&self, entry: &Entry) -> StoreTime {
        let by_hand = entry.vital().last_beat;
        let last = match entry.claimed.spec.policy.heartbeat {
            // A shim beats for itself.
            _ if entry.detached() => by_hand,
            HeartbeatMode::Manual => by_hand,
            HeartbeatMode::Auto => by_hand.max(self.pulse().renewed),
        };
        self.core.clock.at(last, &*self.core.env)
    }

    /// Keeps a task until this life is over.
    pub(crate) fn keep(&self, task: Task) {
        lock(&self.kept).push(task);
    }

    /// Begins to perform a claimed run.
    pub(crate) fn perform(self: &Arc<Life>, claimed: Claimed) {
        self.enter_table(claimed, None);
    }

    /// Watches over a detached run that has begun, or may have.
    pub(crate) fn watch_over(self: &Arc<Life>, claimed: Claimed, cancel_asked: bool) {
        self.enter_table(claimed, Some(cancel_asked));
    }

    /// `taken_over`: whether it was asked to cancel before, if it has begun, or may have.
    fn enter_table(self: &Arc<Life>, claimed: Claimed, taken_over: Option<bool>) {
        let now = self.core.env.boot();
        let entry = Arc::new(Entry::new(claimed, now, taken_over.is_some()));
        if entry.detached() && self.left_jobs.load(Ordering::SeqCst) {
            return;
        }
        if taken_over == Some(true) {
            entry.ask_cancel(now);
        }
        if !entry.detached()
            && entry.stops_when_isolated()
            && now >= self.pulse().renewed + self.core.settings.renew_deadline()
        {
            // The answer came so late that others may have taken it over; if not, reconciliation
            // releases it.
            return;
        }
        let watched = entry.next_check().is_some() || entry.stops_when_isolated();
        self.table().insert(entry.clone());
        if watched {
            self.rearmed.notify_one();
        }
        let life = self.clone();
        let performed = entry.clone();
        let task = self.core.env.spawn("perform", async move { life.performed(performed).await }.boxed());
        entry.own(task);
    }

    async fn performed(&self, entry: Arc<Entry>) {
        if entry.detached() {
            return self.watched(entry).await;
        }
        let spec = entry.claimed.spec.clone();
        let ending = match self.core.tasks.get(&spec.task) {
            Some(handler) => {
                let ctx = Ctx { entry: entry.clone(), signer: self.signer.clone() };
                let work = AssertUnwindSafe(handler.perform(ctx, spec.input.clone())).catch_unwind();
                tokio::select! {
                    biased;
                    () = entry.killed() => None,
                    done = work => Some(match done {
                        Ok(Ok(result)) => bounded(result),
                        Ok(Err(failure)) => stopped_or_failed(&failure),
                        Err(panic) => Ending::because(Outcome::Failed, "panicked", &panic_message(&*panic)),
                    }),
                }
            }
            None => Some(Ending::because(Outcome::Released, "task_unknown", "this replica does not perform the task")),
        };
        if let Some(ending) = ending
            && entry.judge()
        {
            self.settle(&entry, ending, None).await;
        }
        if let Some((ending, draft)) = entry.take_sentence() {
            self.settle(&entry, ending, draft).await;
        }
        if self.table().ended(&entry) {
            self.freed.notify_one();
        }
    }

    /// The same for what goes on without this replica. Its shim is told when its end is stored.
    async fn watched(&self, entry: Arc<Entry>) {
        let ended = tokio::select! {
            biased;
            () = entry.killed() => None,
            ended = AssertUnwindSafe(jobs::perform(self, &entry)).catch_unwind() => Some(ended),
        };
        let ended = match ended {
            Some(Ok(ended)) => Some(ended),
            Some(Err(panic)) => {
                // Nothing is known of the job by that; reconciliation looks at it again.
                tracing::error!(job = %entry.claimed.lease.run_id, "{}", panic_message(&*panic));
                self.table().settled(&entry);
                None
            }
            None => None,
        };
        if let Some((ending, draft)) = ended {
            let sentence = entry.take_sentence();
            match sentence {
                Some((ending, draft)) => self.settle(&entry, ending, draft).await,
                None if entry.judge() => self.settle(&entry, ending, draft).await,
                None => {}
            }
            let stored = tokio::select! {
                biased;
                () = entry.settled() => true,
                () = entry.killed() => false,
            };
            let counts = stored && !entry.vital().fenced;
            if let Some(shims) = self.core.shims.as_ref().filter(|_| counts) {
                shims.acknowledge(&jobs::attempt_of(&entry.claimed)).await;
            }
        }
        if self.table().ended(&entry) {
            self.freed_jobs.notify_one();
        }
    }

    /// Hands a judged entry's ending to the settling loop.
    pub(crate) async fn settle(&self, entry: &Arc<Entry>, ending: Ending, draft: Option<Draft>) {
        let ended = Ended::new(entry.clone(), ending, draft);
        // The channel has a place for every slot; it is only ever closed when this life is over.
        let _life_is_over = self.endings.send(ended).await;
    }

    /// After a judgement by others nothing of this life counts: stop its work and say so.
    async fn abandon(&self) {
        let mut fenced = Vec::new();
        let mut late = Vec::new();
        for entry in self.table().all() {
            if entry.detached() {
                // It goes on under whoever took it over.
                entry.kill(Stop::Fenced);
                continue;
            }
            if entry.judge() {
                fenced.push(self.fenced_by_death(&entry, "replica_dead"));
            } else {
                // Its ending was on its way: it counts, or whoever took the run over was first.
                late.push(entry.clone());
            }
            entry.kill(Stop::Fenced);
            self.core.keep_former(&entry);
        }
        for entry in late.iter().take(FENCED_BATCH) {
            if self.was_taken_over(entry).await {
                fenced.push(self.fenced_by_death(entry, "late_result"));
            }
        }
        metrics::counter!("everbeat_fenced_writes_total").increment(fenced.len() as u64);
        fenced.iter().for_each(|verdict| figures::judged(verdict.judgement, &verdict.reason));
        for chunk in fenced.chunks(FENCED_BATCH) {
            if let Err(error) = self.call(self.core.store.record(chunk.to_vec())).await {
                tracing::warn!(%error, "verdicts of fenced attempts could not be recorded");
            }
        }
    }

    fn fenced_by_death(&self, entry: &Entry, reason: &'static str) -> Verdict {
        let evidence = serde_json::json!({ "replica_id": self.id, "found_by": "renewal" });
        let draft = Draft { judgement: Judgement::Fenced, reason, evidence };
        draft.verdict(self, entry, "its result counts for nothing; the run went on without it".to_string())
    }

    /// Whether another replica has ended this attempt as lost. What cannot be looked up, or is not decided
    /// yet, is not claimed.
    async fn was_taken_over(&self, entry: &Entry) -> bool {
        let lease = &entry.claimed.lease;
        let Ok(attempts) = self.call(self.core.store.attempts(lease.run_id)).await else { return false };
        let mut mine = attempts.iter().filter(|ended| ended.attempt == lease.attempt && ended.replica_id == self.id);
        // Those reasons are a rescuer's; this replica itself may have judged its attempt lost before.
        let rescued =
            |error: &Json| error.value()["reason"].as_str().is_some_and(|reason| reason.starts_with("replica_"));
        mine.any(|ended| ended.outcome == Some(Outcome::Lost) && ended.error.as_ref().is_some_and(rescued))
    }

    /// Whether an ending of this attempt was accepted after all: a write that was never answered may
    /// have happened. What cannot be looked up may count too; nothing false is recorded of it.
    pub(crate) async fn may_count(&self, entry: &Entry) -> bool {
        let lease = &entry.claimed.lease;
        let Ok(attempts) = self.call(self.core.store.attempts(lease.run_id)).await else { return true };
        let mut mine = attempts.iter().filter(|ended| ended.attempt == lease.attempt && ended.replica_id == self.id);
        mine.any(|ended| ended.outcome.is_some_and(|outcome| outcome != Outcome::Lost))
    }

    /// The store holds a request that this replica drain: it takes no more work from now on.
    pub(crate) fn told_to_drain(&self) {
        if !self.told_to_drain.swap(true, Ordering::SeqCst) {
            self.enter(Phase::Draining);
            self.renew_now.notify_one();
        }
    }

    pub(crate) fn was_told_to_drain(&self) -> bool {
        self.told_to_drain.load(Ordering::SeqCst)
    }

    /// Lets work finish for the grace period, releases the rest, and leaves. Beating stops last.
    pub(crate) async fn drain(self: &Arc<Life>, grace: Duration) {
        if self.drains.swap(true, Ordering::SeqCst) {
            self.wait_phase(|phase| matches!(phase, Phase::Fenced | Phase::Left)).await;
            return;
        }
        let env = &self.core.env;
        let begun = env.boot();
        self.enter(Phase::Draining);
        let (running, grace_shown) = (self.table().len(), format_duration(grace));
        tracing::info!(replica = %self.id, running, grace = grace_shown, "draining: it takes no more work");
        attached(self.table().all()).for_each(|entry| entry.ask_stop(Stop::Draining));
        let tell = async {
            if let Err(error) = self.call(self.core.store.drain(self.id)).await {
                tracing::warn!(replica = %self.id, %error, "others do not know yet that this replica drains");
            }
        };
        let finish = async {
            self.finish(begun, grace).await;
            self.last_wait()
        };
        tokio::pin!(tell, finish);
        tokio::select! {
            biased;
            () = &mut tell => {
                finish.await;
            }
            wait = &mut finish => {
                within(&**env, wait, tell).await;
            }
        }
        let unfinished = self.table().all();
        for entry in attached(unfinished) {
            let ending = Ending::because(Outcome::Released, "draining", "released by a draining replica");
            if let Condemned::Now(ending, draft) = entry.condemn(ending, None) {
                self.settle(&entry, ending, draft).await;
            }
            entry.kill(Stop::Draining);
        }
        within(&**env, self.last_wait() * 2, self.emptied()).await;
        let jobs = self.leave_jobs();
        within(&**env, self.last_wait(), self.settled_jobs()).await;
        self.core.store.wake();
        if self.phase() == Phase::Fenced {
            tracing::warn!(replica = %self.id, "judged dead by another replica while it drained");
            return;
        }
        let left = within(&**env, self.last_wait(), self.core.store.leave(self.id)).await;
        self.say_left(left.unwrap_or_else(|| Err(StoreError::no_answer())), jobs);
        self.enter(Phase::Left);
    }

    /// Waits for the work, and says now and then what it waits for. Without the store it ends a little earlier, so
    /// that the last words to it, which will not be answered, are within the grace too.
    async fn finish(&self, begun: BootInstant, grace: Duration) {
        let env = &self.core.env;
        let mut silent = FIRST_TELL;
        loop {
            let last_words = if self.pulse().connected() { Duration::ZERO } else { (LAST_WAIT * 4).min(grace / 2) };
            let left = (grace - last_words).saturating_sub(env.boot().since(begun));
            if left.is_zero() {
                return;
            }
            if within(&**env, left.min(silent), self.emptied()).await.is_some() {
                return;
            }
            silent = DRAIN_TELLS;
            let all = self.table().all();
            let unstored = all.iter().filter(|entry| !entry.detached() && entry.ended()).count();
            let performing = self.table().len() - unstored;
            let store = self.pulse().trouble.as_ref().map_or_else(|| "reachable".to_string(), ToString::to_string);
            let spent = format_duration(Duration::from_secs(env.boot().since(begun).as_secs()));
            tracing::info!(replica = %self.id, performing, unstored, store, spent, grace = format_duration(grace),
                "draining: waits for what is performed, and for endings to be stored");
        }
    }

    /// How long each last word to the store may take: no time is lost on one that does not answer anyway.
    fn last_wait(&self) -> Duration {
        let limit = self.core.settings.call_limit();
        if self.pulse().connected() { limit } else { limit.min(LAST_WAIT) }
    }

    /// The last line of a replica's life: what became of its work, and what others will conclude.
    fn say_left(&self, left: Result<(), StoreError>, jobs: usize) {
        let Tally { finished, released } = *lock(&self.tally);
        let unstored = self.table().len();
        match left {
            Ok(()) if unstored == 0 => tracing::info!(replica = %self.id, finished, released, jobs, "left"),
            Ok(()) => tracing::warn!(replica = %self.id, finished, released, jobs, unstored,
                "left; others take over at once what could not be stored, and perform it again"),
            Err(error) => {
                let after = format_duration(self.core.settings.heartbeat_timeout);
                tracing::warn!(replica = %self.id, finished, released, jobs, unstored, %error, after,
                    "left without saying so: others conclude it from its silence, and take over what it held");
            }
        }
    }

    /// Counts what the drain of this replica brought to an end.
    pub(crate) fn tally(&self, outcome: Outcome) {
        if self.phase() == Phase::Draining {
            let mut tally = lock(&self.tally);
            match outcome {
                Outcome::Released => tally.released += 1,
                _ => tally.finished += 1,
            }
        }
    }

    /// Jobs are neither awaited nor released: they go on, and wait for whoever takes them over. Those whose
    /// end is on its way to the store are left to that. Answers how many go on.
    fn leave_jobs(&self) -> usize {
        if self.core.settings.hole == Some(Hole::LeftStillVouches) {
            return 0;
        }
        self.left_jobs.store(true, Ordering::SeqCst);
        let jobs: Vec<Arc<Entry>> = self.table().detached().cloned().collect();
        let mut left = 0;
        for entry in jobs.iter().filter(|entry| entry.judge()) {
            entry.kill(Stop::Draining);
            self.table().settled(entry);
            left += 1;
        }
        left
    }

    async fn settled_jobs(&self) {
        while self.table().detached().next().is_some() {
            self.core.env.sleep(DRAIN_LOOK).await;
        }
    }

    /// Until nothing is performed and no claim is unanswered.
    async fn emptied(&self) {
        while self.table().len() > 0 || !self.claims_over(self.claims_begun()) {
            let look_again = self.core.env.sleep(DRAIN_LOOK);
            tokio::select! {
                biased;
                () = self.freed.notified() => {}
                () = look_again => {}
            }
        }
    }
}

fn attached(entries: Vec<Arc<Entry>>) -> impl Iterator<Item = Arc<Entry>> {
    entries.into_iter().filter(|entry| !entry.detached())
}

/// How often a draining replica says what it waits for, and when first.
const FIRST_TELL: Duration = Duration::from_secs(1);
const DRAIN_TELLS: Duration = Duration::from_secs(5);
/// While the store does not acknowledge this replica, its last words wait no longer.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// How often a draining replica looks, besides being told.
const DRAIN_LOOK: Duration = Duration::from_millis(20);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const FENCED_BATCH: usize = 500;

/// Work that stopped because it was told to did not fail; everything else it says did happen.
fn stopped_or_failed(failure: &Failure) -> Ending {
    match failure.stopped {
        Some(Stop::Cancelled) => Ending::because(Outcome::Cancelled, "cancelled", "cancelled on request"),
        Some(Stop::Draining) => Ending::because(Outcome::Released, "draining", "the replica drains"),
        Some(Stop::TooLarge | Stop::TooDeep | Stop::Unstorable) => Ending::failed(&failure.message, true),
        Some(Stop::Fenced | Stop::Judged) | None => Ending::failed(&failure.message, failure.permanent),
    }
}

fn bounded(result: Json) -> Ending {
    if result.as_str().len() > MOST_VALUE_BYTES {
        return Ending::failed("the result is larger than 4 MiB; store it elsewhere and return where", true);
    }
    match result.check() {
        Ok(()) => Ending::succeeded(result),
        Err(beyond) => Ending::failed(&format!("the result {}: {}", beyond.problem(), beyond.hint()), true),
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().map(ToString::to_string).or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the task panicked: {}", text.unwrap_or_else(|| "no message".to_string()))
}
