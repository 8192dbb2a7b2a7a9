//! What only a server with several sessions can show: each race is held still by a session of the
//! test's own.

mod support;

use everbeat_model::run::COMMAND;
use everbeat_model::verdict::{Judgement, Subject, SubjectKind};
use everbeat_model::{Json, Next, ReplicaId, RunId, RunState, Settled, Settlement, StoreTime, Verdict, VerdictId};
use everbeat_store::{Error, Events, Held, Queues, Replicas, Runs, Wakes, Which};
use everbeat_store_sql::Postgres;
use std::sync::Arc;
use std::time::Duration;
use support::{Database, steps, until_blocked};
use tokio_postgres::Client;

async fn open(database: &Database) -> Arc<Postgres> {
    let options =
        everbeat_store_sql::PostgresOptions { application_name: database.schema.clone(), ..database.options() };
    Arc::new(Postgres::open(&database.url, options).await.expect("open"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_servers_that_start_at_once_make_one_schema() {
    let database = Database::create().await;
    let opened = futures_util::future::join_all((0..8).map(|_| open(&database))).await;
    assert_eq!(opened.len(), 8);
    let read = "select version from schema_version order by version";
    let rows = database.session().await.query(read, &[]).await.expect("read");
    assert_eq!(rows.iter().map(|row| row.get::<_, i64>(0)).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_schema_is_refused() {
    let database = Database::create().await;
    drop(database.open().await);
    let insert = "insert into schema_version values (99, 'future', '', 0)";
    database.session().await.execute(insert, &[]).await.expect("insert");
    let message = match Postgres::open(&database.url, database.options()).await {
        Err(Error::Refused(_, message)) => message,
        other => panic!("not refused: {:?}", other.err()),
    };
    assert!(message.contains("schema version 99") && message.contains("newer"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_of_the_second_version_is_brought_up_to_date_with_what_runs_in_it() {
    let database = Database::create().await;
    let store = open(&database).await;
    let (replica, claimed) = steps::begin_both(&*store).await;
    drop(store);
    let back = "alter table lease drop column detached, drop column tenure; alter table run drop column host;
                alter table run drop column session; drop table session;
                alter table scheduled drop column host;
                alter table replica drop column machine;
                drop table output; drop table output_tally; drop table worker;
                drop table schedule; drop table occurrence; drop table occurrence_left; drop table schedule_note;
                drop table schedule_fed; drop table schedule_after; drop table checks; drop table ping;
                alter table run drop column schedule_id, drop column due_at;
                delete from schema_version where version >= 3";
    database.session().await.batch_execute(back).await.expect("the second version");
    steps::go_on_with_both(&*open(&database).await, replica, &claimed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_passes_over_what_another_session_has_locked() {
    let database = Database::create().await;
    let (store, mut session) = (open(&database).await, database.session().await);
    let replica = steps::join(&*store).await;
    let runs = steps::enqueue(&*store, 3).await;
    let other = session.transaction().await.expect("begin");
    other.query("select 1 from ready where run_id = $1 for update", &[&runs[0].0]).await.expect("lock");
    let claimed = store.claim(steps::claim(replica, 10)).await.expect("claim");
    assert_eq!(claimed.iter().map(|claimed| claimed.lease.run_id).collect::<Vec<_>>(), &runs[1..]);
    other.rollback().await.expect("rollback");
    let claimed = store.claim(steps::claim(replica, 10)).await.expect("claim");
    assert_eq!(claimed[0].lease.run_id, runs[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_settle_and_a_rescue_at_once_exactly_one_wins() {
    let database = Database::create().await;
    let (performer, rescuer, mut session) = (open(&database).await, open(&database).await, database.session().await);
    let replica = steps::join(&*performer).await;
    let runs = steps::enqueue(&*performer, 1).await;
    let claimed = performer.claim(steps::claim(replica, 1)).await.expect("claim");
    let looker = database.session().await;
    let lock = session.transaction().await.expect("begin");
    lock.query("select 1 from lease where run_id = $1 for update", &[&runs[0].0]).await.expect("lock");
    let (settle, rescue) = (vec![steps::success(&claimed[0])], vec![steps::rescue(&claimed[0])]);
    let release = async {
        until_blocked(&looker, 2).await;
        lock.rollback().await.expect("release");
    };
    let (settled, rescued, ()) = tokio::join!(performer.settle(settle), rescuer.settle(rescue), release);
    let mut fates = [settled.expect("settle")[0], rescued.expect("rescue")[0]];
    let state = performer.run(runs[0]).await.expect("read").expect("there").state;
    let expected = if fates[0] == Settled::Done { RunState::Succeeded } else { RunState::Ready };
    assert_eq!(state, expected);
    fates.sort_by_key(|fate| *fate == Settled::Fenced);
    assert_eq!(fates, [Settled::Done, Settled::Fenced]);
}

/// Writes of this sort wait, with their row locked, until the lock of the answer is given back.
async fn hold(session: &Client, table: &str, when: &str) {
    let trigger = format!(
        "create function wait() returns trigger language plpgsql as
           $$ begin perform pg_advisory_xact_lock_shared(1, 7); return new; end $$;
         create trigger held before update on {table} for each row when ({when}) execute function wait();
         select pg_advisory_lock(1, 7)"
    );
    session.batch_execute(&trigger).await.expect("a trigger");
}

async fn let_go(session: &Client) {
    session.batch_execute("select pg_advisory_unlock(1, 7)").await.expect("unlock");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settle_that_waits_for_an_adoption_is_fenced() {
    let database = Database::create().await;
    let (former, adopter, session) = (open(&database).await, open(&database).await, database.session().await);
    let looker = database.session().await;
    let (owner, claimed) = steps::detached(&*former, 2).await;
    former.leave(owner).await.expect("leave");
    let next = steps::join(&*adopter).await;
    hold(&session, "lease", "true").await;
    // Both ways to settle: runs that only finish, and everything else.
    let (finish, retry) = (vec![steps::success(&claimed[0])], vec![steps::rescue(&claimed[1])]);
    let settling = async {
        until_blocked(&looker, 1).await;
        (former.settle(finish).await, adopter.settle(retry).await)
    };
    let release = async {
        until_blocked(&looker, 2).await;
        let_go(&session).await;
    };
    let (adopted, settled, ()) = tokio::join!(adopter.adopt(next, 10), settling, release);
    assert_eq!(adopted.expect("adopt").len(), 2);
    assert_eq!(settled, (Ok(vec![Settled::Fenced]), Ok(vec![Settled::Fenced])));
    for held in &claimed {
        let run = former.run(held.lease.run_id).await.expect("read").expect("there");
        assert_eq!((run.state, run.replica_id, run.tenure), (RunState::Running, Some(next), 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adoption_passes_over_a_lease_that_its_former_owner_is_settling() {
    let database = Database::create().await;
    let (former, adopter, mut session) = (open(&database).await, open(&database).await, database.session().await);
    let looker = database.session().await;
    let (owner, claimed) = steps::detached(&*former, 2).await;
    former.leave(owner).await.expect("leave");
    let next = steps::join(&*adopter).await;
    // The same key, not committed: the settle has taken its lease out and waits here.
    let other = session.transaction().await.expect("begin");
    let insert = "insert into done (run_id, state, finished_at, attempt, tries, losses) values ($1, '', 0, 0, 0, 0)";
    other.execute(insert, &[&claimed[0].lease.run_id.0]).await.expect("insert");
    let adopting = async {
        until_blocked(&looker, 1).await;
        let adopted = adopter.adopt(next, 10).await.expect("adopt");
        other.rollback().await.expect("rollback");
        adopted
    };
    let (settled, adopted) = tokio::join!(former.settle(vec![steps::success(&claimed[0])]), adopting);
    assert_eq!(settled, Ok(vec![Settled::Done]));
    assert_eq!(adopted.iter().map(|held| held.lease.run_id).collect::<Vec<_>>(), [claimed[1].lease.run_id]);
    assert!(adopter.adopt(next, 10).await.expect("adopt").is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adoption_passes_over_what_another_one_is_adopting() {
    let database = Database::create().await;
    let (here, there, session) = (open(&database).await, open(&database).await, database.session().await);
    let looker = database.session().await;
    let (owner, claimed) = steps::detached(&*here, 3).await;
    here.leave(owner).await.expect("leave");
    let (slow, quick) = (steps::join(&*here).await, steps::join(&*there).await);
    hold(&session, "lease", &format!("new.replica_id = '{slow}'")).await;
    let second = async {
        until_blocked(&looker, 1).await;
        let adopted = there.adopt(quick, 10).await.expect("adopt");
        let_go(&session).await;
        adopted
    };
    let (first, second) = tokio::join!(here.adopt(slow, 2), second);
    let runs = |held: &[Held]| held.iter().map(|held| held.lease.run_id).collect::<Vec<_>>();
    let all: Vec<_> = claimed.iter().map(|claimed| claimed.lease.run_id).collect();
    assert_eq!((runs(&first.expect("adopt")), runs(&second)), (all[..2].to_vec(), all[2..].to_vec()));
    assert_eq!(here.lease_index(slow, None, 10).await.expect("index").len(), 2);
    assert_eq!(here.lease_index(quick, None, 10).await.expect("index").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_returned_while_it_is_placed_stands_where_it_was_placed() {
    let database = Database::create().await;
    let (store, rescuer, session) = (open(&database).await, open(&database).await, database.session().await);
    let looker = database.session().await;
    let (replica, claimed) = steps::detached(&*store, 1).await;
    let run = claimed[0].lease.run_id;
    hold(&session, "run", "true").await;
    let settling = async {
        until_blocked(&looker, 1).await;
        rescuer.settle(vec![steps::rescue(&claimed[0])]).await
    };
    let release = async {
        until_blocked(&looker, 2).await;
        let_go(&session).await;
    };
    let place = store.place(claimed[0].lease.shown(), Some("here".to_string()));
    let (placed, settled, ()) = tokio::join!(place, settling, release);
    assert_eq!((placed, settled), (Ok(true), Ok(vec![Settled::Done])));
    assert_eq!(store.run(run).await.expect("read").expect("there").attempt, 1, "it is found in its lane");
    assert!(store.claim(steps::claim_in(replica, COMMAND, 1)).await.expect("claim").is_empty());
    assert_eq!(store.claim(steps::claim_in(replica, "command@here", 1)).await.expect("claim").len(), 1);
}

/// A run that is ready and one that waits for its time, both on a host that is gone, and a replica.
async fn bound(store: &Postgres) -> (ReplicaId, [RunId; 2]) {
    let (replica, claimed) = steps::detached(store, 2).await;
    for (held, next) in claimed.iter().zip([Next::Ready, Next::After(Duration::ZERO)]) {
        assert_eq!(store.place(held.lease.shown(), Some("gone".to_string())).await, Ok(true));
        let returned = Settlement { next, ..steps::rescue(held) };
        assert_eq!(store.settle(vec![returned]).await, Ok(vec![Settled::Done]));
    }
    (replica, [claimed[0].lease.run_id, claimed[1].lease.run_id])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_being_unbound_is_passed_over_and_found_afterwards() {
    let database = Database::create().await;
    let (store, other, session) = (open(&database).await, open(&database).await, database.session().await);
    let looker = database.session().await;
    let (replica, [ready, waiting]) = bound(&store).await;
    hold(&session, "run", "true").await;
    let meanwhile = async {
        until_blocked(&looker, 1).await;
        for lane in [COMMAND, "command@gone"] {
            assert!(other.claim(steps::claim_in(replica, lane, 9)).await.expect("claim").is_empty());
        }
        assert_eq!(other.promote(9).await.expect("promote").moved, 0);
        assert_eq!(other.unbind("gone".to_string(), 9).await, Ok(0), "another server does it");
        other.cancel(ready).await
    };
    let release = async {
        until_blocked(&looker, 2).await;
        let_go(&session).await;
    };
    let (unbound, cancelled, ()) = tokio::join!(store.unbind("gone".to_string(), 9), meanwhile, release);
    assert_eq!((unbound, cancelled), (Ok(2), Ok(everbeat_store::Cancelled::Ended)));
    assert_eq!(store.promote(9).await.expect("promote").moved, 1);
    let claimed = store.claim(steps::claim_in(replica, COMMAND, 9)).await.expect("claim");
    assert_eq!(claimed.iter().map(|claimed| claimed.lease.run_id).collect::<Vec<_>>(), [waiting]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promotion_that_began_before_a_run_was_unbound_goes_by_where_it_belongs_now() {
    let database = Database::create().await;
    let (store, other, session) = (open(&database).await, open(&database).await, database.session().await);
    let looker = database.session().await;
    let (replica, [_, waiting]) = bound(&store).await;
    // Whoever promotes has its snapshot, but no row yet, when it waits here.
    let pause = "alter table scheduled rename to of_later;
         create function pause(run uuid) returns boolean language plpgsql volatile as $$ begin
           if current_setting('application_name') like '% claim' then
             perform pg_advisory_xact_lock_shared(1, 8);
           end if;
           return true;
         end $$;
         create view scheduled as select * from of_later where pause(run_id);
         select pg_advisory_lock(1, 8)";
    session.batch_execute(pause).await.expect("a view");
    let unbinding = async {
        until_blocked(&looker, 1).await;
        let unbound = other.unbind("gone".to_string(), 9).await;
        session.batch_execute("select pg_advisory_unlock(1, 8)").await.expect("unlock");
        unbound
    };
    let (promoted, unbound) = tokio::join!(store.promote(9), unbinding);
    assert_eq!((promoted.expect("promote").moved, unbound), (1, Ok(2)));
    assert_eq!(store.run(waiting).await.expect("read").expect("there").attempt, 1, "it is found in its lane");
    assert_eq!(store.claim(steps::claim_in(replica, COMMAND, 9)).await.expect("claim").len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_races_a_burial_leaves_nothing_stranded() {
    let database = Database::create().await;
    let (store, mut session) = (open(&database).await, database.session().await);
    let replica = steps::join(&*store).await;
    let runs = steps::enqueue(&*store, 2).await;
    let burial = session.transaction().await.expect("begin");
    burial.execute("update replica set state = 'dead' where id = $1", &[&replica.0]).await.expect("bury");
    let claimed = store.claim(steps::claim(replica, 1)).await.expect("claim");
    burial.commit().await.expect("commit");
    let orphaned = store.held(Which::Orphaned(None, 10)).await.expect("held");
    assert_eq!(orphaned.len(), claimed.len(), "what the dead replica still took is found");
    assert!(store.claim(steps::claim(replica, 1)).await.expect("claim").is_empty(), "the dead take no more");
    let rescued = store.settle(claimed.iter().map(steps::rescue).collect()).await.expect("rescue");
    assert!(rescued.iter().all(|fate| *fate == Settled::Done));
    for run in runs {
        assert_eq!(store.run(run).await.expect("read").expect("there").state, RunState::Ready);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_finds_a_run_that_is_being_claimed() {
    let database = Database::create().await;
    let (store, mut session) = (open(&database).await, database.session().await);
    let looker = database.session().await;
    let replica = steps::join(&*store).await;
    let run = steps::enqueue(&*store, 1).await[0];
    let claim = session.transaction().await.expect("begin");
    claim.execute("delete from ready where run_id = $1", &[&run.0]).await.expect("delete");
    let lease = "insert into lease values ($1, $2, null, 1, 0, 0, gen_random_uuid(), 0, 0, null)";
    claim.execute(lease, &[&run.0, &replica.0]).await.expect("insert");
    let finish = async {
        until_blocked(&looker, 1).await;
        claim.commit().await.expect("commit");
    };
    let (cancelled, ()) = tokio::join!(store.cancel(run), finish);
    assert_eq!(cancelled, Ok(everbeat_store::Cancelled::Asked));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_waits_for_a_batch_that_is_still_being_written_and_passes_over_one_that_never_comes() {
    let database = Database::create().await;
    let (store, mut session) = (open(&database).await, database.session().await);
    let write = "insert into event select next_event_batch(), 0, 'queue.paused slow -'";
    let slow = session.transaction().await.expect("begin");
    slow.execute(write, &[]).await.expect("insert");
    assert!(store.pause("quick", true).await.expect("pause"));
    assert!(store.events(0, 10).await.expect("events").events.is_empty(), "what is behind it waits");
    assert_eq!(store.last_event().await.expect("last"), 0);
    slow.commit().await.expect("commit");
    let page = store.events(0, 10).await.expect("events");
    assert_eq!(page.events.iter().map(|event| event.subject.as_str()).collect::<Vec<_>>(), ["slow", "quick"]);
    let never = session.transaction().await.expect("begin");
    never.execute(write, &[]).await.expect("insert");
    assert!(store.pause("quick", false).await.expect("resume"));
    never.rollback().await.expect("rollback");
    let page = store.events(page.events[1].id, 10).await.expect("events");
    assert_eq!(page.events.len(), 1, "the batch that was rolled back holds up nobody");
    assert!(!page.gap);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ending_that_cannot_be_stored_ends_its_run_and_harms_no_other() {
    let database = Database::create().await;
    let store = open(&database).await;
    let replica = steps::join(&*store).await;
    let runs = steps::enqueue(&*store, 7).await;
    let claimed = store.claim(steps::claim(replica, 7)).await.expect("claim");
    let mut settlements: Vec<_> = claimed.iter().map(steps::success).collect();
    settlements[4].verdict = Some(Verdict {
        id: VerdictId(steps::next_id()),
        at: StoreTime(0),
        subject: Subject { kind: SubjectKind::Run, id: runs[4].to_string() },
        judgement: Judgement::Stalled,
        reason: "a \0 that PostgreSQL cannot hold".to_string(),
        evidence: Json::null(),
        judged_by: replica,
        run_id: Some(runs[4]),
        attempt: Some(1),
        then: String::new(),
    });
    assert_eq!(store.settle(settlements).await.expect("settle"), [Settled::Done; 7]);
    for (index, run) in runs.iter().enumerate() {
        let run = store.run(*run).await.expect("read").expect("there");
        let expected = if index == 4 { RunState::Failed } else { RunState::Succeeded };
        assert_eq!(run.state, expected);
        let told = run.error.is_some_and(|error| error.as_str().contains("unstorable"));
        assert_eq!(told, index == 4);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sign_that_cannot_be_stored_is_told_so_and_harms_no_other() {
    let database = Database::create().await;
    let store = open(&database).await;
    let session = database.session().await;
    let bound = "alter table run_sign add constraint bound check (length(progress) < 100)";
    session.batch_execute(bound).await.expect("a limit that is cheap to reach");
    steps::unstorable_signs_stand_alone(&*store, &Json::of(&"x".repeat(100))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::disallowed_methods, reason = "waits for a real server")]
async fn a_wake_reaches_the_other_servers() {
    let database = Database::create().await;
    let (here, there) = (open(&database).await, open(&database).await);
    let mut signal = there.wakes();
    // Each store sends itself a hint once it listens; until then hints from elsewhere may be missed.
    signal.wait().await;
    let heard = async {
        loop {
            here.wake();
            if tokio::time::timeout(Duration::from_millis(200), signal.wait()).await.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), heard).await.expect("the other server hears the hint");
}
