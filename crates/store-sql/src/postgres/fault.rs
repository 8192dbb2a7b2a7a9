//! What went wrong with a statement, by what can be done about it.

use crate::obstacle::of_io;
use everbeat_store::{Cause, Error, Obstacle};
use std::io;
use tokio_postgres::error::SqlState;

/// What went wrong with a statement, by what can be done about it.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// Rolled back because of somebody else; the same again may succeed.
    Again(String),
    /// A cause outside of the statement. Without a word of the server's, nothing is known about that cause.
    Unavailable(Obstacle, String),
    Refused(Cause, String),
    /// The values given cannot be stored.
    Data(String),
    /// The server no longer has a prepared statement or its plan: a new connection has both again.
    Stale(String),
    Bug(String),
}

pub(super) type Outcome<T> = std::result::Result<T, Fault>;

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Fault {
        let Some(db) = error.as_db_error() else { return unanswered(&error) };
        by_code(db.code(), format!("{} ({})", db.message(), db.code().code()))
    }
}

/// Without a word of the server's: the connection, or a value that cannot be encoded.
fn unanswered(error: &tokio_postgres::Error) -> Fault {
    let text = explain(error);
    let source = std::error::Error::source(error);
    match source.and_then(|source| source.downcast_ref::<io::Error>()) {
        // The statement cannot be written into a message: that would be longer than the protocol allows.
        Some(error) if error.kind() == io::ErrorKind::InvalidInput => Fault::Data(text),
        Some(error) => match of_io(error) {
            own @ (Obstacle::NoDescriptors | Obstacle::NoMemory | Obstacle::NoAnswer) => Fault::Unavailable(own, text),
            _ => Fault::Unavailable(Obstacle::Unreachable, text),
        },
        None => Fault::Unavailable(Obstacle::Unreachable, text),
    }
}

fn by_code(code: &SqlState, text: String) -> Fault {
    let cause = match code.code() {
        "40001" | "40P01" => return Fault::Again(text),
        "42501" => return Fault::Refused(Cause::Rights, text),
        "3D000" => return Fault::Refused(Cause::NoDatabase, text),
        "25006" => Obstacle::ReadOnly,
        "55P03" => Obstacle::LockTimeout,
        "57014" => Obstacle::NoAnswer,
        "53100" => Obstacle::DiskFull,
        "53200" => Obstacle::NoMemory,
        "53300" => Obstacle::TooManyConnections,
        "58030" => Obstacle::Io,
        code => match &code[..2] {
            "08" => Obstacle::Unreachable,
            // Operator intervention: the server is shut down, or not up yet.
            "57" => Obstacle::Restarting,
            // A limit of the server's, or an error of the machine below it.
            "53" => Obstacle::Overloaded,
            "58" => Obstacle::Io,
            "26" | "0A" => return Fault::Stale(text),
            "28" => return Fault::Refused(Cause::Login, text),
            // Data, constraints, sizes.
            "22" | "23" | "54" => return Fault::Data(text),
            _ => return Fault::Bug(text),
        },
    };
    Fault::Unavailable(cause, text)
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

    /// Whether the connection should not be used again. A server that can only be read may be a former
    /// primary: a new connection finds the new one.
    pub(super) fn spoils_connection(&self) -> bool {
        match self {
            Fault::Stale(_) => true,
            Fault::Unavailable(cause, _) => !matches!(
                cause,
                Obstacle::LockTimeout | Obstacle::DiskFull | Obstacle::NoMemory | Obstacle::Io | Obstacle::Overloaded
            ),
            Fault::Again(_) | Fault::Refused(..) | Fault::Data(_) | Fault::Bug(_) => false,
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        match fault {
            Fault::Again(text) => Error::unavailable(Obstacle::Contended, text),
            Fault::Unavailable(cause, text) => Error::unavailable(cause, text),
            Fault::Stale(text) => Error::unavailable(Obstacle::Restarting, text),
            Fault::Refused(cause, text) => Error::Refused(cause, format!("{}: {text}", refusal(cause))),
            Fault::Data(text) | Fault::Bug(text) => Error::Bug(text),
        }
    }
}

fn refusal(cause: Cause) -> &'static str {
    match cause {
        Cause::Login => "the database refused the login",
        Cause::NoDatabase => "the database server has no such database",
        Cause::Tls => "no encrypted connection to the database came about",
        Cause::Rights => "the database refused a right",
        _ => "the database refused to be used",
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

#[cfg(test)]
mod tests {
    use super::*;
    use everbeat_store::Class;

    #[test]
    fn a_code_of_postgresql_names_its_cause() {
        for (code, cause) in [
            ("53100", Some(Obstacle::DiskFull)),
            ("53200", Some(Obstacle::NoMemory)),
            ("53300", Some(Obstacle::TooManyConnections)),
            ("53400", Some(Obstacle::Overloaded)),
            ("55P03", Some(Obstacle::LockTimeout)),
            ("57014", Some(Obstacle::NoAnswer)),
            ("57P01", Some(Obstacle::Restarting)),
            ("57P03", Some(Obstacle::Restarting)),
            ("58030", Some(Obstacle::Io)),
            ("25006", Some(Obstacle::ReadOnly)),
            ("40001", Some(Obstacle::Contended)),
            ("40P01", Some(Obstacle::Contended)),
            ("08006", Some(Obstacle::Unreachable)),
            ("22021", None),
            ("54000", None),
            ("42501", None),
            ("28P01", None),
        ] {
            let fault = by_code(&SqlState::from_code(code), String::new());
            assert_eq!(Error::from(fault).cause(), cause, "{code}");
        }
    }
    #[test]
    fn a_refusal_is_no_fault_of_whoever_asked_for_something() {
        for (code, said) in [
            ("28P01", "the database refused the login"),
            ("28000", "the database refused the login"),
            ("3D000", "no such database"),
            ("42501", "the database refused a right"),
        ] {
            let error = Error::from(by_code(&SqlState::from_code(code), "its own words".to_string()));
            assert_eq!(error.class(), Class::Unavailable, "{code}");
            assert!(error.remedy().is_some_and(|remedy| !remedy.is_empty()), "{code}");
            let text = error.to_string();
            assert!(text.contains(said) && text.contains("its own words"), "{code}: {text}");
        }
    }
}
