//! What users ask of jobs: to take one, to show its output, to delete it.

use super::shims::{LogChunk, LogFrom, Removed, Shims, Stream};
use crate::{Engine, Error, Result, RunView, Submission};
use everbeat_model::job::{Command, base_policy};
use everbeat_model::run::{COMMAND, Kind, Spec, check_key, check_name};
use everbeat_model::{Invalid, Json, NewRun, PolicyPatch, Reason, RunId, RunState, StoreTime};
use everbeat_store::{Enqueue, Enqueued, Idempotency};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A job to be accepted.
#[derive(Clone, Debug)]
pub struct SubmitJob {
    pub command: Command,
    pub queue: String,
    pub priority: i16,
    pub run_at: Option<StoreTime>,
    /// What differs from the policy of jobs, as a JSON object.
    pub policy: Option<serde_json::Value>,
    pub unique_key: Option<String>,
}

impl SubmitJob {
    pub fn new(command: Command) -> SubmitJob {
        let queue = "default".to_string();
        SubmitJob { command, queue, priority: 0, run_at: None, policy: None, unique_key: None }
    }
}

impl Engine {
    pub async fn submit_job(&self, submit: SubmitJob, idempotency: Option<Idempotency>) -> Result<Submission> {
        submit.command.check()?;
        self.check_cwd(&submit.command)?;
        check_name("queue", &submit.queue)?;
        if let Some(key) = &submit.unique_key {
            check_key("unique_key", key)?;
        }
        if let Some(idempotency) = &idempotency {
            check_key("Idempotency-Key", &idempotency.key)?;
        }
        self.check_task(COMMAND).await.map_err(|error| match error {
            Error::UnknownTask { .. } => Error::Conflict {
                problem: "no replica performs jobs".to_string(),
                hint: "start a server on a machine where its data folder can be written".to_string(),
            },
            other => other,
        })?;
        let settings = &self.core.settings;
        let base = base_policy(&settings.runs, settings.jobs.stop_grace);
        let policy = match &submit.policy {
            None => base,
            Some(patch) => PolicyPatch::parse(patch)
                .and_then(|patch| patch.over(&base))
                .map_err(|invalid: Invalid| invalid.within("policy"))?,
        };
        let spec = Spec {
            kind: Kind::Job,
            task: COMMAND.to_string(),
            queue: submit.queue,
            priority: submit.priority,
            input: Json::of(&submit.command),
            args: None,
            policy: Arc::new(policy),
            unique_key: submit.unique_key,
            parent: None,
            host: None,
            session: None,
            occurrence: None,
        };
        let run = NewRun { id: RunId(self.core.new_id()), spec: Arc::new(spec), run_at: submit.run_at };
        let answers = self.core.enqueues.ask(Enqueue { runs: vec![run], idempotency }).await?;
        let missing = || everbeat_store::Error::Bug("an enqueued job was not answered".to_string());
        let answer = answers.first().ok_or_else(missing)?;
        Ok(Submission { id: answer.id(), created: matches!(answer, Enqueued::Created(_)) })
    }

    /// The server's own folder is not for jobs to work in.
    pub(crate) fn check_cwd(&self, command: &Command) -> Result<()> {
        let (Some(cwd), Some(shims)) = (&command.cwd, &self.core.jobs.shims) else { return Ok(()) };
        let own = shims.root();
        let inside = own.parent().is_some_and(|own| resolved(Path::new(cwd)).starts_with(resolved(own)));
        match inside {
            false => Ok(()),
            true => {
                let hint = "leave cwd out to work in the job's own workspace, or name a folder elsewhere";
                Err(Invalid::new("cwd", format!("{cwd:?}"), "is inside the server's own folder", hint).into())
            }
        }
    }

    /// Output of a job, or of a node that is a command.
    pub async fn output(&self, id: RunId, stream: Stream, from: LogFrom, limit: usize) -> Result<LogChunk> {
        let run = self.run(id).await?;
        self.output_of(&run, stream, from, limit).await
    }

