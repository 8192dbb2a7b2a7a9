//! What waits for a disk or a shim waits on threads, of which there are so many.

use super::{Host, HostShims};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// So many wait at a time: a thousand jobs do not take a thousand threads. Each kind has places of its own, so that what
/// is slow starves nobody.
pub(super) struct Places {
    /// What ends processes or removes files, and may wait for an earlier attempt's whole grace.
    deeds: Arc<Semaphore>,
    /// What is said to a shim: it must be in time.
    words: Arc<Semaphore>,
    looks: Arc<Semaphore>,
}

impl Places {
    pub(super) fn new() -> Places {
        let places = || Arc::new(Semaphore::new(PLACES));
        Places { deeds: places(), words: places(), looks: places() }
    }
}

const PLACES: usize = 64;
/// What is not begun within that may have no thread.
const THREAD_WITHIN: Duration = Duration::from_secs(1);

impl HostShims {
    pub(super) async fn deed<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Host) -> T + Send + 'static,
    ) -> io::Result<T> {
        self.blocking(&self.places.deeds, work).await
    }

    pub(super) async fn word<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Host) -> T + Send + 'static,
    ) -> io::Result<T> {
        self.blocking(&self.places.words, work).await
    }

    pub(super) async fn look<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Host) -> T + Send + 'static,
    ) -> io::Result<T> {
        self.blocking(&self.places.looks, work).await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        places: &Arc<Semaphore>,
        work: impl FnOnce(&Host) -> T + Send + 'static,
    ) -> io::Result<T> {
        let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
        let host = self.host.clone();
        let done = self.runtime.spawn_blocking(move || {
            let _until_done = place;
            work(&host)
        });
        self.finished(done).await
    }

    /// Waits for what was handed to a thread. Where no thread can be made for it, it is taken back.
    #[expect(clippy::disallowed_methods, reason = "threads are of this process, on whatever clock the engine runs")]
    async fn finished<T>(&self, mut done: JoinHandle<T>) -> io::Result<T> {
        loop {
            let thread_within = {
                let _inside = self.runtime.enter();
                tokio::time::sleep(THREAD_WITHIN)
            };
            tokio::select! {
                biased;
                ended = &mut done => return ended.map_err(|error| match error.is_cancelled() {
                    true => rustix::io::Errno::AGAIN.into(),
                    false => io::Error::other(error),
                }),
                () = thread_within => {}
            }
            match std::thread::Builder::new().spawn(|| ()) {
                // Without effect on what has begun.
                Err(_) => done.abort(),
                // It may lie there since there was none, and nobody looks for it by himself.
                Ok(_) => drop(self.runtime.spawn_blocking(|| ())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;
    use std::sync::mpsc;

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_slow_keeps_nobody_from_looking_or_speaking() {
        let data_dir = tempfile::tempdir().unwrap();
        let place = Place::take(data_dir.path(), crate::Misplaced::Refuse).unwrap();
        let shims = HostShims::open(&place, "/nowhere".into(), Vec::new()).unwrap();
        let (go, waits) = mpsc::channel::<()>();
        let waits = Arc::new(std::sync::Mutex::new(waits));
        let mut slow = tokio::task::JoinSet::new();
        for _ in 0..2 * PLACES {
            let (shims, waits) = (shims.clone(), waits.clone());
            slow.spawn(async move { shims.deed(move |_| waits.lock().unwrap().recv()).await });
        }
        while shims.places.deeds.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        // Neither would ever come to an end.
        shims.look(|_| ()).await.unwrap();
        shims.word(|_| ()).await.unwrap();
        drop(go);
        for done in slow.join_all().await {
            done.unwrap().unwrap_err();
        }
    }
}
