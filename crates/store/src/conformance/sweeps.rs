use super::fixture::{Fixture, HOUR, MOMENT};

pub(super) async fn a_sweep_is_due_once_per_interval(t: &Fixture) {
    assert!(t.sweep_due("lost", HOUR).await.expect("sweep"), "at first");
    assert!(!t.sweep_due("lost", HOUR).await.expect("sweep"));
    t.advance(MOMENT).await;
    assert!(!t.sweep_due("lost", HOUR).await.expect("sweep"));
    assert!(t.sweep_due("lost", MOMENT / 2).await.expect("sweep"), "asking in vain does not put it off");
    assert!(!t.sweep_due("lost", HOUR).await.expect("sweep"));
}

pub(super) async fn of_many_who_ask_at_once_one_sweeps(t: &Fixture) {
    for expected in [1, 0] {
        let answers = t.at_once(12, |store| async move { store.sweep_due("lost", HOUR).await.expect("sweep") }).await;
        assert_eq!(answers.into_iter().filter(|due| *due).count(), expected, "one the first time, then nobody");
    }
}

pub(super) async fn sweeps_are_throttled_by_name(t: &Fixture) {
    assert!(t.sweep_due("lost", HOUR).await.expect("sweep"));
    assert!(t.sweep_due("Lost", HOUR).await.expect("sweep"));
    assert!(!t.sweep_due("lost", HOUR).await.expect("sweep"));
}

pub(super) async fn a_clock_that_went_back_does_not_silence_sweeps(t: &Fixture) {
    // A database's own clock cannot be set back from here.
    let Some(clock) = &t.clock else { return };
    assert!(t.sweep_due("lost", MOMENT).await.expect("sweep"));
    clock.jump_back(HOUR);
    assert!(t.sweep_due("lost", MOMENT).await.expect("sweep"));
    assert!(!t.sweep_due("lost", MOMENT).await.expect("sweep"), "and throttles again from then");
}
