//! What this host lacks to begin commands. While it lasts no jobs are taken; it is looked at again after pauses that
//! grow, and when it seems to be over, jobs are begun one, then two, then four at a time.

use super::shims::Shims;
use crate::attempts::Work;
use crate::engine::lock;
use crate::env::{Env, within};
use crate::replica::Life;
use everbeat_model::time::format_duration;
use everbeat_model::{BootInstant, Shortage};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Shortages(Mutex<Supply>);

#[derive(Clone, Debug, Default, PartialEq)]
enum Supply {
    #[default]
    Enough,
    /// Nothing is begun before the pause is over and a look has found that there is enough again.
    Short { lack: Lack, until: BootInstant },
    /// It looks as if there were enough; so many may be starting at once.
    Trying { lack: Lack, since: BootInstant, most: usize },
}

/// What was missing, and how.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lack {
    pub(crate) what: Shortage,
    pub(crate) message: String,
    pub(crate) since: BootInstant,
    pause: Duration,
}

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

fn longest_pause(life: &Life) -> Duration {
    LONGEST_PAUSE.min(life.core.settings.heartbeat_timeout / 2)
}

/// How long whoever could not begin so many times in a row waits for the next time.
pub(super) fn pause_after(life: &Life, times: u32) -> Duration {
    let longest = longest_pause(life);
    let doubled = 2_u32.saturating_pow(times.saturating_sub(1));
    FIRST_PAUSE.min(longest / 4).saturating_mul(doubled).min(longest)
}

impl Shortages {
    /// Somebody could not begin for want of something. Answers how long its run should wait.
    pub(super) fn met(&self, life: &Life, what: Shortage, message: &str) -> Duration {
        let now = life.core.env.boot();
        let (first, longest) = (pause_after(life, 1), longest_pause(life));
        let mut supply = lock(&self.0);
        let lack = match std::mem::take(&mut *supply) {
            Supply::Enough => {
                tracing::warn!(
                    short = what.as_str(),
                    error = message,
                    hint = what.hint(),
                    "no jobs are begun for now: {what}"
                );
                Lack { what, message: message.to_string(), since: now, pause: first }
            }
            // One of those that were on their way when the first of them met it.
            Supply::Short { lack, until } if now < until => {
                let pause = lack.pause;
                *supply = Supply::Short { lack, until };
                return pause;
            }
            Supply::Short { lack, .. } | Supply::Trying { lack, .. } => {
                let pause = (lack.pause * 2).min(longest);
                Lack { what, message: message.to_string(), pause, ..lack }
            }
        };
        let pause = lack.pause;
        *supply = Supply::Short { lack, until: now + pause };
        metrics::gauge!("everbeat_jobs_short").set(1.0);
        pause
    }

    /// A command has begun whose start was asked for at `asked`.
    pub(super) fn began(&self, life: &Life, asked: BootInstant) {
        let mut supply = lock(&self.0);
        // What was on its way when the shortage was met proves nothing.
        let Supply::Trying { lack, since, most } = &mut *supply else { return };
        if asked < *since {
            return;
        }
        *most *= 2;
        if *most >= life.core.settings.jobs.slots.max(2) {
            let lasted = life.core.env.boot().since(lack.since);
            tracing::info!(short = lack.what.as_str(), lasted_ms = lasted.as_millis(), "jobs are begun again");
            *supply = Supply::Enough;
        }
    }

    /// How many more may be begun now.
    pub(super) fn allowance(&self, works: &[Arc<Work>]) -> usize {
        match &*lock(&self.0) {
            Supply::Enough => usize::MAX,
            Supply::Short { .. } => 0,
            Supply::Trying { since, most, .. } => most.saturating_sub(starting(works, *since)),
        }
    }

    /// What is missing now, as far as it is known, and how long until it is looked at again.
    pub(crate) fn lack(&self, env: &dyn Env) -> Option<(Lack, Duration)> {
        match &*lock(&self.0) {
            Supply::Short { lack, until } => Some((lack.clone(), until.since(env.boot()))),
            Supply::Enough | Supply::Trying { .. } => None,
        }
    }

    /// Looks whether there is enough again, when it is time to.
    pub(crate) async fn look(&self, life: &Life, shims: &dyn Shims) {
        let env = &*life.core.env;
        let due = matches!(&*lock(&self.0), Supply::Short { until, .. } if *until <= env.boot());
        if !due {
            return;
        }
        let probed = within(env, life.core.settings.call_limit() / 2, shims.probe()).await;
        let missing = match &probed {
            Some(Ok(())) => None,
            Some(Err(error)) => Shortage::of(error).map(|what| (what, error.to_string())),
            None => match &*lock(&self.0) {
                Supply::Short { lack, .. } => Some((lack.what, "a look at the machine takes too long".to_string())),
                _ => None,
            },
        };
        match missing {
            Some((what, message)) => _ = self.met(life, what, &message),
            None => self.try_again(env.boot()),
        }
    }

    fn try_again(&self, now: BootInstant) {
        let mut supply = lock(&self.0);
        if let Supply::Short { lack, .. } = &*supply {
            *supply = Supply::Trying { lack: lack.clone(), since: now, most: 1 };
            metrics::gauge!("everbeat_jobs_short").set(0.0);
        }
    }
}

/// How many of the commands that were taken since then are still being started.
fn starting(works: &[Arc<Work>], since: BootInstant) -> usize {
    works.iter().filter(|work| work.started >= since && work.vital().starting).count()
}

impl Lack {
    /// For whoever waits.
    pub(crate) fn describe(&self, left: Duration) -> String {
        let left = Duration::from_secs(left.as_secs() + 1);
        format!("{} ({}); it is looked at again within {}", self.what, self.message, format_duration(left))
    }
}
