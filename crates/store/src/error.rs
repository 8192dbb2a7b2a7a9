/// What a store answers when it cannot do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The store cannot be reached, or the answer was lost. The change may or may not have happened.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The store refuses to be used: it is of a newer version, held by another server, or not ours.
    #[error("{0}")]
    Refused(String),
    /// The same idempotency key came with another request.
    #[error("the idempotency key {key:?} was used before with a different request")]
    KeyReused { key: String },
    /// A statement failed in a way that no outside cause explains.
    #[error("the store failed: {0}")]
    Bug(String),
}

/// What the error means to the caller; this alone decides HTTP status, exit code and retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Rejected,
    Unavailable,
    Fenced,
    Bug,
}

impl Error {
    pub fn class(&self) -> Class {
        match self {
            Error::Unavailable(_) => Class::Unavailable,
            Error::Refused(_) | Error::KeyReused { .. } => Class::Rejected,
            Error::Bug(_) => Class::Bug,
        }
    }
}
