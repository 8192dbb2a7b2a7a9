use super::Memory;
use super::cancel::cancel_one;
use super::state::{ExecutionRow, State, ValueRow};
use crate::{
    AT_ONCE, Advance, Advanced, Analytics, Cancelled, Definition, ExecutionFilter, Executions, Looked, Peek, Planner,
    Reach, Remembered, Result, Start, Started, Stored, cuts, events, superseded,
};
use async_trait::async_trait;
use everbeat_model::event::{EventKind, line};
use everbeat_model::graph::{
    Command, Course, Direction, Ended, Execution, Field, Opening, Plan, Snapshot, Sort, Status, compare, must_be_alone,
    not_alone, opening, repeated,
};
use everbeat_model::{ExecutionId, Hole, Json, RunId, StoreTime};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

#[async_trait]
impl Executions for Memory {
    async fn start(&self, starts: Vec<Start>, planner: Arc<dyn Planner>) -> Result<Vec<Started>> {
        let now = self.now();
        let mut state = self.lock();
        let mut lines = Vec::new();
        let answers = starts.into_iter().map(|start| state.start(start, now, &*planner, &mut lines)).collect();
        state.append(now, &lines);
        state.version += 1;
        Ok(answers)
    }

    async fn advance(&self, advances: Vec<Advance>, planner: Arc<dyn Planner>) -> Result<Vec<Advanced>> {
        let now = self.now();
        let mut state = self.lock();
        let mut lines = Vec::new();
        let answers = advances
            .into_iter()
            .map(|advance| state.advance(advance.execution, advance.commands, now, &*planner, &mut lines))
            .collect();
        state.append(now, &lines);
        state.version += 1;
        Ok(answers)
    }

    async fn advance_due(&self, limit: usize, planner: Arc<dyn Planner>) -> Result<Looked> {
        let now = self.now();
        let mut state = self.lock();
        let mut executions: Vec<ExecutionId> = Vec::new();
        for (_, id) in state.agenda.iter().take_while(|(at, _)| *at <= now) {
            if executions.len() < limit && !executions.contains(id) {
                executions.push(*id);
            }
        }
        let mut lines = Vec::new();
        for id in &executions {
            state.advance(*id, Vec::new(), now, &*planner, &mut lines);
        }
        state.append(now, &lines);
        state.version += u64::from(!executions.is_empty());
        let next_in = state.agenda.first().map(|(at, _)| at.since(now));
        Ok(Looked { executions, next_in, news: state.last_batch })
    }

    async fn note_stranded(&self, limit: usize) -> Result<usize> {
        if self.hole.is(Hole::NoteForgotten) {
            return Ok(0);
        }
        let mut state = self.lock();
        let waits =
            |row: &ExecutionRow| row.execution.nodes.keys().any(|node| state.ended(&row.execution, node).is_some());
        let stranded: Vec<ExecutionId> =
            state.executions.iter().filter(|(_, row)| waits(row)).map(|(id, _)| *id).take(limit).collect();
        state.agenda.extend(stranded.iter().map(|id| (AT_ONCE, *id)));
        state.version += 1;
        Ok(stranded.len())
    }

    async fn execution(&self, id: ExecutionId) -> Result<Option<Stored>> {
        let state = self.lock();
        Ok(state.executions.get(&id).map(|row| state.stored(id, row)))
    }

    async fn value(&self, id: ExecutionId, node: &str) -> Result<Option<Peek>> {
        let state = self.lock();
        Ok(state.executions.get(&id).map(|row| Peek {
            stamp: row.stamp,
            known: state.graphs[&row.course.definition].graph.node(node).is_some(),
            cell: row.execution.cell(node).cloned(),
            failed: row.execution.computation(node).and_then(|computation| match &computation.status {
                Status::Failed(error) => Some(error.clone()),
                _ => None,
            }),
        }))
    }

