/// What a store answers when it cannot do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It cannot now, for a cause outside of the request, or the answer was lost. The change may or may
    /// not have happened.
    #[error("{cause}{}", in_brackets(detail))]
    Unavailable { cause: Obstacle, detail: String },
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

impl Cause {
    /// What a person can do about it; empty where the message itself says so.
    pub fn remedy(self) -> &'static str {
        match self {
            Cause::InUse | Cause::OtherVersion | Cause::Url => "",
            Cause::Foreign => "name a file of everbeat's or a new one with store.url (or --store)",
            Cause::Unopenable => "check what store.url (or --store) names, and that this user may use it",
            Cause::Login => {
                "check the user in store.url and its password (PGPASSWORD, PGPASSFILE, ~/.pgpass, or in store.url), \
                 and whether pg_hba.conf of the database lets it in from here"
            }
            Cause::NoDatabase => "make it with createdb, or name another one with store.url (or --store)",
            Cause::Tls => {
                "say sslmode=disable or prefer in store.url, or let the database offer TLS with a certificate that is \
                 trusted here (sslrootcert=FILE names one)"
            }
            Cause::Rights => "grant the user of store.url the right to create the schema everbeat in that database",
        }
    }
}

/// What stands in the way of a store that is unavailable. It alone decides what is done and what a person is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Obstacle {
    /// There is no connection, or it broke.
    #[error("the database cannot be reached")]
    Unreachable,
    #[error("the database starts or stops just now")]
    Restarting,
    #[error("the store did not answer in time")]
    NoAnswer,
    /// More requests wait in this process than it keeps.
    #[error("too many requests wait for the store")]
    Overloaded,
    #[error("somebody else locks the store for too long")]
    LockTimeout,
    /// Rolled back because of others, again and again.
    #[error("the store is too contended")]
    Contended,
    #[error("the database takes no more connections")]
    TooManyConnections,
    #[error("the store's disk is full")]
    DiskFull,
    #[error("the store can only be read")]
    ReadOnly,
    #[error("there is not enough memory to store it")]
    NoMemory,
    #[error("this server has no file descriptors left")]
    NoDescriptors,
    #[error("the store's files cannot be read or written")]
    Io,
    /// The engine or the store ends.
    #[error("this server stops")]
    Stopped,
}

impl Obstacle {
    pub const ALL: [Obstacle; 13] = [
        Obstacle::Unreachable,
        Obstacle::Restarting,
        Obstacle::NoAnswer,
        Obstacle::Overloaded,
        Obstacle::LockTimeout,
        Obstacle::Contended,
        Obstacle::TooManyConnections,
        Obstacle::DiskFull,
        Obstacle::ReadOnly,
        Obstacle::NoMemory,
        Obstacle::NoDescriptors,
        Obstacle::Io,
        Obstacle::Stopped,
    ];

    /// Less, or something else, might have been stored.
    pub fn may_be_size(self) -> bool {
        matches!(self, Obstacle::DiskFull | Obstacle::NoMemory | Obstacle::Io)
    }

    /// What a person can do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Obstacle::Unreachable => "check that the database runs and that the network leads to it",
            Obstacle::Restarting => "wait until the database is up",
            Obstacle::NoAnswer => "look at the load of the database, of its disk and of the network",
            Obstacle::Overloaded => "send less at a time, add replicas, or look why the store is slow",
            Obstacle::LockTimeout => "end the session or the program that holds the lock",
            Obstacle::Contended => "look for long transactions on the same tables",
            Obstacle::TooManyConnections => "raise the database's max_connections, or close other sessions",
            Obstacle::DiskFull => {
                "free space on the store's disk, or keep finished runs for a shorter time (retention)"
            }
            Obstacle::ReadOnly => {
                "look why the database or its file system refuses writes: a standby, a mount, permissions"
            }
            Obstacle::NoMemory => "give the server or the database more memory",
            Obstacle::NoDescriptors => "raise the limit of open files (ulimit -n, LimitNOFILE)",
            Obstacle::Io => "look at the kernel's log for errors of the store's disk",
            Obstacle::Stopped => "ask another replica, or start it again",
        }
    }
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
    pub fn unavailable(cause: Obstacle, detail: impl ToString) -> Error {
        Error::Unavailable { cause, detail: detail.to_string() }
    }

    /// A call that was given up waiting for.
    pub fn no_answer() -> Error {
        Error::unavailable(Obstacle::NoAnswer, "")
    }

    pub fn class(&self) -> Class {
        match self {
            // What the store refuses is this server; whoever asked it for something has done nothing wrong.
            Error::Unavailable { .. } | Error::Refused(..) => Class::Unavailable,
            Error::KeyReused { .. } => Class::Rejected,
            Error::Bug(_) => Class::Bug,
        }
    }

    pub fn cause(&self) -> Option<Obstacle> {
        match self {
            Error::Unavailable { cause, .. } => Some(*cause),
            Error::Refused(..) | Error::KeyReused { .. } | Error::Bug(_) => None,
        }
    }

    /// What whoever runs the server can do about it, if that is known.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Error::Unavailable { cause, .. } => Some(cause.remedy()),
            Error::Refused(cause, _) => Some(cause.remedy()).filter(|remedy| !remedy.is_empty()),
            Error::KeyReused { .. } | Error::Bug(_) => None,
        }
    }

    /// The failure may be due to what was to be written, or to how much of it: a part of it may be
    /// storable.
    pub fn may_be_content(&self) -> bool {
        self.class() == Class::Bug || self.cause().is_some_and(Obstacle::may_be_size)
    }
}

fn in_brackets(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(" ({detail})") }
}
