use crate::view::RunView;
use crate::{Engine, Liveness, Result};
use everbeat_model::replica::ReplicaState;
use everbeat_model::time::format_duration;
use everbeat_model::{Attempt, RunId, RunState, Verdict};
use everbeat_store::VerdictFilter;

/// Why a run is in the state it is in, for people and for programs.
#[derive(Clone, Debug)]
pub struct Explanation {
    pub run: RunView,
    /// One sentence.
    pub summary: String,
    /// What happened before, oldest first.
    pub history: Vec<String>,
    /// What could be done, if anything.
    pub remedy: Option<String>,
    pub attempts: Vec<Attempt>,
    pub verdicts: Vec<Verdict>,
}

const MOST_VERDICTS: usize = 100;

impl Engine {
    pub async fn explain(&self, id: RunId) -> Result<Explanation> {
        let run = self.run(id).await?;
        let attempts = self.core.store.attempts(id).await?;
        let filter = VerdictFilter { run_id: Some(id), limit: MOST_VERDICTS, ..VerdictFilter::default() };
        let mut verdicts = self.core.store.verdicts(filter).await?;
        verdicts.reverse();
        let (summary, remedy) = match run.run.state {
            RunState::Ready => self.why_ready(&run).await?,
            RunState::Scheduled => why_scheduled(&run),
            RunState::Running => why_running(&run),
            RunState::Succeeded | RunState::Failed | RunState::Cancelled => why_finished(&run),
        };
        let history =
            attempts.iter().filter(|attempt| attempt.outcome.is_some()).map(|attempt| history(attempt, &verdicts));
        Ok(Explanation { summary, remedy, history: history.collect(), attempts, verdicts, run })
    }

    async fn why_ready(&self, run: &RunView) -> Result<(String, Option<String>)> {
        let spec = &run.run.spec;
        let queues = self.core.store.queues().await?;
        let queue = queues.iter().find(|queue| queue.name == spec.queue);
        if queue.is_some_and(|queue| queue.paused) {
            let remedy = format!("everbeat queue resume {}", spec.queue);
            return Ok((format!("ready, but queue {:?} is paused", spec.queue), Some(remedy)));
        }
        if !self.core.store.tasks().await?.contains(&spec.task) {
            let remedy = "start a worker that offers it".to_string();
            return Ok((format!("ready, but nobody has ever offered task {:?}", spec.task), Some(remedy)));
        }
        let replicas = self.core.store.replicas().await?;
        let active = replicas.iter().filter(|replica| replica.state == ReplicaState::Active).count();
        if active == 0 {
            return Ok((
                "ready, but no replica is active".to_string(),
                Some("start a replica: everbeat serve".to_string()),
            ));
        }
        if let Some(host) = &spec.host
            && !replicas.iter().any(|replica| replica.state == ReplicaState::Active && replica.host == *host)
        {
            let summary =
                format!("ready, but it belongs to host {host}, where its workspace is, and no replica is there");
            let window = format_duration(self.core.settings.jobs.reattach_window);
            let remedy = format!("start a replica there; after {window} without one it may begin elsewhere");
            return Ok((summary, Some(remedy)));
        }
        let ahead = queue.map_or(0, |queue| queue.ready.saturating_sub(1));
        let running = queue.map_or(0, |queue| queue.running);
        let summary = format!(
            "ready: waits for a free slot; {ahead} others are ready and {running} run in queue {:?}, {active} replicas are active",
            spec.queue
        );
        Ok((summary, (ahead > 0).then(|| "add replicas, or raise replica.slots".to_string())))
    }
}

fn why_scheduled(run: &RunView) -> (String, Option<String>) {
    let at = run.run.run_at.map_or_else(|| "later".to_string(), |at| at.to_string());
    let why = if run.run.attempt == 0 { "as asked" } else { "after a pause that its backoff asks for" };
    (format!("scheduled for {at}, {why}"), None)
}

fn why_running(run: &RunView) -> (String, Option<String>) {
    let stored = &run.run;
    let replica = stored.replica_id.map_or_else(|| "an unknown replica".to_string(), |id| format!("replica {id}"));
    let beat = run.last_heartbeat_at.map_or_else(|| "never".to_string(), |at| at.to_string());
    let life = match run.liveness {
        Some(Liveness::Alive) => "alive",
        Some(Liveness::Suspect) => "suspect: silent, not yet judged",
        Some(Liveness::Stalled) => "alive, but without progress for its stall timeout",
        Some(Liveness::Unknown) | None => "its life is not known here yet",
    };
    let cancel = if stored.cancel_requested_at.is_some() { "; a cancel was asked for" } else { "" };
    (format!("attempt {} runs on {replica}: {life}, last heartbeat {beat}{cancel}", stored.attempt), None)
}

fn why_finished(run: &RunView) -> (String, Option<String>) {
    let stored = &run.run;
    let at = stored.finished_at.map_or_else(String::new, |at| format!(" at {at}"));
    let error = stored.error.as_ref().map_or_else(String::new, |error| format!(": {}", message(&error.value())));
    let after = if stored.attempt == 0 {
        "before its first attempt".to_string()
    } else {
        format!("on attempt {}", stored.attempt)
    };
    let summary = format!("{}{at}, {after}{error}", stored.state.as_str());
    (summary, (stored.state != RunState::Succeeded).then(|| format!("everbeat retry {}", stored.id)))
}

fn history(attempt: &Attempt, verdicts: &[Verdict]) -> String {
    let outcome = attempt.outcome.map_or("running", everbeat_model::Outcome::as_str);
    let error = attempt.error.as_ref().map_or_else(String::new, |error| format!(": {}", message(&error.value())));
    let verdict =
        verdicts.iter().find(|verdict| Some(verdict.id) == attempt.verdict_id).map_or_else(String::new, |verdict| {
            format!(
                "; judged by replica {} at {} ({}), {}",
                verdict.judged_by, verdict.at, verdict.reason, verdict.then
            )
        });
    format!("attempt {} on replica {} {outcome}{error}{verdict}", attempt.attempt, attempt.replica_id)
}

fn message(error: &serde_json::Value) -> String {
    error.get("message").and_then(|message| message.as_str()).map_or_else(|| error.to_string(), ToString::to_string)
}
