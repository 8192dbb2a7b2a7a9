use super::*;
use crate::time::StoreTime;
use serde_json::{Value, json};

fn at(text: &str) -> StoreTime {
    StoreTime::parse(&format!("2026-03-{text}Z")).expect(text)
}

fn check(value: Value) -> Check {
    Check::parse("backup", &value).expect("fine")
}

/// Once an hour, with ten minutes of grace.
fn hourly() -> Check {
    check(json!({"period": "1h", "grace": "10m"}))
}

fn ping(vitals: &Vitals, check: &Check, kind: PingKind, now: &str) -> Change {
    vitals.pinged(check, Signal::plain(kind), at(now))
}

fn state(vitals: &Vitals) -> &'static str {
    vitals.health.state().as_str()
}

#[test]
fn a_check_is_late_when_a_success_is_due_and_down_after_its_grace() {
    let check = hourly();
    assert_eq!((Vitals::NEW.look_at(&check), Vitals::NEW.due(&check)), (None, None), "nothing is expected yet");
    let up = ping(&Vitals::NEW, &check, PingKind::Success, "01T00:00:00");
    assert_eq!((state(&up.vitals), up.news.len()), ("up", 0));
    let due = at("01T01:00:00");
    assert_eq!((up.vitals.due(&check), up.vitals.look_at(&check)), (Some(due), Some(due)));
    assert_eq!(up.vitals.looked(&check, at("01T00:59:59")).vitals, up.vitals);
    let late = up.vitals.looked(&check, due);
    assert_eq!((state(&late.vitals), &late.news[..]), ("late", &[CheckNews::Late { due }][..]));
    let limit = at("01T01:10:00");
    assert_eq!(late.vitals.look_at(&check), Some(limit));
    assert!(late.vitals.looked(&check, at("01T01:09:59")).news.is_empty(), "told once");
    let down = late.vitals.looked(&check, at("01T02:00:00"));
    let told = CheckNews::Down { since: limit, why: WhyDown::Missed, exit_code: None };
    assert_eq!((state(&down.vitals), &down.news[..]), ("down", &[told][..]));
    assert_eq!(down.vitals.look_at(&check), None);
    assert_eq!(down.vitals.looked(&check, at("02T00:00:00")).news, [], "told once");
    let back = ping(&down.vitals, &check, PingKind::Success, "01T03:00:00");
    assert_eq!((state(&back.vitals), &back.news[..]), ("up", &[CheckNews::Up { down_since: limit }][..]));
}

#[test]
fn a_success_that_comes_too_late_tells_of_the_time_before_it() {
    let check = hourly();
    let up = ping(&Vitals::NEW, &check, PingKind::Success, "01T00:00:00").vitals;
    let back = ping(&up, &check, PingKind::Success, "01T05:00:00");
    let since = at("01T01:10:00");
    let down = CheckNews::Down { since, why: WhyDown::Missed, exit_code: None };
    assert_eq!(back.news, [down, CheckNews::Up { down_since: since }]);
    assert_eq!(ping(&up, &check, PingKind::Success, "01T01:05:00").news, [CheckNews::Late { due: at("01T01:00:00") }]);
}

#[test]
fn a_start_without_an_end_within_the_grace_makes_it_down() {
    let check = hourly();
    for before in [Vitals::NEW, ping(&Vitals::NEW, &check, PingKind::Success, "01T00:00:00").vitals] {
        let started = ping(&before, &check, PingKind::Start, "01T00:20:00").vitals;
        assert_eq!((state(&started), started.look_at(&check)), (state(&before), Some(at("01T00:30:00"))));
        let ended = ping(&started, &check, PingKind::Success, "01T00:25:00");
        assert_eq!(ended.duration, Some(std::time::Duration::from_secs(300)));
        assert_eq!((ended.vitals.last_duration, ended.vitals.started_at), (ended.duration, None));
        let down = started.looked(&check, at("01T00:30:00"));
        let told = CheckNews::Down { since: at("01T00:30:00"), why: WhyDown::Overrun, exit_code: None };
        assert_eq!((state(&down.vitals), &down.news[..]), ("down", &[told][..]));
        let again = ping(&down.vitals, &check, PingKind::Start, "01T00:40:00");
        assert_eq!((state(&again.vitals), again.news.len()), ("down", 0), "only a success ends that");
        let back = ping(&again.vitals, &check, PingKind::Success, "01T00:41:00");
        assert_eq!((state(&back.vitals), back.duration), ("up", Some(std::time::Duration::from_secs(60))));
    }
}

