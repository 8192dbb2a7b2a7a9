//! The planted mistakes in looking at schedules. No build of a binary reaches them.

use crate::engine::Core;
use everbeat_model::schedule::{Decision, Situation, Wish};
use everbeat_model::{Enqueue, Hole, NewRun, ScheduleId};
use everbeat_store::{Error as StoreError, LookedAt, Scheduler};
use std::sync::{Arc, Mutex, PoisonError};

impl Core {
    /// Looks at a schedule in two writes, or in a reading and a write, instead of in one transaction.
    pub(super) async fn look_in_two_steps(&self, id: ScheduleId, wish: Wish) -> Result<LookedAt, StoreError> {
        let first = Arc::new(FirstStep {
            sound: self.scheduler.clone(),
            reads_only: self.settings.hole.is(Hole::DueByReading),
            decided: Mutex::default(),
        });
        let looked = self.store.look_at_schedule(id, wish.clone(), first.clone()).await?;
        let decided = first.decided.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(decision) = decided else { return Ok(looked) };
        if first.reads_only {
            return self.store.look_at_schedule(id, wish, Arc::new(SecondStep(decision))).await;
        }
        let enqueue = |run: NewRun| Enqueue { runs: vec![run], idempotency: None };
        let made = decision.begin.into_iter().map(enqueue).collect();
        self.store.enqueue(made).await?;
        Ok(looked)
    }
}

/// Either only reads, or writes all but the runs.
struct FirstStep {
    sound: Arc<dyn Scheduler>,
    reads_only: bool,
    decided: Mutex<Option<Decision>>,
}

impl Scheduler for FirstStep {
    fn look(&self, situation: &Situation, wish: Wish) -> Decision {
        let decision = self.sound.look(situation, wish);
        *self.decided.lock().unwrap_or_else(PoisonError::into_inner) = Some(decision.clone());
        if !self.reads_only {
            return Decision { begin: Vec::new(), ..decision };
        }
        let (next_due, late_since) = (situation.next_due, situation.late_since);
        Decision { next_due, late_since, cursor: situation.cursor.clone(), ..Decision::default() }
    }
}

/// Writes what was decided from the reading, whatever has happened since.
struct SecondStep(Decision);

impl Scheduler for SecondStep {
    fn look(&self, _situation: &Situation, _wish: Wish) -> Decision {
        self.0.clone()
    }
}
