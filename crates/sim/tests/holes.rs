//! Each planted mistake is found, which the same seeds without it do not break.

use everbeat_model::{Hole, Planted};
use everbeat_sim::{Focus, Options, run_seed};

/// A mistake must show itself within so many seeds.
const MOST: u64 = 500;

/// Some mistakes show themselves only where one kind of trouble is frequent.
fn focus(hole: Hole) -> Option<Focus> {
    match hole {
        Hole::LeftStillVouches | Hole::ReturnOverlooked | Hole::NoLastTimer => Some(Focus::Absence),
        Hole::PastForgotten => Some(Focus::Failover),
        Hole::UnfencedStart | Hole::FormerOwner => Some(Focus::TakeOver),
        Hole::ReplacedLink
        | Hole::StalledWatcher
        | Hole::SweepUnawaited
        | Hole::SignalByNumber
        | Hole::OutputRepeated
        | Hole::StrictMoves
        | Hole::SessionUnasked => Some(Focus::Workers),
        _ => None,
    }
}

/// Goes through seeds until the planted mistake has shown itself `times` times, among them by what it breaks.
fn found(hole: Hole, breaks: &str, times: usize) {
    let sound = Options { focus: focus(hole), ..Options::default() };
    let mut expected = 0;
    let mut needed = Vec::new();
    let mut since = 0;
    for seed in 0..MOST {
        since += 1;
        if let Err(violation) = run_seed(seed, Options { hole: Planted::one(hole), ..sound }) {
            if needed.is_empty() {
                println!("{hole:?} breaks {}: {}", violation.guarantee, violation.detail);
            }
            expected += usize::from(violation.guarantee.starts_with(breaks));
            run_seed(seed, sound).expect("the seed holds without the hole");
            needed.push(since);
            since = 0;
            if needed.len() >= times && expected > 0 {
                break;
            }
        }
    }
    needed.sort_unstable();
    assert!(needed.len() >= times.min(3), "{hole:?} was found {} times in {MOST} seeds", needed.len());
    assert!(expected > 0, "{hole:?} never broke {breaks}");
    println!("{hole:?}: found {} times, median seeds to find {}", needed.len(), needed[needed.len() / 2]);
}

macro_rules! every_planted_hole_is_found {
    ($($test:ident: $hole:ident breaks $breaks:literal,)*) => {
        $(
            #[test]
            fn $test() {
                found(Hole::$hole, $breaks, 5);
            }
        )*

        #[test]
        fn no_planted_hole_is_left_out() {
            assert_eq!([$(Hole::$hole),*].len(), Hole::ALL.len());
            assert!(Hole::ALL.iter().all(|hole| [$(Hole::$hole),*].contains(hole)));
        }
    };
}

every_planted_hole_is_found! {
    a_settle_without_token_is_found: SettleWithoutToken breaks "G1",
    a_rescue_without_compare_is_found: RescueWithoutCompare breaks "G1",
    a_claim_before_the_replica_is_found: ClaimBeforeReplica breaks "G2",
    no_grace_after_an_outage_is_found: NoGraceAfterOutage breaks "G3",
    foreign_clocks_are_found: ForeignClocks breaks "G3",
    an_attempt_as_token_is_found: AttemptAsToken breaks "G1",
    a_wake_taken_for_truth_is_found: WakeIsTruth breaks "liveness",
    a_stalled_detector_is_found: StalledDetector breaks "G3",
    an_unrenewed_judge_is_found: UnrenewedJudge breaks "G3",
    a_lease_nobody_performs_is_found: LeaseNobodyPerforms breaks "liveness",
    mixed_inputs_are_found: MixedInputs breaks "graph",
    a_result_of_old_inputs_is_found: ResultOfOldInputs breaks "graph",
    a_note_forgotten_is_found: NoteForgotten breaks "graph",
    a_tick_that_fires_twice_is_found: TickTwice breaks "graph",
    a_former_owner_is_found: FormerOwner breaks "adoption",
    an_unfenced_start_is_found: UnfencedStart breaks "G10",
    hasty_giving_up_is_found: HastyGivingUp breaks "G",
    a_job_never_vouched_for_is_found: NeverVouched breaks "G3",
    a_replica_that_left_and_still_vouches_is_found: LeftStillVouches breaks "G6",
    a_missing_folder_taken_for_a_new_one_is_found: MissingIsNew breaks "G10",
    a_past_that_is_forgotten_is_found: PastForgotten breaks "G10",
    a_return_that_is_overlooked_is_found: ReturnOverlooked breaks "G3",
    a_hung_shim_without_a_last_timer_is_found: NoLastTimer breaks "G6",
    endings_that_wait_behind_a_bad_one_are_found: WholeBatchWaits breaks "liveness",
    a_shortage_that_fails_a_job_is_found: ShortageFails breaks "G16",
    an_end_that_is_not_awaited_is_found: EndUnawaited breaks "G6",
    a_replaced_link_that_still_counts_is_found: ReplacedLink breaks "G1",
    a_stalled_watcher_of_workers_is_found: StalledWatcher breaks "G3",
    a_sweep_that_is_not_awaited_is_found: SweepUnawaited breaks "G9",
    a_signal_by_number_is_found: SignalByNumber breaks "G3",
    output_that_is_not_awaited_is_found: OutputUnawaited breaks "output",
    output_that_is_taken_again_is_found: OutputRepeated breaks "output",
    a_strict_run_that_moves_is_found: StrictMoves breaks "session",
    a_session_that_is_not_asked_for_is_found: SessionUnasked breaks "session",
    an_advance_apart_from_its_run_is_found: AdvanceApart breaks "G7",
    due_times_by_a_foreign_clock_are_found: DueByOwnClock breaks "G5",
    runs_made_from_a_reading_are_found: DueByReading breaks "G7",
}
