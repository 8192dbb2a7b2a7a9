//! The suite that every store must pass. A case is a sentence about the contract; a store's tests
//! stamp all of them at once:
//!
//! ```ignore
//! async fn open() -> Open { … }
//! everbeat_store::conformance!(sqlite, open);
//! ```
//!
//! [`differential`](differential::differential) compares two stores over a random history.

pub mod differential;

mod adoption;
mod audit;
mod build;
mod cancel;
mod checks;
mod claim;
mod clock;
mod enqueue;
mod events;
mod execution_lists;
mod executions;
mod fixture;
mod graphs;
mod histories;
mod ids;
mod lists;
mod node_runs;
mod outputs;
mod place;
mod promote;
mod queues;
mod reopen;
mod replicas;
mod rescue;
mod retention;
mod schedule_code;
mod schedule_ends;
mod schedule_steps;
mod schedule_turns;
mod schedules;
mod sessions;
mod settle;
mod sign;
mod steps;
mod sweeps;
mod tasks;
mod text;
mod ticks;
mod unbind;
mod verdicts;
mod versions;
mod wakes;
mod workers;

pub use clock::HandClock;

use crate::Store;
use std::any::Any;
use std::sync::Arc;

/// An empty store for one case.
pub struct Open {
    store: Arc<dyn Store>,
    clock: Option<Arc<HandClock>>,
    guard: Option<Box<dyn Any + Send + Sync>>,
}

impl Open {
    /// A store whose time the case sets.
    pub fn steered(store: Arc<dyn Store>, clock: Arc<HandClock>) -> Open {
        Open { store, clock: Some(clock), guard: None }
    }

    /// A store with a clock of its own: time passes by waiting.
    pub fn real(store: Arc<dyn Store>) -> Open {
        Open { store, clock: None, guard: None }
    }

    /// Keeps something (a folder, a database) until the case is over.
    pub fn keeping(self, guard: impl Any + Send + Sync) -> Open {
        Open { guard: Some(Box::new(guard)), ..self }
    }
}

