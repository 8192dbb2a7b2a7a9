//! Fresh stores for tests.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod proxy;

use everbeat_model::StoreTime;
use everbeat_store_sql::{Postgres, PostgresOptions, Sqlite};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio_postgres::{Client, Config, NoTls};
use uuid::Uuid;

/// The URL of a throw-away PostgreSQL server, as a superuser.
pub(crate) fn server_url() -> String {
    std::env::var("EVERBEAT_TEST_POSTGRES").unwrap_or_else(|_| {
        panic!(
            "EVERBEAT_TEST_POSTGRES is not set: run scripts/test, or set it to the URL of a throw-away PostgreSQL \
             server, such as postgres://postgres@127.0.0.1:5432/postgres"
        )
    })
}

/// A schema of its own in a database that the tests of one process share; dropped at the end.
pub(crate) struct Database {
    pub(crate) url: String,
    pub(crate) schema: String,
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Making a database takes longer than most tests.
static SHARED: OnceCell<String> = OnceCell::const_new();

impl Database {
    pub(crate) async fn create() -> Database {
        let url = SHARED.get_or_init(|| Database::make(server_url())).await.clone();
        Database { url, schema: format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed)) }
    }

    async fn make(server: String) -> String {
        let name = format!("everbeat_test_{}", std::process::id());
        let admin = connect(&server).await;
        admin.batch_execute(&format!("drop database if exists {name} with (force)")).await.expect("drop database");
        admin.batch_execute(&format!("create database {name}")).await.expect("create database");
        in_database(&server, &name)
    }

    pub(crate) fn options(&self) -> PostgresOptions {
        PostgresOptions { read_connections: 2, schema: self.schema.clone(), ..PostgresOptions::default() }
    }

    pub(crate) async fn open(&self) -> Postgres {
        Postgres::open(&self.url, self.options()).await.expect("open")
    }

    /// A session of the test's own, in the store's schema.
    pub(crate) async fn session(&self) -> Client {
        let client = connect(&self.url).await;
        client.batch_execute(&format!("set search_path to {}", self.schema)).await.expect("search path");
        client
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (url, schema) = (self.url.clone(), self.schema.clone());
        // Outside of the test's runtime, which is ending.
        let dropper = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
            runtime.block_on(async {
                let admin = connect(&url).await;
                _ = admin.batch_execute(&format!("set lock_timeout to 2000; drop schema {schema} cascade")).await;
            });
        });
        _ = dropper.join();
    }
}

fn in_database(server: &str, name: &str) -> String {
    let (head, query) = server.split_once('?').map_or((server, None), |(head, query)| (head, Some(query)));
    let (base, _) = head.rsplit_once('/').expect("a URL with a database");
    query.map_or_else(|| format!("{base}/{name}"), |query| format!("{base}/{name}?{query}"))
}

#[allow(clippy::disallowed_methods, reason = "a driver in a test")]
pub(crate) async fn connect(url: &str) -> Client {
    let config: Config = url.parse().expect("a PostgreSQL URL");
    let (client, connection) = config.connect(NoTls).await.expect("the test server answers");
    tokio::spawn(connection);
    client
}

#[allow(clippy::disallowed_methods, reason = "a real clock for a real store")]
pub(crate) fn wall_clock() -> StoreTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    StoreTime(i64::try_from(since.as_micros()).expect("before 294,000"))
}

pub(crate) fn sqlite_at(path: &Path) -> everbeat_store::Result<Sqlite> {
    Sqlite::open(path, Arc::new(wall_clock), Arc::new(|| Uuid::new_v4().as_u128()))
}

