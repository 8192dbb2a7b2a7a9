//! The performer of what the workers of one pool perform.

use super::engage::{Engaged, Engagement};
use super::link::{LeaseShown, ToWorker};
use super::offer::Rooms;
use super::pool::Pool;
use super::session_upkeep;
use super::worker::{Left, Worker};
use super::{tell, watch};
use crate::attempts::{Capacity, Conclusion, Offer, Performer, Post, Terms, Work};
use crate::within;
use async_trait::async_trait;
use everbeat_model::run::Spec;
use everbeat_model::session::{awaited, is_wait};
use everbeat_model::{Ending, Outcome, Reason, Token, WorkerId};
use everbeat_store::Error as StoreError;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// So long a claimed run waits for room before it is given back.
const ROOM_WITHIN: Duration = Duration::from_secs(1);
/// A run that cannot be left where its session is waits so long before it is claimed again.
const PAUSE: Duration = Duration::from_secs(1);

#[async_trait]
impl Performer for Pool {
    fn name(&self) -> &'static str {
        if self.remote { "workers" } else { "pool" }
    }

    fn tasks(&self) -> BTreeSet<String> {
        self.state().tasks.clone()
    }

    fn knows(&self, task: &str) -> bool {
        self.state().tasks.contains(task)
    }

    fn performs(&self, spec: &Spec) -> bool {
        self.knows(&spec.task)
    }

    fn terms(&self, spec: &Spec) -> Terms {
        Terms::apart(&spec.policy)
    }

    fn loops(&self, post: &Post) -> Vec<(&'static str, BoxFuture<'static, ()>)> {
        let life = &post.life;
        let this = life.core.pools.all().find(|pool| std::ptr::eq(Arc::as_ptr(pool), self));
        let tells = this.map(|pool| ("tell workers", tell::run(life.clone(), pool.clone()).boxed()));
        tells.into_iter().collect()
    }

    /// Until its guardian has ended it, or, elsewhere, until nobody vouches for it any more.
    fn outlives_process(&self) -> bool {
        true
    }

    fn capacity(&self) -> Capacity {
        let slots = match self.remote {
            true => self.workers().iter().map(|worker| worker.state().hello.slots).sum(),
            // During a replacement there are more workers than the size.
            false => (self.state().size * 2 + 1) * self.settings.slots,
        };
        Capacity { slots, setting: if self.remote { "workers" } else { "pool.size" } }
    }

    async fn offer(&self, post: &Post) -> Offer {
        if self.state().paused {
            return Offer::default();
        }
        // Those have been claimed. They are looked for before the workers, and counted after them: whichever of them has
        // a worker by then took its room there, and each other one needs room still.
        let mut waiting: BTreeMap<Token, Arc<Work>> = BTreeMap::new();
        for work in post.works().into_iter().filter(|work| work.vital().worker.is_none() && !work.over()) {
            waiting.insert(work.claimed.lease.token, work);
        }
        let mut rooms: BTreeMap<BTreeSet<String>, Rooms> = BTreeMap::new();
        for worker in self.workers() {
            let waits = self.waits_for(&worker, post.replica());
            let state = worker.state();
            state.given().for_each(|token| _ = waiting.remove(token));
            let room = state.room();
            if room == 0 {
                continue;
            }
            let queues = if self.remote { &state.hello.queues } else { &self.queues };
            let reserved = waiting.values().filter(|work| waited_for(work) == Some(worker.id)).count();
            rooms.entry(queues.clone()).or_default().add(&state.hello.tasks, room, waits, reserved);
        }
        // Workers of different queues are offered one after another: what one of them may take, another may not.
        let Some((queues, mut rooms)) = self.next_turn(rooms, post) else { return Offer::default() };
        waiting.values().for_each(|work| rooms.takes(&work.spec().task));
        let among = Some(queues).filter(|queues| !self.remote || !queues.is_empty());
        Offer { most: rooms.most, lines: self.lines(rooms, post), queues: among, pause: Duration::ZERO }
    }

    async fn perform(&self, post: &Post, work: &Arc<Work>) -> Option<Conclusion> {
        let lease = shown(work);
        if work.terms.isolation && self.speaks_lines() {
            return Some(self.unfit(work).into());
        }
        let Engagement { worker, heard, session } = match self.engaged(post, work, &lease).await {
            Engaged::By(engagement) => engagement,
            Engaged::Waits(host) => {
                let waits = self.place(post, work, Some(host)).await;
                return Some(unbegun(Reason::SessionBusy, "it waits for the worker of its session", !waits));
            }
            Engaged::Later(why) => {
                self.place(post, work, None).await;
                return Some(unbegun(Reason::SessionBusy, why, true));
            }
            Engaged::Nobody => {
                self.place(post, work, None).await;
                return Some(unbegun(Reason::WorkerAway, "no worker had a free slot for it", false));
            }
        };
        if work.terms.isolation && !self.settings.heartbeat {
            // Before the work: its worker must know until when the work is vouched for.
            worker.state().pulse.hurry(post.env().boot());
            watch::ping(&post.life.core, self, &worker, post.env().boot());
        }
        let ctx = post.ctx(work);
        work.performed_by(worker.id);
        // Whatever becomes of this attempt, the next one is claimed by whoever has room. The worker does not wait for that.
        let followed = self.follow(post, &ctx, work, &worker, lease, (session, heard));
        let (conclusion, _) = tokio::join!(followed, self.place(post, work, None));
        self.disengage(post, work, &worker, conclusion.ending.outcome != Outcome::Released);
        Some(conclusion)
    }

    /// Its worker keeps what it came to until it is told that this was heard.
    async fn afterwards(&self, work: &Arc<Work>) {
        let id = work.vital().worker;
        if let Some(worker) = id.and_then(|id| self.worker(id)) {
            tokio::select! {
                biased;
                () = worker.dead() => {}
                _cut = worker.tell(ToWorker::EndedAnswer { lease: shown(work) }) => {}
            }
        }
    }

    async fn end(&self, post: &Post, work: &Arc<Work>) {
        let lease = shown(work);
        let Some(worker) = self.workers().into_iter().find(|worker| worker.route(&lease).is_some()) else { return };
        match worker.hear_its_end(lease.token) {
            Left::Nothing => {}
            Left::Answer => _ = worker.tell_now(ToWorker::EndedAnswer { lease }),
            Left::Goes(heard) => {
                let gone = worker.until(|state| state.emptied.then_some(()));
                tokio::select! {
                    biased;
                    () = gone => {}
                    () = self.end_attempt(post, &worker, work, heard) => {}
                }
            }
        }
        self.disengage(post, work, &worker, true);
    }

    async fn sweep(&self, post: &Post, whole: bool) -> Result<(), StoreError> {
        if whole && self.remote {
            session_upkeep::sweep(self, post).await?;
        }
        Ok(())
    }
}

