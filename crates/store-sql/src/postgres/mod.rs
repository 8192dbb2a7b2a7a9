//! The store in PostgreSQL, for many servers at once.
//!
//! There is no pool: each role has its own connection (reads and executions have a few), on which statements are
//! pipelined. So a flood of one sort never holds up another; above all, nothing holds up renewal.

mod address;
mod adopt;
mod advance;
mod arrays;
mod audit;
mod cancel;
mod carry_out;
mod check_write;
mod checks;
mod chunk;
mod claim;
mod enqueue;
mod events;
mod executions;
mod fault;
mod filter;
mod forget;
mod graphs;
mod idempotency;
mod ids;
mod leases;
mod link;
mod migrate;
mod options;
mod outputs;
mod password;
mod place;
mod promote;
mod queues;
mod reopen;
mod replicas;
mod runs;
mod schedule_carry_out;
mod schedule_due;
mod schedule_look;
mod schedule_read;
mod schedule_write;
mod schedules;
mod sessions;
mod settle;
mod sign;
mod snapshot;
mod sql;
mod start;
mod stop;
mod tasks;
mod tidy;
mod tls;
mod transaction;
mod unbind;
mod verdicts;
mod wakes;
mod workers;

pub use options::PostgresOptions;

use crate::cells::Definitions;
use everbeat_store::Result;
use link::{Link, Role, Target};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidy::Tidy;
use transaction::Exclusive;
use wakes::Hints;

/// Transactions over executions that one server has open at once.
const ADVANCE_CONNECTIONS: usize = 3;

/// Transactions over schedules that one server has open at once. They are opened when they are needed.
const LOOK_CONNECTIONS: usize = 3;

/// Transactions over checks that one server has open at once. They are opened when they are needed.
const PING_CONNECTIONS: usize = 2;

pub struct Postgres {
    /// Renewals, joins and verdicts on replicas; nothing else may delay them.
    renew: Link,
    claim: Link,
    settle: Link,
    /// What attempts stream: a flood of it holds up no ending.
    append: Link,
    /// Enqueues and commands that are one statement.
    command: Link,
    /// Commands of several statements, one transaction at a time.
    exclusive: Exclusive,
    /// Executions: commands, looks and starts do not wait for each other.
    advance: Exclusive,
    /// Schedules: a look that waits for its group holds up no execution.
    look: Exclusive,
    /// Checks: a flood of pings holds up nothing else.
    pings: Exclusive,
    definitions: Definitions,
    reads: Vec<Link>,
    next_read: AtomicUsize,
    /// What may look through whole tables.
    slow: Link,
    hints: Hints,
    tidy: Tidy,
}

impl Postgres {
    /// Connects, brings the schema up to date, and starts to listen for hints. Must be called inside
    /// a tokio runtime. Later losses of the connection are healed by the next call.
    pub async fn open(url: &str, options: PostgresOptions) -> Result<Postgres> {
        let target = Arc::new(Target::new(url, &options)?);
        migrate::migrate(&target).await?;
        let link = |role| Link::new(role, target.clone());
        Ok(Postgres {
            renew: link(Role::Renew),
            claim: link(Role::Claim),
            settle: link(Role::Settle),
            append: link(Role::Append),
            command: link(Role::Command),
            exclusive: Exclusive::new(Role::Exclusive, 1, target.clone()),
            advance: Exclusive::new(Role::Advance, ADVANCE_CONNECTIONS, target.clone()),
            look: Exclusive::new(Role::Look, LOOK_CONNECTIONS, target.clone()),
            pings: Exclusive::new(Role::Ping, PING_CONNECTIONS, target.clone()),
            definitions: Definitions::default(),
            reads: (0..options.read_connections.max(1)).map(|_| link(Role::Read)).collect(),
            next_read: AtomicUsize::new(0),
            slow: link(Role::Slow),
            hints: Hints::start(target.clone()),
            tidy: Tidy::start(target.clone()),
        })
    }

    /// Removes the schema of these options with all that is in it: what a benchmark leaves behind.
    #[doc(hidden)]
    pub async fn erase(url: &str, options: PostgresOptions) -> Result<()> {
        let target = Target::new(url, &options)?;
        let session = target.connect(Role::Slow).await.map_err(everbeat_store::Error::from)?;
        let erased = session.client.batch_execute(&format!("drop schema if exists {} cascade", target.schema)).await;
        erased.map_err(|error| fault::Fault::from(error).into())
    }

    /// The server's version and how durable its commits are, for a report of figures.
    #[doc(hidden)]
    pub async fn durability(url: &str) -> Result<String> {
        let target = Target::new(url, &PostgresOptions { schema: "public".to_string(), ..PostgresOptions::default() })?;
        let session = target.connect(Role::Slow).await.map_err(everbeat_store::Error::from)?;
        let asked =
            "select 'PostgreSQL ' || current_setting('server_version') || ', fsync = ' || current_setting('fsync')
            || ', synchronous_commit = ' || current_setting('synchronous_commit')";
        let answer = session.client.query_one(asked, &[]).await;
        answer.map(|row| row.get(0)).map_err(|error| fault::Fault::from(error).into())
    }

    fn read(&self) -> &Link {
        &self.reads[self.next_read.fetch_add(1, Ordering::Relaxed) % self.reads.len()]
    }
}
