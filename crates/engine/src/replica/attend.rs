//! Attends to what others ask of this replica: cancels of its runs, and runs that fall due.

use super::{Life, Phase};
use std::sync::Arc;
use std::time::Duration;

/// Due runs are moved in batches of this many.
const PROMOTE_BATCH: usize = 1000;

/// Hints may come in floods; looking this often is often enough.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

pub(crate) async fn run(life: Arc<Life>) {
    let core = life.core.clone();
    let mut wakes = core.store.wakes();
    loop {
        if matches!(life.phase(), Phase::Fenced | Phase::Left) {
            return;
        }
        cancels(&life).await;
        let next_in = due(&life).await;
        core.env.sleep(LOOK_PAUSE).await;
        let idle = core.settings.idle_limit();
        let look_again = core.env.sleep(next_in.map_or(idle, |next| next.min(idle)));
        tokio::select! {
            biased;
            // The hint may be for this replica itself, which is to drain: its next renewal is told so.
            () = wakes.wait() => life.hinted.notify_one(),
            () = look_again => {}
        }
    }
}

async fn cancels(life: &Life) {
    match life.call(life.core.store.cancel_asked(life.id)).await {
        Ok(asked) => {
            let now = life.core.env.boot();
            for shown in asked {
                let Some(work) = life.table().get(shown.token) else { continue };
                if work.vital().cancel_asked.is_none() && work.ask_cancel(now) {
                    life.rearm(&work);
                }
            }
        }
        Err(error) => tracing::debug!(%error, "cannot look for cancels"),
    }
}

/// Moves due runs to ready. Answers how long until the next one is due.
async fn due(life: &Life) -> Option<Duration> {
    match life.call(life.core.store.promote(PROMOTE_BATCH)).await {
        Ok(promoted) => {
            if promoted.moved > 0 {
                life.all_freed();
                life.core.store.wake();
            }
            if promoted.moved == PROMOTE_BATCH { Some(Duration::ZERO) } else { promoted.next_in }
        }
        Err(error) => {
            tracing::debug!(%error, "cannot move due runs");
            None
        }
    }
}
