//! Whoever waits for the end of a run in this process. One task looks for all of them: a thousand that
//! wait cost one statement per hint, not a thousand.

use crate::engine::{Core, lock};
use crate::env::within;
use everbeat_model::RunId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct Waiters {
    by_run: Mutex<BTreeMap<RunId, (Arc<Notify>, usize)>>,
    registered: Notify,
}

/// Without a hint, waiters are looked after this often.
const LOOK: Duration = Duration::from_secs(1);
/// Hints close together are answered by one look.
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) async fn run(core: Arc<Core>) {
    let mut wakes = core.store.wakes();
    loop {
        let waited: Vec<RunId> = lock(&core.waiters.by_run).keys().copied().collect();
        if waited.is_empty() {
            core.waiters.registered.notified().await;
            continue;
        }
        match within(&*core.env, core.settings.call_limit(), core.store.finished(waited)).await {
            Some(Ok(finished)) => finished.into_iter().for_each(|run| core.waiters.tell(run)),
            Some(Err(error)) => tracing::debug!(%error, "cannot look for those who wait"),
            None => tracing::debug!("cannot look for those who wait: no answer in time"),
        }
        core.env.sleep(PAUSE).await;
        within(&*core.env, LOOK.min(core.settings.poll_interval), wakes.wait()).await;
    }
}

impl Waiters {
    pub(crate) fn tell(&self, run: RunId) {
        if let Some((notify, _)) = lock(&self.by_run).get(&run) {
            notify.notify_waiters();
        }
    }

    pub(crate) fn register(&self, run: RunId) -> Waiting<'_> {
        let mut waiters = lock(&self.by_run);
        let (notify, count) = waiters.entry(run).or_default();
        *count += 1;
        let notify = notify.clone();
        drop(waiters);
        self.registered.notify_one();
        Waiting { waiters: self, run, notify }
    }
}

/// A place among the waiters, given up when dropped.
pub(crate) struct Waiting<'a> {
    waiters: &'a Waiters,
    run: RunId,
    pub(crate) notify: Arc<Notify>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiters = lock(&self.waiters.by_run);
        if let Some((_, count)) = waiters.get_mut(&self.run) {
            *count -= 1;
            if *count == 0 {
                waiters.remove(&self.run);
            }
        }
    }
}
