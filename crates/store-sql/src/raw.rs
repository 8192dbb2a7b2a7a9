//! Raw batched rates of a store: the same statements that the engine uses, back to back on one
//! connection, with no engine in between. They are the limit that the engine is measured against.

use everbeat_model::replica::NewReplica;
use everbeat_model::run::{Kind, Spec};
use everbeat_model::{Ending, Json, NewRun, Next, Policy, ReplicaId, RunId, RunState, Settlement, StoreTime, id};
use everbeat_store::{Claim, Enqueue, Error, Result, Store};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

#[derive(Clone, Copy, Debug)]
pub struct RawRates {
    pub insert_per_s: f64,
    pub claim_per_s: f64,
    pub settle_per_s: f64,
}

impl RawRates {
    /// Claimed and settled, one after the other.
    pub fn claim_and_settle_per_s(&self) -> f64 {
        1.0 / (1.0 / self.claim_per_s + 1.0 / self.settle_per_s)
    }
}

const TASK: &str = "everbeat-raw-rates";

/// Inserts, claims and settles `runs` runs in batches, in lane and under a replica of their own.
pub async fn raw_rates(store: &dyn Store, runs: usize, batch: usize) -> Result<RawRates> {
    let replica = ReplicaId(Uuid::new_v4());
    let joined = store
        .join(NewReplica {
            id: replica,
            host: TASK.to_string(),
            machine: None,
            version: env!("CARGO_PKG_VERSION").to_string(),
            heartbeat_interval: Duration::from_secs(10),
            heartbeat_timeout: Duration::from_secs(60),
            wall: StoreTime(0),
        })
        .await?;
    let mut drafts = drafts(joined.now, runs);
    let batch = batch.max(1);
    let started = now();
    while !drafts.is_empty() {
        let rest = drafts.split_off(batch.min(drafts.len()));
        let request = Enqueue { runs: std::mem::replace(&mut drafts, rest), idempotency: None };
        store.enqueue(vec![request]).await?.into_iter().collect::<Result<Vec<_>>>()?;
    }
    let insert = started.elapsed();
    let (mut claim, mut settle) = (Duration::ZERO, Duration::ZERO);
    let mut ended = 0;
    while ended < runs {
        let started = now();
        let tasks = BTreeMap::from([(TASK.to_string(), batch)]);
        let claimed = store.claim(Claim { replica, limit: batch, tasks, queues: BTreeMap::new(), among: None }).await?;
        claim += started.elapsed();
        if claimed.is_empty() {
            return Err(Error::Bug(format!("only {ended} of {runs} runs could be claimed")));
        }
        let settlements: Vec<Settlement> = claimed
            .into_iter()
            .map(|claimed| Settlement {
                shown: claimed.lease.shown(),
                spec: claimed.spec,
                ending: Ending::succeeded(Json::null()),
                next: Next::Finish(RunState::Succeeded),
                standing: claimed.standing,
                last_heartbeat_at: None,
                worker_id: None,
                verdict: None,
            })
            .collect();
        ended += settlements.len();
        let started = now();
        store.settle(settlements).await?;
        settle += started.elapsed();
    }
    store.leave(replica).await?;
    let per_s = |span: Duration| runs as f64 / span.as_secs_f64();
    Ok(RawRates { insert_per_s: per_s(insert), claim_per_s: per_s(claim), settle_per_s: per_s(settle) })
}

fn drafts(at: StoreTime, runs: usize) -> Vec<NewRun> {
    let spec = Arc::new(Spec {
        kind: Kind::Task,
        task: TASK.to_string(),
        queue: TASK.to_string(),
        priority: 0,
        input: Json::null(),
        policy: Arc::new(Policy::BASELINE),
        unique_key: None,
        args: None,
        parent: None,
        host: None,
        session: None,
        occurrence: None,
    });
    let ids = id::Sequence::default();
    let next = || RunId(ids.next(at.millis(), Uuid::new_v4().as_u128()));
    (0..runs).map(|_| NewRun { id: next(), spec: spec.clone(), run_at: None }).collect()
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}
