//! One thread writes. The writer takes what is queued, runs it all in one transaction, commits once, then
//! answers everybody: the more there is to do, the cheaper each piece gets, and nobody waits for a
//! timer.

use super::Random;
use super::disk::{Disk, make_room};
use super::fault::{Fault, Outcome};
use crate::obstacle::of_io;
use everbeat_model::{StoreTime, Token};
use everbeat_store::{Clock, Error, Obstacle, Result};
use rusqlite::Connection;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

/// Commands that may wait; further callers wait to be let in.
const QUEUE_LIMIT: usize = 1024;

/// Commands in one transaction, so that the first of them is not kept waiting for ever.
const GROUP_LIMIT: usize = 256;

/// A command that writes more has a transaction of its own: if there is no room for it, nobody else is harmed.
pub(super) const LARGE_BYTES: usize = 256 << 10;

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

struct Command {
    /// About how much the command writes.
    bytes: usize,
    run: Run,
}

impl Command {
    /// Whether the command shares no transaction.
    fn alone(&self) -> bool {
        self.bytes > LARGE_BYTES
    }
}

/// Is given a transaction, or the reason why there is none any more.
type Run = Box<dyn FnOnce(Result<&Tx<'_>>) -> Ran + Send>;

/// A command that ran: why its changes do not stand, if so, and how to tell its caller once they are
/// committed.
struct Ran {
    failure: Option<Error>,
    answer: Answer,
}

type Answer = Box<dyn FnOnce(Result<()>) + Send>;

impl Writer {
    pub(super) fn start(connection: Connection, clock: Arc<dyn Clock>, random: Random) -> Result<Writer> {
        let (commands, queue) = mpsc::channel(QUEUE_LIMIT);
        let thread = Builder::new()
            .name("sqlite-writer".to_string())
            .spawn(move || serve(&connection, queue, &*clock, &random))
            .map_err(|error| Error::unavailable(of_io(&error), format!("cannot start the writer thread: {error}")))?;
        Ok(Writer { commands: Some(commands), thread: Some(thread) })
    }

    /// Runs a command in a transaction and answers after its commit. Once queued the command runs, even if the
    /// caller no longer waits.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tx<'_>) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        self.write_bytes(0, work).await
    }

    /// Writes a command of about so many bytes.
    pub(super) async fn write_bytes<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&Tx<'_>) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        self.try_write(bytes, work).await.map_err(Error::from)
    }

    /// Writes a command of about so many bytes, for whoever tells apart why it failed.
    pub(super) async fn try_write<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&Tx<'_>) -> Outcome<T> + Send + 'static,
    ) -> Outcome<T> {
        let (tell, told) = oneshot::channel();
        let run: Run = Box::new(move |tx| {
            let panicked = || Fault::from(Error::Bug("a write panicked and was rolled back".to_string()));
            let result = tx
                .map_err(Fault::from)
                .and_then(|tx| catch_unwind(AssertUnwindSafe(|| work(tx))).unwrap_or_else(|_| Err(panicked())));
            let failure = result.as_ref().err().cloned().map(Error::from);
            let answer = move |commit: Result<()>| _ = tell.send(commit.map_err(Fault::from).and(result));
            Ran { failure, answer: Box::new(answer) }
        });
        let stopped = || Error::unavailable(Obstacle::Stopped, "the writer thread has stopped");
        let commands = self.commands.as_ref().ok_or_else(stopped)?;
        let command = Command { bytes, run };
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
    let mut group: VecDeque<Command> = VecDeque::with_capacity(GROUP_LIMIT);
    let mut next = None;
    let mut disk = Disk::of(connection);
    // After a shortage, so many commands have a transaction each: whoever fits in is not harmed by others.
    let mut singly = 0_usize;
    while let Some(first) = next.take().or_else(|| queue.blocking_recv()) {
        let (alone, large) = (first.alone() || singly > 0, first.alone().then_some(first.bytes));
        group.push_back(first);
        while !alone
            && group.len() < GROUP_LIMIT
            && let Ok(command) = queue.try_recv()
        {
            if command.alone() {
                next = Some(command);
                break;
            }
            group.push_back(command);
        }
        singly = singly.saturating_sub(1);
        let shared = group.len() > 1;
        let mut answers = Vec::with_capacity(group.len());
        let result = disk
            .room_for(connection, large)
            .and_then(|()| commit(connection, &mut group, clock, random, &mut answers).map_err(Error::from));
        if let Err(error) = &result {
            if !connection.is_autocommit() {
                _ = connection.execute_batch("rollback");
            }
            // Commands that the failure left over never ran; their callers are told why.
            answers.extend(group.drain(..).map(|command| (command.run)(Err(error.clone())).answer));
            if shared && error.may_be_content() {
                singly = GROUP_LIMIT;
            }
            if error.cause() == Some(Obstacle::DiskFull) {
                make_room(connection);
            }
        }
        answers.into_iter().for_each(|answer| answer(result.clone()));
    }
}

