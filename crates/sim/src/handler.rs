//! The work itself: a script that sleeps, beats, checkpoints, fails or panics, and whose result says
//! from outside who produced it.

use crate::executor::Owner;
use crate::output_checker::Word;
use crate::session_checker;
use crate::shared::Shared;
use crate::truth::Performance;
use async_trait::async_trait;
use everbeat_engine::{Beat, Ctx, Failure, Handler, Stop};
use everbeat_model::{Json, Lease, RunId, Token};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Script {
    pub(crate) steps_ms: Vec<u64>,
    /// Beats by hand after every step.
    pub(crate) beats: bool,
    /// Promises silence with every beat.
    pub(crate) promises_ms: Option<u64>,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) progresses: bool,
    pub(crate) stall_ms: Option<u64>,
    pub(crate) checkpoints: bool,
    /// Streams so many items after every step.
    #[serde(default)]
    pub(crate) streams: u64,
    /// Attempts up to this one fail.
    pub(crate) fails_until: u32,
    pub(crate) panics_until: u32,
    pub(crate) fails_for_good: bool,
    /// Sleeps without listening: it has to be killed.
    pub(crate) stubborn: bool,
    pub(crate) stops: bool,
}

/// What a stored result must say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Product {
    pub(crate) run: RunId,
    pub(crate) attempt: u32,
    pub(crate) owner: Owner,
    pub(crate) nonce: u64,
}

pub(crate) struct Work {
    pub(crate) shared: Arc<Shared>,
    pub(crate) owner: Owner,
}

#[async_trait]
impl Handler for Work {
    async fn perform(&self, ctx: Ctx, input: Json) -> Result<Json, Failure> {
        let script: Script = input.read().map_err(|error| Failure::permanent(error.to_string()))?;
        let performing = Performing::begin(&self.shared, self.owner, &ctx, script.stops);
        let (run, attempt) = (ctx.run_id(), ctx.attempt());
        let resumed: u64 = ctx.resume().unwrap_or(0);
        check_resumed(&self.shared, (run, attempt), None, resumed);
        let remaining = script.steps_ms.iter().enumerate().skip(resumed as usize);
        for (place, millis) in remaining {
            let span = Duration::from_millis(*millis);
            if script.stubborn {
                self.shared.sleep(millis * 1000).await;
            } else if script.timeout_ms.is_some() {
                // The engine's own sleep would beat for it.
                self.sleep_silently(&ctx, *millis).await?;
            } else {
                ctx.sleep(span).await?;
            }
            self.signs(&ctx, &script, place as u64)?;
            script.stream(&self.shared, self.owner, &ctx, performing.nonce).await?;
            if script.checkpoints {
                script.checkpoint(&self.shared, self.owner, &ctx, place as u64 + 1).await?;
            }
        }
        if attempt <= script.panics_until {
            // Not `panic!`: the hook would print thousands of them.
            std::panic::resume_unwind(Box::new("planned"));
        }
        if attempt <= script.fails_until {
            return Err(Failure { permanent: script.fails_for_good, ..Failure::new("planned") });
        }
        let product = Product { run, attempt, owner: self.owner, nonce: performing.nonce };
        Ok(Json::of(&product))
    }
}

impl Work {
    async fn sleep_silently(&self, ctx: &Ctx, millis: u64) -> Result<(), Stop> {
        let slept = self.shared.sleep(millis * 1000);
        tokio::pin!(slept);
        tokio::select! {
            biased;
            stop = ctx.stopped() => if stop != Stop::Draining { return Err(stop) },
            () = &mut slept => return Ok(()),
        }
        slept.await;
        Ok(())
    }

    fn signs(&self, ctx: &Ctx, script: &Script, done: u64) -> Result<(), Stop> {
        if !script.beats && !script.progresses {
            return ctx.check();
        }
        let promised = script.promises_ms.map(Duration::from_millis);
        let beat = Beat { done: script.progresses.then_some(done), next_within: promised, ..Beat::default() };
        ctx.heartbeat(beat)?;
        script.beaten(&self.shared, self.owner, ctx);
        Ok(())
    }
}

impl Script {
    /// The engine was given a sign of life: before its time is over nobody may call the attempt silent or stalled.
    pub(crate) fn beaten(&self, shared: &Shared, owner: Owner, ctx: &Ctx) {
        let (now, key) = (shared.now(), (owner, ctx.run_id(), ctx.attempt()));
        let mut truth = shared.truth();
        if let Some(timeout) = self.timeout_ms {
            truth.not_silent_before.insert(key, now + timeout.max(self.promises_ms.unwrap_or(0)) * 1000);
        }
        if let Some(stall) = self.stall_ms {
            truth.not_stalled_before.insert(key, now + stall * 1000);
        }
    }

