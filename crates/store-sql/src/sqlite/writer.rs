//! One thread writes. It takes what is queued, runs it all in one transaction, commits once, then
//! answers everybody: the more there is to do, the cheaper each piece gets, and nobody waits for a
//! timer.

use super::Random;
use super::fault::{Fault, Outcome};
use everbeat_model::{StoreTime, Token};
use everbeat_store::{Clock, Error, Result};
use rusqlite::Connection;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

/// Commands that may wait; further callers wait to be let in.
const QUEUE_LIMIT: usize = 1024;

/// Commands in one transaction, so that the first of them is not kept waiting for ever.
const GROUP_LIMIT: usize = 256;

pub(super) struct Writer {
    commands: Option<mpsc::Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

/// What a command works with, inside the writer's transaction.
pub(super) struct Tx<'a> {
    pub(super) connection: &'a Connection,
    pub(super) now: StoreTime,
    random: &'a Random,
}

type Command = Box<dyn FnOnce(&Tx<'_>) -> Ran + Send>;

/// A command that ran: whether its changes stand, and how to tell its caller once they are committed.
struct Ran {
    failed: bool,
    answer: Box<dyn FnOnce(Result<()>) + Send>,
}

impl Writer {
    pub(super) fn start(connection: Connection, clock: Arc<dyn Clock>, random: Random) -> Result<Writer> {
        let (commands, queue) = mpsc::channel(QUEUE_LIMIT);
        let thread = Builder::new()
            .name("sqlite-writer".to_string())
            .spawn(move || serve(&connection, queue, &*clock, &random))
            .map_err(|error| Error::Unavailable(format!("cannot start the writer thread: {error}")))?;
        Ok(Writer { commands: Some(commands), thread: Some(thread) })
    }

    /// Runs a command in a transaction and answers after its commit. Once queued it runs, even if the
    /// caller no longer waits.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tx<'_>) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        let (tell, told) = oneshot::channel();
        let command: Command = Box::new(move |tx| {
            let result = catch_unwind(AssertUnwindSafe(|| work(tx)))
                .unwrap_or_else(|_| Err(Fault(Error::Bug("a write panicked and was rolled back".to_string()))))
                .map_err(|fault| fault.0);
            let failed = result.is_err();
            Ran { failed, answer: Box::new(move |commit| _ = tell.send(commit.and(result))) }
        });
        let stopped = || Error::Unavailable("the writer thread has stopped".to_string());
        let commands = self.commands.as_ref().ok_or_else(stopped)?;
        commands.send(command).await.map_err(|_| stopped())?;
        told.await.map_err(|_| stopped())?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

impl Tx<'_> {
    pub(super) fn token(&self) -> Token {
        Token(Uuid::from_u128((self.random)()))
    }

    /// One row for all that a write did.
    pub(super) fn append_events(&self, lines: &[String]) -> Outcome<()> {
        if !lines.is_empty() {
            let mut insert = self.connection.prepare_cached("insert into event (at, body) values (?1, ?2)")?;
            insert.execute((self.now.0, lines.join("\n")))?;
        }
        Ok(())
    }
}

fn serve(connection: &Connection, mut queue: mpsc::Receiver<Command>, clock: &dyn Clock, random: &Random) {
    let mut group = Vec::with_capacity(GROUP_LIMIT);
    while let Some(first) = queue.blocking_recv() {
        group.push(first);
        while group.len() < GROUP_LIMIT
            && let Ok(next) = queue.try_recv()
        {
            group.push(next);
        }
        let mut answers = Vec::with_capacity(group.len());
        let result = commit(connection, &mut group, clock, random, &mut answers).map_err(|fault| fault.0);
        if result.is_err() && !connection.is_autocommit() {
            _ = connection.execute_batch("rollback");
        }
        // Commands left over after a failure were never run.
        group.clear();
        answers.into_iter().for_each(|answer| answer(result.clone()));
    }
}

type Answer = Box<dyn FnOnce(Result<()>) + Send>;

fn commit(
    connection: &Connection,
    group: &mut Vec<Command>,
    clock: &dyn Clock,
    random: &Random,
    answers: &mut Vec<Answer>,
) -> Outcome<()> {
    let alone = group.len() == 1;
    connection.prepare_cached("begin immediate")?.execute([])?;
    let (mut savepoint, mut release, mut undo) = (
        connection.prepare_cached("savepoint command")?,
        connection.prepare_cached("release command")?,
        connection.prepare_cached("rollback to command")?,
    );
    for command in group.drain(..) {
        // A command that fails is rolled back alone; the rest of its group is not harmed.
        if !alone {
            savepoint.execute([])?;
        }
        let ran = command(&Tx { connection, now: clock.now(), random });
        answers.push(ran.answer);
        if ran.failed && connection.is_autocommit() {
            let lost = "the transaction was rolled back by the database: the disk may be full or failing";
            return Err(Error::Unavailable(lost.to_string()).into());
        }
        match (ran.failed, alone) {
            (true, true) => {
                connection.execute_batch("rollback")?;
                return Ok(());
            }
            (true, false) => {
                undo.execute([])?;
                release.execute([])?;
            }
            (false, true) => {}
            (false, false) => _ = release.execute([])?,
        }
    }
    connection.prepare_cached("commit")?.execute([])?;
    Ok(())
}
