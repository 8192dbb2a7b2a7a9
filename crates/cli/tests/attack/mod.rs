//! What the attacks share: clients that remember what they asked for, and a reckoning when it is over.
#![allow(dead_code, reason = "each test file uses a part")]

use crate::common::{Options, Server, pause, stopwatch, until};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use ureq::Agent;

/// How long an attack lasts: short in the test command, as long as wanted by `EVERBEAT_ATTACK_SECONDS`.
pub(crate) fn attack_time() -> Duration {
    let seconds = std::env::var("EVERBEAT_ATTACK_SECONDS").ok();
    let seconds = seconds.map(|text| text.parse().expect("EVERBEAT_ATTACK_SECONDS is a whole number of seconds"));
    Duration::from_secs(seconds.unwrap_or(20))
}

/// What is under attack may take so long to come to rest afterwards.
pub(crate) const REST: Duration = Duration::from_secs(240);

/// Judges death after five seconds: soon enough for a test, and longer than a busy machine lets a process wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) fn steady() -> Options {
    Options::default()
        .env("EVERBEAT_REPLICA__HEARTBEAT_INTERVAL", "500ms")
        .env("EVERBEAT_REPLICA__HEARTBEAT_TIMEOUT", format!("{}s", TIMEOUT.as_secs()))
        .env("EVERBEAT_REPLICA__SWEEP_INTERVAL", "500ms")
        .env("EVERBEAT_REPLICA__POLL_INTERVAL", "100ms")
        .env("EVERBEAT_RUNS__BACKOFF", "{\"initial\":\"20ms\",\"max\":\"200ms\"}")
}

/// The same sequence every time.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// One request to create something.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) path: &'static str,
    pub(crate) body: Value,
}

impl Ask {
    /// A task that takes a moment.
    pub(crate) fn task(ms: u64, policy: &Value) -> Ask {
        Ask { path: "/api/v1/runs", body: json!({ "task": "sleep", "input": { "ms": ms }, "policy": policy }) }
    }

    /// A task whose result takes room.
    pub(crate) fn echo(bytes: usize) -> Ask {
        Ask { path: "/api/v1/runs", body: json!({ "task": "echo", "input": "x".repeat(bytes) }) }
    }

    /// A job that leaves its mark each time it runs.
    pub(crate) fn job(key: &str, marks: &std::path::Path, seconds: &str) -> Ask {
        let script = format!("echo {key} >> {}; sleep {seconds}", marks.display());
        Ask { path: "/api/v1/jobs", body: json!({ "command": ["sh", "-c", script] }) }
    }
}

/// By key: what was accepted, with its id, and what was never answered.
#[derive(Default)]
pub(crate) struct Sent {
    pub(crate) accepted: BTreeMap<String, String>,
    pub(crate) unanswered: BTreeMap<String, Ask>,
    /// How often no answer came.
    pub(crate) failures: u64,
}

/// Several clients at once, who try another server when one does not answer.
pub(crate) struct Clients {
    agent: Agent,
    urls: Vec<String>,
}

/// What an answer means for who asked.
enum Answer {
    Accepted(String),
    /// It may or may not have happened.
    Unclear,
}

impl Clients {
    pub(crate) fn of<'a>(servers: impl IntoIterator<Item = &'a Server>) -> Clients {
        let urls = servers.into_iter().map(|server| server.url.clone()).collect();
        Clients { agent: agent(0, Duration::from_secs(3)), urls }
    }

    /// Clients whose connections stay: a server without descriptors takes no new ones.
    pub(crate) fn keeping_connections(server: &Server) -> Clients {
        Clients { agent: agent(10, Duration::from_secs(5)), urls: vec![server.url.clone()] }
    }

    /// The checks of readiness that are not well; that nobody answers is none of them.
    pub(crate) fn unwell(&self) -> Vec<String> {
        let Ok(mut response) = self.agent.get(format!("{}/readyz", self.urls[0])).call() else { return Vec::new() };
        let text = response.body_mut().read_to_string().unwrap_or_default();
        let ready: Value = serde_json::from_str(&text).unwrap_or_default();
        let checks = ready["checks"].as_array().into_iter().flatten();
        let unwell = checks.filter(|check| check["status"] != "ok");
        unwell.filter_map(|check| check["name"].as_str().map(ToString::to_string)).collect()
    }

    /// Puts load on the servers while `deed` is done. `what` says what a client asks for, by key and number.
    pub(crate) fn load_during(&self, what: impl Fn(&str, u64) -> Ask + Sync, deed: impl FnOnce()) -> Sent {
        const CLIENTS: u64 = 3;
        const BETWEEN: Duration = Duration::from_millis(30);
        let (sent, over) = (Mutex::new(Sent::default()), AtomicBool::new(false));
        let numbers = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (sent, over, numbers, what) = (&sent, &over, &numbers, &what);
                scope.spawn(move || {
                    while !over.load(Ordering::SeqCst) {
                        let number = numbers.fetch_add(1, Ordering::SeqCst);
                        let key = format!("{client}-{number}");
                        let ask = what(&key, number);
                        let answer = self.ask(number as usize, &key, &ask);
                        let mut sent = sent.lock().unwrap();
                        match answer {
                            Answer::Accepted(id) => _ = sent.accepted.insert(key, id),
                            Answer::Unclear => {
                                sent.failures += 1;
                                sent.unanswered.insert(key, ask);
                            }
                        }
                        drop(sent);
                        pause(BETWEEN);
                    }
                });
            }
            // A deed that fails must not leave the clients running: the scope would wait for them.
            let _stops_the_clients = Ends(&over);
            deed();
        });
        sent.into_inner().unwrap()
    }

    fn ask(&self, server: usize, key: &str, ask: &Ask) -> Answer {
        let url = format!("{}{}", self.urls[server % self.urls.len()], ask.path);
        let request = self.agent.post(url).content_type("application/json").header("idempotency-key", key);
        let Ok(mut response) = request.send(ask.body.to_string()) else { return Answer::Unclear };
        let status = response.status().as_u16();
        let Ok(text) = response.body_mut().read_to_string() else { return Answer::Unclear };
        match status {
            200 | 201 => {
                let value: Value = serde_json::from_str(&text).expect("JSON");
                let id = value["job_id"].as_str().or(value["id"].as_str()).expect("an id");
                Answer::Accepted(id.to_string())
            }
            429 | 503 => Answer::Unclear,
            _ => panic!("{key}: {status} {text}"),
        }
    }

    /// Asks again, with the same keys, for what was never answered. Afterwards everything has an id.
    pub(crate) fn settle_unanswered(&self, sent: &mut Sent) {
        for (key, ask) in std::mem::take(&mut sent.unanswered) {
            let mut server = 0;
            let id = until(REST, "an answer to what was asked again", || {
                server += 1;
                match self.ask(server, &key, &ask) {
                    Answer::Accepted(id) => Some(id),
                    Answer::Unclear => None,
                }
            });
            sent.accepted.insert(key, id);
        }
    }
}