    async fn executions(&self, filter: ExecutionFilter) -> Result<Vec<Stored>> {
        let state = self.lock();
        let mut found: Vec<(ExecutionId, &ExecutionRow)> = state.matching(&filter).collect();
        match &filter.sort {
            None => found.reverse(),
            Some(sort) => found.sort_by(|a, b| order(sort, a, b)),
        }
        Ok(found.into_iter().skip(filter.offset).take(filter.limit).map(|(id, row)| state.stored(id, row)).collect())
    }

    async fn count(&self, filter: ExecutionFilter) -> Result<u64> {
        Ok(self.lock().matching(&filter).count() as u64)
    }

    async fn stamps(&self, executions: Vec<ExecutionId>) -> Result<Vec<(ExecutionId, u64)>> {
        let state = self.lock();
        Ok(executions.into_iter().filter_map(|id| Some((id, state.executions.get(&id)?.stamp))).collect())
    }

    async fn history(&self, id: ExecutionId, after: u64, limit: usize) -> Result<Vec<Remembered>> {
        let state = self.lock();
        let all = state.executions.get(&id).into_iter().flat_map(|row| &row.history);
        Ok(all.filter(|entry| entry.place > after).take(limit).cloned().collect())
    }

    async fn analytics(&self, graph: &str) -> Result<Analytics> {
        let state = self.lock();
        let mut analytics = Analytics::default();
        let mut spans: BTreeMap<String, Duration> = BTreeMap::new();
        let rows = state.executions.values().filter(|row| state.graphs[&row.course.definition].graph.name == graph);
        for row in rows {
            analytics.executions += 1;
            analytics.archived += u64::from(row.execution.archived_at.is_some());
            for (node, value) in &row.values {
                let Some(first) = value.first_set_at else { continue };
                analytics.nodes.entry(node.clone()).or_default().reached += 1;
                *spans.entry(node.clone()).or_default() += first.since(row.created_at);
            }
            if let Some(last) = row.history.last() {
                analytics.nodes.entry(last.node.clone()).or_default().ended += 1;
            }
        }
        for (node, Reach { reached, average, .. }) in &mut analytics.nodes {
            let total = spans.get(node).copied().unwrap_or_default();
            *average = total / u32::try_from(*reached).unwrap_or(u32::MAX).max(1);
        }
        Ok(analytics)
    }
}

impl State {
    fn start(&mut self, start: Start, now: StoreTime, planner: &dyn Planner, lines: &mut Vec<String>) -> Started {
        let kept = start.idempotency.as_ref().and_then(|idempotency| self.idempotency.get(&idempotency.key));
        let kept = kept.map(|(fingerprint, ids, _)| (fingerprint.as_str(), ids.first().map(|id| ExecutionId(id.0))));
        let stored = self.executions.contains_key(&start.id);
        if let Some(earlier) = Started::earlier(repeated(start.id, stored, start.idempotency.as_ref(), kept)) {
            return earlier;
        }
        let Some(definition) = self.definition(&start.graph, start.version.as_deref()).cloned() else {
            return Started::NoGraph;
        };
        let answer = match opening(&definition.graph, self.standing_one(&start.graph)) {
            Opening::Stands(id) => Started::Exists(id),
            Opening::Begin => self.begin(&start, &definition, now, planner, lines),
        };
        if let (Some(idempotency), Some(id)) = (start.idempotency, answer.kept()) {
            self.idempotency.insert(idempotency.key, (idempotency.fingerprint, vec![RunId(id.0)], now));
        }
        answer
    }

