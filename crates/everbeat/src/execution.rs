use crate::{Error, Key, Values};
use everbeat_engine::{ExecutionView, Got, Wait};
use everbeat_model::ExecutionId;
use everbeat_store::Remembered;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// A durable instance of a graph.
#[derive(Clone)]
pub struct Execution {
    pub(crate) id: ExecutionId,
    pub(crate) engine: everbeat_engine::Engine,
}

/// One wait for a value; longer waits are several.
const WAIT: Duration = Duration::from_secs(60);
/// The most that `history` answers.
const MOST_HISTORY: usize = 100_000;

impl Execution {
    pub fn id(&self) -> ExecutionId {
        self.id
    }

    /// Sets an input; answers the execution's revision afterwards.
    pub async fn set<T: Serialize>(&self, key: Key<T>, value: &T) -> Result<u64, Error> {
        self.set_all(Values::new().with(key, value)).await
    }

    /// Sets several inputs as one change.
    pub async fn set_all(&self, values: Values) -> Result<u64, Error> {
        Ok(self.engine.set(self.id, values.into_map().into_iter().collect(), None).await?)
    }

    pub async fn unset<T>(&self, key: Key<T>) -> Result<u64, Error> {
        Ok(self.engine.unset(self.id, BTreeSet::from([key.name().to_string()])).await?)
    }

    /// Waits for a value of the node, however long that takes. A node whose computation failed for good
    /// is an error at once.
    pub async fn get<T: DeserializeOwned>(&self, key: Key<T>) -> Result<T, Error> {
        loop {
            if let Some((value, _)) = self.wait(key, Wait::Any, WAIT).await? {
                return Ok(value);
            }
        }
    }

    /// The node's value, if it is set now.
    pub async fn find<T: DeserializeOwned>(&self, key: Key<T>) -> Result<Option<T>, Error> {
        Ok(self.wait(key, Wait::Immediate, Duration::ZERO).await?.map(|(value, _)| value))
    }

    /// The value waited for and its revision; none if it did not come in time.
    pub async fn wait<T: DeserializeOwned>(
        &self,
        key: Key<T>,
        wait: Wait,
        timeout: Duration,
    ) -> Result<Option<(T, u64)>, Error> {
        let node = key.name();
        match self.engine.value(self.id, node, wait, timeout).await? {
            Got::NotSet | Got::TimedOut(_) => Ok(None),
            Got::Failed(reason) => Err(Error::NodeFailed { execution: self.id, node: node.to_string(), reason }),
            Got::Value(cell) => match T::deserialize(&cell.value) {
                Ok(value) => Ok(Some((value, cell.revision))),
                Err(error) => {
                    let problem = error.to_string();
                    Err(Error::ValueType { execution: self.id, node: node.to_string(), problem })
                }
            },
        }
    }

    /// All that is known of it, with what each node is doing and waiting for.
    pub async fn view(&self) -> Result<ExecutionView, Error> {
        Ok(self.engine.execution(self.id).await?)
    }

    /// The same for people to read.
    pub async fn summary(&self) -> Result<String, Error> {
        Ok(self.view().await?.summary())
    }

    /// What was set and cleared, oldest first.
    pub async fn history(&self) -> Result<Vec<Remembered>, Error> {
        Ok(self.engine.history(self.id, 0, MOST_HISTORY).await?)
    }

    pub async fn archive(&self) -> Result<u64, Error> {
        Ok(self.engine.archive(self.id).await?)
    }

    pub async fn unarchive(&self) -> Result<u64, Error> {
        Ok(self.engine.unarchive(self.id).await?)
    }

    /// Computes a node again, with all its tries.
    pub async fn retry<T>(&self, key: Key<T>) -> Result<u64, Error> {
        Ok(self.engine.retry_node(self.id, key.name()).await?)
    }

    /// Gives the computation of a node up.
    pub async fn abandon<T>(&self, key: Key<T>) -> Result<u64, Error> {
        Ok(self.engine.abandon_node(self.id, key.name()).await?)
    }

    /// All values that are set.
    pub async fn values(&self) -> Result<serde_json::Map<String, Value>, Error> {
        let execution = self.view().await?.stored.execution;
        let set = execution.nodes.into_iter().filter_map(|(node, state)| Some((node, state.cell?.value)));
        Ok(set.collect())
    }
}