/// Stamps one test per case into a module. The second argument is an async function (or closure)
/// without arguments that answers an [`Open`]; the caller's crate needs tokio with `macros` and
/// `rt-multi-thread`.
///
/// The list of cases stands here and nowhere else. A case that is missing from it is unused, and the
/// compiler says so.
#[macro_export]
macro_rules! conformance {
    ($module:ident, $open:expr) => {
        $crate::conformance! { @cases stamp ($module, $open) }
    };
    (@cases $rule:ident ($($context:tt)*)) => {
        $crate::conformance! { @$rule ($($context)*)
            enqueue {
                a_new_run_reads_back_as_it_was_given
                a_run_for_later_is_scheduled_and_one_for_the_past_is_ready
                an_empty_request_makes_nothing
                a_unique_key_holds_among_unfinished_runs_only
                a_unique_key_given_twice_in_one_request_makes_one_run
                one_unique_key_from_many_sides_at_once_makes_one_run
                the_same_run_again_after_its_end_takes_no_key
                a_finished_run_that_is_named_again_stands_for_no_other_of_its_request
                an_idempotency_key_answers_with_what_it_made
                an_idempotency_key_with_another_request_is_refused_and_makes_nothing
                fifty_equal_requests_with_one_idempotency_key_make_one_run
                requests_of_one_batch_are_answered_in_their_order
                one_idempotency_key_twice_in_a_batch_makes_one_answer
                a_reused_idempotency_key_in_a_batch_refuses_its_own_request_only
                stored_answers_are_repeated_beside_new_runs
                a_unique_key_in_several_requests_of_a_batch_makes_one_run
                a_batch_whose_answer_was_lost_is_answered_with_its_runs
                batches_with_the_same_keys_from_many_sides_at_once_agree
            }
            claim {
                higher_priority_first_then_oldest
                the_extremes_of_priority_keep_their_order
                a_run_tried_again_keeps_its_age
                limits_per_task_and_queue_hold_in_one_claim
                a_task_at_its_limit_does_not_use_up_its_queue
                only_the_tasks_asked_for_are_claimed
                a_claim_takes_no_more_than_its_limit
                a_claim_among_some_queues_takes_from_no_other
                a_paused_queue_gives_nothing
                a_draining_dead_left_or_unknown_replica_claims_nothing
                a_claimed_run_shows_its_lease
                every_grant_has_a_token_and_a_fence_of_its_own
                eight_claimers_start_each_of_1000_runs_once
            }
            settle {
                a_success_is_kept
                a_failure_for_good_keeps_its_error
                each_outcome_is_kept_in_the_history
                a_zombie_cannot_settle_after_its_lease_passed_on
                a_wrong_token_changes_nothing
                the_attempt_number_is_no_proof
                the_fence_rises_whatever_number_a_settlement_carries
                a_run_ends_once
                of_many_settles_of_one_lease_at_once_one_is_done
                one_lease_twice_in_a_batch_is_settled_once
                a_batch_settle_answers_in_order_with_mixed_fates
                a_requeued_run_brings_its_standing_to_the_next_attempt
                a_delayed_retry_shows_when_it_is_due_and_why_it_failed
                the_history_is_complete_and_ordered
                a_settled_attempt_keeps_the_heartbeat_its_owner_saw
                was_settled_knows_its_own_token
                an_attempt_keeps_the_worker_that_performed_it
            }
            sign {
                progress_and_a_checkpoint_show_on_the_run
                a_sign_leaves_alone_what_it_does_not_carry
                a_checkpoint_reaches_the_next_attempt
                a_zombie_cannot_sign_after_its_lease_passed_on
                a_batch_of_signs_answers_in_order
                a_sign_is_told_that_a_cancel_was_asked
                a_sign_moves_the_last_heartbeat
                a_replica_does_not_beat_for_an_attempt_that_beats_by_hand
                a_batch_of_large_signs_is_kept_whole
            }
            outputs {
                what_is_streamed_reads_back_as_it_was_given
                numbers_rise_across_attempts_and_kinds_without_a_gap
                a_piece_that_is_sent_again_is_kept_once
                of_one_piece_sent_many_times_at_once_one_is_kept
                a_zombie_cannot_append_after_its_lease_passed_on
                a_former_owner_cannot_append_and_the_new_one_counts_anew
                nothing_is_appended_after_the_end_of_an_attempt
                a_batch_of_pieces_answers_in_order
                an_append_is_a_sign_of_life_and_told_of_a_cancel
                a_page_is_bounded_and_filtered
                the_oldest_items_go_when_there_are_too_many
                the_oldest_items_go_when_they_are_too_large
                a_forgotten_run_leaves_no_output
                a_batch_of_large_pieces_is_kept_whole
            }
            cancel {
                a_ready_or_scheduled_run_is_cancelled_at_once
                a_running_run_is_asked_and_its_owner_told
                a_cancel_that_comes_before_a_requeue_is_answered_cancel_asked
                a_cancel_does_not_stop_a_success
                a_cancel_of_a_finished_or_unknown_run_says_so
                a_cancelled_run_frees_its_unique_key
                a_cancelled_run_is_not_claimed
                a_cancel_and_a_requeue_at_once_never_strand_the_run
            }
            reopen {
                a_reopened_run_keeps_its_history_and_opens_once
                a_reopened_run_starts_its_tries_anew_and_its_fence_goes_on
                a_run_cancelled_before_it_ran_can_be_reopened
                of_many_reopens_at_once_one_opens
                an_unfinished_or_unknown_run_is_not_reopened
                a_reopened_run_takes_its_unique_key_back_or_is_told_who_has_it
            }
            promote {
                what_is_due_becomes_ready_and_the_rest_is_announced
                a_promotion_takes_no_more_than_its_limit_and_the_longest_due_first
                many_promoters_at_once_move_each_run_once
            }
            lists {
                lists_are_newest_first_and_page_without_repeat
                each_filter_narrows_the_list
                filters_narrow_together
                a_list_finds_runs_in_every_state
                a_lease_index_pages_in_order_of_run_id
                finished_names_what_is_over_in_the_order_given
                thousands_of_runs_are_asked_about_at_once
                a_list_of_large_runs_ends_early_and_goes_on
            }
            replicas {
                a_replica_joins_active_with_its_own_settings
                a_repeated_join_changes_nothing_and_revives_nobody
                a_renewal_raises_the_beat_and_the_heartbeat_of_its_runs
                burying_is_a_compare_and_set_on_the_beat
                positive_proof_buries_whatever_the_beat
                of_many_buriers_at_once_one_buries
                a_dead_replica_cannot_renew_or_leave
                a_draining_replica_renews_and_is_told
                a_replica_drains_once
                a_left_replica_is_neither_buried_nor_renewed
                an_unknown_replica_is_fenced
                replicas_count_what_they_run
                observers_see_those_that_hold_leases
            }
            rescue {
                orphaned_leases_are_those_of_dead_and_left_replicas
                a_rescue_is_a_compare_and_set_on_the_token
                a_lease_stands_until_it_is_rescued_even_when_its_owner_is_dead
                a_lease_shows_all_that_settling_it_needs
                of_many_rescuers_at_once_one_rescues
            }
            adoption {
                a_lease_passes_on_within_its_host_and_keeps_its_token
                a_former_owner_can_neither_settle_nor_sign_nor_place
                both_owners_in_one_batch_of_signs_are_told_apart
                a_rescuer_who_observed_the_former_owner_is_fenced
                the_tenure_rises_with_every_adoption_and_shows_in_the_run
                only_detached_leases_of_the_dead_and_left_of_its_host_are_adopted
                a_dead_left_or_unknown_replica_adopts_nothing_and_a_draining_one_does
                an_adoption_takes_no_more_than_its_limit_and_the_oldest_first
                many_adopters_at_once_share_the_leases_and_none_goes_twice
                of_an_adoption_and_a_settle_at_once_exactly_one_wins
                cancels_and_the_lease_index_follow_the_new_owner
                detached_orphans_are_listed_apart_and_in_pages
            }
            place {
                a_placed_run_is_claimed_by_its_lane_only
                a_placed_run_that_is_ready_is_seen_and_cancelled
                a_run_that_belongs_nowhere_any_more_is_claimed_by_its_task_again
                a_run_moves_from_one_host_to_another
                a_run_may_be_given_its_place_from_the_start
                a_place_under_a_wrong_token_or_owner_changes_nothing
                a_place_stays_with_the_run_when_its_lease_is_adopted_and_returned
                a_changed_input_ends_a_placed_run_that_is_ready
                a_placed_run_for_later_stands_in_its_lane_when_its_time_comes
            }
            unbind {
                what_waits_for_a_host_begins_anywhere_once_it_is_unbound
                only_what_waits_for_the_very_host_is_unbound
                hosts_are_named_once_and_in_order
                an_unbinding_takes_no_more_than_its_limit_and_the_oldest_first
                an_unbound_run_of_a_node_is_found_where_it_stands
                unbinding_promoting_and_claiming_at_once_strands_no_run
                unbinding_cancelling_and_reopening_at_once_strands_no_run
            }
            queues {
                a_queue_counts_what_stands_in_it
                what_is_claimed_before_a_run_is_counted_in_its_lane
                the_oldest_ready_run_of_a_queue_tells_its_age
                a_pause_answers_whether_it_changed_anything
                a_paused_queue_is_listed_while_empty_and_after_it_was_resumed
                resuming_a_queue_never_paused_leaves_no_trace
                a_pause_leaves_running_work_and_other_queues_alone
            }
            tasks {
                offers_add_up
            }
            ids {
                ids_are_found_by_range_newest_first
                jobs_are_found_by_their_input_within_a_window_and_while_they_run
            }
            verdicts {
                a_verdict_reads_back_with_the_time_of_the_store
                a_verdict_of_a_fenced_settlement_is_not_kept
                a_verdict_of_a_settlement_is_named_by_its_attempt
                verdicts_are_newest_first_and_filtered
                retention_forgets_only_old_verdicts
            }
            events {
                what_happens_is_told_in_order
                one_write_makes_one_batch_of_events
                events_resume_without_gap_or_repeat
                a_refused_write_tells_nothing
                a_trimmed_log_says_that_there_is_a_gap
                ids_go_on_after_the_whole_log_was_dropped
                a_trim_drops_the_oldest_and_no_more_than_its_limit
                followers_miss_nothing_while_many_write
                what_is_announced_is_told_in_order_as_one_batch
            }
            audit {
                an_audit_counts_every_run_once
                an_audit_of_an_empty_store_names_every_count
                an_audit_counts_executions_and_what_they_compute
            }
            retention {
                retention_forgets_only_what_finished_long_ago
                a_forgotten_run_leaves_nothing_behind
                one_finished_run_is_forgotten_with_all_of_it
                an_unfinished_unknown_or_awaited_run_is_not_forgotten
                retention_takes_no_more_than_its_limit
                retention_forgets_only_ended_replicas_without_leases
                an_idempotency_key_outlives_its_run_for_a_day
            }
            text {
                text_survives_nul_escapes_and_unicode
                names_and_keys_are_never_code
                a_large_input_survives
                every_field_of_a_policy_survives
            }
            graphs {
                an_idempotency_key_answers_with_what_it_applied
                a_definition_reads_back_as_it_was_applied
                the_same_definition_again_is_not_new
                other_content_under_the_same_version_is_another_definition_and_counts
                the_order_of_nodes_belongs_to_a_definition
                the_latest_definition_of_each_version_is_found
                graphs_are_listed_by_name_in_pages
                the_same_definition_from_many_sides_at_once_is_new_once
                a_graph_of_thousands_of_nodes_reads_back
            }
            executions {
                a_start_without_values_creates_an_empty_execution
                values_given_with_a_start_are_set_as_one_revision
                an_unknown_graph_or_version_starts_nothing
                refused_values_store_nothing
                a_batch_of_starts_answers_in_order_with_mixed_fates
                the_same_start_again_exists
                an_idempotency_key_answers_with_the_execution_it_started
                a_key_of_runs_is_not_one_of_starts
                one_idempotency_key_from_many_sides_at_once_starts_one
                a_singleton_finds_the_standing_one
                a_singleton_from_many_sides_at_once_makes_one
                an_archived_singleton_lets_another_one_start
                a_singleton_is_not_brought_back_while_another_one_stands
                a_node_run_becomes_ready_with_the_set_that_opens_its_gate
                the_same_value_again_changes_neither_revision_nor_stamp
                several_commands_in_one_advance_each_get_their_revision
                a_refused_command_changes_nothing
                an_archived_execution_refuses_to_be_changed
                a_batch_of_advances_answers_in_order
                ten_sides_that_set_at_once_lose_nothing
                metadata_goes_with_the_values_it_was_set_with
                an_unknown_execution_has_nothing
                an_execution_of_a_thousand_nodes_starts_and_is_set
            }
            node_runs {
                a_result_is_there_after_the_next_look
                an_advance_takes_finished_runs_with_it
                a_join_waits_for_both_sides
                runs_that_finish_at_once_lose_no_result
                many_lookers_take_many_notes
                a_look_takes_no_more_than_its_limit_and_the_oldest_first
                a_run_that_goes_on_notes_nothing
                a_run_that_fails_for_good_fails_its_node
                a_failed_node_is_computed_anew_when_something_upstream_changes
                a_changed_input_ends_the_ready_run_as_superseded
                a_changed_input_ends_the_scheduled_run_too
                a_changed_input_asks_the_leased_run_to_cancel_and_its_result_is_ignored
                a_gate_that_shuts_clears_what_was_computed_and_stops_what_runs
                a_node_run_that_a_user_cancels_fails_its_node
                an_abandoned_computation_fails_and_its_run_is_stopped
                a_retry_stops_the_run_and_computes_anew
                a_run_that_ends_in_an_archived_execution_is_taken_note_of
                an_unchanged_result_wakes_nobody
                a_run_without_a_result_gives_null_which_is_a_value
                args_and_parent_are_read_back_everywhere
                a_plain_run_keeps_its_args
                retention_keeps_a_finished_run_that_its_execution_has_not_noted
                a_result_is_taken_up_though_the_clock_went_back
                a_mutation_writes_its_target_without_a_revision
                a_mutation_of_several_takes_them_by_name
                a_historian_keeps_what_its_upstreams_were
                a_loop_keeps_each_iteration
                callbacks_are_runs_made_with_the_change
                a_reopened_run_of_a_finished_node_changes_nothing
                an_execution_is_written_to_while_its_runs_end
            }
            ticks {
                a_tick_tells_when_it_is_due_and_does_not_fire_before
                a_due_tick_fires_once_however_many_look
                a_recurring_tick_is_armed_again_each_time_it_fired
                a_tick_in_the_past_fires_at_once
                a_paused_tick_is_never_due
                what_is_no_time_fails_the_tick
                a_look_or_a_change_in_between_leaves_a_tick_armed
                the_soonest_tick_counts
                an_archived_execution_waits_for_no_tick
                an_archive_node_archives_by_itself
            }
            versions {
                a_new_definition_reaches_every_standing_execution
                the_same_definition_again_reaches_nobody
                the_next_command_goes_by_the_new_definition
                a_node_removed_in_flight_does_no_harm
                a_removed_node_that_comes_back_is_computed_anew
                a_node_whose_run_ended_while_it_was_removed_is_computed_when_it_comes_back
                an_execution_of_an_older_version_stays_until_something_newer_is_applied
                a_start_takes_the_definition_that_counts_for_its_version
                a_gate_that_a_new_definition_shuts_takes_the_value_and_the_run
                a_new_definition_leaves_ticks_armed
                many_definitions_and_many_looks_at_once_end_with_the_last
            }
            histories {
                a_history_is_oldest_first_and_pages_without_gap_or_repeat
                a_history_is_cut_to_what_its_node_keeps_at_every_so_many_changes
                stamps_rise_with_everything_that_is_written
                news_change_with_everything_that_happens_and_only_then
                a_peek_tells_what_is_known_of_a_node
                what_happens_to_an_execution_is_told
                analytics_tell_how_far_executions_came
                analytics_average_over_those_that_came_so_far
                hard_values_survive_and_are_found_again
                whole_numbers_that_differ_are_different_values
                a_large_value_survives_and_is_found_again
                names_of_nodes_are_never_code
            }
            execution_lists {
                eq_finds_what_is_equal
                neq_finds_what_is_set_and_different
                lt_and_lte_find_what_is_before
                gt_and_gte_find_what_is_after
                list_contains_finds_lists_with_the_element
                is_set_and_is_not_set_find_what_has_a_value
                in_and_not_in_find_by_any_of_a_list
                contains_takes_the_part_as_it_is
                icontains_knows_the_case_of_all_letters
                conditions_narrow_together
                a_list_is_sorted_by_the_value_of_a_node
                a_list_is_sorted_by_each_field
                a_plain_list_is_newest_first_and_pages_by_id
                a_list_shows_executions_as_they_are
                an_archived_execution_is_hidden_unless_asked_for
                a_changed_value_is_found_as_it_is_now
            }
            sessions {
                a_run_keeps_its_session
                a_session_is_kept_by_one_replica_for_as_long_as_that_may_hold_leases
                of_many_replicas_at_once_one_keeps_a_session
                a_session_that_was_taken_again_is_not_let_go
                what_a_replica_has_taken_and_does_not_use_is_let_go
                sessions_of_replicas_that_are_gone_are_forgotten
                what_waits_for_a_session_is_unbound_whatever_its_task
            }
            schedule_code {
                what_code_declares_again_leaves_what_somebody_has_written_since
                what_code_changes_replaces_what_is_there_and_leaves_it_switched_as_it_was
                what_somebody_wrote_first_becomes_that_of_the_code
                one_name_declared_from_many_sides_at_once_is_written_once
            }
            schedules {
                a_schedule_reads_back_as_it_was_written
                the_same_again_changes_nothing_and_another_definition_replaces
                another_version_is_a_conflict_and_changes_nothing
                one_name_written_from_many_sides_at_once_is_one_schedule
                schedules_are_listed_by_name_in_pages
                a_list_of_large_schedules_ends_early_and_goes_on
                what_is_due_at_once_begins_and_comes_again_after_its_interval
                one_look_makes_one_run_and_a_second_none
                many_who_look_at_once_make_each_run_once
                a_disabled_schedule_is_not_due_and_begins_only_what_is_asked_for
                what_is_due_by_the_clock_is_left_to_whoever_asks_for_it
                the_longest_due_come_first_and_no_more_than_asked_for
                a_trigger_waits_for_its_turn_and_is_made_once
                a_trigger_with_an_idempotency_key_makes_one_run
                a_deleted_schedule_leaves_its_runs_and_nothing_else
                the_runs_of_a_schedule_are_listed_by_state
                the_newest_of_what_was_left_out_is_kept
                what_happens_to_a_schedule_is_told
            }
            schedule_turns {
                what_is_due_while_another_runs_is_left_out_waits_or_begins_beside_it
                after_five_periods_without_a_look_one_all_or_none_are_made_up_for
                what_comes_after_others_begins_when_each_of_them_has_succeeded
                a_group_shares_its_limit_and_the_longest_waiting_goes_first
                a_flow_that_is_off_holds_up_nobody_of_its_group
                many_of_a_group_at_once_stay_within_its_limit
                what_is_not_over_in_time_is_late_until_it_is
                the_checkpoint_of_the_last_run_is_where_the_next_one_begins
            }
            schedule_ends {
                each_way_to_finish_a_run_notes_its_schedule
                what_is_tried_again_notes_nothing
                a_batch_of_ends_notes_each_schedule
                a_run_that_is_opened_again_counts_again
                a_run_that_was_forgotten_is_over
                an_end_whose_note_was_lost_is_found
                an_end_at_the_moment_of_a_look_is_never_missed
            }
            checks {
                a_check_reads_back_as_it_was_written
                a_check_is_written_only_over_what_is_expected
                checks_are_listed_by_name_and_state
                the_first_ping_of_a_name_makes_its_check
                the_newest_pings_are_kept_with_what_they_said
                a_check_that_is_not_pinged_is_late_then_down_and_each_is_told_once
                the_longest_due_checks_come_first_and_no_more_than_asked_for
                a_failure_from_many_sides_at_once_is_told_once
                a_paused_check_is_not_due_and_is_counted_anew_when_resumed
                no_more_checks_are_made_than_there_may_be
            }
            sweeps {
                a_sweep_is_due_once_per_interval
                of_many_who_ask_at_once_one_sweeps
                sweeps_are_throttled_by_name
                a_clock_that_went_back_does_not_silence_sweeps
            }
            wakes {
                a_wake_reaches_every_signal
                a_wake_that_came_before_the_wait_is_not_missed
            }
            workers {
                what_is_told_of_workers_reads_back_by_id_and_filter
                what_is_told_again_replaces_and_what_is_gone_is_forgotten
                replicas_that_are_gone_tell_nothing_and_are_told_nothing_of
            }
        }
    };
    (@stamp ($module:ident, $open:expr) $($noun:ident { $($case:ident)* })*) => {
        mod $module {
            use super::*;
            $(mod $noun {
                use super::*;
                $(#[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    $crate::conformance::cases::$noun::$case(($open)().await).await;
                })*
            })*
        }
    };
    (@expose () $($noun:ident { $($case:ident)* })*) => {
        /// Every case as a function of an empty store.
        pub mod cases {
            $(pub mod $noun {
                $(pub async fn $case(open: $crate::conformance::Open) {
                    let fixture = $crate::conformance::fixture::Fixture::new(open);
                    $crate::conformance::$noun::$case(&fixture).await;
                })*
            })*
        }
    };
}

crate::conformance! { @cases expose () }
