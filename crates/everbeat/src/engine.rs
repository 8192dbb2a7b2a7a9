use crate::helper::{GUARDIAN, SHIM};
use crate::task::Typed;
use crate::{Execution, GraphDefinition, Schedule, StoreOptions, System, Values, open_store};
use everbeat_engine::pools::PoolSettings;
use everbeat_engine::{Ctx, Env, Failure, Host, RunView, Settings, StartExecution, Submit, SubmitJob, Tasks};
use everbeat_model::graph::Graph;
use everbeat_model::job::Command;
use everbeat_model::{ExecutionId, Invalid, Json, Policy, PolicyPatch, RunId, RunState};
use everbeat_store::Store;
use everbeat_supervisor::{HostGuardians, HostLocks, HostShims, Misplaced, Place, PlaceError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::future::Future;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A running replica inside this program.
#[derive(Clone)]
pub struct Engine {
    engine: everbeat_engine::Engine,
    worker_socket: Arc<Mutex<Option<UnixListener>>>,
}

/// An engine that is being put together.
pub struct Builder {
    url: String,
    data_dir: Option<PathBuf>,
    misplaced: Misplaced,
    tasks: Tasks,
    graphs: Vec<Graph>,
    /// Each with the name of its task.
    schedules: Vec<(String, Schedule)>,
    settings: Settings,
    commands: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Engine(#[from] everbeat_engine::Error),
    #[error(transparent)]
    Store(#[from] everbeat_store::Error),
    #[error("the data folder cannot be used: {0}")]
    DataDir(#[from] std::io::Error),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("run {id} {}: {error}", state.as_str())]
    RunEnded { id: RunId, state: RunState, error: Json },
    #[error("the result of run {id} is of another type: {problem}")]
    ResultType { id: RunId, problem: String },
    #[error("node {node:?} of execution {execution} failed: {reason}")]
    NodeFailed { execution: ExecutionId, node: String, reason: String },
    #[error("the value of node {node:?} of execution {execution} is of another type: {problem}")]
    ValueType { execution: ExecutionId, node: String, problem: String },
}

impl Engine {
    /// Begins with a store: `sqlite://path`, `postgres://…` or `memory:`.
    pub fn open(url: impl Into<String>) -> Builder {
        Builder {
            url: url.into(),
            data_dir: None,
            misplaced: Misplaced::Refuse,
            tasks: crate::tasks(),
            graphs: Vec::new(),
            schedules: Vec::new(),
            settings: Settings::default(),
            commands: false,
        }
    }

    /// Submits a run of a task with typed input.
    pub async fn submit<I: Serialize>(&self, task: &str, input: &I) -> Result<RunHandle, Error> {
        self.submit_with(Submit::new(task, Json::of(input))).await
    }

    /// Submits a run with queue, priority, time, policy or unique key of its own.
    pub async fn submit_with(&self, submit: Submit) -> Result<RunHandle, Error> {
        let submission = self.engine.submit(submit, None).await?;
        Ok(RunHandle { id: submission.id, engine: self.engine.clone() })
    }

    /// A handle on a run that exists already.
    pub fn run(&self, id: RunId) -> RunHandle {
        RunHandle { id, engine: self.engine.clone() }
    }

    /// Submits a detached command: program and arguments, never a shell line.
    pub async fn run_command<S: Into<String>>(&self, command: impl IntoIterator<Item = S>) -> Result<RunHandle, Error> {
        let command = Command { command: command.into_iter().map(Into::into).collect(), ..Command::default() };
        let submission = self.engine.submit_job(SubmitJob::new(command), None).await?;
        Ok(RunHandle { id: submission.id, engine: self.engine.clone() })
    }

    /// Starts an execution of a graph, or finds the one of a singleton graph.
    pub async fn start(&self, graph: &str) -> Result<Execution, Error> {
        self.start_with(graph, Values::new()).await
    }

    /// The same with values that are set from the beginning.
    pub async fn start_with(&self, graph: &str, values: Values) -> Result<Execution, Error> {
        let values = values.into_map().into_iter().collect();
        let start = StartExecution { graph: graph.to_string(), values, ..StartExecution::default() };
        let (id, _) = self.engine.start_execution(start, None).await?;
        Ok(self.execution(id))
    }

    /// A handle on an execution that exists already.
    pub fn execution(&self, id: ExecutionId) -> Execution {
        Execution { id, engine: self.engine.clone() }
    }

    /// Stops claiming, lets work finish for the configured grace, releases the rest, and leaves.
    pub async fn drain(&self) {
        self.engine.drain().await;
    }

    /// Where the workers of pools dial that do not speak lines: to be served by
    /// `everbeat_server::serve_workers(engine.inner().clone(), …)` as its door `pools`. Handed out once; none without
    /// pools.
    pub fn worker_socket(&self) -> Option<UnixListener> {
        self.worker_socket.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// What stands below: everything that the server offers over HTTP.
    pub fn inner(&self) -> &everbeat_engine::Engine {
        &self.engine
    }
}

impl Builder {
    /// Registers an async function as a task. Its input and output are JSON by serde; an input that
    /// does not fit fails the run for good.
    pub fn task<F, Fut, I, O>(mut self, name: impl Into<String>, function: F) -> Builder
    where
        F: Fn(Ctx, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, Failure>> + Send + 'static,
        I: DeserializeOwned + Send + 'static,
        O: Serialize + 'static,
    {
        self.tasks.add(name, Typed::new(function));
        self
    }

    /// Registers the functions of a graph, and applies its definition at the start.
    pub fn graph(mut self, definition: GraphDefinition) -> Builder {
        self.tasks.extend(definition.tasks);
        self.graphs.push(definition.graph);
        self
    }

    /// Has a task performed again and again: one of this program, or any that somebody offers. Written at the start, unless
    /// the code has said the same before.
    pub fn schedule(mut self, task: impl Into<String>, schedule: Schedule) -> Builder {
        self.schedules.push((task.into(), schedule));
        self
    }

    /// How many runs this replica performs at once.
    pub fn slots(mut self, slots: usize) -> Builder {
        self.settings.slots = slots;
        self
    }

    /// A folder of this machine for the replica's kernel lock: with it, a program that was killed and
    /// started again takes its runs back at once. On SQLite the database file serves by itself.
    /// It belongs to one place: a copy of it is refused.
    pub fn data_dir(mut self, folder: impl Into<PathBuf>) -> Builder {
        self.data_dir = Some(folder.into());
        self
    }

    /// Lets a copied or moved data folder live on its own, under a new host id and without its original's jobs. Without
    /// it such a folder is refused.
    pub fn adopt_data(mut self) -> Builder {
        self.misplaced = Misplaced::Adopt;
        self
    }

    /// The policy that runs have unless they say otherwise, as a JSON object of what differs from the
    /// built-in one.
    pub fn policy(mut self, patch: &serde_json::Value) -> Result<Builder, Error> {
        let policy = PolicyPatch::parse(patch).and_then(|patch| patch.over(&Policy::BASELINE));
        self.settings.runs = policy.map_err(everbeat_engine::Error::Invalid)?;
        Ok(self)
    }

    /// Performs detached commands as well, which outlive this program. It becomes the shim of each itself, so its
    /// `main` must begin with [`crate::become_helper`]. Needs a data folder.
    pub fn commands(mut self) -> Builder {
        self.commands = true;
        self
    }

    /// Keeps a pool of worker processes as well, which end with this program. It becomes the guardian of each pool itself,
    /// so its `main` must begin with [`crate::become_helper`]. Needs a data folder. Workers that do not speak lines need
    /// somebody at [`Engine::worker_socket`].
    pub fn pool(mut self, pool: PoolSettings) -> Builder {
        self.settings.pools.push(pool);
        self
    }

    /// Changes any other setting.
    pub fn settings(mut self, change: impl FnOnce(&mut Settings)) -> Builder {
        change(&mut self.settings);
        self
    }

    /// Opens the store, joins and begins to work. Must be called inside a Tokio runtime.
    pub async fn start(self) -> Result<Engine, Error> {
        let schedules = read_schedules(self.schedules)?;
        // First the place: on a copy of a data folder nothing may be opened, examined or signalled.
        let place = self.data_dir.as_deref().map(|folder| Place::take(folder, self.misplaced)).transpose()?;
        let env: Arc<dyn Env> = System::new();
        let store: Arc<dyn Store> = open_store(&self.url, StoreOptions::default(), &env).await?;
        let mut settings = self.settings;
        let locks = place.as_ref().map(HostLocks::open).transpose()?;
        if let (Some(locks), Some(place)) = (&locks, &place) {
            settings.host = locks.host().to_string();
            settings.machine = everbeat_supervisor::machine();
            settings.former_hosts = place.former_hosts().clone();
        }
        let locks = locks.map(|locks| Arc::new(locks) as Arc<dyn everbeat_engine::Locks>);
        let shims = match (self.commands, &place) {
            (false, _) => None,
            (true, Some(place)) => {
                let shims = HostShims::open(place, "/proc/self/exe".into(), vec![SHIM.into()])?;
                Some(Arc::new(shims) as Arc<dyn everbeat_engine::Shims>)
            }
            (true, None) => return Err(std::io::Error::other("commands need one: call data_dir").into()),
        };
        let (guardians, worker_socket) = match (settings.pools.is_empty(), &place) {
            (true, _) => (None, None),
            (false, Some(place)) => {
                let guardians = HostGuardians::open(place, "/proc/self/exe".into(), vec![GUARDIAN.into()])?;
                let socket = guardians.bind()?;
                (Some(Arc::new(guardians) as Arc<dyn everbeat_engine::pools::Guardians>), Some(socket))
            }
            (false, None) => return Err(std::io::Error::other("pools need one: call data_dir").into()),
        };
        let host = Host { locks, shims, guardians, ..Host::default() };
        let engine = everbeat_engine::Engine::new(env, store, settings, self.tasks, host)?;
        engine.start();
        for graph in self.graphs {
            engine.apply_graph(graph, false, None).await?;
        }
        for schedule in schedules {
            engine.declare_schedule(schedule, false).await?;
        }
        Ok(Engine { engine, worker_socket: Arc::new(Mutex::new(worker_socket)) })
    }
}

fn read_schedules(given: Vec<(String, Schedule)>) -> Result<Vec<everbeat_model::schedule::Schedule>, Error> {
    let mut names = BTreeSet::new();
    let mut schedules = Vec::with_capacity(given.len());
    for (task, schedule) in given {
        let schedule = schedule.of_task(&task).map_err(everbeat_engine::Error::Invalid)?;
        if !names.insert(schedule.name.clone()) {
            let hint = "give each schedule of a task a name of its own with Schedule::named";
            let twice = Invalid::new("schedule", format!("{:?}", schedule.name), "is declared twice", hint);
            return Err(everbeat_engine::Error::Invalid(twice).into());
        }
        schedules.push(schedule);
    }
    Ok(schedules)
}

/// A submitted run.
#[derive(Clone)]
pub struct RunHandle {
    id: RunId,
    engine: everbeat_engine::Engine,
}

/// One wait for the end of a run; longer waits are several.
const WAIT: Duration = Duration::from_secs(60);

impl RunHandle {
    pub fn id(&self) -> RunId {
        self.id
    }

    /// The run as it is now.
    pub async fn view(&self) -> Result<RunView, Error> {
        Ok(self.engine.run(self.id).await?)
    }

    /// Waits until the run is finished, however it ends.
    pub async fn wait(&self) -> Result<RunView, Error> {
        loop {
            let view = self.engine.wait(self.id, WAIT).await?;
            if view.run.state.finished() {
                return Ok(view);
            }
        }
    }

    /// Waits for the end and reads the result; a run that failed or was cancelled is an error.
    pub async fn result<O: DeserializeOwned>(&self) -> Result<O, Error> {
        let run = self.wait().await?.run;
        if run.state != RunState::Succeeded {
            return Err(Error::RunEnded { id: self.id, state: run.state, error: run.error.unwrap_or_default() });
        }
        let problem = |error: serde_json::Error| Error::ResultType { id: self.id, problem: error.to_string() };
        run.result.unwrap_or_default().read().map_err(problem)
    }

    pub async fn cancel(&self) -> Result<(), Error> {
        self.engine.cancel(self.id).await?;
        Ok(())
    }
}
