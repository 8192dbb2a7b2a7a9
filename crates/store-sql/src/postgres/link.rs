//! One connection with one role. A link connects when first used and again after its connection broke; every call on
//! a link ends within a known time, also when the server is stopped or the network is dead.

use super::address::Address;
use super::fault::{Fault, Outcome};
use super::options::PostgresOptions;
use super::tls::{self, Connector};
use everbeat_store::{Cause, Error, Obstacle, Result};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Connection, Row, Socket, Statement};

/// What lost a deadlock or a race is tried so often.
pub(super) const TRIES: usize = 5;

/// Does work anew while others make it roll back, but not for ever. A macro, since the future of a closure that
/// borrows cannot be shown to be `Send`.
macro_rules! again {
    (async $work:block) => {{
        let mut tries = 0;
        loop {
            tries += 1;
            let answer: $crate::postgres::fault::Outcome<_> = async $work.await;
            match answer {
                Err($crate::postgres::fault::Fault::Again(_)) if tries < $crate::postgres::link::TRIES => {}
                answer => break answer,
            }
        }
    }};
}
pub(super) use again;

/// What a call may take beyond the server's own limit for its statement.
const CALL_SLACK: Duration = Duration::from_secs(1);

/// The patience for what may look through whole tables, and for migrations.
const SLOW_FACTOR: u32 = 6;

const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEPALIVE_RETRIES: u32 = 3;

pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Renew,
    Claim,
    Settle,
    Append,
    Command,
    Exclusive,
    Advance,
    Look,
    Ping,
    Read,
    Slow,
    Hint,
}

impl Role {
    /// Roles whose statements are few, known, and always go by key. Their plans are made once, without
    /// statistics: on tables that are empty at one moment and full at the next, statistics mislead.
    fn goes_by_key(self) -> bool {
        !matches!(self, Role::Read | Role::Slow | Role::Hint)
    }
}

/// Where to connect and how.
pub(super) struct Target {
    config: Config,
    tls: Connector,
    pub(super) schema: String,
    application_name: String,
    statement_timeout: Duration,
    connect_timeout: Duration,
}

pub(super) type Wire = Connection<Socket, <Connector as MakeTlsConnect<Socket>>::Stream>;

impl Target {
    pub(super) fn new(url: &str, options: &PostgresOptions) -> Result<Target> {
        let Address { mut config, root_certificates } = Address::read(url, &|name| std::env::var_os(name))?;
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if options.schema.is_empty() || !options.schema.chars().all(plain) {
            let schema = &options.schema;
            let said = format!("the schema {schema:?} must be lower-case letters, digits and _");
            return Err(Error::Refused(Cause::Url, said));
        }
        config
            .connect_timeout(options.connect_timeout)
            .keepalives(true)
            .keepalives_idle(KEEPALIVE_IDLE)
            .keepalives_interval(KEEPALIVE_INTERVAL)
            .keepalives_retries(KEEPALIVE_RETRIES)
            .tcp_user_timeout(options.statement_timeout + CALL_SLACK);
        Ok(Target {
            tls: tls::connector(config.get_ssl_mode(), root_certificates.or(options.root_certificates.clone()))?,
            config,
            schema: options.schema.clone(),
            application_name: options.application_name.clone(),
            statement_timeout: options.statement_timeout,
            connect_timeout: options.connect_timeout,
        })
    }

    fn statement_timeout(&self, role: Role) -> Duration {
        if role == Role::Slow { self.statement_timeout * SLOW_FACTOR } else { self.statement_timeout }
    }

    pub(super) fn call_timeout(&self, role: Role) -> Duration {
        self.statement_timeout(role) + CALL_SLACK
    }

    pub(super) async fn connect(&self, role: Role) -> Outcome<Session> {
        let (client, connection) = self.open(role).await?;
        let driver = spawn_driver(connection);
        let session = Session { client, statements: StdMutex::default(), driver, spoilt: AtomicBool::new(false) };
        within(self.connect_timeout, session.client.batch_execute(&self.setup(role))).await??;
        Ok(session)
    }

    /// A connection whose messages the caller drives.
    pub(super) async fn open(&self, role: Role) -> Outcome<(Client, Wire)> {
        let mut config = self.config.clone();
        config.application_name(format!("{} {role:?}", self.application_name).to_lowercase());
        let tls = self.tls.fresh();
        let opened = within(self.connect_timeout, config.connect(tls.clone())).await?;
        opened.map_err(|error| Fault::opening(error, config.get_ssl_mode() != SslMode::Require || tls.agreed()))
    }

    pub(super) fn setup(&self, role: Role) -> String {
        let statement = self.statement_timeout(role).as_millis().max(1);
        let lock = (statement / 2).max(1);
        let mut setup = format!(
            "set client_min_messages to warning; set search_path to {}; set statement_timeout to {statement}; set lock_timeout to {lock}; \
             set idle_in_transaction_session_timeout to {statement}; \
             set default_transaction_isolation to 'read committed'; set jit to off;",
            self.schema
        );
        if role.goes_by_key() {
            setup.push_str(
                "set plan_cache_mode to force_generic_plan; set enable_seqscan to off; \
                 set enable_mergejoin to off; set enable_bitmapscan to off;",
            );
            // Batches meet what they changed by hashing; looking a row up by key is forced by `lateral`.
            let unwanted = if matches!(role, Role::Settle | Role::Append) { "nestloop" } else { "hashjoin" };
            setup.push_str(&format!("set enable_{unwanted} to off;"));
        }
        setup
    }
}

