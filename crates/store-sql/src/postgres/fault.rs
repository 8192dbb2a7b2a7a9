use everbeat_store::{Cause, Error};
use std::io;
use tokio_postgres::error::SqlState;

/// What went wrong with a statement, by what can be done about it.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// Rolled back because of somebody else; the same again may succeed.
    Again(String),
    /// The server or the way to it; nothing is known about the statement.
    Unavailable(String),
    Refused(Cause, String),
    /// The values given cannot be stored.
    Data(String),
    Bug(String),
}

pub(super) type Outcome<T> = std::result::Result<T, Fault>;

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Fault {
        let Some(db) = error.as_db_error() else {
            // Without a word of the server's: the connection, or a value that cannot be encoded.
            let text = explain(&error);
            return if text.contains("serializing parameter") { Fault::Data(text) } else { Fault::Unavailable(text) };
        };
        let text = format!("{} ({})", db.message(), db.code().code());
        let code = db.code();
        if [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(code) {
            return Fault::Again(text);
        }
        if [SqlState::READ_ONLY_SQL_TRANSACTION, SqlState::LOCK_NOT_AVAILABLE].contains(code) {
            return Fault::Unavailable(text);
        }
        if *code == SqlState::INSUFFICIENT_PRIVILEGE {
            return Fault::Refused(Cause::Rights, text);
        }
        if *code == SqlState::INVALID_CATALOG_NAME {
            return Fault::Refused(Cause::NoDatabase, text);
        }
        match &code.code()[..2] {
            // Connection, resources, operator intervention, the machine below.
            "08" | "53" | "57" | "58" => Fault::Unavailable(text),
            // A prepared statement or a plan that the server no longer has: a new connection heals it.
            "26" | "0A" => Fault::Unavailable(text),
            "28" => Fault::Refused(Cause::Login, text),
            // Data, constraints, sizes.
            "22" | "23" | "54" => Fault::Data(text),
            _ => Fault::Bug(text),
        }
    }
}

impl Fault {
    /// Why a connection could not be opened. `secured`: whether TLS, if it was asked for, was agreed on before.
    pub(super) fn opening(error: tokio_postgres::Error, secured: bool) -> Fault {
        let cause = std::error::Error::source(&error);
        let spoken = error.as_db_error().is_some() || error.is_closed() || cause.is_none();
        match cause.and_then(|cause| cause.downcast_ref::<io::Error>()) {
            _ if spoken => Fault::from(error),
            Some(broken) if !broken.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) => Fault::from(error),
            // What is left is what the two could not agree on: how to encrypt, or who this is.
            Some(_) => Fault::Refused(Cause::Tls, explain(&error)),
            None if !secured => Fault::Refused(Cause::Tls, explain(&error)),
            None => Fault::Refused(Cause::Login, explain(&error)),
        }
    }

    /// Whether the connection should not be used again.
    pub(super) fn spoils_connection(&self) -> bool {
        matches!(self, Fault::Unavailable(_))
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        match fault {
            Fault::Again(text) | Fault::Unavailable(text) => Error::Unavailable(text),
            Fault::Refused(cause, text) => Error::Refused(cause, format!("PostgreSQL refuses: {text}")),
            Fault::Data(text) | Fault::Bug(text) => Error::Bug(text),
        }
    }
}

/// An error with its causes, which tokio-postgres leaves out of the first line.
pub(super) fn explain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
