//! Vacuum for the tables that every run passes through. A claim reads its lane from the front, where the
//! claimed ones were: what they leave behind is in every claim's way until a vacuum has been there, and
//! the server's own comes about once a minute. Notes of executions are read from the front likewise.

use super::link::{Link, Role, Target};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// Rows claimed by this server between two vacuums.
const CLAIMED_BETWEEN: usize = 50_000;

/// Does not wait for anybody, and leaves the files their size: they will be filled again.
const VACUUM: &str = "vacuum (skip_locked, truncate off) ready, lease, agenda";

pub(super) struct Tidy {
    claimed: AtomicUsize,
    due: Arc<Notify>,
    task: AbortHandle,
}

impl Tidy {
    #[allow(clippy::disallowed_methods, reason = "owned by the store and aborted with it")]
    pub(super) fn start(target: Arc<Target>) -> Tidy {
        let due = Arc::new(Notify::new());
        let task = tokio::spawn(keep_tidy(Link::new(Role::Slow, target), due.clone())).abort_handle();
        Tidy { claimed: AtomicUsize::new(0), due, task }
    }

    pub(super) fn claimed(&self, rows: usize) {
        if self.claimed.fetch_add(rows, Ordering::Relaxed) + rows >= CLAIMED_BETWEEN {
            self.claimed.store(0, Ordering::Relaxed);
            self.due.notify_one();
        }
    }
}

impl Drop for Tidy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep_tidy(link: Link, due: Arc<Notify>) {
    loop {
        due.notified().await;
        if let Err(fault) = link.execute(VACUUM).await {
            tracing::debug!(?fault, "the hot tables could not be vacuumed; the server will do it");
        }
    }
}
