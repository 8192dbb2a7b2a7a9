use super::*;
use crate::id::{RunId, ScheduleId};
use crate::json::Json;
use crate::run::RunState;
use crate::time::StoreTime;
use crate::{Planted, Policy};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

fn at(second: u64) -> StoreTime {
    StoreTime(0).plus(Duration::from_secs(second))
}

fn run(number: u128) -> RunId {
    RunId(Uuid::from_u128(number))
}

fn flow(occurrences: Vec<Occurrence>) -> Situation {
    let value = json!({ "schedule": { "every": "60s" }, "overlap": "queue", "configuration": { "task": "copy" } });
    Situation {
        id: ScheduleId(Uuid::from_u128(1)),
        schedule: Arc::new(Schedule::parse(ScheduleKind::Flow, "copy", &value).expect("a flow")),
        enabled: true,
        next_due: Some(at(180)),
        occurrences,
        fed_by: BTreeSet::new(),
        others: Others::default(),
        late_since: None,
        cursor: Some(Json::of(&"old")),
        now: at(130),
    }
}

fn occurrence(number: u128, due: u64, state: OccurrenceState) -> Occurrence {
    Occurrence { run: run(number), due: at(due), cause: DueBy::Clock, wish: None, state }
}

#[test]
fn a_flow_goes_on_where_the_run_left_off_whose_end_the_same_look_finds() {
    let over = OccurrenceState::Over { state: Some(RunState::Succeeded), checkpoint: Some(Json::of(&"new")) };
    let situation = flow(vec![occurrence(7, 60, over), occurrence(8, 120, OccurrenceState::Waiting)]);
    let defaults =
        RunDefaults { policy: Arc::new(Policy::BASELINE), queue: "default".to_string(), hole: Planted::default() };
    let decision = look(&situation, Wish::Look { clock: true }, &defaults, &mut || run(9));
    assert_eq!(decision.begin.iter().map(|new| new.id).collect::<Vec<_>>(), [run(8)]);
    let args = decision.begin[0].spec.args.as_ref().map_or(Value::Null, Json::value);
    assert_eq!(args["cursor"], json!("new"));
    assert_eq!(decision.cursor, Some(Json::of(&"new")));
}

#[test]
fn a_run_over_a_part_of_the_source_leaves_the_cursor_where_it_was() {
    let over = OccurrenceState::Over { state: Some(RunState::Succeeded), checkpoint: Some(Json::of(&"far back")) };
    let asked = |wish: Value| Occurrence {
        cause: DueBy::Asked,
        wish: Some(Json::of(&wish)),
        ..occurrence(7, 60, over.clone())
    };
    let defaults =
        RunDefaults { policy: Arc::new(Policy::BASELINE), queue: "default".to_string(), hole: Planted::default() };
    let cursor = |wish: Value| {
        let situation = flow(vec![asked(wish)]);
        look(&situation, Wish::Look { clock: true }, &defaults, &mut || run(9)).cursor
    };
    assert_eq!(cursor(json!({ "range": { "from": 1, "to": 9 } })), Some(Json::of(&"old")));
    assert_eq!(cursor(json!({ "cursor": 1 })), Some(Json::of(&"far back")));
}

#[test]
fn what_was_decided_is_not_due_again_when_a_clock_goes_back() {
    let cron = Rhythm::Cron(Box::new(Cron::new("0 * * * * *", "UTC").expect("each minute")));
    let every = Rhythm::Every(Duration::from_secs(60));
    for rhythm in [cron, every] {
        assert_eq!(rearm(Some(&rhythm), Some(at(3600)), at(30)), Some(at(3660)), "{rhythm:?}");
        assert!(rearm(Some(&rhythm), Some(at(60)), at(3590)) >= Some(at(3590)), "{rhythm:?}");
    }
}

#[test]
fn what_is_due_for_longer_than_all_that_waits_in_its_group_begins() {
    let defaults =
        RunDefaults { policy: Arc::new(Policy::BASELINE), queue: "default".to_string(), hole: Planted::default() };
    let looks = |next_due: u64, wish: Wish| {
        let mut situation = flow(Vec::new());
        let schedule = Arc::make_mut(&mut situation.schedule);
        schedule.group = Some("warehouse".to_string());
        schedule.terms.rhythm = Some(Rhythm::Every(Duration::from_secs(3600)));
        situation.next_due = Some(at(next_due));
        situation.others = Others { unfinished: 0, waiting: vec![at(100)] };
        let decision = look(&situation, wish, &defaults, &mut || run(9));
        (decision.begin.len(), decision.add.iter().filter(|added| added.waits()).count())
    };
    // The other has waited since 100. What was due at 60 would wait before it, and nobody would look at either.
    assert_eq!(looks(60, Wish::Look { clock: true }), (1, 0));
    assert_eq!(looks(110, Wish::Look { clock: true }), (0, 1));
    // At 130 somebody asks: the other has waited for longer.
    assert_eq!(looks(180, Wish::Trigger { run: run(5), wish: None, idempotency: None }), (0, 1));
}

#[test]
fn what_somebody_asks_for_after_a_clock_went_back_is_not_left_waiting_before_all_others() {
    let mut situation = flow(vec![occurrence(7, 120, OccurrenceState::Waiting)]);
    Arc::make_mut(&mut situation.schedule).group = Some("warehouse".to_string());
    situation.others = Others { unfinished: 0, waiting: vec![at(100)] };
    situation.now = at(30);
    let defaults =
        RunDefaults { policy: Arc::new(Policy::BASELINE), queue: "default".to_string(), hole: Planted::default() };
    let decision =
        look(&situation, Wish::Trigger { run: run(5), wish: None, idempotency: None }, &defaults, &mut || run(9));
    assert_eq!(decision.begin.iter().map(|new| new.id).collect::<Vec<_>>(), [run(7)]);
}
