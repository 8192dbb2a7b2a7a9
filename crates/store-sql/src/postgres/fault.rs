use everbeat_store::Error;
use tokio_postgres::error::SqlState;

/// What went wrong with a statement, by what can be done about it.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// Rolled back because of somebody else; the same again may succeed.
    Again(String),
    /// The server or the way to it; nothing is known about the statement.
    Unavailable(String),
    Refused(String),
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
        if [SqlState::INSUFFICIENT_PRIVILEGE, SqlState::INVALID_CATALOG_NAME].contains(code) {
            return Fault::Refused(text);
        }
        match &code.code()[..2] {
            // Connection, resources, operator intervention, the machine below.
            "08" | "53" | "57" | "58" => Fault::Unavailable(text),
            // A prepared statement or a plan that the server no longer has: a new connection heals it.
            "26" | "0A" => Fault::Unavailable(text),
            "28" => Fault::Refused(text),
            // Data, constraints, sizes.
            "22" | "23" | "54" => Fault::Data(text),
            _ => Fault::Bug(text),
        }
    }
}

impl Fault {
    /// Whether the connection should not be used again.
    pub(super) fn spoils_connection(&self) -> bool {
        matches!(self, Fault::Unavailable(_))
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        match fault {
            Fault::Again(text) | Fault::Unavailable(text) => Error::Unavailable(text),
            Fault::Refused(text) => Error::Refused(format!("PostgreSQL refuses: {text}")),
            Fault::Data(text) | Fault::Bug(text) => Error::Bug(text),
        }
    }
}

/// An error with its causes, which tokio-postgres leaves out of the first line.
fn explain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
