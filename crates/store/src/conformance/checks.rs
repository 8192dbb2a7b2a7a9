use super::fixture::Fixture;
use crate::{CheckFilter, CheckPut, CheckRow, Deleted, Expected, NewPing, Pinged, PutCheck};
use everbeat_model::check::{Check, CheckState, Health, MOST_CHECKS, MOST_PINGS, PingKind, Signal, WhyDown};
use everbeat_model::event::EventKind;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

pub(super) async fn a_check_reads_back_as_it_was_written(t: &Fixture) {
    let given = json!({"description": "it's \u{1F980}", "cron": "30 2 * * *", "tz": "Europe/Berlin", "grace": "90s"});
    let CheckPut::Created(made) = put(t, "nightly", given.clone()).await else { panic!("it is new") };
    assert_eq!((made.version, made.vitals.health), (1, Health::New));
    assert_eq!((&made.check, made.created_at), (&check("nightly", given.clone()), made.updated_at));
    assert_eq!(of(t, "nightly").await, made);
    assert!(t.check("Nightly").await.expect("check").is_none());
    assert_eq!(put(t, "nightly", given).await, CheckPut::Unchanged(made.clone()));
    let CheckPut::Replaced(other) = put(t, "nightly", json!({"period": "2h"})).await else { panic!("another one") };
    assert_eq!((other.version, other.created_at), (2, made.created_at));
    assert_eq!(of(t, "nightly").await, other);
    assert_eq!(kinds(t).await, [EventKind::CheckWritten, EventKind::CheckWritten]);
}

pub(super) async fn a_check_is_written_only_over_what_is_expected(t: &Fixture) {
    let expecting = |expected, period: &str| {
        t.put_check(PutCheck { check: check("c", json!({ "period": period })), expected, most: MOST_CHECKS })
    };
    let conflict = expecting(Expected::Version(1), "1h").await.expect("put");
    assert_eq!(conflict, CheckPut::Conflict(None));
    let made = expecting(Expected::Nothing, "1h").await.expect("put");
    assert!(matches!(made, CheckPut::Created(_)), "{made:?}");
    for wrong in [Expected::Nothing, Expected::Version(2)] {
        assert_eq!(expecting(wrong, "2h").await.expect("put"), CheckPut::Conflict(Some(1)));
    }
    let other = expecting(Expected::Version(1), "2h").await.expect("put");
    assert!(matches!(other, CheckPut::Replaced(_)), "{other:?}");
    assert_eq!(t.delete_check("c", Some(1)).await.expect("delete"), Deleted::Conflict(2));
    assert_eq!(t.delete_check("c", Some(2)).await.expect("delete"), Deleted::Done);
    assert_eq!(t.delete_check("c", None).await.expect("delete"), Deleted::NotFound);
}

pub(super) async fn checks_are_listed_by_name_and_state(t: &Fixture) {
    for name in ["b", "B", "a", "\u{e9}"] {
        put(t, name, json!({})).await;
    }
    ping(t, "a", Signal::plain(PingKind::Success)).await;
    ping(t, "b", Signal::plain(PingKind::Fail)).await;
    let names = |state, after: Option<&str>, limit| {
        let filter = CheckFilter { state, after: after.map(str::to_string), limit };
        async move {
            let found = t.checks(filter).await.expect("checks");
            found.into_iter().map(|row| row.check.name).collect::<Vec<_>>()
        }
    };
    assert_eq!(names(None, None, 9).await, ["B", "a", "b", "\u{e9}"]);
    assert_eq!(names(None, Some("B"), 2).await, ["a", "b"]);
    assert_eq!(names(Some(CheckState::New), None, 9).await, ["B", "\u{e9}"]);
    assert_eq!(names(Some(CheckState::Down), None, 9).await, ["b"]);
    let counts = t.count_checks().await.expect("count");
    assert_eq!(counts, BTreeMap::from([(CheckState::New, 2), (CheckState::Up, 1), (CheckState::Down, 1)]));
}

pub(super) async fn the_first_ping_of_a_name_makes_its_check(t: &Fixture) {
    let (made, created) = ping(t, "backup", Signal::plain(PingKind::Start)).await;
    assert!(created && made.vitals.started_at.is_some());
    assert_eq!((&made.check, made.vitals.health), (&check("backup", json!({})), Health::New));
    t.advance(Duration::from_millis(5)).await;
    let (ended, created) = ping(t, "backup", Signal::exit(0)).await;
    assert!(!created && ended.vitals.last_duration >= Some(Duration::from_millis(5)), "{ended:?}");
    assert_eq!((ended.vitals.health, ended.vitals.pings), (Health::Up, 2));
    assert_eq!(of(t, "backup").await, ended);
    let kept = t.pings("backup", None, 10).await.expect("pings").expect("there");
    assert_eq!(kept.iter().map(|ping| ping.place).collect::<Vec<_>>(), [2, 1]);
    assert_eq!((kept[0].signal, kept[0].duration), (Signal::exit(0), ended.vitals.last_duration));
    assert_eq!((kept[1].signal, kept[1].duration), (Signal::plain(PingKind::Start), None));
    assert_eq!(Some(kept[0].at), ended.vitals.last_ping_at);
    assert_eq!(t.pings("unknown", None, 10).await.expect("pings"), None);
}

