//! Two stores live through the same random history and must tell the same story: every answer and,
//! after every step, everything that can be seen.

mod draw;
mod graphs;
mod op;
mod planner;
mod rng;
mod side;
mod state;
mod tell;
mod view;

use crate::Store;
use draw::World;
use op::Op;
use side::Side;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How often each thing was answered, so that a history cannot pass by doing nothing.
pub type Tally = BTreeMap<&'static str, usize>;

/// Compares two empty stores over `steps` random steps; panics where they first differ. The same seed
/// gives the same history. A store with a clock that is set must be given one that moves with every
/// reading, like [`HandClock`](super::HandClock).
pub async fn differential(a: Arc<dyn Store>, b: Arc<dyn Store>, seed: u64, steps: usize) -> Tally {
    let mut world = World::new(seed);
    let mut sides = [Side::new(a), Side::new(b)];
    let mut tally = Tally::new();
    for step in 0..steps {
        let op = world.draw();
        let context = format!("seed {seed}, step {step}: {op:?}");
        let whole = step % EVERY_HISTORY == 0;
        let histories = if whole { world.runs.clone() } else { op.touched() };
        let mut told = Vec::new();
        for side in &mut sides {
            side.view.step = i64::try_from(step).unwrap_or(i64::MAX);
            side.view.writes_several = op.writes_several();
            let answer = side.perform(&op).await;
            let news = side.news().await;
            told.push((answer, news, side.state(&histories, whole).await));
        }
        let [(left, left_news, left_state), (right, right_news, right_state)] = &told[..] else { return tally };
        same("answer", &context, &left.text, &right.text);
        same("log", &context, left_news, right_news);
        same("state", &context, left_state, right_state);
        count(&mut tally, &op, &left.text);
        count_news(&mut tally, left_news);
        world.leases.extend(left.claimed.iter().cloned());
        (world.running, world.finished) = (sides[0].running.clone(), sides[0].finished.clone());
        world
            .runs
            .append(&mut sides[0].node_runs.clone().into_iter().filter(|run| !world.runs.contains(run)).collect());
        world.awaited = sides[0].awaited;
        world.applied |= matches!(op, Op::Apply(_));
    }
    tally
}

/// Reading all histories at every step would take most of the time.
const EVERY_HISTORY: usize = 25;

fn same(what: &str, context: &str, left: &str, right: &str) {
    if left == right {
        return;
    }
    let (mut lefts, mut rights) = (left.lines(), right.lines());
    loop {
        let (left, right) = (lefts.next(), rights.next());
        if left != right {
            panic!("{context}\nthe {what} differs\n  left: {left:?}\n right: {right:?}");
        }
        assert!(left.is_some(), "{context}\nthe {what} differs in its line ends");
    }
}

/// What a history must hold to be worth anything, by the words of the answers.
const WORDS: [&str; 18] = [
    "Created",
    "Exists",
    "KeyReused",
    "lease of",
    "Done",
    "Fenced",
    "CancelAsked",
    "Accepted",
    "Ended",
    "Asked",
    "Ready",
    "KeyTaken",
    "fenced",
    "gap: true",
    "NoGraph",
    "Refused",
    "Invalid",
    "Conflict",
];

fn count(tally: &mut Tally, op: &Op, answer: &str) {
    for word in WORDS {
        *tally.entry(word).or_default() += answer.matches(word).count();
    }
    *tally.entry("buried").or_default() += usize::from(matches!(op, Op::Bury(..)) && answer == "Ok(true)");
    *tally.entry("finished").or_default() += usize::from(matches!(op, Op::Finished(_)) && answer != "Ok([])");
    *tally.entry("placed").or_default() += usize::from(matches!(op, Op::Place(..)) && answer == "Ok(true)");
    *tally.entry("unbound").or_default() += usize::from(matches!(op, Op::Unbind(..)) && answer != "Ok(0)");
    *tally.entry("adopted").or_default() += usize::from(matches!(op, Op::Adopt(..)) && !answer.is_empty());
    *tally.entry("detached").or_default() += usize::from(matches!(op, Op::Detached(..)) && !answer.is_empty());
    *tally.entry("promoted").or_default() += usize::from(matches!(op, Op::Promote) && !answer.starts_with("0 "));
    *tally.entry("forgotten alone").or_default() += usize::from(matches!(op, Op::Forget(_)) && answer == "Ok(true)");
    *tally.entry("streamed").or_default() += usize::from(matches!(op, Op::Output(_)) && answer.contains("seq"));
    *tally.entry("forgotten").or_default() += usize::from(matches!(op, Op::ForgetRuns(_)) && answer != "Ok(0)");
}

/// What must have come of it.
const NEWS: [&str; 8] = [
    "graph.applied",
    "execution.started",
    "execution.changed",
    "execution.archived",
    "execution.unarchived",
    "execution.node_failed",
    "run.cancelled",
    "job.stale",
];

fn count_news(tally: &mut Tally, news: &str) {
    for kind in NEWS {
        *tally.entry(kind).or_default() += news.matches(kind).count();
    }
}
