//! Two stores live through the same random history and must tell the same story: every answer and,
//! after every step, everything that can be seen.

mod draw;
mod op;
mod rng;
mod side;
mod state;
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
        let histories = if step % EVERY_HISTORY == 0 { world.runs.clone() } else { op.touched() };
        let mut told = Vec::new();
        for side in &mut sides {
            side.view.step = i64::try_from(step).unwrap_or(i64::MAX);
            let answer = side.perform(&op).await;
            let news = side.news().await;
            told.push((answer, news, side.state(&histories).await));
        }
        let [(left, left_news, left_state), (right, right_news, right_state)] = &told[..] else { return tally };
        same("answer", &context, &left.text, &right.text);
        same("log", &context, left_news, right_news);
        same("state", &context, left_state, right_state);
        count(&mut tally, &op, &left.text);
        world.leases.extend(left.claimed.iter().cloned());
        (world.running, world.finished) = (sides[0].running.clone(), sides[0].finished.clone());
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
const WORDS: [&str; 14] = [
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
];

fn count(tally: &mut Tally, op: &Op, answer: &str) {
    for word in WORDS {
        *tally.entry(word).or_default() += answer.matches(word).count();
    }
    *tally.entry("buried").or_default() += usize::from(matches!(op, Op::Bury(..)) && answer == "Ok(true)");
    *tally.entry("finished").or_default() += usize::from(matches!(op, Op::Finished(_)) && answer != "Ok([])");
    *tally.entry("promoted").or_default() += usize::from(matches!(op, Op::Promote) && !answer.starts_with("0 "));
    *tally.entry("forgotten").or_default() += usize::from(matches!(op, Op::ForgetRuns(_)) && answer != "Ok(0)");
}
