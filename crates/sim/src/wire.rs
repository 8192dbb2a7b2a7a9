//! The link between a worker and a server: a pipe each way, which can be slow, blocked, lost, or lost at one end first;
//! and the server's end of it.

use crate::executor::{Owner, WORLD};
use crate::process::{Beaten, Condition, Process};
use crate::shared::Shared;
use everbeat_engine::pools::{FromWorker, HeartbeatAnswer, Hello, LeaseShown, Refused, ToWorker};
use everbeat_engine::{Engine, within};
use futures_util::FutureExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc};

const MS: u64 = 1000;

pub(crate) struct Wire {
    shared: Arc<Shared>,
    process: Arc<Process>,
    pub(crate) server: Owner,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    blocked: [u64; 2],
    /// Its worker sees that it is lost.
    lost: bool,
    /// What is under way does not arrive, each way.
    dropped: [bool; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Up,
    Down,
}

/// What a server says to whoever says hello.
pub(crate) enum Answer {
    Word(ToWorker),
    Refused(Refused),
}

/// The worker's end.
pub(crate) struct Line {
    pub(crate) wire: Arc<Wire>,
    pub(crate) says: mpsc::UnboundedSender<FromWorker>,
    pub(crate) hears: mpsc::UnboundedReceiver<Answer>,
}

impl Wire {
    /// Opens a link. The server answers when it can.
    pub(crate) fn dial(process: &Arc<Process>, server: Owner, engine: Engine, hello: Hello) -> Line {
        let shared = process.shared.clone();
        let wire = Arc::new(Wire {
            shared: shared.clone(),
            process: process.clone(),
            server,
            state: Mutex::default(),
            changed: Notify::new(),
        });
        {
            let mut pools = shared.pools();
            pools.wires.retain(|(_, wire)| wire.strong_count() > 0);
            pools.wires.push((process.owner, Arc::downgrade(&wire)));
        }
        let (says, said) = mpsc::unbounded_channel();
        let (arrives, heard) = mpsc::unbounded_channel();
        let (answers, answered) = mpsc::unbounded_channel();
        let (reaches, hears) = mpsc::unbounded_channel();
        shared.executor.spawn(WORLD, "pipe up", wire.clone().carry_up(said, arrives).boxed());
        shared.executor.spawn(WORLD, "pipe down", wire.clone().carry_down(answered, reaches).boxed());
        let serve = serve(wire.clone(), engine, hello, heard, answers);
        shared.executor.spawn(server, "worker link", serve.boxed());
        Line { wire, says, hears }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing passes that way for so long; then it does.
    pub(crate) fn block(&self, way: Way, until: u64) {
        self.state().blocked[way as usize] = until;
    }

    pub(crate) fn unblock(&self) {
        self.state().blocked = [0; 2];
        self.changed.notify_waiters();
    }

    /// Its worker sees that the link is lost. Its server does when what is under way has arrived, if it does.
    pub(crate) fn lose(&self, arrives: bool, seen_after: u64) {
        let until = self.shared.now() + seen_after;
        let mut state = self.state();
        state.lost = true;
        state.dropped = [!arrives, true];
        state.blocked[Way::Up as usize] = until;
        drop(state);
        self.changed.notify_waiters();
    }

    /// Resolves when its worker sees that it is lost.
    pub(crate) async fn lost(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.state().lost {
                return;
            }
            changed.await;
        }
    }

    /// One message takes its time. False: it does not arrive.
    async fn pass(&self, way: Way) -> bool {
        let latency = self.shared.pools().rng.between(10, 2 * MS);
        self.shared.sleep(latency).await;
        self.unblocked(way).await;
        !self.state().dropped[way as usize]
    }

