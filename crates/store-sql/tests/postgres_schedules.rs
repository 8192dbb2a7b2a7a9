//! Schedules on a server with several sessions: races are held still by a session of the test's own.

mod support;

use everbeat_model::schedule::{Decision, RunDefaults, Schedule, ScheduleKind, Situation, Wish, look};
use everbeat_model::{Planted, Policy, RunId, RunState, ScheduleId, Settled};
use everbeat_store::{
    Author, Cancelled, LookedAt, LookedSchedule, Put, PutSchedule, RunFilter, Runs, Scheduler, Schedules,
};
use everbeat_store_sql::{Postgres, PostgresOptions};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use support::{Database, steps, until_blocked};
use tokio::task::JoinSet;

struct Looks(RunDefaults);

impl Scheduler for Looks {
    fn look(&self, situation: &Situation, wish: Wish) -> Decision {
        look(situation, wish, &self.0, &mut || RunId(steps::next_id()))
    }
}

fn scheduler() -> Arc<dyn Scheduler> {
    let policy = Arc::new(Policy::BASELINE);
    Arc::new(Looks(RunDefaults { policy, queue: "default".to_string(), hole: Planted::default() }))
}

async fn open(database: &Database) -> Arc<Postgres> {
    let options = PostgresOptions { application_name: database.schema.clone(), ..database.options() };
    Arc::new(Postgres::open(&database.url, options).await.expect("open"))
}

/// A flow that hands its configuration to the task `work`.
async fn plan(store: &Postgres, name: &str, fields: Value) -> ScheduleId {
    let mut value = json!({ "configuration": { "task": "work" } });
    value.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    let schedule = Schedule::parse(ScheduleKind::Flow, name, &value).expect("a valid flow");
    let id = ScheduleId(steps::next_id());
    let put = PutSchedule { id, schedule, enabled: None, version: None, author: Author::Person };
    match store.put_schedule(put).await.expect("put") {
        Put::Created(stored) => stored.id,
        other => panic!("not new: {other:?}"),
    }
}

async fn glance(store: &Postgres, id: ScheduleId) -> LookedAt {
    store.look_at_schedule(id, Wish::Look { clock: true }, scheduler()).await.expect("look")
}

async fn trigger(store: &Postgres, id: ScheduleId) -> (RunId, LookedSchedule) {
    let run = RunId(steps::next_id());
    match store
        .look_at_schedule(id, Wish::Trigger { run, wish: None, idempotency: None }, scheduler())
        .await
        .expect("trigger")
    {
        LookedAt::Done(looked) => (run, looked),
        other => panic!("a trigger waits for its turn: {other:?}"),
    }
}

