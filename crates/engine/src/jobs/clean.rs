//! Folders of jobs that are over for long enough. Never one that is live, unknown or not ours.

use super::Cleaning;
use super::shims::Shims;
use crate::engine::Core;
use crate::env::within;
use crate::replica::{Life, Phase};
use crate::{Engine, Error, Result};
use everbeat_model::{RunId, StoreTime};
use everbeat_store::{Class, Error as StoreError, Obstacle};
use std::sync::Arc;
use std::time::Duration;

/// One request cleans no more; the rest is for the next.
const MOST_CLEANED: usize = 10_000;

/// A loop of its own: what is archived may be large, and no other work should wait for that.
pub(super) async fn run(life: Arc<Life>) {
    let core = &life.core;
    loop {
        let pause = if core.jobs.recovered() { core.settings.clean_interval } else { FIRST_LOOK };
        core.env.sleep(core.env.jittered(pause)).await;
        if matches!(life.phase(), Phase::Fenced | Phase::Left) {
            return;
        }
        retention(&life).await;
    }
}

const FIRST_LOOK: Duration = Duration::from_secs(1);

/// What retention removes, with the workspaces kept in the archive for as long again.
async fn retention(life: &Arc<Life>) {
    let core = &life.core;
    let Some(shims) = core.jobs.shims.as_ref().filter(|_| core.jobs.recovered()) else { return };
    let keep = core.settings.keep_jobs();
    match clean(core, &**shims, keep, false).await {
        Ok(cleaned) => {
            let removed = cleaned.iter().filter(|cleaning| cleaning.outcome == "removed").count();
            if removed > 0 {
                tracing::info!(removed, "folders of old jobs were removed");
            }
        }
        Err(error) => tracing::warn!(%error, "old jobs could not be cleaned"),
    }
    if let Err(error) = shims.forget_archives(core.settings.jobs.keep).await {
        tracing::warn!(%error, "old archives could not be removed");
    }
}

async fn clean(
    core: &Core,
    shims: &dyn Shims,
    keep: Duration,
    dry_run: bool,
) -> std::result::Result<Vec<Cleaning>, StoreError> {
    let folders = shims.folders().await.map_err(|error| StoreError::unavailable(Obstacle::Io, error))?;
    let now = core.now();
    let mut cleaned = Vec::new();
    let late = || Err(StoreError::no_answer());
    for job in folders {
        if cleaned.len() >= MOST_CLEANED {
            break;
        }
        let asked = within(&*core.env, core.settings.call_limit(), core.store.run(job)).await;
        let asked = match asked.unwrap_or_else(late) {
            Err(error) if error.class() == Class::Bug => {
                cleaned.push(Cleaning::left(job, format!("its run cannot be read: {error}")));
                continue;
            }
            asked => asked?,
        };
        let Some(run) = asked else {
            cleaned.push(Cleaning::left(job, "the store does not know this job"));
            continue;
        };
        if !run.state.finished() {
            continue;
        }
        if run.finished_at.is_none_or(|finished: StoreTime| now.since(finished) < keep) {
            continue;
        }
        cleaned.push(match shims.remove(job, true, dry_run).await {
            Ok(removed) => Cleaning {
                job,
                outcome: if dry_run { "would-remove" } else { "removed" },
                detail: None,
                entries: removed.entries,
                bytes: removed.bytes,
                archived_to: removed.archived_to,
            },
            Err(error) => Cleaning::left(job, error.to_string()),
        });
    }
    Ok(cleaned)
}

impl Cleaning {
    fn left(job: RunId, why: impl Into<String>) -> Cleaning {
        Cleaning { job, outcome: "left-alone", detail: Some(why.into()), entries: 0, bytes: 0, archived_to: None }
    }
}

impl Engine {
    /// Removes the folders of this host's jobs that ended longer ago than this. A dry run only counts.
    pub async fn clean_jobs(&self, older_than: Option<Duration>, dry_run: bool) -> Result<Vec<Cleaning>> {
        let core = &self.core;
        let Some(shims) = &core.jobs.shims else { return Ok(Vec::new()) };
        if !core.jobs.recovered() {
            return Err(Error::Conflict {
                problem: "the jobs of this host are still being looked at".to_string(),
                hint: "try again when the server is ready".to_string(),
            });
        }
        let keep = older_than.unwrap_or_else(|| core.settings.keep_jobs());
        Ok(clean(core, &**shims, keep, dry_run).await?)
    }
}