    /// The same of a run that was looked up already.
    pub async fn output_of(&self, run: &RunView, stream: Stream, from: LogFrom, limit: usize) -> Result<LogChunk> {
        let id = run.run.id;
        let Some(host) = &run.run.spec.host else { return Ok(LogChunk::default()) };
        let Some(shims) = self.core.jobs.shims.as_ref().filter(|_| self.is_here(run)) else {
            return Err(elsewhere(id, host));
        };
        // What stands there since is no longer what the job wrote.
        if run.run.state.finished() && run.run.error.as_ref().and_then(Reason::of) == Some(Reason::FolderGone) {
            return Err(gone(&**shims, run));
        }
        match shims.output(id, stream, from, limit).await {
            Ok(chunk) => Ok(chunk),
            Err(error) if error.kind() == io::ErrorKind::NotFound => match run.run.state {
                RunState::Running if !self.is_starting(run) => Err(gone(&**shims, run)),
                // It is about to begin.
                state if !state.finished() => Ok(LogChunk::default()),
                _ => Err(gone(&**shims, run)),
            },
            Err(error) => Err(unreadable(id, &error)),
        }
    }

    /// Removes a finished job: its folder, and the run itself. A dry run only counts.
    pub async fn delete_job(&self, id: RunId, dry_run: bool) -> Result<Removed> {
        let job = self.job(id).await?;
        let run = &job.run.run;
        if !run.state.finished() {
            return Err(Error::Conflict {
                problem: format!("job {id} is {}", run.state.as_str()),
                hint: format!("cancel it first: everbeat cancel {id}"),
            });
        }
        let shims = match (&run.spec.host, &self.core.jobs.shims) {
            // Given up there, or never begun: what is left of it may be here all the same.
            (None, shims) => shims.as_ref(),
            (Some(_), Some(shims)) if self.is_here(&job.run) => Some(shims),
            (Some(host), _) => return Err(elsewhere(id, host)),
        };
        let remove = async |dry_run| match shims {
            None => Ok(Removed::default()),
            Some(shims) => match shims.remove(id, false, dry_run).await {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Removed::default()),
                removed => removed.map_err(|error| unreadable(id, &error)),
            },
        };
        // First whether it may go, then the run, which cannot be opened again from there on, then its files.
        let mut looks = 0;
        let removed = loop {
            match remove(true).await {
                // Its shim may be about to leave: its end is stored first, and told then.
                Err(_) if looks < MOST_LOOKS => looks += 1,
                removed => break removed?,
            }
            self.core.env.sleep(LOOK).await;
        };
        if dry_run {
            return Ok(removed);
        }
        if !self.core.store.forget(id).await? {
            return Err(Error::Conflict {
                problem: format!("job {id} was opened again just now"),
                hint: "wait until it is finished".to_string(),
            });
        }
        remove(false).await
    }
}

/// Without the steps that lead nowhere or back. Links are not followed: this is no lock, only a help.
fn resolved(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = plain.pop(),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// A shim whose end is stored leaves within so many looks.
const MOST_LOOKS: u32 = 20;
const LOOK: Duration = Duration::from_millis(50);

fn gone(shims: &dyn Shims, run: &RunView) -> Error {
    let (id, root) = (run.run.id, shims.root());
    let hint = match run.run.state.finished() {
        true => {
            let archive = root.with_file_name("archive").join(id.to_string());
            format!("it was cleaned or taken away; what was in its workspace may be in {}", archive.display())
        }
        false => format!("somebody has taken it away while the job runs: put it back, or everbeat cancel {id}"),
    };
    let folder = root.join(id.to_string());
    Error::Conflict {
        problem: format!("the folder of job {id}, {}, is gone, and its output with it", folder.display()),
        hint,
    }
}

fn elsewhere(id: RunId, host: &str) -> Error {
    Error::Conflict {
        problem: format!("the files of job {id} are on host {host}, not on this one"),
        hint: format!("ask a server of that host; `everbeat ls replicas` shows which run on {host}"),
    }
}

fn unreadable(id: RunId, error: &io::Error) -> Error {
    Error::Conflict {
        problem: format!("the folder of job {id} cannot be used: {error}"),
        hint: "look at the server's log, and at the folder".to_string(),
    }
}
