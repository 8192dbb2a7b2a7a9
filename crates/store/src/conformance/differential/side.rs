use super::op::{Op, Proof, Secret};
use super::planner::SameRuns;
use super::view::View;
use crate::{Advance, Piece, Planner, Result, Sign, Store, Which};
use everbeat_model::lease::Shown;
use everbeat_model::run::Claimed;
use everbeat_model::{ExecutionId, RunId, Settlement, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use uuid::Uuid;

/// Enough for everything that one history makes; which of too many a store leaves out is its affair.
pub(super) const ALL: usize = 10_000;

/// One of the two stores, with what only it knows: its tokens, its times, its numbers of events.
pub(super) struct Side {
    pub(super) store: Arc<dyn Store>,
    pub(super) view: View,
    /// Every event ever read, by the store's own number.
    pub(super) log: Vec<u64>,
    /// As of the last look.
    pub(super) running: Vec<RunId>,
    pub(super) finished: Vec<RunId>,
    /// Of executions.
    pub(super) node_runs: Vec<RunId>,
    pub(super) awaited: usize,
    pub(super) planner: Arc<dyn Planner>,
}

/// What a store said, in words that do not depend on the store.
pub(super) struct Answer {
    pub(super) text: String,
    /// What was leased or passed on.
    pub(super) claimed: Vec<Claimed>,
}

impl Side {
    pub(super) fn new(store: Arc<dyn Store>) -> Side {
        Side {
            store,
            view: View::default(),
            log: Vec::new(),
            running: Vec::new(),
            finished: Vec::new(),
            node_runs: Vec::new(),
            awaited: 0,
            planner: Arc::new(SameRuns::default()),
        }
    }

    pub(super) async fn perform(&mut self, op: &Op) -> Answer {
        let mut claimed = Vec::new();
        let (store, view) = (&self.store, &mut self.view);
        let text = match op.clone() {
            Op::Enqueue(requests) => say(store.enqueue(requests).await),
            Op::Claim(request) => {
                claimed = store.claim(request).await.expect("claim");
                claimed.iter().for_each(|claimed| view.granted(&claimed.lease));
                claimed.iter().map(|claimed| view.claimed(claimed)).collect()
            }
            Op::Settle(moves) => {
                let settlements = moves.into_iter().map(|m| Settlement {
                    shown: shown(&view.tokens, &m.proof),
                    spec: m.spec,
                    ending: m.ending,
                    next: m.next,
                    standing: m.standing,
                    last_heartbeat_at: m.last_heartbeat_at,
                    worker_id: m.worker_id,
                    verdict: m.verdict,
                });
                say(store.settle(settlements.collect()).await)
            }
            Op::Sign(signals) => {
                let signs = signals.into_iter().map(|signal| Sign {
                    shown: shown(&view.tokens, &signal.proof),
                    progress: signal.progress,
                    checkpoint: signal.checkpoint,
                });
                say(store.sign(signs.collect()).await)
            }
            Op::Append(words, keep) => {
                let pieces = words.into_iter().map(|words| Piece {
                    shown: shown(&view.tokens, &words.proof),
                    after: words.after,
                    items: words.items,
                });
                say(store.append(pieces.collect(), keep).await)
            }
            Op::Output(filter) => view.output(store.output(filter).await.expect("output")),
            Op::WasSettled(proofs) => {
                let leases = proofs.iter().map(|proof| (proof.run, shown(&view.tokens, proof).token));
                say(store.was_settled(leases.collect()).await)
            }
            Op::Cancel(run) => say(store.cancel(run).await),
            Op::Reopen(run, attempt) => say(store.reopen(run, attempt).await),
            Op::Place(proof, host) => say(store.place(shown(&view.tokens, &proof), host).await),
            Op::Unbind(host, limit) => say(store.unbind(host.to_string(), limit).await),
            Op::Adopt(to, limit) => {
                let adopted = store.adopt(to, limit).await.expect("adopt");
                // From now on they are shown under their new owner.
                claimed.extend(adopted.iter().map(|held| Claimed {
                    lease: held.lease.clone(),
                    spec: held.spec.clone(),
                    standing: held.standing,
                    checkpoint: None,
                    due_at: held.lease.granted_at,
                }));
                adopted.into_iter().map(|held| view.held(held)).collect()
            }
            Op::Promote => {
                let promoted = store.promote(ALL).await.expect("promote");
                let far_off = promoted.next_in.map(|next_in| next_in.as_secs() > 86_400);
                format!("{} moved, the next one is far off: {far_off:?}", promoted.moved)
            }
            Op::Join(replica) => {
                store.join(replica).await.map(|joined| format!("{:?}", view.at(joined.now))).expect("join")
            }
            Op::Renew(replica) => view.renewal(store.renew(replica).await.expect("renew")),
            Op::Bury(replica, beat, verdict) => say(store.bury(replica, beat, verdict).await),
            Op::Drain(replica) => say(store.drain(replica).await),
            Op::Leave(replica) => say(store.leave(replica).await),
            Op::Pause(queue, paused) => say(store.pause(&queue, paused).await),
            Op::Offer(tasks) => say(store.offer(&tasks).await),
            Op::Record(verdicts) => say(store.record(verdicts).await),
            Op::Finished(runs) => say(store.finished(runs).await),
            Op::Runs(filter) => {
                let runs = store.runs(filter).await.expect("runs").items;
                runs.into_iter().map(|run| view.run(run)).collect()
            }
            Op::Verdicts(filter) => {
                let verdicts = store.verdicts(filter).await.expect("verdicts");
                verdicts.into_iter().map(|verdict| view.verdict(verdict)).collect()
            }
            Op::LeaseIndex(replica, after, limit) => {
                let index = store.lease_index(replica, after, limit).await.expect("lease index");
                index.iter().map(|shown| view.shown(shown)).collect()
            }
            Op::Detached(after, limit) => {
                let held = store.held(Which::Detached(after, limit)).await.expect("held");
                held.into_iter().map(|held| view.held(held)).collect()
            }
            Op::Announce(news) => say(store.announce(news).await),
            Op::Events { back, limit } => {
                let after = view.whole_batch(self.log.iter().rev().nth(back).copied().unwrap_or(0));
                let page = store.events(after, limit).await.expect("events");
                format!("gap: {}\n{}", page.gap, view.events(page.events))
            }
            Op::SweepDue(name, every) => say(store.sweep_due(name, every).await),
            Op::Forget(run) => say(store.forget(run).await),
            Op::ForgetRuns(keep) => say(store.forget_runs(keep, ALL).await),
            Op::ForgetReplicas(keep) => say(store.forget_replicas(keep).await),
            Op::ForgetVerdicts(keep) => say(store.forget_verdicts(keep, ALL).await),
            Op::TrimEvents(keep) => say(store.trim_events(keep).await),
            Op::Apply(graph) => {
                store.apply(graph, None).await.map(|applied| format!("new: {}", applied.new)).expect("apply")
            }
            Op::Start(starts) => say(store.start(starts, self.planner.clone()).await),
            Op::Advance(advances) => say(store.advance(advances, self.planner.clone()).await),
            Op::Look(executions) => look(store, executions, &self.planner).await,
            Op::Executions(filter) => {
                let count = store.count(filter.clone()).await.expect("count");
                let listed = store.executions(filter).await.expect("executions");
                format!("{count}\n{}", listed.into_iter().map(|stored| view.execution(stored)).collect::<String>())
            }
            Op::History(id, after, limit) => {
                let history = store.history(id, after, limit).await.expect("history");
                history.into_iter().map(|entry| view.remembered(entry)).collect()
            }
            Op::Stamps(executions) => say(store.stamps(executions).await),
            Op::Value(id, node) => {
                let peek = store.value(id, &node).await.expect("value");
                peek.map_or_else(|| "nothing".to_string(), |peek| view.peek(peek))
            }
            Op::Analytics(graph) => {
                let analytics = store.analytics(graph).await.expect("analytics");
                let reach = analytics.nodes.into_iter().map(|(node, reach)| (node, reach.reached, reach.ended));
                format!("{} {} {:?}", analytics.executions, analytics.archived, reach.collect::<Vec<_>>())
            }
            Op::Graph(name, version) => {
                let definition = store.graph(name, version).await.expect("graph");
                definition.map_or_else(|| "none".to_string(), |definition| view.definition(definition))
            }
        };
        Answer { text, claimed }
    }

    /// What happened since the last look.
    pub(super) async fn news(&mut self) -> String {
        let mut news = Vec::new();
        loop {
            let after = self.log.last().copied().unwrap_or(0);
            let page = self.store.events(after, 100).await.expect("events");
            assert!(!page.gap, "nothing was dropped since the last look");
            if page.events.is_empty() {
                break;
            }
            for event in page.events {
                assert!(event.id > self.log.last().copied().unwrap_or(0), "numbers of events rise");
                self.log.push(event.id);
                news.push(event);
            }
        }
        let last = self.store.last_event().await.expect("last event");
        assert!(last == 0 || Some(&last) == self.log.last());
        format!("{}the log is empty: {}", self.view.events(news), last == 0)
    }
}

async fn look(store: &Arc<dyn Store>, executions: BTreeSet<ExecutionId>, planner: &Arc<dyn Planner>) -> String {
    for execution in executions {
        let advance = Advance { execution, commands: Vec::new() };
        store.advance(vec![advance], planner.clone()).await.expect("advance");
    }
    loop {
        let looked = store.advance_due(ALL, planner.clone()).await.expect("advance due");
        if looked.executions.is_empty() {
            let far_off = looked.next_in.map(|next_in| next_in.as_secs() > 86_400);
            let stranded = store.note_stranded(ALL).await.expect("note stranded");
            return format!("{stranded} stranded, the next one is far off: {far_off:?}");
        }
    }
}

fn say<T: Debug>(answer: Result<T>) -> String {
    format!("{answer:?}")
}

fn shown(tokens: &BTreeMap<(RunId, u32), Token>, proof: &Proof) -> Shown {
    let forged = Token(Uuid::from_u128(0xbad));
    let token = match proof.secret {
        Secret::Of(run, attempt) => tokens.get(&(run, attempt)).copied().unwrap_or(forged),
        Secret::Forged => forged,
    };
    Shown { run_id: proof.run, attempt: proof.attempt, token, replica_id: proof.owner, rescue: proof.rescue }
}
