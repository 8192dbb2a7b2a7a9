//! Definitions of graphs.

use crate::error::unheard_hint;
use crate::{Engine, Error, Result};
use everbeat_model::graph::{Graph, Node};
use everbeat_model::run::check_key;
use everbeat_model::{Invalid, Json, PolicyPatch};
use everbeat_store::{Analytics, Applied, Definition, Idempotency};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Engine {
    /// Stores a definition. Executions that stand go on with it.
    pub async fn apply_graph(
        &self,
        graph: Graph,
        accept_unknown: bool,
        idempotency: Option<Idempotency>,
    ) -> Result<Applied> {
        if let Some(idempotency) = &idempotency {
            check_key("Idempotency-Key", &idempotency.key)?;
        }
        for node in graph.nodes() {
            self.check_options(node).map_err(|error| error.within(&node.name))?;
        }
        if !accept_unknown {
            self.check_tasks(&graph).await?;
        }
        let applied = self.core.store.apply(Arc::new(graph), idempotency).await?;
        self.core.store.wake();
        self.core.noted.notify_one();
        Ok(applied)
    }

    /// Stores a definition that a worker declares, which offers its tasks itself.
    pub(crate) async fn apply_text(&self, text: &str) -> Result<Applied> {
        let value = Json::parse(text)?.value();
        self.apply_graph(Graph::parse(&value)?, true, None).await
    }

    /// A node's options must go together with the configured policy, too.
    fn check_options(&self, node: &Node) -> std::result::Result<(), Invalid> {
        let options = serde_json::Value::Object(node.options.policy.clone());
        let patch = PolicyPatch::parse(&options).and_then(|patch| patch.over(&self.core.settings.runs));
        patch.map(|_| ()).map_err(|error| error.within("options"))
    }

    async fn check_tasks(&self, graph: &Graph) -> Result<()> {
        let mut named: Vec<(String, &String)> = Vec::new();
        for node in graph.nodes() {
            named.extend(node.task.as_ref().map(|task| (format!("{}.task", node.name), task)));
            named.extend(node.options.on_save.as_ref().map(|task| (format!("{}.options.on_save", node.name), task)));
        }
        named.extend(graph.on_save.as_ref().map(|task| ("on_save".to_string(), task)));
        for (field, task) in named {
            match self.check_task(task).await {
                Err(Error::UnknownTask { task, known, unheard }) => {
                    return Err(unknown(field, &task, &known, &unheard).into());
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// The definition that counts: the latest of this version, or of all.
    pub async fn graph(&self, name: &str, version: Option<&str>) -> Result<Definition> {
        let found = self.core.store.graph(name, version).await?;
        let id = || version.map_or_else(|| name.to_string(), |version| format!("{name} version {version}"));
        found.ok_or_else(|| Error::NotFound { what: "graph", id: id() })
    }

    pub async fn graphs(&self, after: Option<&str>, limit: usize) -> Result<Vec<Definition>> {
        Ok(self.core.store.graphs(after, limit).await?)
    }

    /// How far executions of a graph have come.
    pub async fn analytics(&self, graph: &str) -> Result<Analytics> {
        self.graph(graph, None).await?;
        Ok(self.core.store.analytics(graph).await?)
    }
}

fn unknown(field: String, task: &str, known: &BTreeSet<String>, unheard: &[String]) -> Invalid {
    let hint = match everbeat_model::error::nearest(task, known.iter().map(String::as_str)) {
        Some(near) => format!("did you mean {near:?}?"),
        None => {
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            format!(
                "{}known tasks are {}; say \"accept_unknown\": true if a worker will offer it later",
                unheard_hint(unheard),
                known.join(", ")
            )
        }
    };
    Invalid::new(field, format!("{task:?}"), "is not a task that anybody has offered", hint)
}
