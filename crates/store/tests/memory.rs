use everbeat_model::{Hole, Planted};
use everbeat_store::Memory;
use everbeat_store::conformance::differential::{Tally, differential};
use everbeat_store::conformance::{HandClock, Open, cases};
use std::sync::Arc;
use std::time::Duration;

everbeat_store::conformance!(memory, open);

async fn open() -> Open {
    let clock = Arc::new(HandClock::default());
    Open::steered(Arc::new(Memory::new(clock.clone())), clock)
}

/// The specification against itself: what differs here is chance or a clock showing through.
#[tokio::test]
async fn two_memory_stores_tell_the_same_story_and_it_holds_everything() {
    let mut total = Tally::new();
    for seed in 0..18 {
        // Clocks far apart: nothing but order may matter.
        let (early, late) = (Arc::new(HandClock::default()), Arc::new(HandClock::default()));
        late.jump(Duration::from_secs(400 * 86_400));
        let (a, b) = (Memory::new(early), Memory::new(late));
        for (answer, times) in differential(Arc::new(a), Arc::new(b), seed, 400).await {
            *total.entry(answer).or_default() += times;
        }
    }
    let rare: Vec<_> = total.iter().filter(|(_, times)| **times < 5).collect();
    assert!(rare.is_empty(), "the histories hold too little of {rare:?}: {total:?}");
}

/// A store with a known mistake, to show that the suite would find it.
fn open_with(hole: Hole) -> Open {
    let clock = Arc::new(HandClock::default());
    let random = || uuid::Uuid::new_v4().as_u128();
    Open::steered(Arc::new(Memory::with(clock.clone(), Box::new(random), Planted::one(hole))), clock)
}

#[tokio::test]
#[should_panic = "assertion"]
async fn the_suite_finds_a_settle_without_token() {
    cases::settle::a_zombie_cannot_settle_after_its_lease_passed_on(open_with(Hole::SettleWithoutToken)).await;
}

#[tokio::test]
#[should_panic = "assertion"]
async fn the_suite_finds_a_rescue_without_compare() {
    cases::rescue::a_rescue_is_a_compare_and_set_on_the_token(open_with(Hole::RescueWithoutCompare)).await;
}

#[tokio::test]
#[should_panic = "assertion"]
async fn the_suite_finds_attempts_taken_for_tokens() {
    cases::settle::the_attempt_number_is_no_proof(open_with(Hole::AttemptAsToken)).await;
}

#[tokio::test]
#[should_panic = "assertion"]
async fn the_suite_finds_claims_of_unknown_replicas() {
    cases::claim::a_draining_dead_left_or_unknown_replica_claims_nothing(open_with(Hole::ClaimBeforeReplica)).await;
}

/// Two stores of which one has a mistake tell different stories.
#[tokio::test]
#[should_panic = "differs"]
async fn the_differential_finds_a_settle_without_token() {
    let sound = Memory::new(Arc::new(HandClock::default()));
    let random = || uuid::Uuid::new_v4().as_u128();
    let clock = Arc::new(HandClock::default());
    let broken = Memory::with(clock, Box::new(random), Planted::one(Hole::SettleWithoutToken));
    differential(Arc::new(sound), Arc::new(broken), 1, 400).await;
}