/// An attempt that nobody has begun. `pause`: the run is not claimed again at once.
fn unbegun(reason: Reason, why: &str, pause: bool) -> Conclusion {
    Ending { pause: pause.then_some(PAUSE), ..Ending::because(Outcome::Released, reason, why) }.into()
}

impl Pool {
    /// The worker that performs a run. One that was claimed for a worker which drains by now waits a moment for the room of
    /// another: the claim of it is not undone for that.
    async fn engaged(&self, post: &Post, work: &Work, lease: &LeaseShown) -> Engaged {
        let until = post.env().boot() + ROOM_WITHIN;
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            // Enabled before the look, so that room that comes in between is not missed.
            room.as_mut().enable();
            let engaged = self.engage(post, work, lease).await;
            let left = until.since(post.env().boot());
            if !matches!(engaged, Engaged::Nobody) || left.is_zero() {
                return engaged;
            }
            tokio::select! {
                biased;
                _stop = work.stopped() => return engaged,
                _late = within(&**post.env(), left, room) => {}
            }
        }
    }

    /// Notes where a run waits for its session, if it does. Answers whether that is noted; where it is not, the sweep finds
    /// what waits for nobody.
    async fn place(&self, post: &Post, work: &Work, host: Option<String>) -> bool {
        if work.spec().host == host || (host.is_none() && !work.spec().host.as_deref().is_some_and(is_wait)) {
            return true;
        }
        let store = &post.life.core.store;
        matches!(post.life.call(store.place(work.claimed.lease.shown(), host)).await, Ok(true))
    }

    /// An attempt is over at its worker. `finished`: it counts as one that the worker has brought to an end.
    fn disengage(&self, post: &Post, work: &Work, worker: &Worker, finished: bool) {
        worker.disengage(work.token(), finished);
        if let Some(session) = &work.spec().session {
            self.session_used(&session.key, worker.id, post.env().boot());
        }
        self.freed(post);
    }

    /// Why a worker that speaks lines cannot perform work that must stop when its server is cut off or frozen: nobody can
    /// tell it until when the work is vouched for.
    fn unfit(&self, work: &Work) -> Ending {
        let message = format!(
            "task {:?} has when_isolated = stop, and the workers of pool {:?} speak lines: they have no clock by which \
             they would stop. Use when_isolated = continue, or workers that speak the link (protocol = \"grpc\")",
            work.spec().task,
            self.settings.name
        );
        Ending::failed(&message, true)
    }

    pub(super) fn serves(&self, queues: &BTreeSet<String>, queue: &str) -> bool {
        !self.remote || queues.is_empty() || queues.contains(queue)
    }

    fn freed(&self, post: &Post) {
        self.changed.notify_one();
        self.room.notify_waiters();
        post.freed();
    }
}

/// The worker that a claimed run has waited for.
pub(super) fn waited_for(work: &Work) -> Option<WorkerId> {
    let (_, worker) = awaited(work.spec().host.as_deref()?)?;
    worker
}

/// What is shown of an attempt whenever it is spoken of.
pub(super) fn shown(work: &Work) -> LeaseShown {
    let lease = &work.claimed.lease;
    LeaseShown { run_id: lease.run_id, attempt: lease.attempt, token: lease.token }
}
