use crate::{Fields, Guard, Settings, Trouble, target};
use everbeat_model::Invalid;
use std::path::PathBuf;

/// Where a database is: its URL may be a secret, and is read when it is needed.
#[derive(Clone, Debug)]
pub(super) struct Address(crate::Target);

/// Which database, and where.
pub(super) enum Database {
    Sqlite(PathBuf),
    Postgres { url: String, guard: Guard },
}

const SCHEMES: [&str; 3] = ["postgres", "postgresql", "sqlite"];

impl Address {
    /// `defaults` are connections that count where neither `url` nor `connection` is given.
    pub(super) fn read(fields: &mut Fields<'_>, settings: &Settings, defaults: &[&str]) -> Result<Address, Invalid> {
        let target = target(fields, settings, defaults)?;
        target.check(&SCHEMES)?;
        Ok(Address(target))
    }

    pub(super) fn database(&self) -> Result<Database, Trouble> {
        let url = self.0.text()?;
        let refuse = |problem: &str| Err(Trouble::permanent(format!("the URL of the database {problem}")));
        match url.split_once(':') {
            Some(("postgres" | "postgresql", _)) => Ok(Database::Postgres { guard: self.0.guard(), url }),
            Some(("sqlite", rest)) => match rest.strip_prefix("//").unwrap_or(rest) {
                "" => refuse("names no file: write it like sqlite:///path/file.db"),
                path if path.contains(['?', '#']) => {
                    refuse("has options, which are not offered for SQLite: write it like sqlite:///path/file.db")
                }
                path => Ok(Database::Sqlite(PathBuf::from(path))),
            },
            _ => refuse("is of another kind: begin it with sqlite:// or postgres://"),
        }
    }
}
