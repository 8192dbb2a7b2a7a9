//! Requests that show a key, so that sending one again does nothing twice.

use std::time::Duration;

/// Keys are remembered for a day: longer than anybody sends a request again.
pub const KEEP: Duration = Duration::from_secs(86_400);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    pub key: String,
    /// Of the whole request: the same key with another request is refused.
    pub fingerprint: String,
}

/// What a request with a key is, given what is kept under that key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent<T> {
    /// Nobody has used the key.
    First,
    /// The same request again, and what the first one made.
    Again(T),
    /// The key belongs to another request.
    Reused,
}

impl Idempotency {
    /// `kept` is the fingerprint that the key was used with, and what that request made.
    pub fn sent<T>(&self, kept: Option<(&str, T)>) -> Sent<T> {
        match kept {
            None => Sent::First,
            Some((fingerprint, made)) if fingerprint == self.fingerprint => Sent::Again(made),
            Some(_) => Sent::Reused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stands_for_one_request() {
        let given = Idempotency { key: "k".to_string(), fingerprint: "f".to_string() };
        assert_eq!(given.sent(None::<(&str, u8)>), Sent::First);
        assert_eq!(given.sent(Some(("f", 1))), Sent::Again(1));
        assert_eq!(given.sent(Some(("g", 1))), Sent::Reused);
    }
}
