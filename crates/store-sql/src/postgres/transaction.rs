//! Transactions of several statements, on connections of their own: nothing else may slip between
//! them.

use super::fault::{Fault, Outcome};
use super::link::{Params, Role, Session, Target, within};
use futures_util::future::{join, join_all};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::Row;

/// A few connections, each for one transaction at a time.
pub(super) struct Exclusive {
    role: Role,
    target: Arc<Target>,
    permits: Semaphore,
    idle: Mutex<Vec<Session>>,
}

/// An open transaction. Unless it is committed or rolled back its connection is dropped, and the
/// server undoes it: also when the caller stops waiting half-way.
pub(super) struct Transaction<'a> {
    exclusive: &'a Exclusive,
    session: Session,
    _permit: SemaphorePermit<'a>,
}

impl Exclusive {
    pub(super) fn new(role: Role, connections: usize, target: Arc<Target>) -> Exclusive {
        Exclusive { role, target, permits: Semaphore::new(connections), idle: Mutex::default() }
    }

    pub(super) async fn begin(&self) -> Outcome<Transaction<'_>> {
        within(self.target.call_timeout(self.role), async {
            let permit = self.permits.acquire().await.map_err(|error| Fault::Bug(error.to_string()))?;
            let session = match self.take_idle() {
                Some(session) => session,
                None => self.target.connect(self.role).await?,
            };
            session.client.batch_execute("begin").await?;
            Ok(Transaction { exclusive: self, session, _permit: permit })
        })
        .await?
    }

    fn take_idle(&self) -> Option<Session> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(Session::usable);
        idle.pop()
    }
}

impl Transaction<'_> {
    pub(super) async fn query(&self, sql: &str, params: Params<'_>) -> Outcome<Vec<Row>> {
        self.bounded(self.session.query(sql, params)).await
    }

    /// Statements one after the other, without waiting for the answers in between.
    pub(super) async fn all(&self, statements: &[(&str, Params<'_>)]) -> Outcome<Vec<Vec<Row>>> {
        self.bounded(async {
            // What is prepared is sent at once, so that the order stays.
            for (sql, _) in statements {
                self.session.prepare(sql).await?;
            }
            let answers = join_all(statements.iter().map(|(sql, params)| self.session.query(sql, params))).await;
            answers.into_iter().collect()
        })
        .await
    }

    pub(super) async fn commit(self) -> Outcome<()> {
        self.end("commit").await
    }

    /// Runs a last statement and commits, without waiting for the answer in between: what the statement locks is not
    /// held for another way to the server and back. After a statement that failed, the server takes the commit for a
    /// rollback.
    pub(super) async fn commit_with(self, sql: &str, params: Params<'_>) -> Outcome<()> {
        self.bounded(async {
            self.session.prepare(sql).await?;
            let commit = self.session.client.batch_execute("commit");
            let (last, committed) = join(self.session.query(sql, params), commit).await;
            last?;
            Ok(committed?)
        })
        .await?;
        self.keep();
        Ok(())
    }

    pub(super) async fn rollback(self) -> Outcome<()> {
        self.end("rollback").await
    }

    /// Commits what went well; undoes what did not, and keeps the connection if it can be used again.
    pub(super) async fn close<T>(self, answer: Outcome<T>) -> Outcome<T> {
        match answer {
            Ok(answer) => self.commit().await.map(|()| answer),
            Err(fault @ (Fault::Again(_) | Fault::Data(_))) => {
                self.rollback().await?;
                Err(fault)
            }
            Err(fault) => Err(fault),
        }
    }

    async fn end(self, command: &str) -> Outcome<()> {
        self.bounded(async { Ok(self.session.client.batch_execute(command).await?) }).await?;
        self.keep();
        Ok(())
    }

    /// The connection is free for another transaction.
    fn keep(self) {
        self.exclusive.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.session);
    }

    async fn bounded<T>(&self, work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        let limit = self.exclusive.target.call_timeout(self.exclusive.role);
        let answer = within(limit, work).await.and_then(|answer| answer);
        if answer.as_ref().is_err_and(Fault::spoils_connection) {
            self.session.cut();
        }
        answer
    }
}
