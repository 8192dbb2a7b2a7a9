//! When each attempt must be looked at next: at most one timer for each, which goes when the attempt does.

use everbeat_model::{BootInstant, Token};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(super) struct Timers {
    in_order: BTreeSet<(BootInstant, Token)>,
    by_token: BTreeMap<Token, BootInstant>,
}

impl Timers {
    /// Looks at `at`, or earlier if a look is due earlier.
    pub(super) fn arm(&mut self, at: BootInstant, token: Token) {
        if self.by_token.get(&token).is_some_and(|armed| *armed <= at) {
            return;
        }
        self.disarm(token);
        self.by_token.insert(token, at);
        self.in_order.insert((at, token));
    }

    pub(super) fn disarm(&mut self, token: Token) {
        if let Some(at) = self.by_token.remove(&token) {
            self.in_order.remove(&(at, token));
        }
    }

    pub(super) fn next(&self) -> Option<BootInstant> {
        self.in_order.first().map(|(at, _)| *at)
    }

    /// Takes those that are due, in the order of their tokens.
    pub(super) fn take_due(&mut self, now: BootInstant) -> BTreeSet<Token> {
        let mut due = BTreeSet::new();
        while let Some((at, token)) = self.in_order.first().copied().filter(|(at, _)| *at <= now) {
            self.in_order.remove(&(at, token));
            self.by_token.remove(&token);
            due.insert(token);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use uuid::Uuid;

    fn at(second: u64) -> BootInstant {
        BootInstant(Duration::from_secs(second))
    }

    fn token(number: u128) -> Token {
        Token(Uuid::from_u128(number))
    }

    #[test]
    fn the_earlier_of_two_timers_stays() {
        let mut timers = Timers::default();
        timers.arm(at(5), token(1));
        timers.arm(at(9), token(1));
        assert_eq!(timers.next(), Some(at(5)));
        timers.arm(at(2), token(1));
        assert_eq!(timers.next(), Some(at(2)));
        assert_eq!(timers.take_due(at(10)), BTreeSet::from([token(1)]), "one attempt has one timer");
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn only_what_is_due_is_taken_and_what_is_gone_is_not() {
        let mut timers = Timers::default();
        (1..=4).for_each(|number| timers.arm(at(number as u64), token(number)));
        timers.disarm(token(2));
        timers.disarm(token(7));
        assert_eq!(timers.take_due(at(3)), BTreeSet::from([token(1), token(3)]));
        assert_eq!(timers.next(), Some(at(4)));
    }
}
