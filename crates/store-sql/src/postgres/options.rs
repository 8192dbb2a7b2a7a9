//! How a store in PostgreSQL is opened.

use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// Connections for reads (`store.pool_size`). Ten more have other roles.
    pub read_connections: usize,
    /// The server ends a statement that takes longer; every call ends a second later at most.
    pub statement_timeout: Duration,
    pub connect_timeout: Duration,
    /// Shown in `pg_stat_activity`, with the role of the connection.
    pub application_name: String,
    /// Everything is kept in this schema, so that a shared database has no clash of names.
    pub schema: String,
    /// Certificates to trust beside the public ones, in PEM, for `sslmode=require`.
    pub root_certificates: Option<PathBuf>,
}

impl Default for PostgresOptions {
    fn default() -> PostgresOptions {
        PostgresOptions {
            read_connections: 4,
            statement_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            application_name: "everbeat".to_string(),
            schema: "everbeat".to_string(),
            root_certificates: None,
        }
    }
}
