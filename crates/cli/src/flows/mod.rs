//! Flows of this server: who checks and performs them.

mod ledger;
mod perform;
mod tasks;

pub(crate) use perform::Runner;

use async_trait::async_trait;
use everbeat_engine::{Engine, FlowRules, Tried};
use everbeat_flows::jq::Evaluator;
use everbeat_flows::{Configuration, Ports, Promise, Settings, Surroundings, dry_run};
use everbeat_model::{Invalid, StoreTime};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::sync::{Arc, OnceLock};
use tasks::RunTasks;

/// The hidden subcommand that evaluates the jq programs of flows.
pub(crate) const EVALUATOR: &str = "jq-serve";

/// What all flows of this server share.
#[derive(Clone)]
pub(crate) struct Flows {
    settings: Arc<Settings>,
    /// The engine that performs the flows, which is made after this.
    engine: Arc<OnceLock<Engine>>,
}

impl Flows {
    pub(crate) fn new(settings: Settings) -> Flows {
        Flows { settings: Arc::new(settings), engine: Arc::default() }
    }

    /// From now on flows can be performed.
    pub(crate) fn belong_to(&self, engine: &Engine) {
        let _only_once = self.engine.set(engine.clone());
    }

    fn read(
        &self,
        configuration: &Value,
        dead_letter: Option<&Value>,
        max_rejected: Option<&Value>,
    ) -> Result<Configuration, Invalid> {
        let beside = [("dead_letter", dead_letter), ("max_rejected", max_rejected)];
        let mut whole = configuration.clone();
        if let Value::Object(fields) = &mut whole {
            for (name, given) in beside {
                let Some(given) = given else { continue };
                if fields.insert(name.to_string(), given.clone()).is_some() {
                    let hint = "keep the one beside the configuration";
                    return Err(Invalid::new(format!("configuration.{name}"), given, "is given twice", hint));
                }
            }
        }
        Configuration::parse(&whole, &self.settings).map_err(|invalid| {
            // These two may stand beside the configuration.
            let is_beside = |(name, given): &(&str, Option<&Value>)| {
                let rest = invalid.field.strip_prefix(name);
                given.is_some() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            if beside.iter().any(is_beside) { invalid } else { invalid.within("configuration") }
        })
    }

    /// What transforms of one attempt need. `run` is the run that they belong to.
    fn ports(&self, engine: &Engine, run: String) -> Ports {
        // Not the path of this executable: after an upgrade another version may stand there.
        let evaluator = Evaluator::new(vec![OsString::from("/proc/self/exe"), OsString::from(EVALUATOR)]);
        Ports { evaluate: Some(Arc::new(evaluator)), tasks: Some(Arc::new(RunTasks::new(engine.clone(), run))) }
    }
}

#[async_trait]
impl FlowRules for Flows {
    fn check(
        &self,
        configuration: &Value,
        dead_letter: Option<&Value>,
        max_rejected: Option<&Value>,
    ) -> Result<(), Invalid> {
        self.read(configuration, dead_letter, max_rejected).map(drop)
    }

    async fn try_out(&self, flow: &str, configuration: &Value, most: usize, now: StoreTime) -> Result<Tried, Invalid> {
        let read = self.read(configuration, None, None)?;
        let cannot = |message: String, hint: &str| Invalid::new("configuration", flow, message, hint);
        let Some(engine) = self.engine.get() else {
            return Err(cannot("cannot be tried yet".to_string(), "try again in a moment"));
        };
        let run = format!("test-{}", uuid::Uuid::new_v4());
        let around = Surroundings { flow: flow.into(), run: run.as_str().into(), fence: 1, range: None };
        let tried = dry_run(&read, &around, &self.ports(engine, run), most, now).await;
        let tried =
            tried.map_err(|trouble| cannot(format!("cannot be tried: {trouble}"), "mend that, and try it again"))?;
        let rejected = tried.rejected.iter();
        let rejected = rejected.map(|one| json!({"position": one.position, "reason": one.reason, "raw": one.raw}));
        Ok(Tried {
            read: tried.read,
            records: tried.records,
            rejected: rejected.collect(),
            dropped: tried.dropped,
            exactly_once: read.sink.promise() == Promise::ExactlyOnce,
        })
    }
}
