use super::Memory;
use super::state::State;
use crate::{AT_ONCE, Applied, Definition, Error, Graphs, Idempotency, Result};
use async_trait::async_trait;
use everbeat_model::event::{EventKind, line};
use everbeat_model::graph::{Graph, is_new};
use everbeat_model::{RunId, Sent};
use std::collections::BTreeMap;
use std::sync::Arc;

#[async_trait]
impl Graphs for Memory {
    async fn apply(&self, graph: Arc<Graph>, idempotency: Option<Idempotency>) -> Result<Applied> {
        let now = self.now();
        let mut state = self.lock();
        if let Some(idempotency) = &idempotency {
            let applied = |ids: &[RunId]| state.graphs.get(&Definition::serial_of(ids.first()?.0)).cloned();
            let kept = state.idempotency.get(&idempotency.key);
            match idempotency.sent(kept.map(|(fingerprint, ids, _)| (fingerprint.as_str(), applied(ids)))) {
                Sent::First => {}
                Sent::Again(Some(definition)) => return Ok(Applied { definition, new: false }),
                Sent::Again(None) | Sent::Reused => return Err(Error::KeyReused { key: idempotency.key.clone() }),
            }
        }
        let keep = |state: &mut State, definition: &Definition| {
            if let Some(Idempotency { key, fingerprint }) = idempotency.clone() {
                state.idempotency.insert(key, (fingerprint, vec![RunId(definition.key_id())], now));
            }
        };
        let latest = state.definition(&graph.name, None).cloned();
        if let Some(definition) = latest.filter(|latest| !is_new(&graph, Some(&latest.graph))) {
            keep(&mut state, &definition);
            return Ok(Applied { definition, new: false });
        }
        let serial = state.graphs.keys().next_back().map_or(1, |last| last + 1);
        let definition = Definition { serial, graph: graph.clone(), applied_at: now };
        state.graphs.insert(serial, definition.clone());
        keep(&mut state, &definition);
        let standing = state.executions.iter().filter(|(_, row)| {
            row.execution.archived_at.is_none() && state.graphs[&row.course.definition].graph.name == graph.name
        });
        let notes: Vec<_> = standing.map(|(id, _)| (AT_ONCE, *id)).collect();
        state.agenda.extend(notes);
        state.append(now, &[line(EventKind::GraphApplied, &graph.name, None, None)]);
        state.version += 1;
        Ok(Applied { definition, new: true })
    }

    async fn graph(&self, name: &str, version: Option<&str>) -> Result<Option<Definition>> {
        Ok(self.lock().definition(name, version).cloned())
    }

    async fn graphs(&self, after: Option<&str>, limit: usize) -> Result<Vec<Definition>> {
        let state = self.lock();
        let latest: BTreeMap<&str, &Definition> =
            state.graphs.values().map(|definition| (definition.graph.name.as_str(), definition)).collect();
        let rest = latest.into_iter().filter(|(name, _)| after.is_none_or(|after| *name > after));
        Ok(rest.take(limit).map(|(_, definition)| definition.clone()).collect())
    }
}

impl State {
    /// The serial of the newest definition of a name.
    pub(super) fn latest(&self, name: &str) -> Option<u64> {
        self.definition(name, None).map(|latest| latest.serial)
    }

    /// The latest definition of a name, or of one version of it.
    pub(super) fn definition(&self, name: &str, version: Option<&str>) -> Option<&Definition> {
        self.graphs.values().rev().find(|definition| {
            definition.graph.name == name && version.is_none_or(|version| definition.graph.version == version)
        })
    }
}
