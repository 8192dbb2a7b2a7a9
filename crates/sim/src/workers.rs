//! The performer of what a worker process performs: it starts the worker, orders attempts, passes on what the worker
//! says of them, and sees whether it lives.

use crate::executor::Owner;
use crate::handler::Script;
use crate::shared::Shared;
use crate::worker::{Order, PULSE, Performed, SLOTS, Said, Word, Worker};
use async_trait::async_trait;
use everbeat_engine::{Beat, Capacity, Conclusion, Ctx, Line, Offer, Performer, Post, Stop, Terms, Work, within};
use everbeat_model::run::Spec;
use everbeat_model::{Ending, Json, Outcome, Reason, Token};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// The task that workers perform.
pub(crate) const WORKER_TASK: &str = "gamma";
/// A worker that is not heard for so long is ended.
const SILENCE: u64 = 6 * PULSE;
/// So long an attempt may take to end when it is killed; then its worker is.
const END_WITHIN: Duration = Duration::from_millis(50);

#[derive(Clone)]
pub(crate) struct Workers {
    shared: Arc<Shared>,
    replica: Owner,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    worker: Option<Arc<Worker>>,
    heard_at: u64,
    /// Why the last worker was ended by its replica, if it was.
    ended_for: Option<Reason>,
    /// Who waits for what is said of an attempt.
    routes: BTreeMap<Token, mpsc::UnboundedSender<Said>>,
}