    fn begin(
        &mut self,
        start: &Start,
        definition: &Definition,
        now: StoreTime,
        planner: &dyn Planner,
        lines: &mut Vec<String>,
    ) -> Started {
        let plan = planner.plan(Snapshot::before(start.id, definition.graph.clone(), now), start.commands());
        if let Some(refusal) = plan.refused_start() {
            return Started::Refused(refusal);
        }
        let row = ExecutionRow {
            course: Course::begin(definition.serial, self.latest(&start.graph)),
            singleton: definition.graph.singleton,
            execution: Execution::default(),
            stamp: 0,
            created_at: now,
            updated_at: now,
            values: BTreeMap::new(),
            history: Vec::new(),
            place: 0,
        };
        let revision = plan.changes.execution.revision;
        self.executions.insert(start.id, row);
        lines.extend(events(start.id, &plan, true));
        self.carry_out(start.id, plan, now, lines);
        Started::Created { id: start.id, revision }
    }

    fn advance(
        &mut self,
        id: ExecutionId,
        commands: Vec<Command>,
        now: StoreTime,
        planner: &dyn Planner,
        lines: &mut Vec<String>,
    ) -> Advanced {
        let Some(row) = self.executions.get(&id) else {
            self.agenda.retain(|(_, noted)| *noted != id);
            return Advanced::NotFound;
        };
        let name = self.graphs[&row.course.definition].graph.name.clone();
        let returns = must_be_alone(row.singleton, row.execution.archived_at, &commands);
        if let Some(other) = self.standing_one(&name).filter(|_| returns) {
            return Advanced::refused(&commands, &not_alone(&name, other));
        }
        // What is refused as a whole leaves its note to whoever looks next.
        self.agenda.retain(|(_, noted)| *noted != id);
        let (course, moved) = row.course.follow(self.latest(&name));
        if let Some(row) = self.executions.get_mut(&id) {
            row.course = course;
        }
        let mut plan = planner.plan(self.snapshot(id, &self.executions[&id], now), commands);
        let answers = std::mem::take(&mut plan.answers);
        if moved || !plan.changes.is_empty() {
            lines.extend(events(id, &plan, false));
            self.carry_out(id, plan, now, lines);
        } else if let Some(due) = plan.changes.next_look() {
            self.agenda.insert((due, id));
        }
        Advanced::Done(answers)
    }

    fn snapshot(&self, id: ExecutionId, row: &ExecutionRow, now: StoreTime) -> Snapshot {
        let ended = row.execution.nodes.keys().filter_map(|node| self.ended(&row.execution, node)).collect();
        let graph = self.graphs[&row.course.definition].graph.clone();
        Snapshot { id, graph, execution: row.execution.clone(), ended, now }
    }

    /// How the run that computes a node ended, if it is over or unknown.
    fn ended(&self, execution: &Execution, node: &str) -> Option<Ended> {
        let run = execution.running(node)?;
        let node = node.to_string();
        match (self.runs.contains_key(&run), self.done.get(&run)) {
            (true, None) => None,
            (_, Some(done)) => {
                let (state, result, error) = (done.state, done.result.clone(), done.error.clone());
                Some(Ended { node, run, state, result, error })
            }
            (false, None) => Some(Ended::unknown(node, run)),
        }
    }