async fn due(store: &Postgres) -> Vec<ScheduleId> {
    let due = store.due_schedules(ScheduleKind::ALL, 1000).await.expect("due");
    due.schedules.iter().map(|due| due.id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_two_who_look_at_two_hundred_due_schedules_make_two_hundred_runs() {
    let database = Database::create().await;
    let stores = futures_util::future::join_all((0..4).map(|_| open(&database))).await;
    for number in 0..200 {
        plan(&stores[0], &format!("f{number}"), json!({"schedule": {"every": "1h"}, "overlap": "allow"})).await;
    }
    let mut lookers = JoinSet::new();
    for number in 0..32 {
        let store = stores[number % stores.len()].clone();
        lookers.spawn(async move {
            let mut begun = 0;
            for id in due(&store).await {
                if let LookedAt::Done(looked) = glance(&store, id).await {
                    begun += looked.begun.len();
                }
            }
            begun
        });
    }
    let mut begun: usize = lookers.join_all().await.into_iter().sum();
    for id in due(&stores[0]).await {
        let LookedAt::Done(looked) = glance(&stores[0], id).await else { panic!("nobody else looks") };
        begun += looked.begun.len();
    }
    assert_eq!(begun, 200);
    let runs = stores[0].runs(RunFilter { limit: 1000, ..RunFilter::default() }).await.expect("runs").items;
    let schedules: BTreeSet<_> = runs.iter().filter_map(|run| run.spec.occurrence).collect();
    assert_eq!((runs.len(), schedules.len()), (200, 200));
    assert_eq!(due(&stores[0]).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_passes_over_a_schedule_that_is_locked_and_a_trigger_waits_for_it() {
    let database = Database::create().await;
    let (store, mut session, looker) = (open(&database).await, database.session().await, database.session().await);
    let id = plan(&store, "f", json!({"schedule": {"every": "1h"}})).await;
    let other = session.transaction().await.expect("begin");
    other.query("select 1 from schedule where id = $1 for update", &[&id.0]).await.expect("lock");
    assert_eq!(glance(&store, id).await, LookedAt::Busy);
    assert_eq!(due(&store).await, [id], "its note stands");
    let release = async {
        until_blocked(&looker, 1).await;
        other.rollback().await.expect("release");
    };
    let ((run, asked), ()) = tokio::join!(trigger(&store, id), release);
    assert_eq!(asked.begun, [run]);
    let LookedAt::Done(looked) = glance(&store, id).await else { panic!("nobody else looks") };
    assert!(looked.due && looked.begun.is_empty() && looked.left == 1, "one of it runs: {looked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trigger_and_a_look_at_once_begin_one_run_where_one_may_run() {
    let database = Database::create().await;
    let (one, two) = (open(&database).await, open(&database).await);
    for number in 0..20 {
        let fields = json!({"schedule": {"every": "1h"}, "overlap": "queue"});
        let id = plan(&one, &format!("f{number}"), fields).await;
        let ((run, asked), looked) = tokio::join!(trigger(&one, id), glance(&two, id));
        let seen = match looked {
            LookedAt::Done(looked) => looked,
            LookedAt::Busy => LookedSchedule::default(),
            LookedAt::NotFound => panic!("it is there"),
        };
        assert_eq!(asked.begun.len() + seen.begun.len(), 1, "{asked:?} {seen:?}");
        assert!(asked.begun == [run] || asked.waiting == [run]);
        let stored = one.schedule(ScheduleKind::Flow, &format!("f{number}")).await.expect("read").expect("there");
        assert_eq!(stored.unfinished, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_a_group_at_once_stay_within_its_limit() {
    let database = Database::create().await;
    let (one, two) = (open(&database).await, open(&database).await);
    let (session, looker) = (database.session().await, database.session().await);
    let a = plan(&one, "a", json!({"group": "g"})).await;
    let b = plan(&one, "b", json!({"group": "g"})).await;
    let key = "hashtext(current_schema() || '.flow.group'), hashtext('g')";
    session.batch_execute(&format!("select pg_advisory_lock({key})")).await.expect("lock");
    let release = async {
        until_blocked(&looker, 2).await;
        session.batch_execute(&format!("select pg_advisory_unlock({key})")).await.expect("unlock");
    };
    let ((first, left), (second, right), ()) = tokio::join!(trigger(&one, a), trigger(&two, b), release);
    assert_eq!(left.begun.len() + right.begun.len(), 1, "{left:?} {right:?}");
    assert_eq!(left.waiting.len() + right.waiting.len(), 1);
    let (begun, waits) = if left.begun.is_empty() { (second, (a, first)) } else { (first, (b, second)) };
    assert_eq!(one.cancel(begun).await.expect("cancel"), Cancelled::Ended);
    for _ in 0..3 {
        for id in due(&one).await {
            glance(&one, id).await;
        }
    }
    let run = one.run(waits.1).await.expect("read").expect("it began");
    assert_eq!((run.state, run.spec.occurrence.map(|of| of.schedule)), (RunState::Ready, Some(waits.0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_run_does_not_wait_for_a_look() {
    let database = Database::create().await;
    let (store, mut session) = (open(&database).await, database.session().await);
    let id = plan(&store, "f", json!({"overlap": "allow"})).await;
    let mut runs = Vec::new();
    for _ in 0..5 {
        runs.push(trigger(&store, id).await.0);
    }
    let replica = steps::join(&*store).await;
    let mut claimed = store.claim(steps::claim(replica, 4)).await.expect("claim");
    let early = claimed.remove(0);
    assert_eq!(store.settle(vec![steps::success(&early)]).await.expect("settle"), [Settled::Done]);
    // What a look holds when it is about to write: its row, and the notes that it has taken.
    let look = session.transaction().await.expect("begin");
    look.query("select 1 from schedule where id = $1 for update", &[&id.0]).await.expect("lock");
    let taken = look.execute("delete from schedule_note where schedule_id = $1", &[&id.0]).await.expect("take");
    assert!(taken > 0, "the first end was noted");
    // Both ways to settle: runs that only finish, and everything else; and a cancel.
    assert_eq!(store.settle(vec![steps::success(&claimed[0])]).await.expect("settle"), [Settled::Done]);
    let both = vec![steps::success(&claimed[1]), steps::rescue(&claimed[2])];
    assert_eq!(store.settle(both).await.expect("settle"), [Settled::Done; 2]);
    assert_eq!(store.cancel(runs[4]).await.expect("cancel"), Cancelled::Ended);
    look.commit().await.expect("commit");
    assert_eq!(due(&store).await, [id], "what ended since is noted");
    let LookedAt::Done(_) = glance(&store, id).await else { panic!("nobody else looks") };
    let unfinished = store.schedule(ScheduleKind::Flow, "f").await.expect("read").expect("there").unfinished;
    assert_eq!((unfinished, due(&store).await), (1, vec![]), "the rescued run is ready again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reopen_waits_for_a_look_and_its_run_counts() {
    let database = Database::create().await;
    let (store, mut session, looker) = (open(&database).await, database.session().await, database.session().await);
    let id = plan(&store, "f", json!({})).await;
    let (run, _) = trigger(&store, id).await;
    assert_eq!(store.cancel(run).await.expect("cancel"), Cancelled::Ended);
    // A look that has seen the run finished, and forgets its occurrence.
    let look = session.transaction().await.expect("begin");
    look.query("select 1 from schedule where id = $1 for update", &[&id.0]).await.expect("lock");
    look.execute("delete from occurrence where run_id = $1", &[&run.0]).await.expect("forget");
    let release = async {
        until_blocked(&looker, 1).await;
        look.commit().await.expect("commit");
    };
    let (reopened, ()) = tokio::join!(store.reopen(run, 0), release);
    assert_eq!(reopened.expect("reopen"), everbeat_store::Reopened::Ready);
    let stored = store.schedule(ScheduleKind::Flow, "f").await.expect("read").expect("there");
    assert_eq!(stored.unfinished, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::disallowed_methods, reason = "looks at a real server until its figures are there")]
async fn five_due_among_a_hundred_thousand_are_found_without_reading_all() {
    let database = Database::create().await;
    let store = open(&database).await;
    let session = database.session().await;
    let fill =
        "insert into schedule (id, kind, name, definition, version, enabled, created_at, updated_at, next_due_at,
                  look_at, fed_by)
                select gen_random_uuid(), 'flow', 'f' || n, '{}', 1, true, 0, 0,
                  case when n <= 5 then n else 9000000000000000 + n end, 9000000000000000 + n, '[]'
                from generate_series(1, 100000) n;
                analyze schedule";
    session.batch_execute(fill).await.expect("fill");
    let read = "select coalesce(seq_tup_read, 0), coalesce(idx_scan, 0) from pg_stat_user_tables
                where relname = 'schedule' and schemaname = current_schema()";
    session.batch_execute("select pg_stat_force_next_flush(); select pg_stat_clear_snapshot()").await.expect("flush");
    let before = session.query_one(read, &[]).await.expect("figures");
    let found = store.due_schedules(ScheduleKind::ALL, 100).await.expect("due");
    assert_eq!(found.schedules.len(), 5);
    assert!(found.schedules.iter().all(|due| due.by_clock));
    assert!(found.next_in.is_some_and(|next| next > Duration::from_secs(3600)), "{found:?}");
    // A session tells its figures when it ends.
    drop(store);
    for _ in 0..1000 {
        session.batch_execute("select pg_stat_clear_snapshot()").await.expect("clear");
        let after = session.query_one(read, &[]).await.expect("figures");
        if after.get::<_, i64>(1) > before.get::<_, i64>(1) {
            let rows = after.get::<_, i64>(0) - before.get::<_, i64>(0);
            assert_eq!(rows, 0, "rows read without an index");
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the figures never came");
}
