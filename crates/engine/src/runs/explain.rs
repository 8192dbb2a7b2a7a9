//! Why a run is where it is, in words.

use crate::attempts::Performer;
use crate::runs::RunView;
use crate::{Engine, Liveness, Result};
use everbeat_model::time::format_duration;
use everbeat_model::{Attempt, Json, Reason, RunId, RunState, Verdict};
use everbeat_store::VerdictFilter;
use std::time::Duration;

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
            RunState::Scheduled => why_scheduled(&run, attempts.last()),
            RunState::Running => match self.why_held(&run) {
                Some(held) => held,
                None if self.is_starting(&run) => why_starting(&run),
                None => self.why_running(&run).await?,
            },
            RunState::Succeeded | RunState::Failed | RunState::Cancelled => why_finished(&run),
        };
        let history =
            attempts.iter().filter(|attempt| attempt.outcome.is_some()).map(|attempt| history(attempt, &verdicts));
        Ok(Explanation { summary, remedy, history: history.collect(), attempts, verdicts, run })
    }

    /// Of an attempt that has ended here, if the store could not take its ending yet.
    fn why_held(&self, run: &RunView) -> Option<(String, Option<String>)> {
        let life = self.core.life().filter(|life| run.run.replica_id == Some(life.id))?;
        let held = life.table().held_of(run.run.id).cloned()?;
        let remedy = held.hold.error.remedy().map(ToString::to_string);
        Some((held.describe(run.run.attempt, self.core.env.boot()), remedy))
    }

    /// Whether the run is still a command that this replica is about to begin.
    pub(crate) fn is_starting(&self, run: &RunView) -> bool {
        self.begins(&run.run)
    }
}

fn why_starting(run: &RunView) -> (String, Option<String>) {
    let stored = &run.run;
    let replica = stored.replica_id.map_or_else(|| "an unknown replica".to_string(), |id| format!("replica {id}"));
    let cancel = if stored.cancel_requested_at.is_some() { "; a cancel was asked for" } else { "" };
    (format!("attempt {} is starting on {replica}: its command has not begun yet{cancel}", stored.attempt), None)
}

fn why_scheduled(run: &RunView, last: Option<&Attempt>) -> (String, Option<String>) {
    let at = run.run.run_at.map_or_else(|| "later".to_string(), |at| at.to_string());
    let said = last.and_then(|last| last.error.as_ref());
    if let Some(short) = said.filter(|said| Reason::of(said) == Some(Reason::Shortage)).map(Json::value) {
        let summary =
            format!("scheduled for {at}, since it could not begin yet, which counts for nothing: {}", message(&short));
        return (summary, short["hint"].as_str().map(ToString::to_string));
    }
    let why = if run.run.attempt == 0 { "as asked" } else { "after a pause that its backoff asks for" };
    (format!("scheduled for {at}, {why}"), None)
}

impl Engine {
    async fn why_running(&self, run: &RunView) -> Result<(String, Option<String>)> {
        let stored = &run.run;
        let replica = stored.replica_id.map_or_else(|| "an unknown replica".to_string(), |id| format!("replica {id}"));
        let beat = match run.last_heartbeat_at {
            Some(at) => format!("last heartbeat {} ago ({at})", rough(self.core.now().since(at))),
            None => "no heartbeat yet".to_string(),
        };
        let progress = stored.progress.as_ref().map(|progress| progress_of(&progress.value())).unwrap_or_default();
        let cancel = if stored.cancel_requested_at.is_some() { "; a cancel was asked for" } else { "" };
        let (life, remedy) = match run.liveness {
            Some(Liveness::Alive) => ("alive".to_string(), None),
            Some(Liveness::Suspect) => self.why_suspect(run).await?,
            Some(Liveness::Stalled) => {
                let remedy = format!("everbeat logs {0}, or everbeat cancel {0}", stored.id);
                ("alive, but without progress for its stall timeout".to_string(), Some(remedy))
            }
            Some(Liveness::Unknown) | None => ("its life is not known here yet".to_string(), None),
        };
        let attempt = stored.attempt;
        Ok((format!("attempt {attempt} runs on {replica}: {life}, {beat}{progress}{cancel}"), remedy))
    }

    /// When a silent one will be judged, and what a person can do until then.
    async fn why_suspect(&self, run: &RunView) -> Result<(String, Option<String>)> {
        let stored = &run.run;
        let here = stored.replica_id.is_some() && stored.replica_id == self.replica_id();
        let patience = self.performer_of(&stored.spec).and_then(Performer::patience);
        let (until, remedy) = if let Some(patience) = patience.filter(|_| here) {
            let until = format!("after {} of silence", format_duration(patience));
            (until, format!("wait; or look at its processes, or everbeat cancel {}", stored.id))
        } else if here {
            let until = run.heartbeat_deadline.map_or_else(|| "never".to_string(), |at| format!("at {at}"));
            (until, format!("wait for its heartbeat, or everbeat cancel {}", stored.id))
        } else {
            let replicas = self.core.store.replicas().await?;
            let owner = replicas.iter().find(|replica| Some(replica.id) == stored.replica_id);
            let until = owner.map(|owner| owner.last_heartbeat_at.plus(owner.heartbeat_timeout));
            let until = until.map_or_else(|| "with the next sweep".to_string(), |at| format!("at about {at}"));
            (until, "wait; if its server hangs, continue or restart it".to_string())
        };
        Ok((format!("suspect: silent, and judged {until} unless it is heard of"), Some(remedy)))
    }
}

/// `, progress 3/10 chapter 3`
fn progress_of(progress: &serde_json::Value) -> String {
    let number = |name: &str| progress.get(name).filter(|value| value.is_number()).map(ToString::to_string);
    let count = match (number("done"), number("total")) {
        (Some(done), Some(total)) => format!(" {done}/{total}"),
        (Some(done), None) => format!(" {done}"),
        _ => String::new(),
    };
    let note = progress.get("note").and_then(|note| note.as_str()).map(|note| format!(" {note}")).unwrap_or_default();
    if count.is_empty() && note.is_empty() { String::new() } else { format!(", progress{count}{note}") }
}

/// A span as people say it.
fn rough(span: Duration) -> String {
    let whole =
        if span < Duration::from_secs(10) { span.as_millis() / 100 * 100 } else { span.as_millis() / 1000 * 1000 };
    format_duration(Duration::from_millis(u64::try_from(whole).unwrap_or(u64::MAX)))
}

fn why_finished(run: &RunView) -> (String, Option<String>) {
    let stored = &run.run;
    let at = stored.finished_at.map_or_else(String::new, |at| format!(" at {at}"));
    let error = stored.error.as_ref().map_or_else(String::new, |error| format!(": {}", message(&error.value())));
    let after = match stored.attempt {
        0 => "before its first attempt".to_string(),
        attempt => format!("on attempt {attempt}, {} of {} tries used", stored.tries, stored.spec.policy.max_attempts),
    };
    let summary = format!("{}{at}, {after}{error}", stored.state.as_str());
    // What a person cancelled is as they wanted it.
    (summary, (stored.state == RunState::Failed).then(|| format!("everbeat retry {}", stored.id)))
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
