//! The limits of queues, which the performers of a replica share: their claims under limits go one by one.

use crate::settings::QueueLimit;
use everbeat_model::BootInstant;
use std::collections::BTreeMap;
use tokio::sync::{Mutex, MutexGuard};

/// The limits of queues that all performers of a replica share. Where there are any, their claims go one by one: each
/// counts what the one before took.
pub(crate) struct Limits(Option<Mutex<Rates>>);

impl Limits {
    pub(crate) fn new(queues: &BTreeMap<String, QueueLimit>, now: BootInstant) -> Limits {
        Limits((!queues.is_empty()).then(|| Mutex::new(Rates::new(queues, now))))
    }

    /// Waits for the claims of other performers, if there is anything to share.
    pub(super) async fn enter(&self) -> Entered<'_> {
        match &self.0 {
            Some(rates) => Entered(Some(rates.lock().await)),
            None => Entered(None),
        }
    }
}

/// The turn of one claim under limits.
pub(super) struct Entered<'a>(Option<MutexGuard<'a, Rates>>);

impl Entered<'_> {
    /// How many runs of the queue may begin now.
    pub(super) fn allowance(&mut self, queue: &str, now: BootInstant) -> usize {
        self.0.as_mut().map_or(usize::MAX, |rates| rates.allowance(queue, now))
    }

    pub(super) fn spend(&mut self, queue: &str) {
        if let Some(rates) = &mut self.0 {
            rates.spend(queue);
        }
    }
}

/// Token buckets of the queues that have a rate; each holds at most one second's worth.
struct Rates(BTreeMap<String, Bucket>);

struct Bucket {
    /// Tokens a second.
    rate: f64,
    tokens: f64,
    filled: BootInstant,
}

impl Rates {
    fn new(queues: &BTreeMap<String, QueueLimit>, now: BootInstant) -> Rates {
        let limited = queues.iter().filter_map(|(name, limits)| Some((name.clone(), limits.rate?)));
        Rates(limited.map(|(name, rate)| (name, Bucket { rate, tokens: rate.max(1.0), filled: now })).collect())
    }

    fn allowance(&mut self, queue: &str, now: BootInstant) -> usize {
        let Some(bucket) = self.0.get_mut(queue) else { return usize::MAX };
        let gained = now.since(bucket.filled).as_secs_f64() * bucket.rate;
        bucket.tokens = (bucket.tokens + gained).min(bucket.rate.max(1.0));
        bucket.filled = now;
        bucket.tokens as usize
    }

    fn spend(&mut self, queue: &str) {
        if let Some(bucket) = self.0.get_mut(queue) {
            bucket.tokens -= 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::time::Duration;

    fn at(millis: u64) -> BootInstant {
        BootInstant(Duration::from_millis(millis))
    }

    fn rates(rate: f64) -> Rates {
        let limit = QueueLimit { concurrency: None, rate: Some(rate) };
        Rates::new(&BTreeMap::from([("slow".to_string(), limit)]), at(0))
    }

    #[test]
    fn a_bucket_holds_one_seconds_worth_and_fills_with_time() {
        let mut rates = rates(4.0);
        assert_eq!(rates.allowance("slow", at(0)), 4);
        (0..4).for_each(|_| rates.spend("slow"));
        assert_eq!(rates.allowance("slow", at(0)), 0);
        assert_eq!(rates.allowance("slow", at(500)), 2);
        assert_eq!(rates.allowance("slow", at(60_000)), 4, "a long pause saves up no more");
    }

    #[test]
    fn a_rate_below_one_a_second_lets_one_begin_now_and_then() {
        let mut rates = rates(0.5);
        assert_eq!(rates.allowance("slow", at(0)), 1);
        rates.spend("slow");
        assert_eq!(rates.allowance("slow", at(1000)), 0);
        assert_eq!(rates.allowance("slow", at(2000)), 1);
    }

    #[tokio::test]
    async fn claims_under_limits_go_one_by_one_and_others_do_not_wait() {
        let limit = QueueLimit { concurrency: Some(1), rate: None };
        let limits = Limits::new(&BTreeMap::from([("narrow".to_string(), limit)]), at(0));
        let first = limits.enter().await;
        assert!(limits.enter().now_or_never().is_none());
        drop(first);
        assert!(limits.enter().now_or_never().is_some());
        let free = Limits::new(&BTreeMap::new(), at(0));
        let (mut one, two) = (free.enter().await, free.enter().now_or_never());
        assert!(two.is_some());
        assert_eq!(one.allowance("any", at(0)), usize::MAX);
    }

    #[test]
    fn a_queue_without_a_rate_has_no_bound() {
        let mut rates = rates(1.0);
        rates.spend("other");
        assert_eq!(rates.allowance("other", at(0)), usize::MAX);
    }
}
