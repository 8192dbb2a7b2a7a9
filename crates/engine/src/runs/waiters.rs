//! Whoever waits in this process for the end of a run or for a value. One task looks for all of them: a
//! thousand that wait cost one statement per hint, and none where nothing happens.

use crate::engine::{Core, lock};
use crate::env::within;
use everbeat_model::{ExecutionId, RunId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, watch};

pub(crate) struct Waiters {
    places: Mutex<BTreeMap<Awaited, Place>>,
    registered: Notify,
    /// How far the log of events goes. Hints may be lost; a log that grew says that there is something to
    /// look at.
    news: watch::Sender<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Awaited {
    Run(RunId),
    /// What a run streams. Nobody looks for it here: those who wait look for themselves, and are told what this replica stores.
    Output(RunId),
    Execution(ExecutionId),
}

#[derive(Default)]
struct Place {
    notify: Arc<Notify>,
    count: usize,
    /// Of an execution: the stamp that those who wait have seen, the lowest of them.
    seen: Option<u64>,
}

/// Hints close together are answered by one look.
const PAUSE: Duration = Duration::from_millis(20);
/// After a failed look, so that a store that refuses at once is not asked without end.
const AGAIN: Duration = Duration::from_millis(100);

pub(crate) async fn run(core: Arc<Core>) {
    let mut wakes = core.store.wakes();
    let mut news = core.waiters.news.subscribe();
    loop {
        if lock(&core.waiters.places).is_empty() {
            core.waiters.registered.notified().await;
            continue;
        }
        tokio::select! {
            biased;
            () = wakes.wait() => {}
            changed = news.changed() => if changed.is_err() { return },
        }
        // A hint is heard once: a look that failed is repeated until it succeeds or nobody waits.
        while !look(&core).await && !lock(&core.waiters.places).is_empty() {
            core.env.sleep(AGAIN).await;
        }
        core.env.sleep(PAUSE).await;
    }
}

/// Tells whoever waits for what has changed. Answers whether the store could be read.
async fn look(core: &Core) -> bool {
    let awaited: Vec<Awaited> = lock(&core.waiters.places).keys().copied().collect();
    let (mut runs, mut executions) = (Vec::new(), Vec::new());
    for awaited in awaited {
        match awaited {
            Awaited::Run(id) => runs.push(id),
            Awaited::Output(_) => {}
            Awaited::Execution(id) => executions.push(id),
        }
    }
    let looked = async {
        if !runs.is_empty() {
            let finished = core.store.finished(runs).await?;
            finished.into_iter().for_each(|run| core.waiters.tell(Awaited::Run(run)));
        }
        if !executions.is_empty() {
            let stamps = core.store.stamps(executions).await?;
            stamps.into_iter().for_each(|(id, stamp)| core.waiters.stamped(id, stamp));
        }
        Ok::<(), everbeat_store::Error>(())
    };
    match within(&*core.env, core.settings.call_limit(), looked).await {
        Some(Ok(())) => return true,
        Some(Err(error)) => tracing::debug!(%error, "cannot look for those who wait"),
        None => tracing::debug!("cannot look for those who wait: no answer in time"),
    }
    false
}

impl Default for Waiters {
    fn default() -> Waiters {
        Waiters { places: Mutex::default(), registered: Notify::new(), news: watch::Sender::new(0) }
    }
}

impl Waiters {
    pub(crate) fn tell(&self, awaited: Awaited) {
        if let Some(place) = lock(&self.places).get(&awaited) {
            place.notify.notify_waiters();
        }
    }

    /// The log of events goes as far as this.
    pub(crate) fn news(&self, last: u64) {
        self.news.send_if_modified(|known| std::mem::replace(known, last) != last);
    }

    fn stamped(&self, execution: ExecutionId, stamp: u64) {
        if let Some(place) = lock(&self.places).get_mut(&Awaited::Execution(execution))
            && place.seen.is_some_and(|seen| seen != stamp)
        {
            place.seen = Some(stamp);
            place.notify.notify_waiters();
        }
    }

    pub(crate) fn register(&self, awaited: Awaited) -> Waiting<'_> {
        let mut places = lock(&self.places);
        let place = places.entry(awaited).or_default();
        place.count += 1;
        let notify = place.notify.clone();
        drop(places);
        self.registered.notify_one();
        Waiting { waiters: self, awaited, notify }
    }
}

/// A place among the waiters, given up when dropped.
pub(crate) struct Waiting<'a> {
    waiters: &'a Waiters,
    awaited: Awaited,
    pub(crate) notify: Arc<Notify>,
}

impl Waiting<'_> {
    /// Notes the stamp that this waiter has seen: any other is news to it.
    pub(crate) fn saw(&self, stamp: u64) {
        if let Some(place) = lock(&self.waiters.places).get_mut(&self.awaited) {
            place.seen = Some(place.seen.map_or(stamp, |seen| seen.min(stamp)));
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut places = lock(&self.waiters.places);
        if let Some(place) = places.get_mut(&self.awaited) {
            place.count -= 1;
            if place.count == 0 {
                places.remove(&self.awaited);
            }
        }
    }
}