fn agent(idle_connections: usize, within: Duration) -> Agent {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None)
        .max_idle_connections(idle_connections)
        .max_idle_connections_per_host(idle_connections)
        .timeout_global(Some(within));
    config.build().new_agent()
}

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Every run in the store, by id, once nothing is left to do.
pub(crate) fn at_rest(server: &Server) -> BTreeMap<String, Value> {
    until(REST, "everything is finished", || {
        let (status, queues) = server.try_get("/api/v1/queues")?;
        let unfinished = |queue: &Value| {
            ["ready", "running", "scheduled"].iter().map(|state| queue[state].as_u64().unwrap()).sum::<u64>()
        };
        (status == 200 && queues["items"].as_array()?.iter().map(unfinished).sum::<u64>() == 0).then_some(())
    });
    let pages = pages(server, "/api/v1/runs");
    pages.into_iter().map(|run| (run["id"].as_str().expect("an id").to_string(), run)).collect()
}

pub(crate) fn pages(server: &Server, path: &str) -> Vec<Value> {
    let mut items = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = server.get(&format!("{path}?limit=1000{cursor}"));
        items.extend(page["items"].as_array().expect("items").iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return items,
        }
    }
}

/// Everything that was ever accepted has ended once, as a success, and nothing else is there. Answers the runs.
pub(crate) fn reckon(server: &Server, sent: &Sent) -> BTreeMap<String, Value> {
    let runs = at_rest(server);
    let ids: BTreeSet<&String> = sent.accepted.values().collect();
    assert_eq!(ids.len(), sent.accepted.len(), "two keys, one run");
    assert!(!ids.is_empty(), "no load");
    for (key, id) in &sent.accepted {
        let run = runs.get(id).unwrap_or_else(|| panic!("{key}: accepted as {id}, and not there"));
        assert_eq!(run["state"], "succeeded", "{key}: {run}");
    }
    let strange: Vec<&String> = runs.keys().filter(|id| !ids.contains(id)).collect();
    assert!(strange.is_empty(), "runs that nobody asked for: {strange:?}");
    let checked = server.assert_sound();
    assert_eq!(checked["checked"]["succeeded"], sent.accepted.len(), "{checked}");
    runs
}

/// Each job left one mark: its command ran once.
pub(crate) fn assert_each_ran_once(marks: &std::path::Path, sent: &Sent, is_job: impl Fn(&str) -> bool) -> usize {
    let text = std::fs::read_to_string(marks).unwrap_or_default();
    let mut counts: BTreeMap<&str, u32> = sent.accepted.keys().map(|key| (key.as_str(), 0)).collect();
    counts.retain(|key, _| is_job(key));
    for line in text.lines() {
        *counts.get_mut(line).unwrap_or_else(|| panic!("a mark of {line:?}, which is no job")) += 1;
    }
    let wrong: Vec<_> = counts.iter().filter(|(_, count)| **count != 1).collect();
    assert!(wrong.is_empty(), "not once: {wrong:?}");
    counts.len()
}

/// Does something again and again, so often per second as it is told, until the time is over.
pub(crate) fn every(period: Duration, time: Duration, mut deed: impl FnMut(u32)) {
    let begun = stopwatch();
    let mut turn = 0;
    while begun.elapsed() < time {
        deed(turn);
        turn += 1;
        pause((period * turn).saturating_sub(begun.elapsed()));
    }
}
