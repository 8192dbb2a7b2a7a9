//! What users ask of the engine.

use super::view::RunView;
use super::waiters::Awaited;
use crate::engine::lock;
use crate::{Engine, Error, Result, within};
use everbeat_model::run::{Kind, Spec, check_key, check_name, check_task_name};
use everbeat_model::{
    Attempt, Invalid, Json, NewRun, Parent, Policy, PolicyPatch, ReplicaId, Run, RunId, Session, StoreTime,
};
use everbeat_store::{Cancelled, Enqueue, Enqueued, Idempotency, Part, Reopened, RunFilter};
use std::sync::Arc;
use std::time::Duration;

/// A run to be accepted.
#[derive(Clone, Debug)]
pub struct Submit {
    pub task: String,
    pub input: Json,
    pub queue: String,
    pub priority: i16,
    pub run_at: Option<StoreTime>,
    /// What differs from the configured policy, as a JSON object.
    pub policy: Option<serde_json::Value>,
    pub unique_key: Option<String>,
    /// The session that it belongs to; only workers of pools, and those from elsewhere, know sessions.
    pub session: Option<Session>,
    /// Accept a task that nobody has offered yet.
    pub accept_unknown: bool,
}

impl Submit {
    pub fn new(task: impl Into<String>, input: Json) -> Submit {
        Submit {
            task: task.into(),
            input,
            queue: "default".to_string(),
            priority: 0,
            run_at: None,
            policy: None,
            unique_key: None,
            session: None,
            accept_unknown: false,
        }
    }
}

/// What became of a submission: a new run, or the one that already stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submission {
    pub id: RunId,
    pub created: bool,
}

/// One request accepts no more; more is sent as several.
const MOST_PER_REQUEST: usize = 10_000;

impl Engine {
    pub async fn submit(&self, submit: Submit, idempotency: Option<Idempotency>) -> Result<Submission> {
        let submissions = self.submit_many(vec![submit], idempotency).await?;
        let missing = || everbeat_store::Error::Bug("an enqueued run was not answered".to_string());
        submissions.first().copied().ok_or_else(|| missing().into())
    }

    /// Accepts all or none. Errors name the run by its place.
    pub async fn submit_many(&self, submits: Vec<Submit>, idempotency: Option<Idempotency>) -> Result<Vec<Submission>> {
        if submits.len() > MOST_PER_REQUEST {
            let hint = format!("send at most {MOST_PER_REQUEST} runs in one request");
            return Err(Invalid::new("runs", submits.len(), "are too many", hint).into());
        }
        if let Some(idempotency) = &idempotency {
            check_key("Idempotency-Key", &idempotency.key)?;
        }
        let single = submits.len() == 1;
        let mut policies: Option<Arc<Policy>> = None;
        let mut runs = Vec::with_capacity(submits.len());
        for (place, submit) in submits.into_iter().enumerate() {
            let within = |error| match error {
                Error::Invalid(invalid) if !single => Error::Invalid(invalid.within(&format!("runs[{place}]"))),
                other => other,
            };
            runs.push(self.new_run(submit, &mut policies).await.map_err(within)?);
        }
        let answers = self.core.enqueues.ask(Enqueue { runs, idempotency }).await?;
        let submission =
            |answer: Enqueued| Submission { id: answer.id(), created: matches!(answer, Enqueued::Created(_)) };
        Ok(answers.into_iter().map(submission).collect())
    }

    async fn new_run(&self, submit: Submit, default_policy: &mut Option<Arc<Policy>>) -> Result<NewRun> {
        check_task_name("task", &submit.task)?;
        check_name("queue", &submit.queue)?;
        if let Some(key) = &submit.unique_key {
            check_key("unique_key", key)?;
        }
        if let Some(session) = &submit.session {
            session.check().map_err(|invalid| invalid.within("session"))?;
        }
        let policy = match &submit.policy {
            None => default_policy.get_or_insert_with(|| Arc::new(self.core.settings.runs.clone())).clone(),
            Some(patch) => {
                let within = |invalid: Invalid| invalid.within("policy");
                Arc::new(
                    PolicyPatch::parse(patch).and_then(|patch| patch.over(&self.core.settings.runs)).map_err(within)?,
                )
            }
        };
        if !submit.accept_unknown {
            self.check_task(&submit.task).await?;
        }
        let spec = Spec {
            kind: Kind::Task,
            task: submit.task,
            queue: submit.queue,
            priority: submit.priority,
            input: submit.input,
            policy,
            unique_key: submit.unique_key,
            args: None,
            parent: None,
            host: None,
            session: submit.session,
            occurrence: None,
        };
        Ok(NewRun { id: RunId(self.core.new_id()), spec: Arc::new(spec), run_at: submit.run_at })
    }

    /// A task that no replica or worker has ever offered is a mistake more often than not. What the pools of this server
    /// offer is known once their first workers have said so: until then whoever asks waits a little.
    pub(crate) async fn check_task(&self, task: &str) -> Result<()> {
        let core = &self.core;
        if core.performs(task) || lock(&core.known_tasks).contains(task) {
            return Ok(());
        }
        match self.offered_by_anybody(task).await {
            Err(Error::UnknownTask { .. }) => {}
            known => return known,
        }
        core.pools.introduced(&*core.env).await;
        self.offered_by_anybody(task).await
    }