    /// Streams a few items. The engine says whether it took them.
    async fn stream(&self, shared: &Shared, owner: Owner, ctx: &Ctx, nonce: u64) -> Result<(), Stop> {
        for _ in 0..self.streams {
            let nth = {
                let mut truth = shared.truth();
                let speech = truth.said.entry(nonce).or_default();
                speech.given += 1;
                speech.given - 1
            };
            // Somebody else may have decided how it ends before this came.
            let counts = matches!(ctx.check(), Ok(()) | Err(Stop::Draining));
            if let Some(timeout) = self.timeout_ms.filter(|_| counts) {
                // An item is a sign of its own, and promises nothing.
                let earliest = shared.now() + timeout * 1000;
                shared.truth().not_silent_before.insert((owner, ctx.run_id(), ctx.attempt()), earliest);
            }
            let answer = ctx.output(&Word { nonce, nth }).await;
            if answer.is_ok() {
                let mut truth = shared.truth();
                truth.report.items += 1;
                truth.said.entry(nonce).or_default().taken = nth + 1;
            }
            answer?;
        }
        Ok(())
    }

    /// Stores how far the work is. From then on no attempt may begin before that.
    pub(crate) async fn checkpoint(&self, shared: &Shared, owner: Owner, ctx: &Ctx, reached: u64) -> Result<(), Stop> {
        let epoch = shared.network().epoch;
        // Somebody else may have decided how it ends before this came.
        let counts = matches!(ctx.check(), Ok(()) | Err(Stop::Draining));
        if let Some(timeout) = self.timeout_ms.filter(|_| counts) {
            // A checkpoint is a sign of its own, and promises nothing.
            let earliest = shared.now() + timeout * 1000;
            shared.truth().not_silent_before.insert((owner, ctx.run_id(), ctx.attempt()), earliest);
        }
        ctx.checkpoint(&reached).await?;
        // What a failover in between may have taken back is not promised.
        if shared.network().epoch == epoch {
            let mut truth = shared.truth();
            let known = truth.checkpoints.entry(ctx.run_id()).or_default();
            *known = reached.max(*known);
        }
        Ok(())
    }
}

/// A checkpoint is acknowledged after its commit, so the next attempt must see it.
pub(crate) fn check_resumed(shared: &Shared, (run, attempt): (RunId, u32), token: Option<Token>, resumed: u64) {
    // One that begins after its lease has passed on, as a frozen replica may, knows only its own time. After a failover
    // another replica may hold the lease of an attempt with the same number, and a worker may begin long after its claim:
    // there the token tells whose lease it is.
    let held = |lease: &Lease| lease.attempt == attempt && token.is_none_or(|token| lease.token == token);
    let stands = shared.memory.inspect(|state| state.leases.get(&run).is_some_and(|row| held(&row.lease)));
    let mut truth = shared.truth();
    let known = truth.checkpoints.get(&run).copied().unwrap_or_default();
    if stands && resumed < known {
        let name = truth.name(run);
        truth.violate("G1", format!("{name} resumes at {resumed}, yet checkpoint {known} was acknowledged"));
    }
}

/// Stands in the truth for as long as the handler's future exists, however it ends.
pub(crate) struct Performing {
    shared: Arc<Shared>,
    pub(crate) nonce: u64,
}

impl Performing {
    /// In the process of the replica.
    pub(crate) fn begin(shared: &Arc<Shared>, owner: Owner, ctx: &Ctx, stops: bool) -> Performing {
        Performing::begin_in(shared, owner, owner, (ctx.run_id(), ctx.attempt()), stops)
    }

    /// In some process, for a replica.
    pub(crate) fn begin_in(
        shared: &Arc<Shared>,
        process: Owner,
        owner: Owner,
        (run, attempt): (RunId, u32),
        stops: bool,
    ) -> Performing {
        let shared = shared.clone();
        let spec = shared.memory.inspect(|state| state.runs.get(&run).map(|row| row.spec.clone()));
        let (queue, session) = match &spec {
            Some(spec) => (spec.queue.clone(), session_checker::strict(spec, process)),
            None => (String::new(), None),
        };
        let mut truth = shared.truth();
        truth.last_nonce += 1;
        let nonce = truth.last_nonce;
        let performance = Performance { owner, process, run, attempt, queue, stops, session };
        session_checker::begins(&shared, &mut truth, &performance);
        truth.performing.insert(nonce, performance);
        truth.performing_changed = true;
        truth.performers.insert(nonce, (owner, run, attempt));
        drop(truth);
        shared.trace(|truth| {
            let name = truth.name(run);
            let by = if process == owner { String::new() } else { format!(" in {}", truth.label(process)) };
            format!("{} begins {name} attempt {attempt}{by}", truth.label(owner))
        });
        Performing { shared, nonce }
    }
}

impl Drop for Performing {
    fn drop(&mut self) {
        let ended = self.shared.truth().performing.remove(&self.nonce);
        if let Some(performance) = ended {
            self.shared.trace(|truth| {
                let name = truth.name(performance.run);
                format!("{} is done with {name} attempt {}", truth.label(performance.owner), performance.attempt)
            });
        }
    }
}
