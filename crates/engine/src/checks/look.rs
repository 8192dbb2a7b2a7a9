//! Looks at checks that stand otherwise by the passing of time. The loop that looks at schedules does it.

use crate::replica::Life;
use everbeat_store::Error as StoreError;
use std::sync::Arc;
use std::time::Duration;

/// Checks that one round takes.
const ROUND: usize = 200;
/// Until what could not be looked at is tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// Looks at all that is due; answers how long until the next one is. One that fails does not hold back the others.
pub(crate) async fn round(life: &Arc<Life>) -> Result<Option<Duration>, StoreError> {
    let store = &life.core.store;
    let due = life.call(store.due_checks(ROUND)).await?;
    let mut failed = false;
    for name in &due.names {
        if let Err(error) = life.call(store.look_at_check(name)).await {
            tracing::debug!(%error, check = %name, "cannot look at a check");
            failed = true;
        }
    }
    Ok(if failed { Some(PAUSE) } else { due.next_in })
}