    async fn offered_by_anybody(&self, task: &str) -> Result<()> {
        let mut known = self.core.store.tasks().await?;
        known.extend(self.core.performers.iter().flat_map(|performer| performer.tasks()));
        *lock(&self.core.known_tasks) = known.clone();
        match known.contains(task) {
            true => Ok(()),
            false => Err(Error::UnknownTask { task: task.to_string(), known, unheard: self.core.pools.unheard() }),
        }
    }

    pub async fn run(&self, id: RunId) -> Result<RunView> {
        Ok(self.view(self.stored_run(id).await?))
    }

    /// Runs, newest first; fewer than asked for where runs are large.
    pub async fn runs(&self, filter: RunFilter) -> Result<Part<RunView>> {
        Ok(self.core.store.runs(filter).await?.map(|run| self.view(run)))
    }

    pub async fn attempts(&self, id: RunId) -> Result<Vec<Attempt>> {
        self.stored_run(id).await?;
        let mut attempts = self.core.store.attempts(id).await?;
        for attempt in attempts.iter_mut().filter(|attempt| attempt.outcome.is_none()) {
            attempt.worker_id = self.worker_of(id, attempt.attempt).or(attempt.worker_id.take());
        }
        Ok(attempts)
    }

    /// Waits until the run is finished, at most `timeout`; answers it as it is then.
    pub async fn wait(&self, id: RunId, timeout: Duration) -> Result<RunView> {
        let waiting = self.core.waiters.register(Awaited::Run(id));
        let env = self.core.env.clone();
        let until = env.boot() + timeout;
        loop {
            let told = waiting.notify.notified();
            tokio::pin!(told);
            // Enabled before the look, so that an end in between is not missed.
            told.as_mut().enable();
            let run = self.run(id).await?;
            let left = until.since(env.boot());
            if run.run.state.finished() || left.is_zero() {
                return Ok(run);
            }
            within(&*env, left, told).await;
        }
    }

    /// Persists the wish first, then signals it; the performer settles the run, or its owner after the grace.
    pub async fn cancel(&self, id: RunId) -> Result<RunView> {
        match self.core.store.cancel(id).await? {
            Cancelled::NotFound => return Err(not_found(id)),
            Cancelled::AlreadyFinished => {
                return Err(Error::Conflict {
                    problem: format!("run {id} is already finished"),
                    hint: "only unfinished runs can be cancelled".to_string(),
                });
            }
            Cancelled::Ended => {
                self.core.waiters.tell(Awaited::Run(id));
                self.core.noted.notify_one();
                self.core.schedules_noted.notify_one();
            }
            Cancelled::Asked => {}
        }
        self.core.store.wake();
        self.run(id).await
    }

    /// Opens a finished run again, with all its tries.
    pub async fn retry(&self, id: RunId) -> Result<RunView> {
        let run = self.stored_run(id).await?;
        let conflict = |problem: String, hint: &str| Error::Conflict { problem, hint: hint.to_string() };
        if let Some(Parent { execution, node }) = &run.spec.parent {
            let problem = format!("run {id} computes node {node:?} of execution {execution}");
            return Err(conflict(problem, "retry the node instead: its execution decides what is computed"));
        }
        match self.core.store.reopen(id, run.attempt).await? {
            Reopened::Ready => {}
            Reopened::NotFound => return Err(not_found(id)),
            Reopened::NotFinished => {
                let state = run.state.as_str();
                return Err(conflict(
                    format!("run {id} is {state}, or was reopened just now"),
                    "only finished runs can be retried",
                ));
            }
            Reopened::KeyTaken(holder) => {
                let problem = format!("the unique key of run {id} is held by run {holder}");
                return Err(conflict(problem, "wait until that run is finished, or cancel it"));
            }
        }
        self.core.store.wake();
        self.run(id).await
    }

    pub async fn pause_queue(&self, queue: &str, paused: bool) -> Result<()> {
        check_name("queue", queue)?;
        self.core.store.pause(queue, paused).await?;
        self.core.store.wake();
        Ok(())
    }

    /// Asks a replica, this one or another, to drain and leave.
    pub async fn drain_replica(&self, id: ReplicaId) -> Result<()> {
        if self.core.store.drain(id).await? {
            if let Some(life) = self.core.life().filter(|life| life.id == id) {
                life.told_to_drain();
            }
            self.core.store.wake();
            return Ok(());
        }
        let replicas = self.core.store.replicas().await?;
        match replicas.iter().find(|replica| replica.id == id) {
            None => Err(Error::NotFound { what: "replica", id: id.to_string() }),
            Some(replica) => Err(Error::Conflict {
                problem: format!("replica {id} is {}", replica.state.as_str()),
                hint: "only active replicas can be drained".to_string(),
            }),
        }
    }

    pub(crate) async fn stored_run(&self, id: RunId) -> Result<Run> {
        self.core.store.run(id).await?.ok_or_else(|| not_found(id))
    }
}

fn not_found(id: RunId) -> Error {
    Error::NotFound { what: "run", id: id.to_string() }
}
