//! What runs stream, as users read and follow it.

use super::waiters::Awaited;
use crate::{Engine, Result};
use everbeat_model::RunId;
use everbeat_store::{OutputFilter, OutputPage};
use std::time::Duration;

/// So often a follower looks for what another replica has stored. What this replica stores it is told.
const LOOK: Duration = Duration::from_millis(200);
/// The same while this replica performs the run.
const LOOK_HERE: Duration = Duration::from_secs(2);

/// A part of what a run has streamed.
#[derive(Clone, Debug)]
pub struct OutputView {
    pub page: OutputPage,
    /// The run is finished, and nothing follows.
    pub finished: bool,
}

impl Engine {
    /// What a run has streamed. If there is nothing yet, waits for more until the run is finished, at most `wait`.
    pub async fn streamed(&self, filter: OutputFilter, wait: Duration) -> Result<OutputView> {
        let waiters = &self.core.waiters;
        let (more, end) = (waiters.register(Awaited::Output(filter.run)), waiters.register(Awaited::Run(filter.run)));
        let env = self.core.env.clone();
        let until = env.boot() + wait;
        loop {
            let (told, ended) = (more.notify.notified(), end.notify.notified());
            tokio::pin!(told, ended);
            // Enabled before the look, so that news in between are not missed.
            told.as_mut().enable();
            ended.as_mut().enable();
            let view = self.look_at_output(filter).await?;
            let left = until.since(env.boot());
            if !view.page.items.is_empty() || view.finished || left.is_zero() {
                return Ok(view);
            }
            let look = if self.performs_now(filter.run) { LOOK_HERE } else { LOOK };
            let again = env.sleep_until(env.boot() + look.min(left));
            tokio::select! {
                biased;
                () = told => {}
                () = ended => {}
                () = again => {}
            }
        }
    }

    async fn look_at_output(&self, filter: OutputFilter) -> Result<OutputView> {
        // Asked first: whatever a finished run has streamed is there.
        let over = !self.core.store.finished(vec![filter.run]).await?.is_empty();
        let page = self.core.store.output(filter).await?;
        if over && page.last == 0 {
            // One that is not known counts as over too.
            self.stored_run(filter.run).await?;
        }
        let reached = page.items.last().map_or(filter.after, |item| item.seq).max(filter.after);
        // With nothing left of what is asked for, whatever is above is of another kind.
        let all = page.items.is_empty() || reached >= page.last;
        Ok(OutputView { finished: over && all, page })
    }

    fn performs_now(&self, run: RunId) -> bool {
        self.core.life().is_some_and(|life| life.table().of_run(run).is_some())
    }
}
