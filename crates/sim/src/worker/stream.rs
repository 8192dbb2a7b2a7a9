//! What attempts of a worker stream: each item is kept until it is answered, and said again over the next link.

use super::{MS, Mind, Worker};
use crate::handler::Script;
use crate::output_checker::Word;
use everbeat_engine::pools::{FromWorker, LeaseShown};
use everbeat_model::{Json, Token};

/// So many items of an attempt are kept; then it waits for an answer.
const MOST_KEPT: usize = 3;
const PAUSE: u64 = 40 * MS;

impl Worker {
    /// Streams a few items. False: the attempt should stop.
    pub(super) async fn stream(&self, lease: LeaseShown, script: &Script, nonce: u64) -> bool {
        // An item takes back what a heartbeat has promised, which would have to be known here.
        // Links are lost seldom, so that workers say more than tasks of a replica, and some take their time.
        let slow = nonce.is_multiple_of(2);
        let items = if script.promises_ms.is_none() { script.streams.max(if slow { 2 } else { 1 }) } else { 0 };
        for _ in 0..items {
            self.settles(|mind| mind.should_stop(lease.token) || mind.items_of(lease.token).count() < MOST_KEPT).await;
            if self.mind().should_stop(lease.token) {
                return false;
            }
            let nth = {
                let mut truth = self.shared.truth();
                truth.report.items += 1;
                let speech = truth.said.entry(nonce).or_default();
                // Whatever breaks: of a success all of it is stored.
                speech.given += 1;
                speech.taken = speech.given;
                speech.given - 1
            };
            let item = Json::of(&Word { nonce, nth }).as_str().to_string();
            let word = FromWorker::Output { lease, sequence: nth + 1, item };
            self.mind().items.insert((lease.token, nth + 1), word.clone());
            self.say(word);
            if slow {
                self.shared.sleep(PAUSE).await;
            }
        }
        true
    }
}

impl Mind {
    fn should_stop(&self, token: Token) -> bool {
        self.attempts.get(&token).is_none_or(|attempt| attempt.stop)
    }

    fn items_of(&self, token: Token) -> impl Iterator<Item = u64> {
        self.items.range((token, 0)..=(token, u64::MAX)).map(|((_, sequence), _)| *sequence)
    }

    /// Those up to this one need not be kept.
    pub(super) fn let_items_go(&mut self, token: Token, through: u64) {
        self.items.retain(|(of, sequence), _| *of != token || *sequence > through);
    }
}
