use super::build::{failure, forged, json, retry, success, with_token};
use super::fixture::{Fixture, HOUR};
use crate::{Enqueue, EventPage, News, Store, TRIM_LIMIT};
use everbeat_model::event::{EventKind, PER_BATCH};
use everbeat_model::{Event, NewRun, Next};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

pub(super) async fn what_happens_is_told_in_order(t: &Fixture) {
    let claimed = t.running().await;
    let (id, replica) = (claimed.lease.run_id, claimed.lease.replica_id);
    t.end(retry(&claimed, Next::Ready)).await;
    let second = t.take_one(replica).await;
    t.end(failure(&second)).await;
    t.reopen(id, 2).await.expect("reopen");
    t.cancel(id).await.expect("cancel");
    t.pause("q", true).await.expect("pause");
    t.pause("q", false).await.expect("resume");
    t.drain(replica).await.expect("drain");
    t.leave(replica).await.expect("leave");
    let other = t.replica().await;
    t.kill(other).await;
    let (run, replica, other) = (id.to_string(), replica.to_string(), other.to_string());
    let told = page(t, 0, 1000).await.events;
    let lines: Vec<_> = told.iter().map(|e| (e.kind.as_str(), e.subject.as_str(), e.attempt)).collect();
    let expected = [
        ("run.created", &*run, None),
        ("replica.joined", &*replica, None),
        ("attempt.failed", &*run, Some(1)),
        ("run.failed", &*run, Some(2)),
        ("run.reopened", &*run, None),
        ("run.cancelled", &*run, None),
        ("queue.paused", "q", None),
        ("queue.resumed", "q", None),
        ("replica.draining", &*replica, None),
        ("replica.left", &*replica, None),
        ("replica.joined", &*other, None),
        ("replica.dead", &*other, None),
    ];
    assert_eq!(lines, expected);
    let detail = told[11].detail.as_ref().expect("a death is explained").value();
    assert_eq!(detail["reason"], "replica_silent");
    assert!(told.is_sorted_by(|a, b| a.id < b.id && a.at <= b.at));
    assert_eq!(t.last_event().await.expect("last event"), told[11].id);
}

pub(super) async fn one_write_makes_one_batch_of_events(t: &Fixture) {
    t.accept_many(5).await;
    t.accept(t.draft()).await;
    let told = page(t, 0, 1000).await.events;
    let places: Vec<u64> = told.iter().map(|event| event.id % PER_BATCH).collect();
    assert_eq!(places, [0, 1, 2, 3, 4, 0]);
    assert!(told[..5].iter().all(|event| event.id / PER_BATCH == told[0].id / PER_BATCH));
    assert!(told[5].id / PER_BATCH > told[0].id / PER_BATCH);
}

pub(super) async fn events_resume_without_gap_or_repeat(t: &Fixture) {
    assert_eq!(page(t, 0, 10).await, EventPage::default());
    for count in [3, 1, 4, 1, 5, 9, 2, 6] {
        t.accept_many(count).await;
    }
    let all = page(t, 0, 1000).await.events;
    assert_eq!(all.len(), 31);
    for limit in [0, 1, 2, 5, 100] {
        let mut read: Vec<Event> = Vec::new();
        loop {
            let next = page(t, read.last().map_or(0, |event| event.id), limit).await;
            assert!(!next.gap);
            if next.events.is_empty() {
                break;
            }
            read.extend(next.events);
        }
        assert_eq!(read, all, "in pages of {limit}");
    }
    for (place, event) in all.iter().enumerate() {
        let rest = page(t, event.id, 1000).await;
        assert_eq!((rest.events.as_slice(), rest.gap), (&all[place + 1..], false), "from the middle of a batch too");
    }
    let first = page(t, 0, 1).await.events;
    assert_eq!(first, all[..3], "a batch is never torn");
    assert_eq!(page(t, 0, 5).await.events, all[..8], "whole batches until the limit is reached");
}

pub(super) async fn a_refused_write_tells_nothing(t: &Fixture) {
    let claimed = t.running().await;
    t.pause("q", true).await.expect("pause");
    let before = t.last_event().await.expect("last event");
    t.end(with_token(success(&claimed), forged())).await;
    t.cancel(claimed.lease.run_id).await.expect("cancel");
    t.end(retry(&claimed, Next::After(HOUR))).await;
    t.pause("q", true).await.expect("pause");
    t.bury(claimed.lease.replica_id, Some(99), t.verdict(claimed.lease.replica_id)).await.expect("bury");
    t.leave(t.new_replica().id).await.expect("leave");
    t.reopen(claimed.lease.run_id, 1).await.expect("reopen");
    t.cancel(t.draft().id).await.expect("cancel");
    assert_eq!(t.last_event().await.expect("last event"), before);
}

pub(super) async fn a_trimmed_log_says_that_there_is_a_gap(t: &Fixture) {
    for _ in 0..10 {
        t.accept_many(2).await;
    }
    let all = page(t, 0, 1000).await.events;
    assert_eq!(t.trim_events(100).await.expect("trim"), 0);
    assert_eq!(t.trim_events(4).await.expect("trim"), 6);
    let kept = &all[12..];
    let from_the_start = page(t, 0, 1000).await;
    assert_eq!((from_the_start.events.as_slice(), from_the_start.gap), (kept, false), "a new follower missed nothing");
    let behind = page(t, all[1].id, 1000).await;
    assert_eq!((behind.events.as_slice(), behind.gap), (kept, true));
    let just_in_time = page(t, all[11].id, 1000).await;
    assert_eq!((just_in_time.events.as_slice(), just_in_time.gap), (kept, false));
    let ahead = page(t, all[13].id, 1000).await;
    assert_eq!((ahead.events.as_slice(), ahead.gap), (&kept[2..], false));
}