/// Until so many sessions of the database wait for a lock.
#[allow(clippy::disallowed_methods, reason = "looks at a real server until it is there")]
pub(crate) async fn until_blocked(session: &Client, count: i64) {
    let sql = "select count(*) from pg_stat_activity \
               where datname = current_database() and wait_event_type = 'Lock' and application_name like $1";
    let mine: String = session.query_one("select current_schema()::text", &[]).await.expect("schema").get(0);
    for _ in 0..1000 {
        let blocked: i64 = session.query_one(sql, &[&format!("{mine}%")]).await.expect("activity").get(0);
        if blocked >= count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{count} sessions never waited");
}

/// Steps that many tests begin with.
pub(crate) mod steps {
    use everbeat_model::graph::{Command, Defaults, Plan, Snapshot, plan};
    use everbeat_model::replica::NewReplica;
    use everbeat_model::run::{COMMAND, Claimed, Kind, Spec};
    use everbeat_model::{
        Ending, Json, NewRun, Next, Outcome, Planted, Policy, Reason, ReplicaId, RunId, RunState, Settled, Settlement,
        StoreTime, id,
    };
    use everbeat_store::{Claim, Enqueue, Enqueued, Error, Idempotency, Planner, Sign, Signed, Store, Which};
    use std::collections::BTreeMap;
    use std::sync::{Arc, LazyLock};
    use std::time::Duration;
    use uuid::Uuid;

    /// Decides as the engine does.
    struct Plans(Defaults);

    impl Planner for Plans {
        fn plan(&self, snapshot: Snapshot, commands: Vec<Command>) -> Plan {
            plan(snapshot, commands, &self.0, &mut || RunId(next_id()))
        }
    }

    pub(crate) fn planner() -> Arc<dyn Planner> {
        let policy = Arc::new(Policy::BASELINE);
        Arc::new(Plans(Defaults { policy, queue: "default".to_string(), hole: Planted::default() }))
    }

    static IDS: LazyLock<id::Sequence> = LazyLock::new(id::Sequence::default);

    /// Ids rise, so that "oldest" is certain.
    pub(crate) fn next_id() -> Uuid {
        IDS.next(super::wall_clock().millis(), Uuid::new_v4().as_u128())
    }

    pub(crate) async fn join(store: &dyn Store) -> ReplicaId {
        let id = ReplicaId(next_id());
        let replica = NewReplica {
            id,
            host: "here".to_string(),
            machine: None,
            version: "1".to_string(),
            heartbeat_interval: Duration::from_secs(10),
            heartbeat_timeout: Duration::from_secs(60),
            wall: StoreTime(0),
        };
        store.join(replica).await.expect("join");
        id
    }

    pub(crate) async fn enqueue(store: &dyn Store, count: usize) -> Vec<RunId> {
        enqueue_for(store, "work", count).await
    }

    pub(crate) async fn enqueue_for(store: &dyn Store, task: &str, count: usize) -> Vec<RunId> {
        let spec = Arc::new(Spec { task: task.to_string(), ..plain() });
        let runs: Vec<NewRun> =
            (0..count).map(|_| NewRun { id: RunId(next_id()), spec: spec.clone(), run_at: None }).collect();
        let ids = runs.iter().map(|run| run.id).collect();
        let answers = store.enqueue(vec![Enqueue { runs, idempotency: None }]).await.expect("enqueue");
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        ids
    }

    fn plain() -> Spec {
        Spec {
            kind: Kind::Task,
            task: "work".to_string(),
            queue: "default".to_string(),
            priority: 0,
            input: Json::null(),
            policy: Arc::new(Policy::BASELINE),
            unique_key: None,
            args: None,
            parent: None,
            host: None,
            session: None,
            occurrence: None,
        }
    }

    /// A request for so many new runs.
    pub(crate) fn request(runs: usize) -> Enqueue {
        let run = || NewRun { id: RunId(next_id()), spec: Arc::new(plain()), run_at: None };
        Enqueue { runs: (0..runs).map(|_| run()).collect(), idempotency: None }
    }

    pub(crate) fn keyed(request: Enqueue, key: &str, fingerprint: &str) -> Enqueue {
        let idempotency = Idempotency { key: key.to_string(), fingerprint: fingerprint.to_string() };
        Enqueue { idempotency: Some(idempotency), ..request }
    }

    /// The same request, whose first run wants this unique key.
    pub(crate) fn unique(mut request: Enqueue, key: &str) -> Enqueue {
        Arc::make_mut(&mut request.runs[0].spec).unique_key = Some(key.to_string());
        request
    }

    /// The same request, whose last run has this input.
    fn with_input(mut request: Enqueue, input: &Json) -> Enqueue {
        let last = request.runs.last_mut().expect("a run");
        Arc::make_mut(&mut last.spec).input = input.clone();
        request
    }

    /// A request that cannot be kept is told so, and takes no key; all others are accepted.
    pub(crate) async fn unstorable_requests_stand_alone(store: &dyn Store, bad: &Json) {
        for with_unique_keys in [false, true] {
            let wanted = |n: usize| {
                let request = keyed(request(2), &format!("{with_unique_keys} {n}"), "f");
                if with_unique_keys { unique(request, &format!("{n}")) } else { request }
            };
            let unkeyed = [request(1), request(1)];
            let mut batch: Vec<Enqueue> = (0..7).map(wanted).chain(unkeyed).collect();
            let good = batch.clone();
            for place in [3, 6, 8] {
                batch[place] = with_input(batch[place].clone(), bad);
            }
            let made = |request: &Enqueue| request.runs.iter().map(|run| Enqueued::Created(run.id)).collect::<Vec<_>>();
            let answers = store.enqueue(batch).await.expect("enqueue");
            for (place, (request, answer)) in good.iter().zip(&answers).enumerate() {
                match place {
                    3 | 6 | 8 => assert!(matches!(answer, Err(Error::Bug(_))), "request {place}: {answer:?}"),
                    _ => assert_eq!(answer, &Ok(made(request)), "request {place}"),
                }
            }
            // Nothing of them was kept: their keys are free.
            let rest = [&good[3], &good[6], &good[8]];
            let answers = store.enqueue(rest.map(Clone::clone).to_vec()).await.expect("enqueue");
            assert_eq!(answers, rest.map(|request| Ok(made(request))));
        }
    }

    pub(crate) fn claim(replica: ReplicaId, limit: usize) -> Claim {
        claim_in(replica, "work", limit)
    }

    pub(crate) fn claim_in(replica: ReplicaId, lane: &str, limit: usize) -> Claim {
        let tasks = BTreeMap::from([(lane.to_string(), limit)]);
        Claim { replica, limit, tasks, queues: BTreeMap::new(), among: None }
    }

    /// Detached runs that a new replica performs.
    pub(crate) async fn detached(store: &dyn Store, count: usize) -> (ReplicaId, Vec<Claimed>) {
        let replica = join(store).await;
        enqueue_for(store, COMMAND, count).await;
        let claimed = store.claim(claim_in(replica, COMMAND, count)).await.expect("claim");
        assert_eq!(claimed.len(), count);
        (replica, claimed)
    }

    /// What a store of the second version holds, some of it in use: a plain run and a detached one are ready, one
    /// of each is running.
    pub(crate) async fn begin_both(store: &dyn Store) -> (ReplicaId, Vec<Claimed>) {
        let replica = join(store).await;
        let mut claimed = Vec::new();
        for task in ["work", COMMAND] {
            enqueue_for(store, task, 2).await;
            claimed.extend(store.claim(claim_in(replica, task, 1)).await.expect("claim"));
        }
        (replica, claimed)
    }

    /// Goes on with such a store in the next version.
    pub(crate) async fn go_on_with_both(store: &dyn Store, replica: ReplicaId, claimed: &[Claimed]) {
        for (task, held) in ["work", COMMAND].into_iter().zip(claimed) {
            let found = store.held(Which::Of(vec![held.lease.run_id])).await.expect("held");
            assert_eq!((&found[0].lease, &found[0].spec), (&held.lease, &held.spec));
            assert_eq!(store.claim(claim_in(replica, task, 9)).await.expect("claim").len(), 1);
        }
        store.leave(replica).await.expect("leave");
        assert_eq!(store.held(Which::Orphaned(None, 9)).await.expect("held").len(), 2);
        assert_eq!(store.held(Which::Detached(None, 9)).await.expect("held").len(), 2);
        let next = join(store).await;
        assert_eq!(store.adopt(next, 9).await.expect("adopt").len(), 2, "what was detached before is known to be");
        let settled = store.settle(claimed.iter().map(success).collect()).await.expect("settle");
        assert_eq!(settled, [Settled::Done, Settled::Fenced]);
    }

    /// Signs of which the fourth and one of two under the last lease carry `bad`.
    pub(crate) fn signs(claimed: &[Claimed], bad: &Json) -> Vec<Sign> {
        let sign = |claimed: &Claimed, progress: &Json| Sign {
            shown: claimed.lease.shown(),
            progress: Some(progress.clone()),
            checkpoint: None,
        };
        let good = Json::of(&"good");
        let mut signs: Vec<Sign> = claimed.iter().map(|claimed| sign(claimed, &good)).collect();
        signs[3].progress = Some(bad.clone());
        signs.push(sign(&claimed[claimed.len() - 1], bad));
        signs
    }

    /// What cannot be kept is told so, and all else is kept.
    pub(crate) async fn unstorable_signs_stand_alone(store: &dyn Store, bad: &Json) {
        let replica = join(store).await;
        let runs = enqueue(store, 7).await;
        let claimed = store.claim(claim(replica, 7)).await.expect("claim");
        let before = store.held(Which::Of(runs.clone())).await.expect("held");
        let mut expected = vec![Signed::Accepted { cancel_asked: false }; 8];
        (expected[3], expected[7]) = (Signed::Unstorable, Signed::Unstorable);
        assert_eq!(store.sign(signs(&claimed, bad)).await, Ok(expected));
        let after = store.held(Which::Of(runs.clone())).await.expect("held");
        for (place, run) in runs.into_iter().enumerate() {
            let kept = store.run(run).await.expect("read").expect("there").progress;
            assert_eq!(kept, (place != 3).then(|| Json::of(&"good")), "run {place}");
            let heard = after[place].last_heartbeat_at > before[place].last_heartbeat_at;
            assert_eq!(heard, place != 3, "run {place}");
        }
    }

    pub(crate) fn success(claimed: &Claimed) -> Settlement {
        Settlement {
            shown: claimed.lease.shown(),
            spec: claimed.spec.clone(),
            ending: Ending::succeeded(Json::null()),
            next: Next::Finish(RunState::Succeeded),
            standing: claimed.standing,
            last_heartbeat_at: None,
            worker_id: None,
            verdict: None,
        }
    }

    pub(crate) fn rescue(claimed: &Claimed) -> Settlement {
        let shown = everbeat_model::lease::Shown { rescue: true, ..claimed.lease.shown() };
        let ending = Ending::because(Outcome::Lost, Reason::ReplicaSilent, "gone");
        Settlement { shown, ending, next: Next::Ready, ..success(claimed) }
    }
}
