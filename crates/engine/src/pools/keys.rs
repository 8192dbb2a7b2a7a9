//! What proves a worker that comes back.

use everbeat_model::Token;

/// Each welcome brings another key. A hello that was long under way shows an old one, and what it says of attempts is
/// old as well: it must not replace the link that came after it.
pub(super) struct Keys {
    latest: Token,
    /// The key before, until the worker is heard over the link of the latest: it may not have got that welcome.
    former: Option<Token>,
    /// The worker is heard over the latest link: it has got the welcome.
    confirmed: bool,
}

impl Keys {
    pub(super) fn new(key: Token) -> Keys {
        Keys { latest: key, former: None, confirmed: false }
    }

    /// Whether a worker that shows this key may come back.
    pub(super) fn admit(&self, key: Token) -> bool {
        key == self.latest || self.former == Some(key)
    }

    /// The worker is welcomed anew, with this key.
    pub(super) fn renew(&mut self, key: Token) {
        if self.confirmed {
            self.former = Some(self.latest);
        }
        (self.latest, self.confirmed) = (key, false);
    }

    /// The worker is heard over its latest link. True for the first time: from now on it may be given work.
    pub(super) fn confirm(&mut self) -> bool {
        self.former = None;
        !std::mem::replace(&mut self.confirmed, true)
    }

    /// Whether the worker was heard over its latest link.
    pub(super) fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// Whether the worker was never heard over any link: it may not know of any welcome.
    pub(super) fn unheard(&self) -> bool {
        self.former.is_none() && !self.confirmed
    }
}
