//! Ticks that get their times from a schedule.

use super::*;

const SECOND: i64 = 1_000_000;

fn at(text: &str) -> StoreTime {
    StoreTime::parse(text).expect(text)
}

fn nodes(kind: &str, schedule: Value) -> Value {
    json!({"name": "t", "nodes": [
        {"name": "go", "kind": "input"},
        {"name": "on", "kind": "input"},
        {"name": "tick", "kind": kind, "gate": {"and": ["go", {"not": {"is_false": "on"}}]}, "schedule": schedule},
        {"name": "remind", "kind": "compute", "gate": ["tick"], "task": "mail"},
        {"name": "seen", "kind": "historian", "gate": ["tick"]},
    ]})
}

fn ticking(kind: &str, schedule: Value, now: StoreTime) -> Machine {
    let mut machine = Machine::new(nodes(kind, schedule));
    machine.now = now;
    machine
}

impl Machine {
    fn armed(&self) -> Option<StoreTime> {
        let armed = self.ticks.get("tick").copied();
        let shown = self.value("tick").and_then(|value| StoreTime::parse(value.as_str()?).ok());
        assert!(armed.is_none() || armed == shown, "{armed:?} {shown:?}");
        armed
    }

    /// Time passes, and somebody looks.
    fn later(&mut self, now: StoreTime) -> Vec<&str> {
        self.now = now;
        self.look();
        self.running()
    }

    /// The time that the run of the node was told.
    fn told(&self, node: &str) -> Value {
        let start = self.runs.values().find(|start| start.node == node).expect("it runs");
        start.input.value()["tick"].clone()
    }
}

#[test]
fn an_interval_begins_when_the_gate_opens_and_does_not_drift() {
    let begin = StoreTime(1_000_000_000_000_000);
    let after = |seconds: i64| StoreTime(begin.0 + seconds * SECOND);
    let mut machine = ticking("tick_recurring", json!({"every": "60s"}), begin);
    assert_eq!(machine.armed(), None, "its gate is shut");
    machine.set(json!({"go": 1}));
    assert!(machine.running().is_empty(), "nothing is run for its time");
    assert_eq!(machine.armed(), Some(after(60)));
    assert!(machine.later(after(59)).is_empty());
    assert_eq!(machine.later(after(67)), ["remind"], "found late");
    assert_eq!(machine.told("remind"), json!(after(60)), "and told when it was due");
    assert_eq!(machine.armed(), Some(after(120)), "armed by when it was due");
    machine.compute("remind", json!("mailed"));
    assert_eq!(machine.value("remind"), Some(json!("mailed")), "armed again, it takes nothing away");
    // Nobody looked for a while: of the times that were missed one has fired.
    assert_eq!(machine.later(after(310)), ["remind"]);
    assert_eq!((machine.told("remind"), machine.armed()), (json!(after(120)), Some(after(360))));
    // It fires while what it set off still runs: that finishes, and another one follows.
    assert_eq!(machine.later(after(360)), ["remind"]);
    machine.compute("remind", json!("mailed"));
    assert_eq!(machine.running(), ["remind"]);
    assert_eq!(machine.armed(), Some(after(420)));
    let seen = machine.value("seen").expect("a history");
    let seen: Vec<&Value> = seen.as_array().expect("a list").iter().map(|entry| &entry["value"]).collect();
    assert_eq!(seen, [&json!(after(360)), &json!(after(120)), &json!(after(60))]);
}

#[test]
fn a_time_of_day_follows_the_clock_on_the_wall() {
    let schedule = json!({"cron": "30 2 * * *", "tz": "Europe/Berlin"});
    let mut machine = ticking("tick_recurring", schedule, at("2026-03-27T12:00:00Z"));
    machine.set(json!({"go": 1}));
    // On 29 March there is no half past two: it is due when that hour would have ended.
    for due in ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"] {
        assert_eq!(machine.armed(), Some(at(due)));
        assert_eq!(machine.later(at(due)), ["remind"]);
        machine.compute("remind", json!(due));
    }
}

