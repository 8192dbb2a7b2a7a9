//! The attempts that a worker performs, as their scripts say.

use super::{Attempt, MS, Worker};
use crate::executor::Owner;
use crate::handler::{Performing, Product, Script, check_resumed};
use crate::process::{Beaten, Cause, Process};
use everbeat_engine::pools::{Assignment, Ended, FromWorker, HeartbeatAnswer, LeaseShown};
use everbeat_model::{Json, Token};
use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

impl Worker {
    pub(super) fn begin(self: &Arc<Worker>, assignment: Assignment, server: Owner) {
        let Assignment { lease, input, checkpoint, stop_when_isolated: strict, .. } = assignment;
        let script: Script = match input.read() {
            Ok(script) => script,
            Err(error) => {
                let how = Ended::Failure { message: error.to_string(), permanent: true, detail: String::new() };
                return self.over(lease, how);
            }
        };
        let resumed = checkpoint.and_then(|checkpoint| checkpoint.read().ok()).unwrap_or(0);
        let attempt = Attempt { lease, stop: false, fenced: false, strict, answers: BTreeMap::new() };
        self.mind().attempts.insert(lease.token, attempt);
        let perform = self.clone().perform(lease, script, resumed, server, strict);
        self.shared.executor.spawn(self.process.owner, "attempt", perform.boxed());
    }

    async fn perform(self: Arc<Worker>, lease: LeaseShown, script: Script, resumed: u64, server: Owner, strict: bool) {
        self.look_at_time().await;
        let late = strict && self.shared.now() >= self.process.state().vouched_until;
        let how = if late {
            // It came so late that another may have it by now.
            Ended::Stopped
        } else {
            let begun =
                Performing::begin_in(&self.shared, self.process.owner, server, (lease.run_id, lease.attempt), strict);
            let _strict = strict.then(|| Strict::begin(&self.process));
            self.changed.notify_waiters();
            check_resumed(&self.shared, (lease.run_id, lease.attempt), Some(lease.token), resumed);
            let product = Product { run: lease.run_id, attempt: lease.attempt, owner: server, nonce: begun.nonce };
            self.follow(lease, &script, resumed, product).await
        };
        let fenced = self.mind().attempts.remove(&lease.token).is_none_or(|attempt| attempt.fenced);
        self.mind().beats.retain(|(token, _), _| *token != lease.token);
        if fenced {
            self.mind().let_items_go(lease.token, u64::MAX);
        } else {
            self.over(lease, how);
        }
        self.changed.notify_waiters();
    }

    fn over(&self, lease: LeaseShown, how: Ended) {
        let word = FromWorker::Ended { lease, how };
        self.mind().ended.insert(lease.token, word.clone());
        self.say(word);
    }

    /// What the script says.
    async fn follow(&self, lease: LeaseShown, script: &Script, resumed: u64, product: Product) -> Ended {
        let token = lease.token;
        for (place, millis) in script.steps_ms.iter().enumerate().skip(resumed as usize) {
            let slept = self.shared.sleep(millis * MS);
            let stopped = self.until(token, |attempt| attempt.stop.then_some(()));
            // Nobody but its own process ends what does not listen, unless nothing of it counts any more.
            let deaf = script.stubborn && self.pool.is_some();
            tokio::select! {
                biased;
                () = stopped, if !deaf => return Ended::Stopped,
                () = slept => {}
            }
            if !self.stream(lease, script, product.nonce).await {
                return Ended::Stopped;
            }
            if script.beats || script.progresses || script.checkpoints {
                let reached = place as u64 + 1;
                let sequence = self.beat(lease, script, place as u64, script.checkpoints.then_some(reached));
                if !script.checkpoints {
                    continue;
                }
                let answered = self.until(token, |attempt| {
                    let answer = attempt.answers.remove(&sequence);
                    answer.map(Some).or_else(|| attempt.stop.then_some(None))
                });
                match answered.await {
                    Some(HeartbeatAnswer::GoOn | HeartbeatAnswer::Draining) => {}
                    Some(HeartbeatAnswer::Refused(message)) => {
                        return Ended::Failure { message, permanent: true, detail: String::new() };
                    }
                    Some(HeartbeatAnswer::Cancelled | HeartbeatAnswer::Fenced) | None => return Ended::Stopped,
                }
            }
        }
        if lease.attempt <= script.panics_until {
            // It takes the whole process with it.
            self.die(Cause::Panicked).await;
        }
        if lease.attempt <= script.fails_until {
            let permanent = script.fails_for_good;
            return Ended::Failure { message: "planned".to_string(), permanent, detail: String::new() };
        }
        Ended::Result(Json::of(&product).as_str().to_string())
    }

    /// Says how far an attempt is. What brings a checkpoint is said again after a new link.
    fn beat(&self, lease: LeaseShown, script: &Script, done: u64, checkpoint: Option<u64>) -> u64 {
        let sequence = {
            let mut mind = self.mind();
            mind.sequence += 1;
            mind.sequence
        };
        let promised = script.promises_ms.filter(|_| script.beats || script.progresses);
        let word = FromWorker::Heartbeat {
            lease,
            done: script.progresses.then_some(done),
            total: None,
            note: None,
            checkpoint: checkpoint.map(|reached| reached.to_string()),
            next_within: promised.map(Duration::from_millis),
            sequence,
        };
        let beaten = Beaten {
            run: lease.run_id,
            attempt: lease.attempt,
            handed_at: u64::MAX / 2,
            epoch: self.shared.network().epoch,
            checkpoint,
            silence: script.timeout_ms.map(|timeout| timeout.max(promised.unwrap_or(0)) * MS),
            stall: script.stall_ms.filter(|_| script.progresses).map(|stall| stall * MS),
        };
        self.process.state().beats.insert((lease.token, sequence), beaten);
        if checkpoint.is_some() {
            self.mind().beats.insert((lease.token, sequence), word.clone());
        }
        self.say(word);
        sequence
    }

    async fn until<T>(&self, token: Token, mut look: impl FnMut(&mut Attempt) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let found = self.mind().attempts.get_mut(&token).and_then(&mut look);
            if let Some(found) = found {
                return found;
            }
            changed.await;
        }
    }
}

/// An attempt that the kernel's timer watches.
struct Strict(Arc<Process>);

impl Strict {
    fn begin(process: &Arc<Process>) -> Strict {
        process.state().strict += 1;
        process.arm();
        Strict(process.clone())
    }
}

impl Drop for Strict {
    fn drop(&mut self) {
        self.0.state().strict -= 1;
        self.0.arm();
    }
}
