use everbeat_engine::Env;
use everbeat_store::{Cause, Clock, Error, Memory, Store};
use everbeat_store_sql::{Postgres, PostgresOptions, Sqlite};
use std::path::Path;
use std::sync::Arc;

/// How a store is used.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Connections for reading; writing has its own.
    pub pool_size: usize,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions { pool_size: 4 }
    }
}

/// Opens `sqlite://path`, `postgres://…` or `memory:`, and brings its schema up to date.
pub async fn open_store(url: &str, options: StoreOptions, env: &Arc<dyn Env>) -> Result<Arc<dyn Store>, Error> {
    let clock: Arc<dyn Clock> = Arc::new({
        let env = env.clone();
        move || env.wall()
    });
    if url == "memory:" {
        return Ok(Arc::new(Memory::new(clock)));
    }
    if let Some(path) = url.strip_prefix("sqlite://") {
        let env = env.clone();
        let store = Sqlite::open(Path::new(path), clock, Arc::new(move || env.random()))?;
        return Ok(Arc::new(store));
    }
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        let options = PostgresOptions { read_connections: options.pool_size, ..PostgresOptions::default() };
        return Ok(Arc::new(Postgres::open(url, options).await?));
    }
    // Not echoed whole: it may hold a password.
    let scheme = url.split_once(':').map_or(url, |(scheme, _)| scheme);
    let known = "sqlite://PATH, postgres://USER@HOST/DATABASE or memory:";
    Err(Error::Refused(Cause::Url, format!("store.url begins with {scheme:?}, which is not known; use {known}")))
}
