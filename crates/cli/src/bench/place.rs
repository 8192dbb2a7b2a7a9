use crate::exit::Failure;
use everbeat_engine::Env;
use everbeat_store::{Error, Store};
use everbeat_store_sql::raw::{RawRates, raw_rates};
use everbeat_store_sql::{Postgres, PostgresOptions, Sqlite};
use std::path::PathBuf;
use std::sync::Arc;
use uuid::Uuid;

/// Where a measurement takes place, and what it leaves there when it is over: nothing.
pub(crate) struct Place {
    pub(crate) name: &'static str,
    /// What the figures were measured with.
    pub(crate) settings: String,
    kind: Kind,
}

enum Kind {
    Sqlite { folder: PathBuf },
    Postgres { url: String, schema: String },
}

impl Place {
    pub(crate) fn sqlite() -> Result<Place, Failure> {
        let folder = std::env::temp_dir().join(format!("everbeat-bench-{}", Uuid::new_v4()));
        std::fs::create_dir(&folder).map_err(|error| {
            let hint = "set TMPDIR to a folder that this user may write to";
            Failure::server(format!("the folder {} cannot be made: {error}", folder.display()), hint)
        })?;
        Ok(Place { name: "sqlite", settings: "WAL, synchronous = FULL".to_string(), kind: Kind::Sqlite { folder } })
    }

    pub(crate) async fn postgres(url: &str) -> Result<Place, Failure> {
        let schema = format!("everbeat_bench_{}", Uuid::new_v4().simple());
        let place =
            Place { name: "postgres", settings: String::new(), kind: Kind::Postgres { url: url.to_string(), schema } };
        let settings = Postgres::durability(url).await.map_err(|error| unusable(&error))?;
        Ok(Place { settings, ..place })
    }

    /// A store for the server that is measured.
    pub(crate) async fn open(&self, env: &Arc<dyn Env>) -> Result<Arc<dyn Store>, Failure> {
        self.open_part("server", env).await
    }

    pub(crate) async fn raw(&self, runs: u64, batch: usize) -> Result<RawRates, Failure> {
        let env: Arc<dyn Env> = everbeat::System::new();
        let store = self.open_part("raw", &env).await?;
        raw_rates(&*store, usize::try_from(runs).unwrap_or(usize::MAX), batch).await.map_err(|error| unusable(&error))
    }

    /// Raw statements and the server get a store each, so that neither finds what the other left.
    async fn open_part(&self, part: &str, env: &Arc<dyn Env>) -> Result<Arc<dyn Store>, Failure> {
        let store: Result<Arc<dyn Store>, Error> = match &self.kind {
            Kind::Sqlite { folder } => {
                let (clock, chance) = (env.clone(), env.clone());
                let path = folder.join(format!("{part}.db"));
                Sqlite::open(&path, Arc::new(move || clock.wall()), Arc::new(move || chance.random()))
                    .map(|store| Arc::new(store) as Arc<dyn Store>)
            }
            Kind::Postgres { url, schema } => {
                Postgres::open(url, options(schema, part)).await.map(|store| Arc::new(store) as Arc<dyn Store>)
            }
        };
        store.map_err(|error| unusable(&error))
    }

    pub(crate) async fn clear(self) {
        match self.kind {
            Kind::Sqlite { folder } => {
                if let Err(error) = std::fs::remove_dir_all(&folder) {
                    eprintln!("{} stays behind: {error}", folder.display());
                }
            }
            Kind::Postgres { url, schema } => {
                for part in ["raw", "server"] {
                    if let Err(error) = Postgres::erase(&url, options(&schema, part)).await {
                        eprintln!("schema {schema}_{part} stays behind: {error}");
                    }
                }
            }
        }
    }
}

fn options(schema: &str, part: &str) -> PostgresOptions {
    PostgresOptions { schema: format!("{schema}_{part}"), ..PostgresOptions::default() }
}

fn unusable(error: &Error) -> Failure {
    Failure::server(
        format!("the store cannot be used for a measurement: {error}"),
        "the user must be allowed to create schemas",
    )
}
