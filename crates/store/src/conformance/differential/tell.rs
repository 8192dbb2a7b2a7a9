//! Graphs and executions, retold without what is a store's own.

use super::view::View;
use crate::{Definition, Peek, Remembered, Stored};
use everbeat_model::graph::Cell;
use everbeat_model::run::Spec;
use everbeat_model::{Json, StoreTime};
use serde_json::Value;
use std::fmt::Write;
use std::sync::Arc;

impl View {
    /// What historians and archive nodes note has times in it.
    fn value(&mut self, value: &Value) -> Value {
        match value {
            Value::String(text) => StoreTime::parse(text).map_or_else(|_| value.clone(), |at| self.at(at).0.into()),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), self.value(value))).collect(),
            _ => value.clone(),
        }
    }

    /// Of a node run, the input is made of values.
    pub(super) fn spec(&mut self, spec: &Arc<Spec>) -> Arc<Spec> {
        if spec.parent.is_none() {
            return spec.clone();
        }
        let input = Json::of(&self.value(&spec.input.value()));
        Arc::new(Spec { input, ..(**spec).clone() })
    }

    fn cell(&mut self, cell: &Cell) -> String {
        let (value, set_at) = (self.value(&cell.value), self.at(cell.set_at));
        format!("{value} revision {} at {set_at:?} {:?}", cell.revision, cell.metadata)
    }

    pub(super) fn execution(&mut self, stored: Stored) -> String {
        let Stored { id, graph, execution, stamp, created_at, updated_at, attempts } = stored;
        let times = [Some(created_at), Some(updated_at), execution.archived_at].map(|at| at.map(|at| self.at(at)));
        let (name, version, shape) = (&graph.name, &graph.version, graph.shape());
        let revision = execution.revision;
        let mut text =
            format!("{id} {name} {version} {shape} stamp {stamp} revision {revision} {times:?} {attempts:?}\n");
        for (node, state) in execution.nodes {
            if state.cell.is_some() || state.computation.is_some() {
                let cell = state.cell.map(|cell| self.cell(&cell));
                let _ = writeln!(text, "  {node}: {cell:?} {:?}", state.computation);
            }
        }
        text
    }

    pub(super) fn remembered(&mut self, entry: Remembered) -> String {
        let value = entry.value.map(|value| self.value(&value.value()));
        let entry = Remembered { at: self.at(entry.at), value: None, ..entry };
        format!("  {entry:?} {value:?}\n")
    }

    pub(super) fn peek(&mut self, peek: Peek) -> String {
        let cell = peek.cell.as_ref().map(|cell| self.cell(cell));
        format!("{} {} {cell:?} {:?}", peek.stamp, peek.known, peek.failed)
    }

    pub(super) fn definition(&mut self, definition: Definition) -> String {
        format!("{} {:?}\n", definition.graph.to_value(), self.at(definition.applied_at))
    }
}