/// One living connection and the statements it has prepared.
pub(super) struct Session {
    pub(super) client: Client,
    statements: StdMutex<BTreeMap<String, Statement>>,
    driver: AbortHandle,
    /// The driver ends a moment after it was told to.
    spoilt: AtomicBool,
}

impl Session {
    pub(super) fn usable(&self) -> bool {
        !self.client.is_closed() && !self.spoilt.load(Ordering::Relaxed)
    }

    pub(super) async fn query(&self, sql: &str, params: Params<'_>) -> Outcome<Vec<Row>> {
        let statement = self.prepare(sql).await?;
        Ok(self.client.query(&statement, params).await?)
    }

    /// For statements of many shapes: what is prepared for this one is forgotten.
    async fn query_once(&self, sql: &str, params: Params<'_>) -> Outcome<Vec<Row>> {
        Ok(self.client.query(sql, params).await?)
    }

    pub(super) async fn prepare(&self, sql: &str) -> Outcome<Statement> {
        if let Some(statement) = self.statements.lock().unwrap_or_else(PoisonError::into_inner).get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await?;
        let mut statements = self.statements.lock().unwrap_or_else(PoisonError::into_inner);
        statements.insert(sql.to_string(), statement.clone());
        Ok(statement)
    }

    /// Ends the connection at once, and with it everything that waits on it.
    pub(super) fn cut(&self) {
        self.spoilt.store(true, Ordering::Relaxed);
        self.driver.abort();
    }
}

/// Whether a statement stays prepared.
#[derive(Clone, Copy)]
enum Keep {
    Prepared,
    Nothing,
}

pub(super) struct Link {
    role: Role,
    target: Arc<Target>,
    slot: Mutex<Option<Arc<Session>>>,
}

impl Link {
    pub(super) fn new(role: Role, target: Arc<Target>) -> Link {
        Link { role, target, slot: Mutex::new(None) }
    }

    /// Runs one statement, which is a transaction by itself.
    pub(super) async fn query(&self, sql: &str, params: Params<'_>) -> Outcome<Vec<Row>> {
        self.bounded(sql, params, Keep::Prepared).await
    }

    /// For a statement that is put together for one request.
    pub(super) async fn query_once(&self, sql: &str, params: Params<'_>) -> Outcome<Vec<Row>> {
        self.bounded(sql, params, Keep::Nothing).await
    }

    async fn bounded(&self, sql: &str, params: Params<'_>, keep: Keep) -> Outcome<Vec<Row>> {
        let mut used = None;
        let answer = within(self.target.call_timeout(self.role), self.attempt(sql, params, keep, &mut used)).await;
        let answer = answer.and_then(|answer| answer);
        if let Err(fault) = &answer
            && fault.spoils_connection()
            && let Some(session) = used
        {
            session.cut();
        }
        answer
    }

    async fn attempt(
        &self,
        sql: &str,
        params: Params<'_>,
        keep: Keep,
        used: &mut Option<Arc<Session>>,
    ) -> Outcome<Vec<Row>> {
        again!(async {
            let session = used.insert(self.session().await?);
            match keep {
                Keep::Prepared => session.query(sql, params).await,
                Keep::Nothing => session.query_once(sql, params).await,
            }
        })
    }

    /// Runs a command that cannot be prepared.
    pub(super) async fn execute(&self, command: &str) -> Outcome<()> {
        let work = async { Ok(self.session().await?.client.batch_execute(command).await?) };
        within(self.target.call_timeout(self.role), work).await?
    }

    async fn session(&self) -> Outcome<Arc<Session>> {
        let mut slot = self.slot.lock().await;
        if let Some(session) = slot.as_ref().filter(|session| session.usable()) {
            return Ok(session.clone());
        }
        let session = Arc::new(self.target.connect(self.role).await?);
        *slot = Some(session.clone());
        Ok(session)
    }
}

/// Waits for `work` no longer than `limit`.
#[allow(clippy::disallowed_methods, reason = "a wait on a real socket; the simulation never comes here")]
pub(super) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Outcome<T> {
    tokio::time::timeout(limit, work)
        .await
        .map_err(|_| Fault::Unavailable(Obstacle::NoAnswer, format!("PostgreSQL did not answer within {limit:?}")))
}

/// The task that moves bytes between a client and its socket. It belongs to its `Session` and ends
/// with it: when the client is dropped, or when it is cut.
#[allow(clippy::disallowed_methods, reason = "tokio-postgres needs a driver; the simulation never comes here")]
fn spawn_driver(connection: Wire) -> AbortHandle {
    let driver = tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a PostgreSQL connection ended");
        }
    });
    driver.abort_handle()
}
