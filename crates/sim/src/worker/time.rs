//! The times that a worker keeps by itself: how long it lives unheard, and until when its work is vouched for.

use super::{MS, Mind, Worker};
use crate::process::Cause;
use std::sync::Arc;

impl Worker {
    /// Looks after its own time, whatever its link does.
    pub(super) async fn keep_time(self: Arc<Worker>) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            self.look_at_time().await;
            let due = {
                let mind = self.mind();
                let state = self.process.state();
                let ttl = mind.ttl.map(|ttl| state.pinged_at + ttl);
                let isolated = (state.strict > 0).then(|| stops_at(&mind, state.vouched_until));
                // What has been asked to stop is past that.
                let isolated = isolated.filter(|at| *at > self.shared.now());
                [ttl, isolated].into_iter().flatten().min()
            };
            let due = due.unwrap_or(self.shared.now() + 1000 * MS);
            tokio::select! {
                biased;
                () = changed => {}
                () = self.shared.executor.sleep_until(due) => {}
            }
        }
    }

    /// What time has run out.
    pub(super) async fn look_at_time(&self) {
        let now = self.shared.now();
        let (alone, stopped) = {
            let mut mind = self.mind();
            let state = self.process.state();
            let alone = mind.ttl.is_some_and(|ttl| now >= state.pinged_at + ttl);
            let isolated = now >= stops_at(&mind, state.vouched_until);
            drop(state);
            let strict = mind.attempts.values_mut().filter(|attempt| isolated && attempt.strict && !attempt.stop);
            (alone, strict.map(|attempt| attempt.stop = true).count() > 0)
        };
        if stopped {
            self.changed.notify_waiters();
        }
        if alone && self.pool.is_some() {
            self.die(Cause::NoPing).await;
        } else if alone {
            self.forget().await;
        }
    }

    /// A worker elsewhere that is lost cancels its work, and comes as another.
    pub(super) async fn forget(&self) {
        {
            let mut mind = self.mind();
            (mind.known, mind.ttl, mind.says) = (None, None, None);
            mind.ended.clear();
            mind.beats.clear();
            mind.items.clear();
            mind.attempts.values_mut().for_each(|attempt| (attempt.stop, attempt.fenced) = (true, true));
        }
        self.process.cut(self.shared.now());
        self.shared.truth().report.worker("forgot its server");
        self.changed.notify_waiters();
        // It takes no other work before.
        self.settles(|mind| mind.attempts.is_empty()).await;
    }
}

/// When work is asked to stop that must have stopped a little later.
fn stops_at(mind: &Mind, vouched_until: u64) -> u64 {
    mind.vouched_from + vouched_until.saturating_sub(mind.vouched_from) * 9 / 10
}
