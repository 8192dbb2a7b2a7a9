//! A database of its own for each test.

use std::sync::atomic::{AtomicU32, Ordering};
use tokio::sync::OnceCell;
use tokio_postgres::{Client, Config, NoTls};

/// The URL of a throw-away PostgreSQL server, as a superuser.
fn server_url() -> String {
    std::env::var("EVERBEAT_TEST_POSTGRES").unwrap_or_else(|_| {
        panic!(
            "EVERBEAT_TEST_POSTGRES is not set: run scripts/test, or set it to the URL of a throw-away PostgreSQL \
             server, such as postgres://postgres@127.0.0.1:5432/postgres"
        )
    })
}

static NUMBER: AtomicU32 = AtomicU32::new(0);
static SHARED: OnceCell<String> = OnceCell::const_new();

/// A schema of its own in a database that the tests of one process share.
pub(crate) struct Schema {
    pub(crate) url: String,
    pub(crate) client: Client,
}

impl Schema {
    pub(crate) async fn create() -> Schema {
        let database = SHARED.get_or_init(|| make(server_url())).await.clone();
        let name = format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let client = connect(&database).await;
        client.batch_execute(&format!("create schema {name}; set search_path to {name}")).await.expect("a schema");
        Schema { url: format!("{database}?options=-csearch_path%3D{name}"), client }
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// All rows of a query as one text each.
    pub(crate) async fn rows(&self, sql: &str) -> Vec<String> {
        let rows = self.client.query(&format!("select q::text from ({sql}) as q"), &[]).await;
        rows.unwrap_or_else(|error| panic!("{sql}: {error:?}")).iter().map(|row| row.get(0)).collect()
    }
}

async fn make(server: String) -> String {
    let name = format!("everbeat_flows_{}", std::process::id());
    let admin = connect(&server).await;
    admin.batch_execute(&format!("drop database if exists {name} with (force)")).await.expect("drop database");
    admin.batch_execute(&format!("create database {name}")).await.expect("create database");
    let (base, _) = server.rsplit_once('/').expect("a URL with a database");
    format!("{base}/{name}")
}

#[allow(clippy::disallowed_methods, reason = "a driver in a test")]
async fn connect(url: &str) -> Client {
    let config: Config = url.parse().expect("a PostgreSQL URL");
    let (client, connection) = config.connect(NoTls).await.expect("the test server answers");
    tokio::spawn(connection);
    client
}
