//! What a person is shown of a job.

use super::shims::SentinelReading;
use crate::settings::JobSettings;
use crate::{Engine, Error, Result, RunView};
use everbeat_model::job::{Command, KnownExit};
use everbeat_model::run::Kind;
use everbeat_model::{RunId, RunState};
use everbeat_store::{Part, RunFilter};
use serde::{Deserialize, Serialize};

/// A job as this replica sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct JobView {
    pub run: RunView,
    pub command: Command,
    pub exit: KnownExit,
    /// Its last attempt outlived a replica.
    pub reattached: bool,
    /// Of a running one.
    pub heartbeat_status: Option<HeartbeatStatus>,
    /// Why its sentinel was not written, if it was not.
    pub heartbeat_error: Option<String>,
    /// On the host where it has begun.
    pub workspace_path: Option<String>,
    pub host: Option<String>,
}

/// The age of a running job's sentinel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeartbeatStatus {
    Fresh,
    Stale,
    Dead,
    Unknown,
}

impl HeartbeatStatus {
    pub const ALL: [HeartbeatStatus; 4] =
        [HeartbeatStatus::Fresh, HeartbeatStatus::Stale, HeartbeatStatus::Dead, HeartbeatStatus::Unknown];

    pub fn as_str(self) -> &'static str {
        match self {
            HeartbeatStatus::Fresh => "fresh",
            HeartbeatStatus::Stale => "stale",
            HeartbeatStatus::Dead => "dead",
            HeartbeatStatus::Unknown => "unknown",
        }
    }
}

impl JobSettings {
    /// What a sentinel says of an attempt. One that cannot be read, or is of another attempt, says nothing.
    pub(crate) fn status(&self, reading: &SentinelReading, attempt: u32) -> HeartbeatStatus {
        match reading.age.filter(|_| reading.problem.is_none() && reading.attempt == Some(attempt)) {
            None => HeartbeatStatus::Unknown,
            Some(age) if age < self.stale_after => HeartbeatStatus::Fresh,
            Some(age) if age <= self.dead_after => HeartbeatStatus::Stale,
            Some(_) => HeartbeatStatus::Dead,
        }
    }
}

impl Engine {
    pub async fn job(&self, id: RunId) -> Result<JobView> {
        let run = match self.run(id).await {
            Err(Error::NotFound { id, .. }) => return Err(Error::NotFound { what: "job", id }),
            run => run?,
        };
        if !run.run.spec.detached() {
            return Err(Error::NotFound { what: "job", id: id.to_string() });
        }
        let mut views = self.job_views(vec![run]).await;
        views.pop().ok_or_else(|| Error::NotFound { what: "job", id: id.to_string() })
    }

    /// Newest first; fewer than asked for where they are large.
    pub async fn jobs(&self, filter: RunFilter) -> Result<Part<JobView>> {
        let Part { items, cut_short } = self.runs(RunFilter { kind: Some(Kind::Job), ..filter }).await?;
        Ok(Part { items: self.job_views(items).await, cut_short })
    }

    pub(super) async fn job_views(&self, runs: Vec<RunView>) -> Vec<JobView> {
        let running = |view: &&RunView| view.run.state == RunState::Running && self.is_here(view);
        let ids: Vec<RunId> = runs.iter().filter(running).map(|view| view.run.id).collect();
        let readings = match &self.core.jobs.shims {
            Some(shims) if !ids.is_empty() => shims.sentinels(ids.clone()).await,
            _ => Vec::new(),
        };
        let mut read = ids.into_iter().zip(readings).peekable();
        let view = |run: RunView| {
            let reading = read.next_if(|(id, _)| *id == run.run.id).map(|(_, reading)| reading);
            self.job_view(run, reading)
        };
        runs.into_iter().map(view).collect()
    }

    fn job_view(&self, view: RunView, reading: Option<SentinelReading>) -> JobView {
        let run = &view.run;
        let told = run.spec.orders();
        let exit = KnownExit::of(run.result.as_ref(), run.error.as_ref());
        let settings = &self.core.settings.jobs;
        let seen = reading.as_ref().map_or(HeartbeatStatus::Unknown, |reading| settings.status(reading, run.attempt));
        let here = self.is_here(&view);
        JobView {
            command: told.read().unwrap_or_default(),
            exit,
            reattached: run.tenure > 0 || exit.reattached,
            heartbeat_status: (run.state == RunState::Running).then_some(seen),
            heartbeat_error: self
                .write_error(run.id)
                .or_else(|| reading.and_then(|reading| reading.write_error.or(reading.problem))),
            workspace_path: self.core.jobs.shims.as_ref().filter(|_| here).map(|shims| shims.workspace(run.id)),
            host: run.spec.host.clone(),
            run: view,
        }
    }

    /// Why the shim of a job that is watched here could not write its sentinel, by its own word: the file itself cannot
    /// say so while that lasts.
    pub(super) fn write_error(&self, job: RunId) -> Option<String> {
        self.core.life()?.table().of_run(job)?.vital().write_error.clone()
    }

    /// Whether it has begun on this host.
    pub(super) fn is_here(&self, view: &RunView) -> bool {
        view.run.spec.host.as_ref() == Some(&self.core.settings.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn an_age_is_fresh_stale_dead_or_unknown() {
        let (stale_after, dead_after) = (Duration::from_secs(120), Duration::from_secs(600));
        let settings = JobSettings { stale_after, dead_after, ..JobSettings::default() };
        let of = |age| SentinelReading { age, attempt: Some(3), ..SentinelReading::default() };
        let status = |seconds| settings.status(&of(Some(Duration::from_secs(seconds))), 3);
        assert_eq!((status(0), status(119)), (HeartbeatStatus::Fresh, HeartbeatStatus::Fresh));
        assert_eq!((status(120), status(600)), (HeartbeatStatus::Stale, HeartbeatStatus::Stale));
        assert_eq!(status(601), HeartbeatStatus::Dead);
        assert_eq!(settings.status(&of(None), 3), HeartbeatStatus::Unknown);
        assert_eq!(settings.status(&of(Some(Duration::ZERO)), 4), HeartbeatStatus::Unknown, "of another attempt");
    }
}
