use super::fixture::Fixture;
use crate::WakeSignal;
use std::time::Duration;

pub(super) async fn a_wake_reaches_every_signal(t: &Fixture) {
    let (mut first, mut second) = (t.wakes(), t.wakes());
    for _ in 0..3 {
        t.wake();
        arrives(&mut first).await;
        arrives(&mut second).await;
    }
}

pub(super) async fn a_wake_that_came_before_the_wait_is_not_missed(t: &Fixture) {
    let (mut witness, mut late) = (t.wakes(), t.wakes());
    t.wake();
    arrives(&mut witness).await;
    arrives(&mut late).await;
}

/// The bound only keeps a broken store from hanging the suite.
#[expect(clippy::disallowed_methods, reason = "a lost hint shows as a wait without end")]
async fn arrives(signal: &mut WakeSignal) {
    tokio::time::timeout(Duration::from_secs(10), signal.wait()).await.expect("the wake arrives");
}
