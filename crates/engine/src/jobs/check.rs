//! The age of sentinels. It describes them, and raises an alarm; it is not a verdict.

use super::HeartbeatStatus;
use crate::attempts::Post;
use crate::engine::lock;
use crate::replica::Phase;
use everbeat_model::event::EventKind;
use everbeat_model::{Json, RunId};
use everbeat_store::News;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub(super) async fn run(post: Post) {
    let (life, env) = (post.life.clone(), post.life.core.env.clone());
    loop {
        env.sleep(env.jittered(life.core.settings.jobs.check_interval)).await;
        if matches!(life.phase(), Phase::Fenced | Phase::Left) {
            return;
        }
        check(&post).await;
    }
}

async fn check(post: &Post) {
    let (life, core) = (&post.life, &post.life.core);
    let Some(shims) = &core.jobs.shims else { return };
    let attempts: BTreeMap<RunId, u32> =
        post.works().iter().map(|work| (work.claimed.lease.run_id, work.claimed.lease.attempt)).collect();
    let begun = core.env.boot();
    let readings = shims.sentinels(attempts.keys().copied().collect()).await;
    let mut silent = BTreeMap::new();
    let mut news = Vec::new();
    let mut ages = BTreeMap::new();
    for ((job, attempt), reading) in attempts.iter().zip(readings) {
        let status = core.settings.jobs.status(&reading, *attempt);
        if !matches!(status, HeartbeatStatus::Stale | HeartbeatStatus::Dead) {
            continue;
        }
        silent.insert(*job, status);
        ages.insert(*job, (reading.age.unwrap_or_default(), reading.last_heartbeat));
    }
    let before = std::mem::replace(&mut *lock(&core.jobs.silent), silent.clone());
    for (job, status) in silent.iter().filter(|(job, status)| before.get(job) != Some(status)) {
        let (age, last_heartbeat) = &ages[job];
        let (kind, counted) = match status {
            HeartbeatStatus::Dead => (EventKind::JobDead, &core.jobs.counts.dead_detected),
            _ => (EventKind::JobStale, &core.jobs.counts.stale_detected),
        };
        counted.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(%job, kind = kind.as_str(), age_s = age.as_secs(), "a job's sentinel is old");
        let detail = json!({ "age_seconds": age.as_secs(), "last_heartbeat": last_heartbeat });
        news.push(News {
            kind,
            subject: job.to_string(),
            attempt: attempts.get(job).copied(),
            detail: Some(Json::of(&detail)),
        });
    }
    let took = core.env.boot().since(begun);
    core.jobs.counts.check_us.store(micros(took), Ordering::Relaxed);
    let count = |wanted| silent.values().filter(|status| **status == wanted).count() as f64;
    metrics::gauge!("everbeat_jobs_stale").set(count(HeartbeatStatus::Stale));
    metrics::gauge!("everbeat_jobs_dead").set(count(HeartbeatStatus::Dead));
    metrics::gauge!("everbeat_jobs_running").set(attempts.len() as f64);
    if !news.is_empty()
        && let Err(error) = life.call(core.store.announce(news)).await
    {
        tracing::warn!(%error, "that jobs are stale could not be announced");
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
