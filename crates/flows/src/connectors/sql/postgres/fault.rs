//! What an error of the server or the driver means for a flow.

use crate::Trouble;
use std::io;

/// What became of a statement.
pub(super) enum Fault {
    /// Because of what was to be written: some record is at fault.
    Data(String),
    /// One statement would write a row twice: in two statements it can.
    Twice,
    Trouble(Trouble),
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Fault {
        let Some(db) = error.as_db_error() else { return Fault::Trouble(trouble(&error)) };
        let code = db.code().code();
        match (code, &code[..2]) {
            ("21000", _) => Fault::Twice,
            // Data, constraints, sizes, what views check, what triggers raise.
            (_, "22" | "23" | "54" | "44") | ("P0001", _) => {
                let detail = db.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
                Fault::Data(format!("{}{detail}", db.message()))
            }
            _ => Fault::Trouble(trouble(&error)),
        }
    }
}

pub(super) fn trouble(error: &tokio_postgres::Error) -> Trouble {
    let Some(db) = error.as_db_error() else {
        let said = format!("the PostgreSQL server cannot be reached: {}", explain(error));
        let cause = std::error::Error::source(error);
        let io = cause.is_some_and(|cause| cause.downcast_ref::<io::Error>().is_some());
        let broken = error.is_closed() || io || cause.is_none();
        return if broken { Trouble::transient(said) } else { Trouble::permanent(said) };
    };
    let code = db.code().code();
    let hint = match code {
        "42P10" => "; the sink's key needs a unique index on exactly its columns",
        "0A000" => "; a partitioned table cannot be a sink: name one of its partitions, or another table",
        "42501" => "; give the role of the flow that right",
        "3D000" => "; check the name of the database",
        _ => "",
    };
    let said = format!("PostgreSQL says: {} ({code}){hint}", db.message());
    match (code, &code[..2]) {
        // Races that were lost, locks, a replica that can only be read, connections, limits, the machine.
        ("40001" | "40P01" | "55P03" | "57014" | "25006" | "25P03", _) | (_, "08" | "53" | "57" | "58") => {
            Trouble::transient(said)
        }
        _ => Trouble::permanent(said),
    }
}

/// An error with its causes, which the driver leaves out of the first line.
pub(super) fn explain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
