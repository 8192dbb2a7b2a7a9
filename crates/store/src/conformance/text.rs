use super::build::{ended, json, retry, sign};
use super::fixture::Fixture;
use crate::{Enqueue, Enqueued, Idempotency, RunFilter};
use everbeat_model::policy::{Backoff, HeartbeatMode, OnLost, WhenIsolated};
use everbeat_model::{Ending, Json, Next, Outcome, Policy, RunState};
use std::collections::BTreeMap;
use std::time::Duration;

/// Texts that some database, driver or parser somewhere reinterprets.
const HARD: [&str; 10] = [
    "\"\\u0000\"",
    "{\"a\\u0000b\":\"\\u0000\"}",
    "1.0",
    "-0.0",
    "123456789012345678901234567890.10e+5",
    "{\"b\":1,\"a\":2,\"b\":3}",
    "\"🦀 \\ud83e\\udd80 ẞ\u{301} \u{202e} \u{feff} \u{2028}\"",
    "\"it's \\\"; DROP TABLE run; -- $1 ?1 :name \\\\ %\"",
    "\" \\r\\n\\t \"",
    "[[],{},\"\",null,true]",
];

pub(super) async fn text_survives_nul_escapes_and_unicode(t: &Fixture) {
    for text in HARD {
        let given = json(text);
        let id = t.accept(t.draft().input(given.clone())).await;
        let first = t.running_again(id).await;
        assert_eq!(first.spec.input, given);
        t.sign(vec![sign(&first, Some(text), Some(text))]).await.expect("sign");
        let ending = Ending { error: Some(given.clone()), ..Ending::plain(Outcome::Failed) };
        t.end(ended(&first, ending, Next::Ready)).await;
        assert_eq!(t.look(id).await.error, Some(given.clone()), "between attempts");
        let second = t.running_again(id).await;
        assert_eq!(second.checkpoint, Some(given.clone()));
        let ending = Ending::succeeded(given.clone());
        t.end(ended(&second, ending, Next::Finish(RunState::Succeeded))).await;
        let run = t.look(id).await;
        for kept in [Some(run.spec.input.clone()), run.result, run.progress, run.checkpoint] {
            assert_eq!(kept, Some(given.clone()));
        }
        assert_eq!(t.attempts(id).await.expect("attempts")[0].error, Some(given));
    }
}

pub(super) async fn names_and_keys_are_never_code(t: &Fixture) {
    let replica = t.replica().await;
    for name in
        ["'; DELETE FROM run; --", "\"quoted\"", "$1", "?1", "a,b", "{a,\"b\"}", "NULL", "%_\\", "\\x00", "ünï🦀"]
    {
        let draft = t.draft().task(name).queue(name).key(name);
        let (id, again) = (t.accept(draft).await, t.draft().task(name).queue(name).key(name));
        assert_eq!(t.submit(again).await, Enqueued::Exists(id), "{name}");
        let filter = RunFilter {
            task: Some(name.to_string()),
            queue: Some(name.to_string()),
            limit: 10,
            ..RunFilter::default()
        };
        assert_eq!(t.runs(filter).await.expect("runs").items.len(), 1, "{name}");
        let (tasks, queues) = (BTreeMap::from([(name.to_string(), 5)]), BTreeMap::from([(name.to_string(), 5)]));
        let claimed = t.claim(crate::Claim { replica, limit: 5, tasks, queues, among: None }).await.expect("claim");
        assert_eq!(super::build::ids(&claimed), [id], "{name}");
        t.end(retry(&claimed[0], Next::Ready)).await;
        t.pause(name, true).await.expect("pause");
        let queues = t.queues().await.expect("queues");
        let listed = queues.iter().find(|queue| queue.name == name).expect("listed");
        assert!(listed.paused && listed.ready == 1, "{name}");
        let idempotency = Some(Idempotency { key: name.to_string(), fingerprint: name.to_string() });
        let request = Enqueue { runs: vec![t.draft().done()], idempotency };
        let made = t.request(request.clone()).await.expect("enqueue")[0].id();
        assert_eq!(t.request(request).await.expect("enqueue"), [Enqueued::Exists(made)], "{name}");
        assert!(t.sweep_due(name, Duration::from_secs(3600)).await.expect("sweep"), "{name}");
    }
}

pub(super) async fn a_large_input_survives(t: &Fixture) {
    let large = Json::of(&"ä'\"\\\n".repeat(200_000));
    let id = t.accept(t.draft().input(large.clone())).await;
    assert_eq!(t.running_again(id).await.spec.input, large);
    assert_eq!(t.look(id).await.spec.input, large);
}

pub(super) async fn every_field_of_a_policy_survives(t: &Fixture) {
    let policy = Policy {
        heartbeat: HeartbeatMode::Manual,
        heartbeat_interval: Duration::from_micros(1_000_001),
        heartbeat_timeout: None,
        stall_timeout: Some(Duration::from_millis(1500)),
        deadline: Some(Duration::from_secs(86_400)),
        max_attempts: 1000,
        backoff: Backoff { initial: Duration::from_millis(7), factor: 1.1, max: Duration::from_secs(90), jitter: 0.3 },
        on_lost: OnLost::Fail,
        when_isolated: WhenIsolated::Stop,
        cancel_grace: Duration::ZERO,
    };
    let id = t.accept(t.draft().policy(policy.clone())).await;
    assert_eq!(*t.look(id).await.spec.policy, policy);
    assert_eq!(*t.running_again(id).await.spec.policy, policy);
    assert_eq!(*t.held_of(id).await.spec.policy, policy);
}