pub(super) async fn ids_go_on_after_the_whole_log_was_dropped(t: &Fixture) {
    t.accept_many(2).await;
    t.accept_many(2).await;
    let before = page(t, 0, 1000).await.events;
    assert_eq!(t.trim_events(0).await.expect("trim"), 2);
    assert_eq!(page(t, 0, 1000).await.events, []);
    let up_to_date = page(t, before[3].id, 1000).await;
    assert_eq!(up_to_date, EventPage::default(), "who had read all missed nothing");
    assert!(page(t, before[1].id, 1000).await.gap, "who had not is told");
    t.accept_many(1).await;
    let after = page(t, before[3].id, 1000).await;
    assert_eq!((after.events.len(), after.gap), (1, false));
    assert!(after.events[0].id > before[3].id);
}

pub(super) async fn a_trim_drops_the_oldest_and_no_more_than_its_limit(t: &Fixture) {
    const SIDES: usize = 60;
    const EXTRA: usize = 200;
    let number = AtomicUsize::new(0);
    let write = |store: Arc<dyn Store>| {
        let queue = format!("queue {}", number.fetch_add(1, Ordering::SeqCst));
        async move {
            for nth in 0..(TRIM_LIMIT + EXTRA) / SIDES {
                assert!(store.pause(&queue, nth % 2 == 0).await.expect("pause"), "each is a batch");
            }
        }
    };
    t.at_once(SIDES, write).await;
    let all = page(t, 0, usize::MAX).await.events;
    assert_eq!(all.len(), TRIM_LIMIT + EXTRA);
    assert_eq!(t.trim_events(100).await.expect("trim"), TRIM_LIMIT);
    let rest = page(t, all[0].id, 1000).await;
    assert_eq!((rest.events.as_slice(), rest.gap), (&all[TRIM_LIMIT..], true), "the oldest go first");
    assert_eq!(t.trim_events(100).await.expect("trim"), EXTRA - 100);
    assert_eq!(t.trim_events(100).await.expect("trim"), 0);
    assert_eq!(page(t, 0, 1000).await.events, all[TRIM_LIMIT + EXTRA - 100..]);
}

pub(super) async fn followers_miss_nothing_while_many_write(t: &Fixture) {
    const WRITERS: usize = 6;
    const WRITES: usize = 15;
    let drafts = Mutex::new((0..WRITERS * WRITES).map(|_| t.draft().done()).collect::<Vec<NewRun>>());
    let written = AtomicBool::new(false);
    let write = async {
        let all = t.at_once(WRITERS, |store| {
            let mine: Vec<NewRun> = drafts.lock().expect("unpoisoned").drain(..WRITES).collect();
            async move {
                for run in mine {
                    store.enqueue(vec![Enqueue { runs: vec![run], idempotency: None }]).await.expect("enqueue");
                }
            }
        });
        all.await;
        written.store(true, Ordering::SeqCst);
    };
    let (_, followed) = tokio::join!(write, follow(t, &written));
    assert_eq!(followed.len(), WRITERS * WRITES);
    assert_eq!(followed, page(t, 0, 1000).await.events, "an event that commits late is not passed over");
}

/// Reads as a follower does, until all is written and read.
async fn follow(t: &Fixture, written: &AtomicBool) -> Vec<Event> {
    let mut read: Vec<Event> = Vec::new();
    loop {
        let last_look = written.load(Ordering::SeqCst);
        let next = page(t, read.last().map_or(0, |event| event.id), 10).await;
        assert!(!next.gap);
        if next.events.is_empty() && last_look {
            return read;
        }
        read.extend(next.events);
        tokio::task::yield_now().await;
    }
}

pub(super) async fn what_is_announced_is_told_in_order_as_one_batch(t: &Fixture) {
    t.announce(Vec::new()).await.expect("announce");
    assert_eq!(t.last_event().await.expect("last event"), 0, "nothing is no batch");
    let news = |kind, subject: &str, attempt, detail: Option<&str>| News {
        kind,
        subject: subject.to_string(),
        attempt,
        detail: detail.map(json),
    };
    let detail = "{\"age\":\"2 min\",\"text\":\"\\u0000 🦀\\n\"}";
    let first = vec![news(EventKind::JobStale, "b", Some(2), Some(detail)), news(EventKind::JobDead, "a", None, None)];
    t.announce(first.clone()).await.expect("announce");
    t.announce(vec![news(EventKind::JobStale, "c", None, Some("1"))]).await.expect("announce");
    let told = page(t, 0, 10).await.events;
    let again = |event: &Event| (event.kind.clone(), event.subject.clone(), event.attempt, event.detail.clone());
    let given = |news: &News| (news.kind.to_string(), news.subject.clone(), news.attempt, news.detail.clone());
    assert_eq!(told[..2].iter().map(again).collect::<Vec<_>>(), first.iter().map(given).collect::<Vec<_>>());
    assert_eq!(told.iter().map(|event| event.id % PER_BATCH).collect::<Vec<_>>(), [0, 1, 0]);
    assert!(told[0].at == told[1].at && told[1].at <= told[2].at);
}

async fn page(t: &Fixture, after: u64, limit: usize) -> EventPage {
    t.events(after, limit).await.expect("events")
}
