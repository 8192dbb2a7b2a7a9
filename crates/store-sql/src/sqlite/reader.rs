//! Reads run beside the writer, each on a snapshot of what is committed.

use super::fault::Outcome;
use crate::obstacle::of_io;
use everbeat_store::{Error, Obstacle, Result};
use rusqlite::Connection;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use tokio::sync::{mpsc, oneshot};

/// Enough that a long list does not hold up everybody else.
const READERS: usize = 3;

/// Reads that may wait; further callers wait to be let in.
const QUEUE_LIMIT: usize = 1024;

pub(super) struct Readers {
    questions: Option<mpsc::Sender<Question>>,
    threads: Vec<JoinHandle<()>>,
}

type Question = Box<dyn FnOnce(&Connection) + Send>;

impl Readers {
    pub(super) fn start(open: impl Fn() -> Result<Connection>) -> Result<Readers> {
        let (questions, queue) = mpsc::channel(QUEUE_LIMIT);
        let queue = Arc::new(Mutex::new(queue));
        let mut threads = Vec::with_capacity(READERS);
        for number in 0..READERS {
            let (connection, queue) = (open()?, queue.clone());
            let thread = Builder::new()
                .name(format!("sqlite-reader-{number}"))
                .spawn(move || serve(&connection, &queue))
                .map_err(|error| Error::unavailable(of_io(&error), format!("cannot start a reader thread: {error}")))?;
            threads.push(thread);
        }
        Ok(Readers { questions: Some(questions), threads })
    }

    /// Answers from one snapshot, however many statements `look` runs.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Connection) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        let (tell, told) = oneshot::channel();
        let question: Question = Box::new(move |connection| {
            let result = catch_unwind(AssertUnwindSafe(|| snapshot(connection, look)))
                .unwrap_or_else(|_| Err(Error::Bug("a read panicked".to_string()).into()));
            if !connection.is_autocommit() {
                _ = connection.execute_batch("rollback");
            }
            _ = tell.send(result.map_err(Error::from));
        });
        let stopped = || Error::unavailable(Obstacle::Stopped, "the reader threads have stopped");
        let questions = self.questions.as_ref().ok_or_else(stopped)?;
        questions.send(question).await.map_err(|_| stopped())?;
        told.await.map_err(|_| stopped())?
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.questions = None;
        for thread in self.threads.drain(..) {
            _ = thread.join();
        }
    }
}

fn snapshot<T>(connection: &Connection, look: impl FnOnce(&Connection) -> Outcome<T>) -> Outcome<T> {
    connection.prepare_cached("begin")?.execute([])?;
    let found = look(connection)?;
    connection.prepare_cached("commit")?.execute([])?;
    Ok(found)
}

fn serve(connection: &Connection, queue: &Mutex<mpsc::Receiver<Question>>) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
        match next {
            Some(question) => question(connection),
            None => return,
        }
    }
}