#[test]
fn a_failure_makes_it_down_at_once_and_a_log_changes_nothing() {
    let check = hourly();
    let down = Vitals::NEW.pinged(&check, Signal::exit(3), at("01T00:00:00"));
    let told = CheckNews::Down { since: at("01T00:00:00"), why: WhyDown::Failed, exit_code: Some(3) };
    assert_eq!((state(&down.vitals), &down.news[..]), ("down", &[told][..]));
    let again = ping(&down.vitals, &check, PingKind::Fail, "01T00:10:00");
    assert_eq!((again.vitals.health, again.news.len()), (down.vitals.health, 0), "told once");
    let noted = ping(&again.vitals, &check, PingKind::Log, "01T00:20:00");
    assert_eq!((noted.vitals.health, noted.vitals.pings), (again.vitals.health, 3));
    assert_eq!(noted.vitals.last_ping_at, Some(at("01T00:20:00")));
    assert_eq!(state(&ping(&noted.vitals, &check, PingKind::Success, "01T00:30:00").vitals), "up");
}

#[test]
fn a_cron_expression_expects_the_next_time_on_the_wall() {
    let check = check(json!({"cron": "30 2 * * *", "tz": "Europe/Berlin", "grace": "1h"}));
    let up = ping(&Vitals::NEW, &check, PingKind::Success, "27T12:00:00").vitals;
    assert_eq!(up.due(&check), Some(at("28T01:30:00")));
    let up = ping(&up, &check, PingKind::Success, "28T01:45:00").vitals;
    assert_eq!(up.due(&check), Some(at("29T01:00:00")), "the clock is put forward");
}

#[test]
fn what_is_paused_stays_so_until_it_is_resumed_and_is_counted_from_then() {
    let check = hourly();
    let up = ping(&Vitals::NEW, &check, PingKind::Success, "01T00:00:00").vitals;
    let paused = up.paused();
    assert_eq!((state(&paused), paused.due(&check), paused.look_at(&check)), ("paused", None, None));
    let failed = ping(&paused, &check, PingKind::Fail, "01T00:10:00");
    assert_eq!((state(&failed.vitals), failed.news.len(), failed.vitals.pings), ("paused", 0, 2));
    assert_eq!(failed.vitals.looked(&check, at("09T00:00:00")).vitals, failed.vitals);
    let resumed = failed.vitals.resumed(at("05T00:00:00"));
    assert_eq!((state(&resumed), resumed.due(&check)), ("new", Some(at("05T01:00:00"))));
    assert_eq!(state(&resumed.looked(&check, at("05T02:00:00")).vitals), "down");
    assert_eq!(Vitals::NEW.paused().resumed(at("05T00:00:00")), Vitals::NEW);
}

#[test]
fn another_definition_judges_by_what_is_known() {
    let (check, slower) = (hourly(), check(json!({"period": "1d", "grace": "10m"})));
    let up = ping(&Vitals::NEW, &check, PingKind::Success, "01T00:00:00").vitals;
    let now = at("01T02:00:00");
    let down = up.looked(&check, now).vitals;
    let relieved = down.rewritten(&slower, now);
    let told = CheckNews::Up { down_since: at("01T01:10:00") };
    assert_eq!((state(&relieved.vitals), &relieved.news[..]), ("up", &[told][..]));
    let same = down.rewritten(&hourly(), now);
    assert_eq!((same.vitals, same.news.len()), (down, 0));
    assert_eq!(state(&relieved.vitals.rewritten(&check, now).vitals), "down");
    let failed = ping(&up, &check, PingKind::Fail, "01T00:10:00").vitals;
    assert_eq!(failed.rewritten(&slower, now).vitals, failed, "a failure stays one");
    let late = up.looked(&check, at("01T01:05:00")).vitals;
    assert_eq!(state(&late.rewritten(&slower, at("01T01:05:00")).vitals), "up");
    assert_eq!(late.rewritten(&check, at("01T01:05:00")).news, []);
}