/// Runs the group in one transaction. After a failure the commands that did not run are still in it.
fn commit(
    connection: &Connection,
    group: &mut VecDeque<Command>,
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
    while !group.is_empty() {
        // A command that fails is rolled back alone; the rest of its group is not harmed.
        if !alone {
            savepoint.execute([])?;
        }
        // A command is taken when nothing can fail before it runs: commands in the group can still be told.
        let Some(command) = group.pop_front() else { break };
        let ran = (command.run)(Ok(&Tx { connection, now: clock.now(), random }));
        answers.push(ran.answer);
        if let Some(failure) = &ran.failure
            && connection.is_autocommit()
        {
            let lost = "the transaction was rolled back by the database";
            return Err(Error::unavailable(failure.cause().unwrap_or(Obstacle::Io), lost).into());
        }
        match (ran.failure.is_some(), alone) {
            (true, true) => {
                connection.execute_batch("rollback")?;
                if ran.failure.and_then(|failure| failure.cause()) == Some(Obstacle::DiskFull) {
                    make_room(connection);
                }
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::future::Future;
    use std::sync::mpsc as std_mpsc;

    fn writer(connection: Connection) -> Writer {
        Writer::start(connection, Arc::new(|| StoreTime(0)), Arc::new(|| 0)).expect("start")
    }

    /// Keeps the writer busy until every one of `writes` is queued, so that they make one group.
    async fn in_one_group<T>(writer: &Writer, writes: Vec<impl Future<Output = T>>) -> Vec<T> {
        let (started, busy) = oneshot::channel();
        let (release, released) = std_mpsc::channel::<()>();
        let block = writer.write(move |_| {
            _ = started.send(());
            _ = released.recv();
            Ok(())
        });
        let queue = async {
            busy.await.expect("the writer runs");
            let all = futures_util::future::join_all(writes);
            let mut all = std::pin::pin!(all);
            assert!(all.as_mut().now_or_never().is_none(), "all are queued");
            drop(release);
            all.await
        };
        let (_, answers) = tokio::join!(block, queue);
        answers
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_was_left_over_after_a_failed_group_is_told_why_and_the_writer_goes_on() {
        let writer = writer(Connection::open_in_memory().expect("open"));
        // As SQLite itself does when the disk is full.
        let lose = |number: i32| {
            writer.write(move |tx| match number {
                1 => {
                    tx.connection.execute_batch("rollback")?;
                    Err(Error::Bug("the statement failed".to_string()).into())
                }
                _ => Ok(number),
            })
        };
        for answer in in_one_group(&writer, (0..4).map(lose).collect()).await {
            let Err(Error::Unavailable { detail, .. }) = answer else { panic!("{answer:?}") };
            assert!(detail.contains("rolled back by the database"), "{detail}");
        }
        assert_eq!(writer.write(|_| Ok(7)).await, Ok(7));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_waited_for_a_transaction_that_could_not_begin_is_told_why() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let open = || Connection::open(folder.path().join("store.db")).expect("open");
        let (ours, theirs) = (open(), open());
        theirs.execute_batch("create table held (id integer)").expect("create");
        ours.busy_timeout(std::time::Duration::ZERO).expect("configure");
        let writer = writer(ours);
        let busy = || writer.write(|_| Ok(()));
        theirs.execute_batch("begin immediate").expect("begin");
        let answers = futures_util::future::join_all((0..3).map(|_| busy())).await;
        for answer in answers {
            assert_eq!(answer.expect_err("it is held").cause(), Some(Obstacle::LockTimeout));
        }
        theirs.execute_batch("rollback").expect("rollback");
        assert_eq!(busy().await, Ok(()));
    }
}
