//! Migrations are embedded, forward only, and checked: an applied one must not change, and a schema
//! newer than this program is refused.

use everbeat_store::{Cause, Error, Result};

pub(crate) struct Migration {
    pub(crate) version: i64,
    pub(crate) name: &'static str,
    pub(crate) sql: &'static str,
}

pub(crate) const SQLITE: &[Migration] = &[
    Migration { version: 1, name: "runs", sql: include_str!("migrations/sqlite/0001_runs.sql") },
    Migration { version: 2, name: "graphs", sql: include_str!("migrations/sqlite/0002_graphs.sql") },
    Migration { version: 3, name: "jobs", sql: include_str!("migrations/sqlite/0003_jobs.sql") },
    Migration { version: 4, name: "machine", sql: include_str!("migrations/sqlite/0004_machine.sql") },
    Migration { version: 5, name: "outputs", sql: include_str!("migrations/sqlite/0005_outputs.sql") },
    Migration { version: 6, name: "workers", sql: include_str!("migrations/sqlite/0006_workers.sql") },
    Migration { version: 7, name: "sessions", sql: include_str!("migrations/sqlite/0007_sessions.sql") },
    Migration { version: 8, name: "schedules", sql: include_str!("migrations/sqlite/0008_schedules.sql") },
    Migration { version: 9, name: "checks", sql: include_str!("migrations/sqlite/0009_checks.sql") },
];

pub(crate) const POSTGRES: &[Migration] = &[
    Migration { version: 1, name: "runs", sql: include_str!("migrations/postgres/0001_runs.sql") },
    Migration { version: 2, name: "graphs", sql: include_str!("migrations/postgres/0002_graphs.sql") },
    Migration { version: 3, name: "jobs", sql: include_str!("migrations/postgres/0003_jobs.sql") },
    Migration { version: 4, name: "machine", sql: include_str!("migrations/postgres/0004_machine.sql") },
    Migration { version: 5, name: "outputs", sql: include_str!("migrations/postgres/0005_outputs.sql") },
    Migration { version: 6, name: "workers", sql: include_str!("migrations/postgres/0006_workers.sql") },
    Migration { version: 7, name: "sessions", sql: include_str!("migrations/postgres/0007_sessions.sql") },
    Migration { version: 8, name: "schedules", sql: include_str!("migrations/postgres/0008_schedules.sql") },
    Migration { version: 9, name: "checks", sql: include_str!("migrations/postgres/0009_checks.sql") },
];

/// What remains to be applied, given the versions and checksums found in the store.
pub(crate) fn pending<'a>(
    known: &'a [Migration],
    applied: &[(i64, String)],
    store: &str,
) -> Result<Vec<&'a Migration>> {
    for (version, checksum) in applied {
        let Some(migration) = known.iter().find(|migration| migration.version == *version) else {
            let newest = known.last().map_or(0, |migration| migration.version);
            let said = format!(
                "{store} has schema version {version}, and this program knows only up to {newest}: \
                 a newer everbeat has used it; run that version or a newer one"
            );
            return Err(Error::Refused(Cause::OtherVersion, said));
        };
        if *checksum != migration.checksum() {
            let said = format!(
                "{store} was prepared by another build: its schema version {version} ({}) differs from this \
                 program's; use the build that made it, or a fresh store",
                migration.name
            );
            return Err(Error::Refused(Cause::OtherVersion, said));
        }
    }
    Ok(known.iter().filter(|migration| applied.iter().all(|(version, _)| *version != migration.version)).collect())
}

impl Migration {
    /// FNV-1a: it finds accidental edits, which is all that is asked of it.
    pub(crate) fn checksum(&self) -> String {
        let hash = self
            .sql
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        format!("{hash:016x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(applied: &[(i64, String)]) -> String {
        match pending(SQLITE, applied, "the file") {
            Err(Error::Refused(Cause::OtherVersion, message)) => message,
            other => panic!("not refused: {:?}", other.map(|pending| pending.len())),
        }
    }

    #[test]
    fn a_newer_or_edited_schema_is_refused_and_an_applied_one_is_not_applied_again() {
        assert!(refusal(&[(99, String::new())]).contains("schema version 99"));
        assert!(refusal(&[(1, "0".to_string())]).contains("another build"));
        let all: Vec<(i64, String)> = SQLITE.iter().map(|known| (known.version, known.checksum())).collect();
        assert!(pending(SQLITE, &all, "the file").is_ok_and(|left| left.is_empty()));
        assert!(pending(SQLITE, &all[..1], "the file").is_ok_and(|left| left.len() == SQLITE.len() - 1));
        assert_eq!(pending(SQLITE, &[], "the file").map(|left| left.len()), Ok(SQLITE.len()));
    }
}