impl Workers {
    pub(crate) fn new(shared: &Arc<Shared>, replica: Owner) -> Workers {
        Workers { shared: shared.clone(), replica, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn worker(&self) -> Option<Arc<Worker>> {
        self.state().worker.clone().filter(|worker| !worker.is_dead())
    }

    fn route(&self, token: Token) -> mpsc::UnboundedReceiver<Said> {
        let (says, said) = mpsc::unbounded_channel();
        self.state().routes.insert(token, says);
        said
    }

    /// A worker, and somebody who hears it.
    fn start(&self, post: &Post) {
        let (worker, mut words) = Worker::start(&self.shared, self.replica);
        self.shared.workers().insert(self.replica, worker.clone());
        let mut state = self.state();
        (state.worker, state.heard_at, state.ended_for) = (Some(worker), self.shared.now(), None);
        drop(state);
        let (shared, state) = (self.shared.clone(), self.state.clone());
        let hear = async move {
            while let Some(word) = words.recv().await {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                state.heard_at = shared.now();
                if let Word::Of(token, said) = word
                    && let Some(route) = state.routes.get(&token)
                {
                    let _nobody_waits = route.send(said);
                }
            }
        };
        // As long as the process, not only as this life.
        self.shared.executor.spawn(self.replica, "hear", hear.boxed());
        post.freed();
    }

    /// Ends a worker that is not heard. One in good order must never be.
    fn look_after(&self, post: &Post, late: u64) {
        let Some(worker) = self.worker() else { return self.start(post) };
        let now = self.shared.now();
        let mut state = self.state();
        if late > SILENCE / 2 {
            // Whoever did not look has not heard.
            state.heard_at = now;
            return;
        }
        if now < state.heard_at + SILENCE {
            return;
        }
        state.ended_for = Some(Reason::WorkerSilent);
        drop(state);
        if worker.troubled_at.load(Ordering::SeqCst) + SILENCE < now && !self.shared.executor.is_frozen(worker.owner) {
            let detail = format!("worker {} was ended for its silence, yet it had no trouble", worker.owner);
            self.shared.truth().violate("G5", detail);
        }
        worker.kill();
    }

    /// Looks after the worker, and tells it for how long this replica vouches for its work.
    async fn attend(self, post: Post) {
        loop {
            let asked = self.shared.now() + PULSE;
            post.env().sleep(Duration::from_micros(PULSE)).await;
            self.look_after(&post, self.shared.now() - asked);
            self.vouch(&post).await;
        }
    }

    async fn vouch(&self, post: &Post) {
        let Some(worker) = self.worker() else { return };
        // Both clocks are read at one instant; the pipe's time does not lengthen what is vouched for.
        let left = post.vouched_until().since(post.env().boot());
        let until = self.shared.now() + u64::try_from(left.as_micros()).unwrap_or(0);
        worker.order(Order::Vouched(post.replica(), until)).await;
    }

    /// What becomes of an attempt whose worker is gone.
    fn lost(&self, worker: &Worker) -> Conclusion {
        let reason = self.state().ended_for.unwrap_or(Reason::WorkerDied);
        Conclusion::lost(reason, "its worker is gone", json!({ "worker": worker.owner }))
    }

    /// Hears of an attempt until its end.
    async fn follow(
        &self,
        ctx: &Ctx,
        worker: &Worker,
        performed: &Performed,
        mut said: mpsc::UnboundedReceiver<Said>,
    ) -> Conclusion {
        let (token, script) = (performed.token, &performed.script);
        let mut told = false;
        let mut refused = None;
        loop {
            let said = tokio::select! {
                biased;
                said = said.recv() => said,
                () = worker.died() => return self.lost(worker),
                stop = ctx.stopped(), if !told => {
                    told = true;
                    if stop != Stop::Draining {
                        worker.order(Order::Stop(token)).await;
                    }
                    continue;
                }
            };
            match said {
                Some(Said::Beat(done)) => {
                    let next_within = script.promises_ms.map(Duration::from_millis);
                    let beat = Beat { done: script.progresses.then_some(done), next_within, ..Beat::default() };
                    if ctx.heartbeat(beat).is_ok() {
                        script.beaten(&self.shared, self.replica, ctx);
                    }
                }
                Some(Said::Reached(reached)) => {
                    match script.checkpoint(&self.shared, self.replica, ctx, reached).await {
                        Ok(()) => worker.order(Order::Stored(token)).await,
                        Err(stop) => {
                            refused = refused.or(Some(stop).filter(|stop| *stop == Stop::Unstorable));
                            worker.order(Order::Stop(token)).await;
                        }
                    }
                }
                Some(Said::Done(product)) => return Ending::succeeded(Json::of(&product)).into(),
                Some(Said::Failed) => return Ending::failed("planned", script.fails_for_good).into(),
                Some(Said::Stopped) | None => {
                    return refused.map_or_else(|| stopped(ctx), |stop| Ending::failed(&stop.to_string(), true).into());
                }
            }
        }
    }
}

/// An attempt that has stopped in good order.
fn stopped(ctx: &Ctx) -> Conclusion {
    match ctx.check() {
        Err(Stop::Cancelled) => Ending::because(Outcome::Cancelled, Reason::Cancelled, "cancelled on request").into(),
        Err(Stop::Draining) => Ending::because(Outcome::Released, Reason::Draining, "the replica drains").into(),
        _ => Conclusion::lost(Reason::Isolated, "stopped: its replica did not vouch for it in time", json!({})),
    }
}

#[async_trait]
impl Performer for Workers {
    fn name(&self) -> &'static str {
        "workers"
    }

    fn tasks(&self) -> BTreeSet<String> {
        BTreeSet::from([WORKER_TASK.to_string()])
    }

    fn performs(&self, spec: &Spec) -> bool {
        spec.task == WORKER_TASK
    }

    fn terms(&self, spec: &Spec) -> Terms {
        Terms::apart(&spec.policy)
    }

    fn capacity(&self) -> Capacity {
        Capacity { slots: SLOTS, setting: "workers.slots" }
    }

    async fn offer(&self, _post: &Post) -> Offer {
        let line = Line::of(WORKER_TASK.to_string());
        let most = if self.worker().is_some() { SLOTS } else { 0 };
        Offer { most, lines: vec![line], queues: None, pause: Duration::ZERO }
    }

    async fn perform(&self, post: &Post, work: &Arc<Work>) -> Option<Conclusion> {
        let Some(worker) = self.worker() else {
            return Some(Ending::because(Outcome::Released, Reason::WorkerAway, "there is no worker").into());
        };
        let (ctx, spec) = (post.ctx(work), work.spec());
        let script: Script = match spec.input.read() {
            Ok(script) => script,
            Err(error) => return Some(Ending::failed(&error.to_string(), true).into()),
        };
        let performed = Performed {
            token: work.token(),
            life: post.replica(),
            run: ctx.run_id(),
            attempt: ctx.attempt(),
            script,
            resumed: ctx.resume().unwrap_or(0),
        };
        let said = self.route(work.token());
        self.vouch(post).await;
        worker.order(Order::Perform(Box::new(performed.clone()))).await;
        let conclusion = self.follow(&ctx, &worker, &performed, said).await;
        self.state().routes.remove(&work.token());
        Some(conclusion)
    }

    async fn end(&self, post: &Post, work: &Arc<Work>) {
        let token = work.token();
        let ordered = self.state().routes.contains_key(&token);
        let Some(worker) = self.worker().filter(|_| ordered) else { return };
        let mut said = self.route(token);
        worker.order(Order::Kill(token)).await;
        let ended =
            async { while !matches!(said.recv().await, Some(Said::Done(_) | Said::Failed | Said::Stopped) | None) {} };
        let ended = tokio::select! {
            biased;
            () = worker.died() => Some(()),
            ended = within(&**post.env(), END_WITHIN, ended) => ended,
        };
        if ended.is_none() {
            self.state().ended_for = Some(Reason::WorkerUnresponsive);
            worker.kill();
        }
        self.state().routes.remove(&token);
    }

    fn loops(&self, post: &Post) -> Vec<(&'static str, BoxFuture<'static, ()>)> {
        vec![("attend workers", self.clone().attend(post.clone()).boxed())]
    }
}
