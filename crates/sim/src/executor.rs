//! A single-threaded executor with simulated time. It picks a random ready task, so that every order
//! that awaits allow is possible; time passes only when nothing is ready.
//!
//! Every task belongs to an owner. An owner can be frozen (its tasks are not polled, its timers fire
//! late) and crashed (all its tasks are dropped at once, wherever they wait).

use crate::rng::{Rng, mix};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

/// Whose task it is: one boot of one replica, or the world around them.
pub(crate) type Owner = u32;

/// The owner of messages under way and of whatever else no replica takes down with it.
pub(crate) const WORLD: Owner = 0;

type Id = u64;

pub(crate) struct Executor {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    now: u64,
    next_id: Id,
    tasks: BTreeMap<Id, Slot>,
    /// In order of their ids, not of their waking: some primitives wake their waiters in an order that
    /// is random for each thread, and that must not enter the history.
    ready: Vec<Id>,
    frozen: BTreeSet<Owner>,
    /// Tasks that are not polled for a while, by owner and name.
    stalled: BTreeSet<(Owner, &'static str)>,
    /// Owners that have crashed: nothing of them begins any more.
    crashed: BTreeSet<Owner>,
    /// Ready tasks of frozen owners.
    parked: Vec<(Owner, Id)>,
    timers: BTreeMap<(u64, u64), Waker>,
    next_timer: u64,
    running: Option<Id>,
    steps: u64,
    history: u64,
}

struct Slot {
    owner: Owner,
    name: &'static str,
    /// Absent while it is being polled.
    future: Option<BoxFuture<'static, ()>>,
    waker: Waker,
    queued: bool,
    aborted: bool,
}

/// What one step did.
#[derive(Debug)]
pub(crate) enum Step {
    Polled,
    Panicked {
        owner: Owner,
        name: &'static str,
        message: String,
    },
    /// Nothing is ready at this instant.
    Idle,
}

impl Executor {
    pub(crate) fn new() -> Arc<Executor> {
        Arc::new(Executor { inner: Mutex::default() })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Microseconds since the world began.
    pub(crate) fn now(&self) -> u64 {
        self.inner().now
    }

    pub(crate) fn steps(&self) -> u64 {
        self.inner().steps
    }

    /// A fingerprint of everything that was scheduled so far.
    pub(crate) fn history(&self) -> u64 {
        self.inner().history
    }

    /// Adds what happened to the fingerprint.
    pub(crate) fn note(&self, what: u64) {
        let mut inner = self.inner();
        inner.history = mix(inner.history ^ mix(what));
    }

    pub(crate) fn spawn(self: &Arc<Executor>, owner: Owner, name: &'static str, task: BoxFuture<'static, ()>) -> Id {
        let mut inner = self.inner();
        let id = inner.next_id;
        inner.next_id += 1;
        if inner.crashed.contains(&owner) {
            drop(inner);
            drop(task);
            return id;
        }
        let waker = Waker::from(Arc::new(TaskWaker { executor: Arc::downgrade(self), id }));
        inner.tasks.insert(id, Slot { owner, name, future: Some(task), waker, queued: true, aborted: false });
        inner.ready.push(id);
        id
    }

    /// Ends a task at its next await. It is dropped when its turn comes, not inside the caller, who
    /// may hold locks that its destructors want.
    pub(crate) fn abort(&self, id: Id) {
        let mut inner = self.inner();
        if let Some(slot) = inner.tasks.get_mut(&id) {
            slot.aborted = true;
        }
        inner.enqueue(id);
    }

    pub(crate) fn sleep_until(self: &Arc<Executor>, at: u64) -> Sleep {
        Sleep { executor: self.clone(), at, timer: None }
    }

    pub(crate) fn freeze(&self, owner: Owner) {
        self.inner().frozen.insert(owner);
    }

    pub(crate) fn thaw(&self, owner: Owner) {
        let mut inner = self.inner();
        inner.frozen.remove(&owner);
        let (mine, others) = std::mem::take(&mut inner.parked).into_iter().partition(|(parked, _)| *parked == owner);
        inner.parked = others;
        let mine: Vec<(Owner, Id)> = mine;
        inner.ready.extend(mine.into_iter().map(|(_, id)| id));
        inner.ready.sort_unstable();
    }

    /// Keeps one of its tasks from being polled.
    pub(crate) fn stall(&self, owner: Owner, name: &'static str) {
        self.inner().stalled.insert((owner, name));
    }

    pub(crate) fn unstall(&self, owner: Owner, name: &'static str) {
        let stalled = self.inner().stalled.remove(&(owner, name));
        if stalled && !self.is_frozen(owner) {
            self.thaw(owner);
        }
    }

    pub(crate) fn is_frozen(&self, owner: Owner) -> bool {
        self.inner().frozen.contains(&owner)
    }

    /// Drops all tasks of an owner.
    pub(crate) fn crash(&self, owner: Owner) {
        let mut inner = self.inner();
        let doomed: Vec<Id> = inner.tasks.iter().filter(|(_, slot)| slot.owner == owner).map(|(id, _)| *id).collect();
        let slots: Vec<Slot> = doomed.iter().filter_map(|id| inner.tasks.remove(id)).collect();
        inner.frozen.remove(&owner);
        inner.crashed.insert(owner);
        drop(inner);
        // Outside the lock: destructors wake and abort others.
        drop(slots);
    }

    /// Ends everything, so that no cycle of handles outlives the simulation.
    pub(crate) fn clear(&self) {
        let slots = std::mem::take(&mut self.inner().tasks);
        drop(slots);
        let timers = std::mem::take(&mut self.inner().timers);
        drop(timers);
    }

    /// Polls one ready task, chosen by chance.
    pub(crate) fn step(&self, rng: &mut Rng) -> Step {
        let Some((id, owner, name, future, waker)) = self.take_ready(rng) else { return Step::Idle };
        let Some(mut future) = future else { return Step::Polled };
        let mut context = Context::from_waker(&waker);
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| future.poll_unpin(&mut context)));
        let mut inner = self.inner();
        inner.running = None;
        let pending = matches!(polled, Ok(Poll::Pending));
        let mut finished = None;
        if pending {
            if let Some(slot) = inner.tasks.get_mut(&id) {
                slot.future = Some(future);
            }
        } else {
            finished = Some((inner.tasks.remove(&id), future));
        }
        drop(inner);
        drop(finished);
        match polled {
            Ok(_) => Step::Polled,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
                Step::Panicked { owner, name, message: text.unwrap_or_default() }
            }
        }
    }

    /// The next task to poll; without its future if it was aborted, and is thereby gone.
    #[expect(clippy::type_complexity, reason = "one caller, which takes it apart at once")]
    fn take_ready(&self, rng: &mut Rng) -> Option<(Id, Owner, &'static str, Option<BoxFuture<'static, ()>>, Waker)> {
        let mut guard = self.inner();
        let inner = &mut *guard;
        loop {
            if inner.ready.is_empty() {
                return None;
            }
            let place = rng.below(inner.ready.len() as u64) as usize;
            let id = inner.ready.remove(place);
            let Some(slot) = inner.tasks.get_mut(&id) else { continue };
            if inner.frozen.contains(&slot.owner) || inner.stalled.contains(&(slot.owner, slot.name)) {
                inner.parked.push((slot.owner, id));
                continue;
            }
            slot.queued = false;
            inner.steps += 1;
            inner.history = mix(inner.history ^ id ^ inner.now << 20);
            let (owner, name, waker) = (slot.owner, slot.name, slot.waker.clone());
            if slot.aborted {
                let slot = inner.tasks.remove(&id);
                drop(guard);
                drop(slot);
                return Some((id, owner, name, None, waker));
            }
            inner.running = Some(id);
            return Some((id, owner, name, slot.future.take(), waker));
        }
    }

    /// When the next timer is due.
    pub(crate) fn next_timer(&self) -> Option<u64> {
        self.inner().timers.first_key_value().map(|((at, _), _)| *at)
    }

    /// Lets time pass until `at`, and wakes what is due by then.
    pub(crate) fn advance(&self, at: u64) {
        let mut inner = self.inner();
        inner.now = inner.now.max(at);
        let later = inner.timers.split_off(&(at + 1, 0));
        let due = std::mem::replace(&mut inner.timers, later);
        drop(inner);
        due.into_values().for_each(Waker::wake);
    }
}

impl Inner {
    fn enqueue(&mut self, id: Id) {
        if let Some(slot) = self.tasks.get_mut(&id)
            && !std::mem::replace(&mut slot.queued, true)
        {
            let place = self.ready.binary_search(&id).unwrap_or_else(|place| place);
            self.ready.insert(place, id);
        }
    }
}

struct TaskWaker {
    executor: Weak<Executor>,
    id: Id,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if let Some(executor) = self.executor.upgrade() {
            executor.inner().enqueue(self.id);
        }
    }
}

/// Resolves when simulated time has reached `at`.
pub(crate) struct Sleep {
    executor: Arc<Executor>,
    at: u64,
    timer: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let executor = self.executor.clone();
        let mut inner = executor.inner();
        if inner.now >= self.at {
            return Poll::Ready(());
        }
        let timer = *self.timer.get_or_insert_with(|| {
            inner.next_timer += 1;
            inner.next_timer
        });
        inner.timers.insert((self.at, timer), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            self.executor.inner().timers.remove(&(self.at, timer));
        }
    }
}
