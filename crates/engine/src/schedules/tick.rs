//! Looks at schedules that are due: by the clock, because a run of theirs ended, because they may be late. Then at checks
//! that may be late or down.

use crate::checks;
use crate::engine::{Core, StoreClock};
use crate::env::Env;
use crate::replica::{Life, Phase};
use everbeat_model::id::Sequence;
use everbeat_model::schedule::{Decision, RunDefaults, ScheduleKind, Situation, Wish, look};
use everbeat_model::{Hole, RunId, ScheduleId};
use everbeat_store::{Error as StoreError, LookedAt, LookedSchedule, Scheduler};
use std::sync::Arc;
use std::time::Duration;

/// Schedules that one round takes.
pub(super) const ROUND: usize = 200;
/// After a round that failed, or found nothing but what others look at.
const PAUSE: Duration = Duration::from_millis(100);
/// So often a schedule is looked at again at once, if there is more to decide; the next round goes on.
const MOST_AGAIN: usize = 20;

/// The loop of one life.
pub(crate) async fn run(life: Arc<Life>) {
    let core = life.core.clone();
    loop {
        if matches!(life.phase(), Phase::Fenced | Phase::Left) {
            return;
        }
        let told = |error: StoreError| {
            tracing::debug!(%error, "cannot look at what is due");
            Some(PAUSE)
        };
        let schedules = round(&life).await.unwrap_or_else(told);
        let checks = checks::look::round(&life).await.unwrap_or_else(told);
        let next_in = schedules.into_iter().chain(checks).min();
        let longest = core.settings.tick_interval;
        let look_again = core.env.sleep(next_in.map_or(longest, |next| next.min(longest)));
        tokio::select! {
            biased;
            () = core.schedules_noted.notified() => {}
            () = look_again => {}
        }
    }
}

/// Looks at all that is due. One that fails does not hold back the others.
async fn round(life: &Arc<Life>) -> Result<Option<Duration>, StoreError> {
    let core = &life.core;
    let kinds: &[ScheduleKind] = if core.settings.flow_ticker { ScheduleKind::ALL } else { &[ScheduleKind::Schedule] };
    let due = life.call(core.store.due_schedules(kinds, ROUND)).await?;
    let mut busy = false;
    for schedule in &due.schedules {
        let clock = kinds.contains(&schedule.kind);
        match life.call(core.look_at_schedule(schedule.id, clock)).await {
            Ok(LookedAt::Busy) => busy = true,
            Ok(LookedAt::Done(_) | LookedAt::NotFound) => {}
            Err(error) => {
                tracing::debug!(%error, schedule = %schedule.id, "cannot look at a schedule");
                busy = true;
            }
        }
    }
    Ok(if busy { Some(PAUSE) } else { due.next_in })
}

impl Core {
    /// Looks at one schedule, again while there is more to decide.
    pub(super) async fn look_at_schedule(&self, id: ScheduleId, clock: bool) -> Result<LookedAt, StoreError> {
        let (mut whole, hole) = (LookedSchedule::default(), self.settings.hole);
        for _ in 0..MOST_AGAIN {
            let wish = Wish::Look { clock };
            let looked = if hole.is(Hole::AdvanceApart) || hole.is(Hole::DueByReading) {
                self.look_in_two_steps(id, wish).await?
            } else {
                self.store.look_at_schedule(id, wish, self.scheduler.clone()).await?
            };
            let LookedAt::Done(looked) = looked else { return Ok(looked) };
            self.looked_at(&looked);
            whole.due |= looked.due;
            whole.begun.extend(looked.begun);
            whole.waiting.extend(looked.waiting);
            whole.left += looked.left;
            if !looked.again {
                break;
            }
        }
        Ok(LookedAt::Done(whole))
    }

    /// Tells whom a look may concern.
    pub(super) fn looked_at(&self, looked: &LookedSchedule) {
        let [run, skipped] = crate::metrics::BECAME;
        metrics::counter!("everbeat_occurrences_total", "became" => run).increment(looked.begun.len() as u64);
        metrics::counter!("everbeat_occurrences_total", "became" => skipped).increment(looked.left);
        if !looked.begun.is_empty() {
            metrics::counter!("everbeat_runs_enqueued_total").increment(looked.begun.len() as u64);
            self.store.wake();
        }
    }
}

/// Decides with ids of this replica. It owns nothing but what that takes: stores call it from threads of their own.
pub(crate) struct ReplicaScheduler {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) clock: Arc<StoreClock>,
    pub(crate) ids: Arc<Sequence>,
    pub(crate) defaults: RunDefaults,
}

impl Scheduler for ReplicaScheduler {
    fn look(&self, situation: &Situation, wish: Wish) -> Decision {
        let mut new_run =
            || RunId(self.ids.next(self.clock.at(self.env.boot(), &*self.env).millis(), self.env.random()));
        if self.defaults.hole.is(Hole::DueByOwnClock) {
            let situation = Situation { now: self.env.wall(), ..situation.clone() };
            return look(&situation, wish, &self.defaults, &mut new_run);
        }
        look(situation, wish, &self.defaults, &mut new_run)
    }
}