pub(super) async fn the_newest_pings_are_kept_with_what_they_said(t: &Fixture) {
    let surplus = 3;
    for number in 1..=MOST_PINGS + surplus {
        let body = Some(format!("it's {number} \u{1F980}"));
        let request = NewPing { body, ..new_ping("c", Signal::plain(PingKind::Log)) };
        t.ping_check(request).await.expect("ping");
    }
    let kept = t.pings("c", None, 1000).await.expect("pings").expect("there");
    assert_eq!(kept.len(), MOST_PINGS);
    assert_eq!(kept[0].body.as_deref(), Some(format!("it's {} \u{1F980}", MOST_PINGS + surplus).as_str()));
    assert_eq!(kept.last().map(|ping| ping.place), Some(surplus as u64 + 1));
    let older = t.pings("c", Some(kept[1].place), 2).await.expect("pings").expect("there");
    assert_eq!(older, kept[2..4]);
    t.delete_check("c", None).await.expect("delete");
    put(t, "c", json!({})).await;
    assert_eq!(t.pings("c", None, 10).await.expect("pings"), Some(Vec::new()), "they went with their check");
}

pub(super) async fn a_check_that_is_not_pinged_is_late_then_down_and_each_is_told_once(t: &Fixture) {
    put(t, "c", json!({"period": "1s", "grace": "3s"})).await;
    put(t, "idle", json!({"period": "1s"})).await;
    assert_eq!(t.due_checks(9).await.expect("due").next_in, None, "nothing is expected yet");
    let (up, _) = ping(t, "c", Signal::plain(PingKind::Success)).await;
    let due = up.vitals.due(&up.check).expect("a success");
    let soon = t.due_checks(9).await.expect("due");
    assert!(soon.names.is_empty() && soon.next_in.is_some_and(|next| next <= SECOND), "{soon:?}");
    assert_eq!(look(t, "c").await, up, "nothing has become of it");
    t.advance(SECOND + Duration::from_millis(20)).await;
    assert_eq!(t.due_checks(9).await.expect("due").names, ["c"]);
    let looks = t.at_once(8, |store| async move { store.look_at_check("c").await.expect("look") }).await;
    assert!(looks.iter().flatten().all(|row| row.vitals.health == Health::Late), "{looks:?}");
    assert_eq!(t.due_checks(9).await.expect("due").names, Vec::<String>::new());
    t.advance(3 * SECOND).await;
    assert_eq!(t.due_checks(9).await.expect("due").names, ["c"]);
    t.at_once(8, |store| async move { store.look_at_check("c").await.expect("look") }).await;
    let since = due.plus(3 * SECOND);
    assert_eq!(of(t, "c").await.vitals.health, Health::Down { since, why: WhyDown::Missed });
    assert_eq!(t.due_checks(9).await.expect("due").next_in, None);
    let (back, _) = ping(t, "c", Signal::plain(PingKind::Success)).await;
    let now = back.vitals.last_ping_at.expect("pinged");
    let events = t.events(0, 100).await.expect("events").events;
    let told: Vec<(String, Value)> = events
        .into_iter()
        .filter(|event| event.kind != EventKind::CheckWritten.as_str())
        .map(|event| (event.kind, event.detail.expect("a detail").value()))
        .collect();
    let down_ms = now.since(since).as_millis() as u64;
    let expected = [
        (EventKind::CheckLate, json!({ "due_at": due })),
        (EventKind::CheckDown, json!({ "since": since, "why": "missed", "exit_code": null })),
        (EventKind::CheckUp, json!({ "down_since": since, "down_ms": down_ms })),
    ];
    assert_eq!(told, expected.map(|(kind, detail)| (kind.as_str().to_string(), detail)));
    assert!(t.look_at_check("unknown").await.expect("look").is_none());
}

pub(super) async fn the_longest_due_checks_come_first_and_no_more_than_asked_for(t: &Fixture) {
    for name in ["c", "a", "b"] {
        put(t, name, json!({"period": "1s"})).await;
        ping(t, name, Signal::plain(PingKind::Success)).await;
        t.advance(Duration::from_millis(2)).await;
    }
    t.advance(SECOND).await;
    let due = t.due_checks(2).await.expect("due");
    assert_eq!((due.names, due.next_in), (vec!["c".to_string(), "a".to_string()], Some(Duration::ZERO)));
    look(t, "c").await;
    assert_eq!(t.due_checks(2).await.expect("due").names, ["a", "b"]);
}

