/// What a store answers when it cannot do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The store cannot be reached, or the answer was lost. The change may or may not have happened.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The store refuses to be used. Asking again does not help; somebody has to do something first.
    #[error("{1}")]
    Refused(Cause, String),
    /// The same idempotency key came with another request.
    #[error("the idempotency key {key:?} was used before with a different request")]
    KeyReused { key: String },
    /// A statement failed in a way that no outside cause explains.
    #[error("the store failed: {0}")]
    Bug(String),
}

/// Why a store refuses to be used; this alone decides what a person is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Another server holds it.
    InUse,
    /// A newer program, or another build, has used it.
    OtherVersion,
    /// It is another program's database, or no database at all.
    Foreign,
    /// Its file cannot be opened.
    Unopenable,
    /// Its URL cannot be read.
    Url,
    /// The role or its password is not accepted, or is missing.
    Login,
    /// There is no database of that name.
    NoDatabase,
    /// The connection cannot be encrypted in the way that was asked for.
    Tls,
    /// The role may not do what is needed.
    Rights,
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
            Error::Refused(..) | Error::KeyReused { .. } => Class::Rejected,
            Error::Bug(_) => Class::Bug,
        }
    }
}
