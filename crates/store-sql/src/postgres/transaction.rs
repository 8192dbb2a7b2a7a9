//! Transactions of several statements, on a connection of their own: nothing else may slip between
//! them.

use super::fault::{Fault, Outcome};
use super::link::{Params, Role, Session, Target, within};
use std::sync::Arc;
use tokio::sync::{Mutex, MutexGuard};
use tokio_postgres::Row;

pub(super) struct Exclusive {
    target: Arc<Target>,
    slot: Mutex<Option<Session>>,
}

/// An open transaction. Unless it is committed or rolled back its connection is dropped, and the
/// server undoes it: also when the caller stops waiting half-way.
pub(super) struct Transaction<'a> {
    exclusive: &'a Exclusive,
    slot: MutexGuard<'a, Option<Session>>,
    session: Session,
}

impl Exclusive {
    pub(super) fn new(target: Arc<Target>) -> Exclusive {
        Exclusive { target, slot: Mutex::new(None) }
    }

    pub(super) async fn begin(&self) -> Outcome<Transaction<'_>> {
        within(self.target.call_timeout(Role::Exclusive), async {
            let mut slot = self.slot.lock().await;
            let session = match slot.take().filter(Session::usable) {
                Some(session) => session,
                None => self.target.connect(Role::Exclusive).await?,
            };
            session.client.batch_execute("begin").await?;
            Ok(Transaction { exclusive: self, slot, session })
        })
        .await?
    }
}

impl Transaction<'_> {
    pub(super) async fn query(&self, sql: &str, params: Params<'_>) -> Outcome<Vec<Row>> {
        self.bounded(self.session.query(sql, params)).await
    }

    pub(super) async fn commit(self) -> Outcome<()> {
        self.end("commit").await
    }

    pub(super) async fn rollback(self) -> Outcome<()> {
        self.end("rollback").await
    }

    async fn end(mut self, command: &str) -> Outcome<()> {
        self.bounded(async { Ok(self.session.client.batch_execute(command).await?) }).await?;
        *self.slot = Some(self.session);
        Ok(())
    }

    async fn bounded<T>(&self, work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        let answer = within(self.exclusive.target.call_timeout(Role::Exclusive), work).await.and_then(|answer| answer);
        if answer.as_ref().is_err_and(Fault::spoils_connection) {
            self.session.cut();
        }
        answer
    }
}
