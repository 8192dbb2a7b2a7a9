//! Schedules declared in Rust, as users of the library see them, on memory and on SQLite.

use everbeat::model::StoreTime;
use everbeat::model::schedule::{CatchUp, Overlap, ScheduleKind};
use everbeat::{Builder, Ctx, Engine, Error, Failure, Schedule};
use everbeat_engine::{ScheduleView, WriteSchedule};
use everbeat_store::{Author, Declared};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::mpsc;

const LIMIT: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);

#[allow(clippy::disallowed_methods, reason = "the library is watched from outside, on the real clock")]
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("in time")
}

/// An engine with a task, and what each run of it is told and given.
fn reporting(url: &str) -> (Builder, mpsc::UnboundedReceiver<(Value, Value)>) {
    let (told, runs) = mpsc::unbounded_channel();
    let builder = Engine::open(url).task("report", move |ctx: Ctx, input: Value| {
        let _nobody_may_listen = told.send((ctx.args().unwrap_or_default(), input));
        async move { Ok::<_, Failure>(()) }
    });
    (builder, runs)
}

async fn view(engine: &Engine, name: &str) -> ScheduleView {
    engine.inner().schedule(ScheduleKind::Schedule, name).await.unwrap()
}

async fn end(engine: Engine) {
    engine.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_performed_by_its_schedule_without_drift() {
    let folder = tempfile::tempdir().unwrap();
    for url in ["memory:", &format!("sqlite://{}", folder.path().join("everbeat.db").display())] {
        let (builder, mut runs) = reporting(url);
        let often = Schedule::every(Duration::from_secs(1)).input(&json!({ "full": true })).overlap(Overlap::Allow);
        let engine = builder.schedule("report", often).start().await.unwrap();
        let mut due = Vec::new();
        for _ in 0..3 {
            let (args, input) = soon(runs.recv()).await.unwrap();
            assert_eq!(
                (input, &args["schedule"], &args["cause"]),
                (json!({"full": true}), &json!("report"), &json!("clock"))
            );
            due.push(StoreTime::parse(args["due_at"].as_str().unwrap()).unwrap());
        }
        due.sort();
        for pair in due.windows(2) {
            let apart = pair[1].since(pair[0]);
            assert!(apart.as_micros() > 0 && apart.subsec_micros() == 0, "{due:?}");
        }
        engine.drain().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_code_says_is_written_when_it_is_new_and_left_alone_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("everbeat.db").display());
    let start = async |schedule: Option<Schedule>| loop {
        let (builder, _) = reporting(&url);
        let builder = match schedule.clone() {
            Some(schedule) => builder.schedule("report", schedule),
            None => builder,
        };
        match builder.start().await {
            // The one before lets go of the file a moment after its end.
            Err(Error::Store(everbeat_store::Error::Refused(..))) => tokio::task::yield_now().await,
            started => break started.unwrap(),
        }
    };
    let nightly = || {
        let nightly = Schedule::cron("30 2 * * *", "Europe/Berlin").named("nightly").input(&7).queue("night");
        let nightly = nightly.catch_up(CatchUp::None).policy(json!({ "max_attempts": 7 })).late_after(HOUR);
        nightly.priority(3).concurrency(2).group("night").after(["hourly"]).description("Each night")
    };

    let engine = soon(start(Some(nightly()))).await;
    let made = view(&engine, "nightly").await.stored;
    assert_eq!((made.version, made.enabled, made.declared), (1, true, Declared::Same));
    let fields = made.schedule.to_value();
    let expected = json!({
        "description": "Each night", "schedule": {"cron": "30 2 * * *", "tz": "Europe/Berlin"}, "overlap": "skip",
        "catch_up": "none", "late_after": "1h", "queue": "night", "priority": 3, "policy": {"max_attempts": 7},
        "concurrency": 2, "group": "night", "after": ["hourly"], "task": "report", "input": 7,
    });
    assert_eq!(fields, expected);
    end(engine).await;

    let engine = soon(start(Some(nightly()))).await;
    assert_eq!(view(&engine, "nightly").await.stored.version, 1, "it says the same");
    let mut schedule = (*view(&engine, "nightly").await.stored.schedule).clone();
    schedule.priority = 9;
    let (enabled, author) = (Some(false), Author::Person);
    let by_hand = WriteSchedule { schedule, enabled, version: Some(1), accept_unknown: false, author };
    engine.inner().write_schedule(by_hand).await.unwrap();
    end(engine).await;

    let engine = soon(start(Some(nightly()))).await;
    let kept = view(&engine, "nightly").await.stored;
    assert_eq!((kept.version, kept.enabled, kept.schedule.priority), (2, false, 9), "what somebody changed stands");
    end(engine).await;

    let engine = soon(start(Some(nightly().priority(4)))).await;
    let now = view(&engine, "nightly").await.stored;
    assert_eq!((now.version, now.enabled, now.schedule.priority), (3, false, 4), "the code says something else");
    end(engine).await;

    let engine = soon(start(None)).await;
    assert_eq!(view(&engine, "nightly").await.stored.version, 3, "what the code no longer declares stays");
    end(engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_cannot_be_is_refused_at_the_start() {
    let refused = async |task: &str, schedules: Vec<Schedule>| {
        let (mut builder, _) = reporting("memory:");
        for schedule in schedules {
            builder = builder.schedule(task, schedule);
        }
        match builder.start().await {
            Err(Error::Engine(error)) => error.to_string(),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("it was accepted"),
        }
    };
    let cron = refused("report", vec![Schedule::cron("61 * * * *", "UTC").named("odd")]).await;
    assert!(cron.contains("odd.schedule.cron") && cron.contains("61"), "{cron}");
    let zone = refused("report", vec![Schedule::cron("@daily", "Europe/Atlantis")]).await;
    assert!(zone.contains("report.schedule.tz") && zone.contains("Atlantis"), "{zone}");
    let short = refused("report", vec![Schedule::every(Duration::from_millis(5))]).await;
    assert!(short.contains("report.schedule.every"), "{short}");
    let twice = refused("report", vec![Schedule::every(HOUR), Schedule::every(HOUR)]).await;
    assert!(twice.contains("report") && twice.contains("declared twice"), "{twice}");
    let unknown = refused("reprot", vec![Schedule::every(HOUR)]).await;
    assert!(unknown.contains("reprot"), "{unknown}");
}
