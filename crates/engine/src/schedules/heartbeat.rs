//! Heartbeats from outside: whoever calls has everything looked at that is due. Calls that come together share one look.

use super::tick::ROUND;
use crate::batch::{Batched, Outcome};
use crate::engine::Core;
use crate::{Engine, Result};
use everbeat_model::schedule::ScheduleKind;
use everbeat_store::{Error as StoreError, LookedAt};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::Arc;

/// One call.
#[derive(Clone, Copy)]
pub(crate) struct Beat;

/// What a call came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Flows that were due when it looked.
    pub due: usize,
    /// Runs that it made. Of calls that shared a look the first one made them.
    pub triggered: usize,
}

impl Engine {
    /// Looks at all flows that are due.
    pub async fn heartbeat(&self) -> Result<Heard> {
        Ok(self.core.heartbeats.ask(Beat).await?)
    }
}

impl Batched for Beat {
    type Answer = Heard;
    const MOST: usize = 4096;

    fn write(core: &Arc<Core>, requests: Vec<Beat>) -> BoxFuture<'_, Vec<Outcome<Beat>>> {
        async move {
            match look(core).await {
                Err(error) => vec![Err(error); requests.len()],
                Ok(heard) => {
                    let share = |place| Heard { triggered: if place == 0 { heard.triggered } else { 0 }, ..heard };
                    (0..requests.len()).map(|place| Ok(share(place))).collect()
                }
            }
        }
        .boxed()
    }
}

/// Looks until nothing is due that this call has not looked at. A flow that cannot be looked at does not hold back others.
async fn look(core: &Arc<Core>) -> std::result::Result<Heard, StoreError> {
    let mut heard = Heard::default();
    let mut seen = BTreeSet::new();
    loop {
        let due = core.bounded(core.store.due_schedules(&[ScheduleKind::Flow], ROUND)).await?;
        // What is only noted is looked at too: otherwise many notes could hide what is due.
        let fresh: Vec<_> = due.schedules.iter().filter(|one| seen.insert(one.id)).collect();
        if fresh.is_empty() {
            return Ok(heard);
        }
        for one in fresh {
            let flow = one.kind == ScheduleKind::Flow;
            heard.due += usize::from(flow && one.by_clock);
            match core.bounded(core.look_at_schedule(one.id, flow)).await {
                Ok(LookedAt::Done(looked)) if flow && one.by_clock => heard.triggered += looked.begun.len(),
                Ok(LookedAt::Done(_) | LookedAt::Busy | LookedAt::NotFound) => {}
                Err(error) => tracing::warn!(%error, schedule = %one.id, "what is due cannot be looked at"),
            }
        }
    }
}
