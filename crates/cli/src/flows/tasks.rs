use async_trait::async_trait;
use everbeat_engine::{Engine, Error, Submit};
use everbeat_flows::{PerformTask, Trouble};
use everbeat_model::{Json, Run, RunId, RunState};
use everbeat_store::Class;
use serde_json::{Value, json};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::time::Duration;

/// Performs the tasks of transforms as runs of their own: whoever offers the task takes them.
pub(super) struct RunTasks {
    engine: Engine,
    /// The run of the flow.
    run: String,
}

/// A run takes 4 MiB, and so does its result, which may be larger than its input.
const MOST_INPUT_BYTES: usize = 1 << 20;
/// The end of a run is heard at once; this is how often somebody looks whether that was missed.
const LOOK: Duration = Duration::from_secs(60);

impl RunTasks {
    pub(super) fn new(engine: Engine, run: String) -> RunTasks {
        RunTasks { engine, run }
    }

    async fn part(&self, task: &str, records: &[Value]) -> Result<Vec<Value>, Trouble> {
        let input = Json::of(&json!({ "records": records }));
        let mut hasher = DefaultHasher::new();
        (task, input.as_str()).hash(&mut hasher);
        let mut submit = Submit::new(task, input);
        // After a lost attempt the same records find the run that works on them already.
        submit.unique_key = Some(format!("flow {} {:016x}", self.run, hasher.finish()));
        let submitted = self.engine.submit(submit, None).await.map_err(|error| match (&error, error.class()) {
            // Whoever offers it may come yet: workers start while servers do.
            (Error::UnknownTask { .. }, _) => Trouble::transient(error.to_string()),
            (_, Class::Rejected) => Trouble::permanent(format!("{error}: {}", error.hint())),
            _ => Trouble::transient(error.to_string()),
        })?;
        let awaited = Awaited { engine: &self.engine, run: submitted.id, over: false };
        let run = awaited.end().await?;
        let said = |json: &Option<Json>| json.as_ref().and_then(|json| json.read::<Value>().ok()).unwrap_or_default();
        match run.state {
            RunState::Succeeded => match said(&run.result) {
                Value::Array(items) => Ok(items),
                _ => Err(Trouble::permanent(format!(
                    "the task {task:?} (run {}) gave no list; give one item for each record",
                    run.id
                ))),
            },
            // Whoever lost the lease of the flow cancels what it waited for, and that may be what its successor waits for.
            RunState::Cancelled => {
                Err(Trouble::transient(format!("the run {} of the task {task:?} was cancelled", run.id)))
            }
            _ => {
                let why = said(&run.error)["message"].as_str().unwrap_or("no reason is known").to_string();
                Err(Trouble::permanent(format!("the task {task:?} failed in run {}: {why}", run.id)))
            }
        }
    }
}

#[async_trait]
impl PerformTask for RunTasks {
    async fn perform(&self, task: &str, records: Vec<Value>) -> Result<Vec<Value>, Trouble> {
        let mut answers = Vec::with_capacity(records.len());
        let mut rest = &records[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take_while(|record| {
                bytes += record.to_string().len();
                bytes <= MOST_INPUT_BYTES
            });
            let (part, after) = rest.split_at(fits.count().max(1));
            let given = self.part(task, part).await?;
            if given.len() != part.len() {
                let (given, asked) = (given.len(), part.len());
                return Err(Trouble::permanent(format!(
                    "the task {task:?} gave {given} items for {asked} records; give one for each: null drops it, {{\"rejected\": \"why\"}} rejects it"
                )));
            }
            answers.extend(given);
            rest = after;
        }
        Ok(answers)
    }
}

/// A run that somebody waits for. Nobody wants it any more when that is over.
struct Awaited<'a> {
    engine: &'a Engine,
    run: RunId,
    over: bool,
}

impl Awaited<'_> {
    async fn end(mut self) -> Result<Run, Trouble> {
        loop {
            let view = self.engine.wait(self.run, LOOK).await.map_err(|error| Trouble::transient(error.to_string()))?;
            if view.run.state.finished() {
                self.over = true;
                return Ok(view.run);
            }
        }
    }
}

impl Drop for Awaited<'_> {
    #[expect(clippy::disallowed_methods, reason = "it outlives the attempt, whose tasks are gone by then")]
    fn drop(&mut self) {
        if !self.over {
            let (engine, run) = (self.engine.clone(), self.run);
            tokio::spawn(async move {
                let _it_may_be_over = engine.cancel(run).await;
            });
        }
    }
}
