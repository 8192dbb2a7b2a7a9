//! The performer of what the workers of one pool perform.

use super::link::{FromWorker, LeaseShown, ToWorker};
use super::pool::Pool;
use super::worker::{Left, Worker};
use super::{tell, watch};
use crate::attempts::{Capacity, Conclusion, Line, Offer, Performer, Post, Terms, Work};
use async_trait::async_trait;
use everbeat_model::run::Spec;
use everbeat_model::{Ending, Outcome, Reason, Token};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;

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
            let state = worker.state();
            state.given().for_each(|token| _ = waiting.remove(token));
            let room = state.room();
            if room == 0 {
                continue;
            }
            let queues = if self.remote { &state.hello.queues } else { &self.queues };
            let rooms = rooms.entry(queues.clone()).or_default();
            rooms.most += room;
            state.hello.tasks.iter().for_each(|task| *rooms.of.entry(task.clone()).or_default() += room);
        }
        // Workers of different queues are offered one after another: what one of them may take, another may not.
        let Some((queues, mut rooms)) = self.next_turn(rooms, post) else { return Offer::default() };
        for work in waiting.values() {
            rooms.most = rooms.most.saturating_sub(1);
            rooms.of.entry(work.spec().task.clone()).and_modify(|room| *room = room.saturating_sub(1));
        }
        let line = |(task, most): (String, usize)| Line { name: task.clone(), task, most };
        let among = Some(queues).filter(|queues| !self.remote || !queues.is_empty());
        let lines = rooms.of.into_iter().map(line).collect();
        Offer { most: rooms.most, lines, queues: among, pause: Duration::ZERO }
    }

    async fn perform(&self, post: &Post, work: &Arc<Work>) -> Option<Conclusion> {
        let lease = shown(work);
        if work.terms.isolation && self.speaks_lines() {
            return Some(self.unfit(work).into());
        }
        let Some((worker, heard)) = self.engage(&lease, work.spec()) else {
            return Some(
                Ending::because(Outcome::Released, Reason::WorkerAway, "no worker had a free slot for it").into(),
            );
        };
        if work.terms.isolation && !self.settings.heartbeat {
            // Before the work: its worker must know until when the work is vouched for.
            worker.state().pulse.hurry(post.env().boot());
            watch::ping(&post.life.core, self, &worker, post.env().boot());
        }
        let ctx = post.ctx(work);
        work.performed_by(worker.id);
        let conclusion = self.follow(post, &ctx, work, &worker, lease, heard).await;
        worker.disengage(lease.token, conclusion.ending.outcome != Outcome::Released);
        self.freed(post);
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
        worker.disengage(lease.token, true);
        self.freed(post);
    }
}

/// What workers that serve the same queues have room for.
#[derive(Default)]
struct Rooms {
    most: usize,
    of: BTreeMap<String, usize>,
}

impl Pool {
    /// The workers whose turn it is to be offered. Whoever asks looks again until all have been.
    fn next_turn(&self, rooms: BTreeMap<BTreeSet<String>, Rooms>, post: &Post) -> Option<(BTreeSet<String>, Rooms)> {
        let turns = rooms.len();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % turns.max(1);
        if turn + 1 < turns {
            post.freed();
        }
        rooms.into_iter().nth(turn)
    }

    /// The worker that performs a run, and where it is heard: the one with the most room.
    fn engage(&self, lease: &LeaseShown, spec: &Spec) -> Option<(Arc<Worker>, mpsc::Receiver<FromWorker>)> {
        let mut able: Vec<(usize, Arc<Worker>)> = self
            .workers()
            .into_iter()
            .filter_map(|worker| {
                let state = worker.state();
                let serves = self.serves(&state.hello.queues, &spec.queue) && state.takes(&spec.task);
                let room = state.room();
                drop(state);
                serves.then_some((room, worker))
            })
            .collect();
        able.sort_by_key(|(room, _)| std::cmp::Reverse(*room));
        able.into_iter().find_map(|(_, worker)| {
            let heard = worker.engage(lease, spec)?;
            Some((worker, heard))
        })
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

    fn serves(&self, queues: &BTreeSet<String>, queue: &str) -> bool {
        !self.remote || queues.is_empty() || queues.contains(queue)
    }

    fn freed(&self, post: &Post) {
        self.changed.notify_one();
        post.freed();
    }
}

/// What is shown of an attempt whenever it is spoken of.
pub(super) fn shown(work: &Work) -> LeaseShown {
    let lease = &work.claimed.lease;
    LeaseShown { run_id: lease.run_id, attempt: lease.attempt, token: lease.token }
}