    async fn unblocked(&self, way: Way) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let until = self.state().blocked[way as usize];
            if self.shared.now() >= until {
                return;
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = self.shared.executor.sleep_until(until) => {}
            }
        }
    }

    async fn carry_up(
        self: Arc<Wire>,
        mut from: mpsc::UnboundedReceiver<FromWorker>,
        to: mpsc::UnboundedSender<FromWorker>,
    ) {
        while let Some(word) = from.recv().await {
            if !self.pass(Way::Up).await {
                break;
            }
            if matches!(word, FromWorker::Ended { .. }) && self.shared.pools().chance(0.1) {
                self.shared.truth().report.fault("end said twice");
                let _server_is_gone = to.send(word.clone());
            }
            if to.send(word).is_err() {
                return;
            }
        }
        // The server sees the end of it after what came before.
        self.unblocked(Way::Up).await;
    }

    async fn carry_down(self: Arc<Wire>, mut from: mpsc::UnboundedReceiver<Answer>, to: mpsc::UnboundedSender<Answer>) {
        while let Some(answer) = from.recv().await {
            if !self.pass(Way::Down).await || to.send(answer).is_err() {
                return;
            }
        }
    }

    /// Whether a probe of its transport would be answered.
    fn answers_probes(&self) -> bool {
        let now = self.shared.now();
        let state = self.state();
        let through = !state.lost && state.blocked.iter().all(|until| now >= *until);
        drop(state);
        through && self.process.is_alive() && self.process.condition() != Condition::Stopped
    }

    /// Heartbeats count from when they were handed in, once they are answered.
    fn answered(&self, word: &ToWorker) {
        match word {
            ToWorker::Work(assignment) => self.told("is given the work", &assignment.lease),
            ToWorker::Cancel { lease, .. } => self.told("is told to end the work", lease),
            ToWorker::Drain { .. } => self.shared.trace(|_| format!("{} is told to go", self.process.name())),
            ToWorker::OutputAnswer { lease, sequence } => {
                self.told(&format!("is answered: items up to {sequence}"), lease);
            }
            ToWorker::EndedAnswer { lease } => self.told("is answered: the end", lease),
            ToWorker::HeartbeatAnswer { lease, answer: HeartbeatAnswer::Fenced, .. } => {
                self.told("is told of the fence", lease);
            }
            _ => {}
        }
        let ToWorker::HeartbeatAnswer { lease, sequence, answer } = word else { return };
        let beaten = self.process.state().beats.remove(&(lease.token, *sequence));
        // How it ends may have been decided before the heartbeat came.
        let counts = !self.process.may_be_decided(lease.token);
        let Some(beaten) = beaten.filter(|_| *answer == HeartbeatAnswer::GoOn) else { return };
        let Beaten { run, attempt, handed_at, epoch, checkpoint, silence, stall } = beaten;
        let same_store = self.shared.network().epoch == epoch;
        let mut truth = self.shared.truth();
        let key = (self.server, run, attempt);
        if let Some(silence) = silence.filter(|_| counts) {
            truth.not_silent_before.insert(key, handed_at + silence);
        }
        if let Some(stall) = stall.filter(|_| counts) {
            truth.not_stalled_before.insert(key, handed_at + stall);
        }
        // What a failover in between may have taken back is not promised.
        if let Some(reached) = checkpoint.filter(|_| same_store) {
            let known = truth.checkpoints.entry(run).or_default();
            *known = reached.max(*known);
        }
    }
}

/// The server's end: greets, passes on what is said, and writes what is to be said.
async fn serve(
    wire: Arc<Wire>,
    engine: Engine,
    hello: Hello,
    mut heard: mpsc::UnboundedReceiver<FromWorker>,
    answers: mpsc::UnboundedSender<Answer>,
) {
    // The hello travels like any other message.
    if !wire.pass(Way::Up).await {
        return;
    }
    let returns = hello.returning.is_some();
    let mut link = match engine.greet(hello).await {
        Ok(link) => link,
        Err(refused) => {
            let _it_is_gone = answers.send(Answer::Refused(refused));
            return;
        }
    };
    let (process, worker) = (wire.process.clone(), link.worker());
    wire.shared.trace(|truth| format!("{} lets {} in as {worker}", truth.label(wire.server), process.name()));
    if returns {
        wire.shared.truth().report.worker("came back");
    }
    wire.shared.pools().by_worker.insert(link.worker(), wire.process.clone());
    let (passes, over) = (link.heard(), Arc::new(Notify::new()));
    let (at, ends) = (wire.clone(), over.clone());
    let hear = async move {
        while let Some(word) = heard.recv().await {
            at.handed(&word);
            passes.heard(word).await;
        }
        ends.notify_one();
    };
    wire.shared.executor.spawn(wire.server, "worker heard", hear.boxed());
    let _closes = Closes(wire.clone());
    let probed = link.heard();
    let interval = probed.probe_interval();
    loop {
        tokio::select! {
            biased;
            word = link.next() => {
                let Some(word) = word else { return };
                wire.process.is_told(&word);
                wire.answered(&word);
                if answers.send(Answer::Word(word)).is_err() {
                    return;
                }
            }
            () = over.notified() => return,
            _none = within(&**engine.env(), interval, std::future::pending::<()>()), if wire.process.server.is_none() => {
                if wire.answers_probes() {
                    probed.transport();
                }
            }
        }
    }
}

/// Tells the history when a server lets go of a link.
struct Closes(Arc<Wire>);

impl Drop for Closes {
    fn drop(&mut self) {
        let wire = &self.0;
        wire.shared.trace(|truth| format!("{} closes its link to {}", truth.label(wire.server), wire.process.name()));
    }
}

impl Wire {
    /// Tells the history what passes, but for pings and pongs.
    fn told(&self, word: &str, lease: &LeaseShown) {
        let name = self.process.name();
        self.shared.trace(|truth| format!("{name} {word} of {} attempt {}", truth.name(lease.run_id), lease.attempt));
    }

    fn handed(&self, word: &FromWorker) {
        match word {
            FromWorker::Heartbeat { lease, .. } => self.told("is heard: a heartbeat", lease),
            FromWorker::Output { lease, sequence, .. } => self.told(&format!("is heard: item {sequence}"), lease),
            FromWorker::Ended { lease, .. } => self.told("is heard: the end", lease),
            _ => {}
        }
        if let FromWorker::Heartbeat { lease, sequence, .. } = word {
            let now = self.shared.now();
            if let Some(beaten) = self.process.state().beats.get_mut(&(lease.token, *sequence)) {
                beaten.handed_at = beaten.handed_at.min(now);
            }
        }
    }
}
