use super::side::{ALL, Side};
use crate::{ExecutionFilter, OutputFilter, RunFilter, VerdictFilter, Which};
use everbeat_model::{RunId, RunState};

impl Side {
    /// Everything that can be seen of the store. `histories` are the runs whose attempts are told; those of
    /// executions are told if it is to be the `whole`.
    pub(super) async fn state(&mut self, histories: &[RunId], whole: bool) -> String {
        let (store, view) = (self.store.clone(), &mut self.view);
        let mut state = String::new();
        (self.running, self.finished) = (Vec::new(), Vec::new());
        for run in store.runs(RunFilter { limit: ALL, ..RunFilter::default() }).await.expect("runs").items {
            match run.state {
                RunState::Running => self.running.push(run.id),
                state if state.finished() => self.finished.push(run.id),
                _ => {}
            }
            if run.spec.parent.is_some() && !self.node_runs.contains(&run.id) {
                self.node_runs.push(run.id);
            }
            state += &view.run(run);
        }
        self.awaited = 0;
        let all = ExecutionFilter { include_archived: true, limit: ALL, ..ExecutionFilter::default() };
        for stored in store.executions(all).await.expect("executions") {
            let over = |node: &String| stored.execution.running(node).is_some_and(|run| self.finished.contains(&run));
            self.awaited += usize::from(stored.execution.nodes.keys().any(over));
            let history = if whole { store.history(stored.id, 0, ALL).await.expect("history") } else { Vec::new() };
            state += &view.execution(stored);
            state += &history.into_iter().map(|entry| view.remembered(entry)).collect::<String>();
        }
        for definition in store.graphs(None, ALL).await.expect("graphs") {
            state += &view.definition(definition);
        }
        for replica in store.replicas().await.expect("replicas") {
            for shown in store.lease_index(replica.id, None, ALL).await.expect("lease index") {
                state += &view.shown(&shown);
            }
            state += "asked to cancel\n";
            state += &sorted(store.cancel_asked(replica.id).await.expect("cancel asked"), |asked| view.shown(&asked));
            state += &view.replica(replica);
        }
        for (name, which) in [
            ("running", Which::Of(self.running.clone())),
            ("orphaned", Which::Orphaned(None, ALL)),
            ("detached", Which::Detached(None, ALL)),
        ] {
            state += &format!("{name}\n");
            state += &sorted(store.held(which).await.expect("held"), |held| view.held(held));
        }
        state += &format!("bound to {:?}\n", store.bound_hosts().await.expect("bound hosts"));
        for verdict in store.verdicts(VerdictFilter { limit: ALL, ..VerdictFilter::default() }).await.expect("verdicts")
        {
            state += &view.verdict(verdict);
        }
        for run in histories {
            for attempt in store.attempts(*run).await.expect("attempts") {
                state += &format!("{run} {}", view.attempt(attempt));
            }
            let all = OutputFilter { run: *run, kind: None, after: 0, limit: ALL, bytes: usize::MAX };
            state += &view.output(store.output(all).await.expect("output"));
        }
        let audit = store.audit().await.expect("audit");
        assert_eq!(audit.violations, [], "the audit finds nothing wrong");
        state += &format!("{audit:?}\n{:?}\n", store.tasks().await.expect("tasks"));
        for queue in store.queues().await.expect("queues") {
            state += &format!("{queue:?}\n");
        }
        state
    }
}

/// For answers whose order is not promised.
fn sorted<T>(items: Vec<T>, mut tell: impl FnMut(T) -> String) -> String {
    let mut lines: Vec<String> = items.into_iter().map(&mut tell).collect();
    lines.sort();
    lines.concat()
}
