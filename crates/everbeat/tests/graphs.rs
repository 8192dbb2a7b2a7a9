//! Graphs built in Rust, as users of the library see them, on memory and on SQLite.

use everbeat::model::StoreTime;
use everbeat::{
    Ctx, Engine, Error, Failure, GraphDefinition, Iteration, Key, Saved, Values, Wait, all, always, any, not,
};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

const X: Key<u64> = Key::new("x");
const LEFT: Key<u64> = Key::new("left");
const RIGHT: Key<u64> = Key::new("right");
const JOIN: Key<(u64, u64)> = Key::new("join");
const LIMIT: Duration = Duration::from_secs(30);

#[allow(clippy::disallowed_methods, reason = "the library is watched from outside, on the real clock")]
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("in time")
}

async fn each_store(test: impl AsyncFn(&str)) {
    test("memory:").await;
    let folder = tempfile::tempdir().unwrap();
    test(&format!("sqlite://{}", folder.path().join("everbeat.db").display())).await;
}

fn diamond() -> GraphDefinition {
    GraphDefinition::builder("diamond", "1")
        .input(X)
        .compute(LEFT, X, |_ctx: Ctx, values: Values| async move { values.get(X) })
        .compute(RIGHT, X, |_ctx: Ctx, values: Values| async move { values.get(X) })
        .compute(
            JOIN,
            [LEFT, RIGHT],
            |_ctx: Ctx, values: Values| async move { Ok((values.get(LEFT)?, values.get(RIGHT)?)) },
        )
        .options(json!({ "keep_latest": 20_000 }))
        .build()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_sets_of_a_diamond_never_join_two_different_inputs() {
    each_store(async |url| {
        let engine = Engine::open(url).graph(diamond()).start().await.unwrap();
        let execution = engine.start("diamond").await.unwrap();
        let mut revision = 0;
        for x in 1..=10_000 {
            let now = execution.set(X, &x).await.unwrap();
            assert!(now > revision, "revisions strictly rise: {now} after {revision}");
            revision = now;
        }
        // The last values win.
        let mut seen = 0;
        while seen < 10_000 {
            let newer = execution.wait(JOIN, Wait::Any, LIMIT).await.unwrap();
            seen = newer.expect("a join in time").0.0;
        }
        let joins = execution.history().await.unwrap().into_iter().filter(|entry| entry.node == JOIN.name());
        let joins: Vec<(u64, u64)> = joins.map(|entry| entry.value.unwrap().read().unwrap()).collect();
        assert!(joins.iter().all(|(left, right)| left == right), "{joins:?}");
        assert!(joins.is_sorted_by(|a, b| a < b), "each state is joined at most once");
        println!("{url}: {} joins of 10,000 sets", joins.len());
        engine.drain().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_computation_is_retried_after_its_heartbeat_timeout_and_its_late_result_is_ignored() {
    const WORK: Key<String> = Key::new("work");
    each_store(async |url| {
        let (late, calls) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let (wait, count) = (late.clone(), calls.clone());
        let graph = GraphDefinition::builder("silent", "1")
            .input(X)
            .compute(WORK, X, move |ctx: Ctx, _values: Values| {
                let (wait, count) = (wait.clone(), count.clone());
                async move {
                    count.fetch_add(1, Ordering::SeqCst);
                    if ctx.attempt() == 1 {
                        // Says nothing any more, and does not notice that it is told to stop.
                        wait.notified().await;
                        return Ok("late".to_string());
                    }
                    Ok("in time".to_string())
                }
            })
            .options(json!({
                "heartbeat": "manual", "heartbeat_interval": "50ms", "heartbeat_timeout": "200ms", "deadline": "5h",
                "cancel_grace": "20s",
            }))
            .build()
            .unwrap();
        let engine = Engine::open(url).graph(graph).start().await.unwrap();
        let execution = engine.start_with("silent", Values::new().with(X, &1)).await.unwrap();
        assert_eq!(execution.get(WORK).await.unwrap(), "in time");
        late.notify_one();
        let run = execution.view().await.unwrap().nodes[WORK.name()].run.unwrap();
        let attempts = engine.inner().attempts(run).await.unwrap();
        let outcomes: Vec<&str> = attempts.iter().filter_map(|a| a.outcome).map(|outcome| outcome.as_str()).collect();
        assert_eq!(outcomes, ["lost", "succeeded"]);
        engine.drain().await;
        assert_eq!(execution.find(WORK).await.unwrap().as_deref(), Some("in time"), "the late one is ignored");
        assert_eq!(calls.load(Ordering::SeqCst), 2);
        assert_eq!(execution.history().await.unwrap().iter().filter(|entry| entry.node == "work").count(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn used_up_attempts_fail_those_who_wait_at_once_and_call_back_once() {
    const WORK: Key<u64> = Key::new("work");
    each_store(async |url| {
        let told: Arc<Mutex<Vec<Saved>>> = Arc::default();
        let tell = told.clone();
        let graph = GraphDefinition::builder("failing", "1")
            .input(X)
            .compute(WORK, X, |_ctx: Ctx, values: Values| async move {
                match values.get(X)? {
                    0 => Err(Failure::new("zero divides nothing")),
                    x => Ok(100 / x),
                }
            })
            .options(json!({ "max_attempts": 3, "backoff": { "initial": "5ms" } }))
            .on_save(move |_ctx: Ctx, saved: Saved| {
                tell.lock().unwrap().push(saved);
                async { Ok(()) }
            })
            .build()
            .unwrap();
        let engine = Engine::open(url).graph(graph).start().await.unwrap();
        let execution = engine.start_with("failing", Values::new().with(X, &0)).await.unwrap();
        let error = soon(execution.get(WORK)).await.unwrap_err();
        assert!(
            matches!(&error, Error::NodeFailed { reason, .. } if reason.contains("zero divides nothing")),
            "{error}"
        );
        execution.set(X, &4).await.unwrap();
        assert_eq!(execution.get(WORK).await.unwrap(), 25, "the failure was of an earlier input");
        // A drained engine claims nothing any more, callbacks included.
        let both = async {
            while told.lock().unwrap().len() < 2 {
                tokio::task::yield_now().await;
            }
        };
        soon(both).await;
        engine.drain().await;
        let told = told.lock().unwrap().clone();
        let statuses: Vec<&str> = told.iter().map(|saved| saved.status.as_str()).collect();
        assert_eq!(statuses, ["failed", "saved"], "{told:?}");
        assert_eq!(told[1].value, Some(json!(25)));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_node_and_gate_can_be_built() {
    const FLAG: Key<bool> = Key::new("flag");
    const SECRET: Key<String> = Key::new("secret");
    const LENGTH: Key<usize> = Key::new("length");
    const SCRUB: Key<String> = Key::new("scrub");
    const DUE: Key<Option<StoreTime>> = Key::new("due");
    const FIRED: Key<String> = Key::new("fired");
    const COUNT: Key<u64> = Key::new("count");
    const LOG: Key<Vec<Value>> = Key::new("log");
    const BYE: Key<StoreTime> = Key::new("bye");
    const ECHO: Key<Value> = Key::new("echo");
    each_store(async |url| {
        let graph = GraphDefinition::builder("kinds", "1")
            .input(FLAG)
            .input(SECRET)
            .input(X)
            .compute(LENGTH, all([SECRET.provided(), not(FLAG.is_false())]), |_ctx: Ctx, values: Values| async move {
                Ok(values.get(SECRET)?.len())
            })
            .mutate(SCRUB, LENGTH.above(2), SECRET, |_ctx: Ctx, _values: Values| async { Ok("gone".to_string()) })
            .tick_once(DUE, always(), |ctx: Ctx, _values: Values| async move {
                Ok(Some(ctx.now().plus(Duration::from_millis(50))))
            })
            .compute(FIRED, DUE, |_ctx: Ctx, _values: Values| async { Ok("fired".to_string()) })
            .iterate(COUNT, LENGTH, 10, |_ctx: Ctx, values: Values| async move {
                let count = values.find(COUNT)?.unwrap_or(0) + 1;
                Ok(if count < 4 { Iteration::Continue { state: count } } else { Iteration::Done { done: count } })
            })
            .historian(LOG, any([SECRET.provided(), LENGTH.provided()]))
            .compute_by(ECHO, X.equals(7), "echo", json!(null))
            .archive(BYE, [COUNT.provided(), FIRED.provided(), ECHO.provided()])
            .build()
            .unwrap();
        let engine = Engine::open(url).graph(graph).start().await.unwrap();
        let execution = engine.start_with("kinds", Values::new().with(SECRET, &"abcd".to_string())).await.unwrap();
        assert_eq!(execution.get(SCRUB).await.unwrap(), "updated secret");
        assert_eq!(execution.get(SECRET).await.unwrap(), "gone");
        assert_eq!(execution.get(LENGTH).await.unwrap(), 4, "a silent mutation computes nothing anew");
        assert_eq!(execution.get(FIRED).await.unwrap(), "fired");
        assert_eq!(execution.get(COUNT).await.unwrap(), 4);
        let log = execution.get(LOG).await.unwrap();
        assert_eq!((&log[0]["node"], &log[1]["value"]), (&json!("length"), &json!("abcd")), "{log:?}");
        execution.set(X, &7).await.unwrap();
        execution.get(BYE).await.unwrap();
        assert!(execution.view().await.unwrap().stored.execution.archived_at.is_some());
        engine.drain().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tick_by_a_schedule_is_due_again_and_again_without_drift() {
    const OFTEN: Key<Option<StoreTime>> = Key::new("often");
    const SEEN: Key<Vec<Value>> = Key::new("seen");
    const FIRED: Key<StoreTime> = Key::new("fired");
    each_store(async |url| {
        let graph = GraphDefinition::builder("ticking", "1")
            .input(X)
            .tick_recurring_by(OFTEN, X, json!({ "every": "1s" }))
            .compute(FIRED, OFTEN, |_ctx: Ctx, values: Values| async move {
                values.get(OFTEN)?.ok_or_else(|| Failure::new("it is due at some time"))
            })
            .historian(SEEN, FIRED)
            .build()
            .unwrap();
        let engine = Engine::open(url).graph(graph).start().await.unwrap();
        let execution = engine.start_with("ticking", Values::new().with(X, &1)).await.unwrap();
        let mut after = 0;
        for _ in 0..3 {
            let fired = execution.wait(FIRED, Wait::NewerThan(after), LIMIT).await.unwrap();
            (_, after) = fired.expect("in time");
        }
        let seen = execution.get(SEEN).await.unwrap();
        let times: Vec<StoreTime> =
            seen.iter().map(|entry| StoreTime::parse(entry["value"].as_str().unwrap()).unwrap()).collect();
        for pair in times.windows(2) {
            let apart = pair[0].since(pair[1]);
            assert!(apart.as_micros() > 0 && apart.subsec_micros() == 0, "{times:?}");
        }
        engine.drain().await;
    })
    .await;
    let refused = GraphDefinition::builder("odd", "1").tick_once_by(OFTEN, always(), json!({ "cron": "x" })).build();
    let Err(error) = refused else { panic!("accepted") };
    assert!(error.to_string().contains("often.schedule.cron"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_in_a_definition_is_told_with_the_nodes_name() {
    let refused = |definition: Result<GraphDefinition, Error>| match definition {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    };
    let base = || GraphDefinition::builder("bad", "1").input(X);
    assert!(refused(base().input(X).build()).contains('x'));
    let unknown = base().compute_by(LEFT, RIGHT, "noop", json!({})).build();
    assert!(refused(unknown).contains("left.gate"), "an upstream that does not exist");
    let option = base().compute_by(LEFT, X, "noop", json!({})).options(json!({ "max_tries": 1 })).build();
    assert!(refused(option).contains("left.options"), "an option that does not exist");
    let graph = base().compute_by(LEFT, X, "no_such_task", json!({})).build().unwrap();
    let Err(error) = Engine::open("memory:").graph(graph).start().await else { panic!("accepted") };
    assert!(error.to_string().contains("left.task"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_start_a_singleton_all_get_the_same_execution() {
    each_store(async |url| {
        let graph = GraphDefinition::builder("only", "1").singleton().input(X).build().unwrap();
        let engine = Engine::open(url).graph(graph).start().await.unwrap();
        let starts = (0..20).map(|_| engine.start("only"));
        let ids: Vec<_> = futures(starts).await.into_iter().map(|execution| execution.unwrap().id()).collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        engine.execution(ids[0]).archive().await.unwrap();
        assert_ne!(engine.start("only").await.unwrap().id(), ids[0], "an archived one makes room");
        engine.drain().await;
    })
    .await;
}

/// Awaits all of them at once.
async fn futures<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut answers: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(move |context| {
        for (future, answer) in futures.iter_mut().zip(&mut answers) {
            if answer.is_none()
                && let std::task::Poll::Ready(output) = future.as_mut().poll(context)
            {
                *answer = Some(output);
            }
        }
        match answers.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(answers.iter_mut().filter_map(Option::take).collect()),
            false => std::task::Poll::Pending,
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_changes_are_carried_out_once_each() {
    const SUM: Key<u64> = Key::new("sum");
    each_store(async |url| {
        let calls = Arc::new(AtomicU64::new(0));
        let count = calls.clone();
        let graph = GraphDefinition::builder("raced", "1")
            .input(X)
            .compute(SUM, X, move |_ctx: Ctx, values: Values| {
                count.fetch_add(1, Ordering::SeqCst);
                async move { values.get(X) }
            })
            .build()
            .unwrap();
        let engine = Engine::open(url).graph(graph).start().await.unwrap();
        let execution = engine.start("raced").await.unwrap();
        let mut revisions: Vec<u64> = Vec::new();
        for round in 0..20_u64 {
            let xs: Vec<u64> = (1..=10).map(|n| round * 10 + n).collect();
            let set = futures(xs.iter().map(|x| execution.set(X, x))).await;
            revisions.extend(set.into_iter().map(Result::unwrap));
            let x = execution.get(X).await.unwrap();
            while execution.get(SUM).await.unwrap() != x {
                tokio::task::yield_now().await;
            }
        }
        let states = revisions.len() as u64;
        revisions.sort_unstable();
        revisions.dedup();
        assert_eq!(revisions.len() as u64, states, "each change has a revision of its own");
        let calls = calls.load(Ordering::SeqCst);
        assert!(calls <= states, "{calls} computations of {states} states");
        engine.drain().await;
    })
    .await;
}
