//! Brings the schema of a database up to date.

use super::fault::Outcome;
use super::link::{Role, Session, Target, within};
use crate::migrations::{self, POSTGRES};
use everbeat_store::{Error, Result};

/// Servers that start together take turns under this lock.
const LOCK: i64 = 0x6576_6572_6265_6174;

/// Brings the schema up to this program's, in one transaction.
pub(super) async fn migrate(target: &Target) -> Result<()> {
    let limit = target.call_timeout(Role::Slow);
    within(limit, async {
        let session = target.connect(Role::Slow).await?;
        apply(&session, target).await
    })
    .await?
}

async fn apply(session: &Session, target: &Target) -> Result<()> {
    let schema = &target.schema;
    // Another server may hold the lock while it migrates: that is worth waiting for.
    run(session, &format!("begin; set local lock_timeout to 0; select pg_advisory_xact_lock({LOCK})")).await?;
    let exists = session.query("select 1 from pg_namespace where nspname = $1", &[schema]).await?;
    if exists.is_empty() {
        // Only then is the right to create schemas needed.
        run(session, &format!("create schema {schema}")).await?;
    }
    run(
        session,
        "create table if not exists schema_version (
           version bigint not null primary key, name text not null, checksum text not null, applied_at bigint not null)",
    )
    .await?;
    let rows = session.query("select version, checksum from schema_version order by version", &[]).await?;
    let applied: Vec<(i64, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let store = format!("the PostgreSQL schema {schema:?}");
    for migration in migrations::pending(POSTGRES, &applied, &store)? {
        run(session, migration.sql).await?;
        let insert = "insert into schema_version (version, name, checksum, applied_at)
                      select $1, $2, $3, (extract(epoch from clock_timestamp()) * 1000000)::bigint";
        session.query(insert, &[&migration.version, &migration.name, &migration.checksum()]).await?;
    }
    run(session, "commit").await
}

async fn run(session: &Session, sql: &str) -> Result<()> {
    let outcome: Outcome<()> = session.client.batch_execute(sql).await.map_err(Into::into);
    outcome.map_err(|fault| match Error::from(fault) {
        Error::Bug(text) => Error::Bug(format!("a migration failed: {text}")),
        other => other,
    })
}