#[test]
fn a_tick_once_fires_once_for_what_it_depends_on() {
    let begin = StoreTime(1_000_000_000_000_000);
    let after = |seconds: i64| StoreTime(begin.0 + seconds * SECOND);
    let mut machine = ticking("tick_once", json!({"every": "10s"}), begin);
    machine.set(json!({"go": 1}));
    machine.now = after(5);
    machine.set(json!({"go": 2}));
    assert_eq!(machine.armed(), Some(after(15)), "what it depends on changed: it begins anew");
    assert!(machine.later(after(10)).is_empty());
    assert_eq!(machine.later(after(15)), ["remind"]);
    machine.compute("remind", json!(1));
    assert!(machine.later(after(100)).is_empty() && machine.armed().is_none(), "once");
    // Another definition does not have it fire again; what it depends on does.
    machine.graph = Graph::parse(&nodes("tick_once", json!({"every": "30s"}))).unwrap();
    assert!(machine.later(after(101)).is_empty() && machine.armed().is_none());
    machine.set(json!({"go": 3}));
    assert_eq!(machine.armed(), Some(after(131)));
}

#[test]
fn a_shut_gate_pauses_and_an_archived_execution_is_not_armed() {
    let begin = StoreTime(1_000_000_000_000_000);
    let after = |seconds: i64| StoreTime(begin.0 + seconds * SECOND);
    let mut machine = ticking("tick_recurring", json!({"every": "10s"}), begin);
    machine.set(json!({"go": 1, "on": true}));
    machine.set(json!({"on": false}));
    assert!(machine.later(after(25)).is_empty(), "its gate is shut");
    machine.set(json!({"on": true}));
    assert!(machine.running().is_empty(), "what it depends on changed: it begins anew");
    assert_eq!(machine.armed(), Some(after(35)));
    machine.tell(Command::Archive);
    assert!(machine.later(after(40)).is_empty() && machine.ticks.is_empty());
    machine.tell(Command::Unarchive);
    assert_eq!(machine.running(), ["remind"], "it was due meanwhile");
    assert_eq!(machine.armed(), Some(after(45)));
}

#[test]
fn another_schedule_counts_at_once_and_takes_the_place_of_a_task() {
    let begin = StoreTime(1_000_000_000_000_000);
    let after = |seconds: i64| StoreTime(begin.0 + seconds * SECOND);
    let by_task = json!({"name": "t", "nodes": [
        {"name": "go", "kind": "input"},
        {"name": "tick", "kind": "tick_recurring", "gate": ["go"], "task": "next"},
        {"name": "remind", "kind": "compute", "gate": ["tick"], "task": "mail"},
    ]});
    let mut machine = Machine::new(by_task.clone());
    machine.now = begin;
    machine.set(json!({"go": 1}));
    assert_eq!(machine.running(), ["tick"]);
    machine.graph = Graph::parse(&nodes("tick_recurring", json!({"every": "1h"}))).unwrap();
    assert!(machine.later(begin).is_empty(), "nobody asks the task any more");
    assert_eq!(machine.armed(), Some(after(3600)));
    machine.graph = Graph::parse(&nodes("tick_recurring", json!({"every": "60s"}))).unwrap();
    machine.later(after(5));
    assert_eq!(machine.armed(), Some(after(65)));
    assert_eq!(machine.later(after(65)), ["remind"]);
    machine.compute("remind", json!(1));
    machine.graph = Graph::parse(&by_task).unwrap();
    assert!(machine.later(after(66)).is_empty(), "the time that it has stands");
    let mut asked: Vec<String> = machine.later(after(125)).into_iter().map(str::to_string).collect();
    asked.sort_unstable();
    assert_eq!(asked, ["remind", "tick"]);
}

#[test]
fn a_result_that_comes_together_with_another_definition_is_not_a_time() {
    let mut machine = Machine::new(json!({"name": "t", "nodes": [
        {"name": "tick", "kind": "tick_once", "task": "next"},
    ]}));
    machine.graph = Graph::parse(&json!({"name": "t", "nodes": [
        {"name": "tick", "kind": "tick_once", "schedule": {"every": "60s"}},
    ]}))
    .unwrap();
    machine.compute("tick", json!(1));
    assert_eq!(machine.armed(), Some(StoreTime(machine.now.0 + 60 * SECOND)));
}