pub(super) async fn a_failure_from_many_sides_at_once_is_told_once(t: &Fixture) {
    let answers = t.at_once(8, |store| {
        let request = new_ping("c", Signal::exit(7));
        async move { store.ping_check(request).await.expect("ping") }
    });
    let made = answers.await.into_iter().filter(|answer| matches!(answer, Pinged::Done { created: true, .. })).count();
    assert_eq!(made, 1);
    assert_eq!(of(t, "c").await.vitals.pings, 8);
    assert_eq!(kinds(t).await, [EventKind::CheckDown]);
    let detail = t.events(0, 9).await.expect("events").events[0].detail.clone().expect("a detail").value();
    assert_eq!(detail["exit_code"], 7);
}

pub(super) async fn a_paused_check_is_not_due_and_is_counted_anew_when_resumed(t: &Fixture) {
    put(t, "c", json!({"period": "1s", "grace": "1s"})).await;
    ping(t, "c", Signal::plain(PingKind::Success)).await;
    let pause = |paused| async move { t.pause_check("c", paused).await.expect("pause").expect("there") };
    assert_eq!(pause(true).await.vitals.health, Health::Paused);
    assert_eq!(pause(true).await, of(t, "c").await, "it is paused");
    t.advance(SECOND + Duration::from_millis(20)).await;
    assert_eq!(t.due_checks(9).await.expect("due").next_in, None);
    let (pinged, _) = ping(t, "c", Signal::plain(PingKind::Fail)).await;
    assert_eq!((pinged.vitals.health, pinged.vitals.pings), (Health::Paused, 2));
    let resumed = pause(false).await;
    assert_eq!(resumed.vitals.health, Health::New);
    assert!(t.due_checks(9).await.expect("due").next_in.is_some_and(|next| next <= SECOND));
    assert_eq!(pause(false).await, resumed);
    assert!(t.pause_check("unknown", true).await.expect("pause").is_none());
    assert_eq!(kinds(t).await, [EventKind::CheckWritten, EventKind::CheckPaused, EventKind::CheckResumed]);
}

pub(super) async fn no_more_checks_are_made_than_there_may_be(t: &Fixture) {
    let few = 5;
    let next = Arc::new(AtomicUsize::new(0));
    let puts = t.at_once(20, |store| {
        let next = next.clone();
        async move {
            let check = check(&format!("c{}", next.fetch_add(1, Ordering::Relaxed)), json!({}));
            store.put_check(PutCheck { check, expected: Expected::Anything, most: few }).await.expect("put")
        }
    });
    let puts = puts.await;
    let refused = puts.iter().filter(|put| **put == CheckPut::TooMany).count();
    assert_eq!((puts.len(), refused), (20, 20 - few), "{puts:?}");
    let made = t.checks(CheckFilter { limit: 100, ..CheckFilter::default() }).await.expect("checks");
    assert_eq!(made.len(), few);
    let request = |name: &str| NewPing { most: few, ..new_ping(name, Signal::plain(PingKind::Success)) };
    assert_eq!(t.ping_check(request("more")).await.expect("ping"), Pinged::TooMany);
    assert!(t.check("more").await.expect("check").is_none());
    let name = &made[0].check.name;
    let there = t.ping_check(request(name)).await.expect("ping");
    assert!(matches!(there, Pinged::Done { created: false, .. }), "those that are there are pinged");
    t.delete_check(name, None).await.expect("delete");
    let room = t.ping_check(request("more")).await.expect("ping");
    assert!(matches!(room, Pinged::Done { created: true, .. }), "there is room again");
}

fn new_ping(name: &str, signal: Signal) -> NewPing {
    NewPing { check: check(name, json!({})), signal, body: None, most: MOST_CHECKS }
}

fn check(name: &str, value: Value) -> Check {
    Check::parse(name, &value).expect("a check")
}

async fn put(t: &Fixture, name: &str, value: Value) -> CheckPut {
    let request = PutCheck { check: check(name, value), expected: Expected::Anything, most: MOST_CHECKS };
    t.put_check(request).await.expect("put")
}

async fn of(t: &Fixture, name: &str) -> CheckRow {
    t.check(name).await.expect("check").expect("there is one")
}

async fn look(t: &Fixture, name: &str) -> CheckRow {
    t.look_at_check(name).await.expect("look").expect("there is one")
}

/// Pings, and tells whether that has made the check.
async fn ping(t: &Fixture, name: &str, signal: Signal) -> (CheckRow, bool) {
    match t.ping_check(new_ping(name, signal)).await.expect("ping") {
        Pinged::Done { check, created } => (check, created),
        Pinged::TooMany => panic!("too many"),
    }
}

async fn kinds(t: &Fixture) -> Vec<EventKind> {
    let events = t.events(0, 100).await.expect("events").events;
    events.iter().filter_map(|event| EventKind::parse(&event.kind)).collect()
}