    /// Writes what was decided.
    fn carry_out(&mut self, id: ExecutionId, plan: Plan, now: StoreTime, lines: &mut Vec<String>) {
        let changes = plan.changes;
        self.agenda.extend(changes.next_look().map(|due| (due, id)));
        for run in plan.runs {
            self.put_run(run, now);
        }
        for run in changes.stop {
            if cancel_one(self, run, now, Some(superseded())) == Cancelled::Ended {
                // Nobody looks for its end any more.
                self.agenda.remove(&(AT_ONCE, id));
                lines.push(line(EventKind::RunCancelled, &run.to_string(), None, None));
            }
        }
        let Some(row) = self.executions.get_mut(&id) else { return };
        let graph = &self.graphs[&row.course.definition].graph;
        for change in changes.changed {
            let value = row.values.entry(change.node.clone()).or_insert(ValueRow { changes: 0, first_set_at: None });
            value.changes += 1;
            if change.cell.is_some() {
                value.first_set_at.get_or_insert(now);
            }
            let (cell, node) = (change.cell.as_ref(), change.node);
            let keep = graph.keep(&node);
            if keep == 0 {
                continue;
            }
            if let Some(cell) = cell.filter(|_| change.silent) {
                let same = |entry: &&mut Remembered| entry.node == node && entry.revision == cell.revision;
                let replaced = row.history.iter_mut().filter(same);
                replaced.for_each(|entry| (entry.value, entry.metadata) = (Some(Json::of(&cell.value)), None));
            }
            row.place += 1;
            row.history.push(Remembered {
                place: row.place,
                node: node.clone(),
                value: cell.map(|cell| Json::of(&cell.value)),
                revision: change.revision,
                at: now,
                metadata: cell.and_then(|cell| cell.metadata.as_ref()).map(Json::of),
                run: change.run,
            });
            if cuts(value.changes, keep) {
                let mine = row.history.iter().rev().filter(|entry| entry.node == node);
                let oldest = mine.map(|entry| entry.place).nth(keep - 1).unwrap_or(0);
                row.history.retain(|entry| entry.node != node || entry.place >= oldest);
            }
        }
        row.execution = changes.execution;
        row.stamp += 1;
        row.updated_at = now;
    }

    /// The execution of a singleton graph that is not archived.
    fn standing_one(&self, graph: &str) -> Option<ExecutionId> {
        let standing = |row: &&ExecutionRow| row.singleton && row.execution.archived_at.is_none();
        let found = self
            .executions
            .iter()
            .find(|(_, row)| standing(row) && self.graphs[&row.course.definition].graph.name == graph);
        found.map(|(id, _)| *id)
    }

    fn stored(&self, id: ExecutionId, row: &ExecutionRow) -> Stored {
        let attempt = |node: &String| Some((node.clone(), self.run(row.execution.running(node)?)?.attempt));
        Stored {
            id,
            graph: self.graphs[&row.course.definition].graph.clone(),
            execution: row.execution.clone(),
            stamp: row.stamp,
            created_at: row.created_at,
            updated_at: row.updated_at,
            attempts: row.execution.nodes.keys().filter_map(attempt).collect(),
        }
    }

    /// In order of id.
    fn matching<'a>(&'a self, filter: &'a ExecutionFilter) -> impl Iterator<Item = (ExecutionId, &'a ExecutionRow)> {
        self.executions.iter().map(|(id, row)| (*id, row)).filter(move |(id, row)| {
            let cell = |node: &str| row.execution.cell(node).map(|cell| &cell.value);
            filter.graph.as_ref().is_none_or(|graph| self.graphs[&row.course.definition].graph.name == *graph)
                && (filter.include_archived || row.execution.archived_at.is_none())
                && filter.before.is_none_or(|before| *id < before)
                && filter.conditions.iter().all(|condition| condition.holds(cell(&condition.node)))
        })
    }
}

fn order(sort: &Sort, a: &(ExecutionId, &ExecutionRow), b: &(ExecutionId, &ExecutionRow)) -> Ordering {
    let directed = |order: Ordering, direction: &Direction| match direction {
        Direction::Ascending => order,
        Direction::Descending => order.reverse(),
    };
    match sort {
        Sort::Field(field, direction) => {
            let fields = match field {
                Field::CreatedAt => a.1.created_at.cmp(&b.1.created_at),
                Field::UpdatedAt => a.1.updated_at.cmp(&b.1.updated_at),
                Field::Revision => a.1.execution.revision.cmp(&b.1.execution.revision),
                Field::Id => Ordering::Equal,
            };
            directed(fields.then(a.0.cmp(&b.0)), direction)
        }
        Sort::Node(node, direction) => {
            let value = |row: &ExecutionRow| row.execution.cell(node).map(|cell| cell.value.clone());
            let values = compare(value(a.1).as_ref(), value(b.1).as_ref(), *direction);
            values.then_with(|| directed(a.0.cmp(&b.0), direction))
        }
    }
}
