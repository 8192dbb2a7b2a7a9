//! The library as its users see it, on memory and on SQLite.

use everbeat::model::{RunState, StoreTime};
use everbeat::{Beat, Ctx, Engine, Error, Failure, Stop, Submit};
use everbeat_store::OutputFilter;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

fn quick() -> Value {
    json!({ "backoff": { "initial": "10ms" }, "cancel_grace": "100ms" })
}

async fn each_store(test: impl AsyncFn(&str)) {
    test("memory:").await;
    let folder = tempfile::tempdir().unwrap();
    test(&format!("sqlite://{}", folder.path().join("everbeat.db").display())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_typed_task_takes_its_input_and_gives_its_output() {
    each_store(async |url| {
        let engine = Engine::open(url)
            .task("add", |_ctx: Ctx, (a, b): (i64, i64)| async move { Ok::<_, Failure>(a + b) })
            .start()
            .await
            .unwrap();
        let sum: i64 = engine.submit("add", &(2, 3)).await.unwrap().result().await.unwrap();
        assert_eq!(sum, 5);
        let error = engine.submit("add", &"no pair").await.unwrap().result::<i64>().await.unwrap_err();
        assert!(matches!(error, Error::RunEnded { state: RunState::Failed, .. }), "{error}");
        let view = engine.submit("add", &"no pair").await.unwrap().wait().await.unwrap();
        assert_eq!(view.run.attempt, 1, "an input that does not fit is not tried again");
        engine.drain().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_reaches_the_next_attempt() {
    each_store(async |url| {
        let engine = Engine::open(url)
            .task("count", |ctx: Ctx, _: ()| async move {
                let seen: Vec<u32> = ctx.resume().unwrap_or_default();
                let seen: Vec<u32> = seen.into_iter().chain([ctx.attempt()]).collect();
                ctx.checkpoint(&seen).await?;
                if ctx.attempt() < 3 { Err(Failure::new("not yet")) } else { Ok(seen) }
            })
            .policy(&quick())
            .unwrap()
            .start()
            .await
            .unwrap();
        let seen: Vec<u32> = engine.submit("count", &()).await.unwrap().result().await.unwrap();
        assert_eq!(seen, [1, 2, 3]);
        engine.drain().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_a_failure_of_the_attempt_only() {
    each_store(async |url| {
        let engine = Engine::open(url)
            .task("once", |ctx: Ctx, _: ()| async move {
                assert!(ctx.attempt() > 1, "the first attempt panics");
                Ok::<_, Failure>(ctx.fence())
            })
            .policy(&quick())
            .unwrap()
            .start()
            .await
            .unwrap();
        let run = engine.submit("once", &()).await.unwrap();
        assert_eq!(run.result::<u64>().await.unwrap(), 2);
        let attempts = engine.inner().attempts(run.id()).await.unwrap();
        assert!(attempts[0].error.as_ref().unwrap().as_str().contains("the first attempt panics"));
        engine.drain().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_the_performer_and_is_forced_after_the_grace() {
    each_store(async |url| {
        let begun = Arc::new(Notify::new());
        let polite = begun.clone();
        let stubborn = begun.clone();
        let engine = Engine::open(url)
            .task("polite", move |ctx: Ctx, _: ()| {
                let begun = polite.clone();
                async move {
                    begun.notify_one();
                    assert_eq!(ctx.stopped().await, Stop::Cancelled);
                    Err::<(), _>(Failure::new("stopped as asked"))
                }
            })
            .task("stubborn", move |_ctx: Ctx, _: ()| {
                let begun = stubborn.clone();
                async move {
                    begun.notify_one();
                    std::future::pending::<()>().await;
                    Ok::<_, Failure>(())
                }
            })
            .policy(&quick())
            .unwrap()
            .start()
            .await
            .unwrap();
        for task in ["polite", "stubborn"] {
            let run = engine.submit(task, &()).await.unwrap();
            begun.notified().await;
            run.cancel().await.unwrap();
            let view = run.wait().await.unwrap();
            assert_eq!(view.run.state, RunState::Cancelled, "{task}");
            assert_eq!(view.run.attempt, 1, "{task}");
        }
        engine.drain().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_stall_and_deadline_are_three_things() {
    each_store(async |url| {
        let engine = Engine::open(url)
            .task("hang", |ctx: Ctx, beats: bool| async move {
                loop {
                    if beats {
                        ctx.heartbeat(Beat::default())?;
                    }
                    ctx.sleep(Duration::from_millis(10)).await?;
                }
                #[expect(unreachable_code, reason = "names the output")]
                Ok::<(), Failure>(())
            })
            .task("promise", |ctx: Ctx, _: ()| async move {
                ctx.heartbeat(Beat { next_within: Some(Duration::from_secs(60)), ..Beat::default() })?;
                ctx.sleep(Duration::from_millis(400)).await?;
                Ok::<_, Failure>("kept")
            })
            .start()
            .await
            .unwrap();
        let manual = json!({ "heartbeat": "manual", "heartbeat_timeout": "200ms", "max_attempts": 1 });
        let cases = [
            ("hang", json!(false), manual.clone(), "lost", "attempt_silent"),
            ("hang", json!(true), json!({ "stall_timeout": "200ms", "max_attempts": 1 }), "stalled", "no_progress"),
            ("hang", json!(true), json!({ "deadline": "200ms", "max_attempts": 1 }), "timed_out", "deadline"),
        ];
        for (task, input, policy, outcome, reason) in cases {
            let mut submit = Submit::new(task, everbeat::model::Json::of(&input));
            submit.policy = Some(policy);
            let run = engine.submit_with(submit).await.unwrap();
            assert_eq!(run.wait().await.unwrap().run.state, RunState::Failed);
            let explanation = engine.inner().explain(run.id()).await.unwrap();
            assert_eq!(explanation.attempts[0].outcome.unwrap().as_str(), outcome);
            assert_eq!(explanation.verdicts[0].reason, reason);
            assert_eq!(explanation.attempts[0].verdict_id, Some(explanation.verdicts[0].id));
        }
        let mut submit = Submit::new("promise", everbeat::model::Json::null());
        submit.policy = Some(manual);
        assert_eq!(engine.submit_with(submit).await.unwrap().result::<String>().await.unwrap(), "kept");
        engine.drain().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_per_queue_and_task_hold() {
    each_store(async |url| {
        let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (counted, highest) = (now.clone(), most.clone());
        let engine = Engine::open(url)
            .task("busy", move |ctx: Ctx, _: ()| {
                let (now, most) = (counted.clone(), highest.clone());
                async move {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    ctx.sleep(Duration::from_millis(5)).await?;
                    now.fetch_sub(1, Ordering::SeqCst);
                    Ok::<_, Failure>(())
                }
            })
            .settings(|settings| {
                settings.tasks.insert("busy".to_string(), 3);
                settings
                    .queues
                    .insert("narrow".to_string(), everbeat_engine::QueueLimit { concurrency: Some(2), rate: None });
            })
            .start()
            .await
            .unwrap();
        for (queue, limit) in [("default", 3), ("narrow", 2)] {
            most.store(0, Ordering::SeqCst);
            let mut runs = Vec::new();
            for _ in 0..20 {
                let submit = Submit { queue: queue.to_string(), ..Submit::new("busy", everbeat::model::Json::null()) };
                runs.push(engine.submit_with(submit).await.unwrap());
            }
            for run in runs {
                run.result::<()>().await.unwrap();
            }
            assert_eq!(most.load(Ordering::SeqCst), limit, "{queue}");
        }
        engine.drain().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_run_waits_for_its_time_and_a_paused_queue_gives_nothing() {
    each_store(async |url| {
        let engine = Engine::open(url).start().await.unwrap();
        let inner = engine.inner();
        inner.pause_queue("held", true).await.unwrap();
        let held = Submit { queue: "held".to_string(), ..Submit::new("noop", everbeat::model::Json::null()) };
        let held = engine.submit_with(held).await.unwrap();
        let now = engine.submit("noop", &()).await.unwrap().wait().await.unwrap().run.finished_at.unwrap();
        let at = StoreTime(now.0 + 300_000);
        let later = Submit { run_at: Some(at), ..Submit::new("noop", everbeat::model::Json::null()) };
        let later = engine.submit_with(later).await.unwrap();
        assert_eq!(later.view().await.unwrap().run.state, RunState::Scheduled);
        let run = later.wait().await.unwrap().run;
        assert!(run.started_at.unwrap() >= at);
        assert_eq!(held.view().await.unwrap().run.state, RunState::Ready);
        let why = inner.explain(held.id()).await.unwrap();
        assert!(why.summary.contains("paused"), "{}", why.summary);
        inner.pause_queue("held", false).await.unwrap();
        held.result::<()>().await.unwrap();
        engine.drain().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_drain_releases_costs_no_attempt_and_goes_on_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("everbeat.db").display());
    let open = |ends: bool| {
        Engine::open(url.clone())
            .task("long", move |ctx: Ctx, _: ()| async move {
                if !ends {
                    ctx.sleep(Duration::from_secs(600)).await?;
                }
                Ok::<_, Failure>(ctx.attempt())
            })
            .settings(|settings| settings.drain_grace = Duration::from_millis(50))
            .policy(&json!({ "max_attempts": 1 }))
            .unwrap()
            .start()
    };
    let engine = open(false).await.unwrap();
    let id = engine.submit("long", &()).await.unwrap().id();
    while engine.run(id).view().await.unwrap().run.state != RunState::Running {
        tokio::task::yield_now().await;
    }
    engine.drain().await;
    drop(engine);
    // The file is free once the last task of the old engine is gone.
    let engine = loop {
        match open(true).await {
            Err(Error::Store(everbeat_store::Error::Refused(..))) => tokio::task::yield_now().await,
            opened => break opened.unwrap(),
        }
    };
    assert_eq!(engine.run(id).result::<u32>().await.unwrap(), 2);
    let attempts = engine.inner().attempts(id).await.unwrap();
    assert_eq!(attempts[0].outcome.unwrap().as_str(), "released");
    engine.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_failure_during_a_drain_is_a_failure() {
    let begun = Arc::new(Notify::new());
    let go = Arc::new(Notify::new());
    let (tell, wait) = (begun.clone(), go.clone());
    let engine = Engine::open("memory:")
        .task("declines", move |_ctx: Ctx, _: ()| {
            let (begun, go) = (tell.clone(), wait.clone());
            async move {
                begun.notify_one();
                go.notified().await;
                Err::<(), _>(Failure::permanent("card declined"))
            }
        })
        .start()
        .await
        .unwrap();
    let run = engine.submit("declines", &()).await.unwrap();
    begun.notified().await;
    let draining = engine.clone();
    let drained = tokio::task::spawn_blocking(move || tokio::runtime::Handle::current().block_on(draining.drain()));
    while engine.inner().readiness().ready() {
        tokio::task::yield_now().await;
    }
    go.notify_one();
    drained.await.unwrap();
    let run = run.view().await.unwrap().run;
    assert_eq!((run.state, run.attempt), (RunState::Failed, 1));
    assert!(run.error.unwrap().as_str().contains("card declined"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engines_own_sleep_beats_and_the_last_progress_is_kept() {
    each_store(async |url| {
        let engine = Engine::open(url)
            .task("steps", |ctx: Ctx, _: ()| async move {
                ctx.progress(1, 3)?;
                ctx.sleep(Duration::from_millis(500)).await?;
                ctx.progress(3, 3)?;
                Ok::<_, Failure>(())
            })
            .start()
            .await
            .unwrap();
        let mut submit = Submit::new("steps", everbeat::model::Json::null());
        submit.policy = Some(json!({ "heartbeat": "manual", "heartbeat_timeout": "200ms", "max_attempts": 1 }));
        let run = engine.submit_with(submit).await.unwrap().wait().await.unwrap().run;
        assert_eq!(run.state, RunState::Succeeded);
        assert_eq!(run.progress.unwrap().value(), json!({ "done": 3, "total": 3 }));
        engine.drain().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_or_checkpoint_that_is_too_large_fails_the_run_for_good() {
    each_store(async |url| {
        let engine = Engine::open(url)
            .task("large", |ctx: Ctx, checkpoint: bool| async move {
                let text = "x".repeat(5 << 20);
                if checkpoint {
                    ctx.checkpoint(&text).await?;
                }
                Ok::<_, Failure>(text)
            })
            .start()
            .await
            .unwrap();
        for checkpoint in [false, true] {
            let run = engine.submit("large", &checkpoint).await.unwrap().wait().await.unwrap().run;
            assert_eq!((run.state, run.attempt), (RunState::Failed, 1));
            assert!(run.error.unwrap().as_str().contains("4 MiB"));
        }
        engine.drain().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_or_checkpoint_that_is_nested_too_deeply_fails_the_run_for_good() {
    let deep = |levels: usize| (1..levels).fold(json!([]), |inner, _| json!([inner]));
    each_store(async |url| {
        let engine = Engine::open(url)
            .task("deep", move |ctx: Ctx, (levels, checkpoint): (usize, bool)| async move {
                if checkpoint {
                    ctx.checkpoint(&deep(levels)).await?;
                }
                Ok::<_, Failure>(if checkpoint { json!(null) } else { deep(levels) })
            })
            .start()
            .await
            .unwrap();
        for checkpoint in [false, true] {
            let run = engine.submit("deep", &(100, checkpoint)).await.unwrap().wait().await.unwrap().run;
            assert_eq!(run.state, RunState::Succeeded, "{run:?}");
            let run = engine.submit("deep", &(101, checkpoint)).await.unwrap().wait().await.unwrap().run;
            assert_eq!((run.state, run.attempt), (RunState::Failed, 1), "{run:?}");
            assert!(run.error.unwrap().as_str().contains("nested too deeply"), "{checkpoint}");
        }
        engine.drain().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_engine_lets_go_of_its_file_and_its_work_goes_on_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("everbeat.db").display());
    let engine = Engine::open(url.clone()).start().await.unwrap();
    let id = engine.submit("sleep", &json!({ "ms": 300 })).await.unwrap().id();
    while engine.run(id).view().await.unwrap().run.state != RunState::Running {
        tokio::task::yield_now().await;
    }
    drop(engine);
    let engine = loop {
        match Engine::open(url.clone()).start().await {
            Err(Error::Store(everbeat_store::Error::Refused(..))) => tokio::task::yield_now().await,
            opened => break opened.unwrap(),
        }
    };
    let run = engine.run(id).wait().await.unwrap().run;
    assert_eq!((run.state, run.attempt), (RunState::Succeeded, 2));
    engine.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_task_streams_is_stored_before_it_ends_and_stays() {
    each_store(async |url| {
        let engine = Engine::open(url)
            .task("count", |ctx: Ctx, to: u32| async move {
                for number in 0..to {
                    ctx.output(&number).await?;
                }
                ctx.log("all\nof \0 it").await?;
                assert_eq!(ctx.output(&"x".repeat(2 << 20)).await, Err(Stop::TooLarge));
                if ctx.attempt() == 1 { Err(Failure::new("not yet")) } else { Ok(to) }
            })
            .policy(&quick())
            .unwrap()
            .start()
            .await
            .unwrap();
        const MANY: u32 = 5000;
        let run = engine.submit("count", &MANY).await.unwrap();
        assert_eq!(run.result::<u32>().await.unwrap(), MANY);
        let filter = OutputFilter { run: run.id(), kind: None, after: 0, limit: 100_000, bytes: usize::MAX };
        let view = engine.inner().streamed(filter, Duration::ZERO).await.unwrap();
        assert!(view.finished);
        let texts: Vec<(u32, &str)> = view.page.items.iter().map(|item| (item.attempt, &*item.text)).collect();
        let numbers: Vec<String> = (0..MANY).map(|number| number.to_string()).collect();
        let said = numbers.iter().map(String::as_str).chain(["all", "of \u{fffd} it"]);
        let expected: Vec<(u32, &str)> =
            [1, 2].into_iter().flat_map(|nth| said.clone().map(move |text| (nth, text))).collect();
        assert!(texts == expected, "{} items", texts.len());
        engine.drain().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_counts_as_progress() {
    let engine = Engine::open("memory:")
        .task("stream", |ctx: Ctx, _: ()| async move {
            for number in 0..15 {
                ctx.output(&number).await?;
                ctx.sleep(Duration::from_millis(100)).await?;
            }
            Ok::<_, Failure>(())
        })
        .policy(&json!({ "stall_timeout": "700ms", "max_attempts": 1 }))
        .unwrap()
        .start()
        .await
        .unwrap();
    let view = engine.submit("stream", &()).await.unwrap().wait().await.unwrap();
    assert_eq!(view.run.state, RunState::Succeeded, "{:?}", view.run.error);
    engine.drain().await;
}
