//! The meaning of every operation, as sequences of calls with their answers.
//!
//! The sequences speak JSON through a client, so that the same ones run in process and over HTTP, on every store.
//! Each works in a namespace of its own; all of them may run at once on one deployment.

mod bulk;
mod flows;
mod governance;
mod journal;
mod leases;
mod lifecycle;
mod schedules;
mod sharing;
mod subscriptions;
mod suspension;
mod world;

pub use world::{Servers, World};

use std::future::Future;
use std::pin::Pin;

/// One sequence.
#[derive(Clone, Copy)]
pub struct Sequence {
    /// The behaviour that it shows.
    pub name: &'static str,
    /// Runs it; panics where an answer differs.
    pub run: fn(World) -> Pin<Box<dyn Future<Output = ()>>>,
}

macro_rules! sequences {
    ($($module:ident :: $name:ident),* $(,)?) => {
        /// Every sequence, in the order of the contract.
        pub const SEQUENCES: &[Sequence] = &[
            $( Sequence { name: stringify!($name), run: |world| Box::pin($module::$name(world)) }, )*
        ];

        /// Declares one test for each sequence: `ff_sequences::tests!(open())`, where `open()` answers with a
        /// client, or two of one deployment, and something to keep alive.
        #[macro_export]
        macro_rules! tests {
            ($open:expr) => {
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $name() {
                        let (clients, _alive) = $open.await;
                        $crate::run(stringify!($name), clients.into()).await;
                    }
                )*
            };
        }
    };
}

sequences! {
    lifecycle::s01_a_task_is_created_claimed_renewed_and_completed,
    lifecycle::s02_a_failure_is_retried_once_and_then_final,
    leases::s03_a_lost_lease_is_reclaimed_and_too_many_fail,
    leases::s04_an_old_holder_is_refused_everywhere,
    leases::s05_a_repeated_call_has_one_effect,
    suspension::s06_a_signal_resumes_the_same_attempt,
    suspension::s07_conditions_count_what_they_say,
    suspension::s08_a_signal_key_counts_once,
    suspension::s09_buffered_signals_satisfy_a_suspension_at_once,
    suspension::s10_each_timeout_behaviour_does_its_own,
    flows::s11_a_join_waits_for_all_and_a_failure_skips,
    flows::s12_a_quorum_lets_run_or_cancels_and_can_be_impossible,
    flows::s13_results_are_passed_and_parents_come_back,
    flows::s14_cancelling_a_flow_ends_every_member,
    governance::s15_an_exhausted_budget_blocks_until_it_opens,
    governance::s16_a_quota_holds_its_window_and_its_slots,
    governance::s17_a_requirement_waits_for_its_worker_and_blocks_nobody,
    lifecycle::s18_deadlines_and_attempt_timeouts,
    lifecycle::s19_every_end_can_be_replayed,
    suspension::s20_a_rotated_secret_verifies_for_its_grace,
    lifecycle::s21_a_stream_is_appended_read_tailed_and_closed,
    leases::s22_a_revoked_lease_is_told_to_its_holder,
    lifecycle::s23_cancel_ends_every_state,
    governance::s24_priority_then_age_decides,
    lifecycle::s25_a_key_names_one_execution,
    governance::s26_it_runs_when_nothing_holds_it,
    governance::s27_a_lane_is_paused_resumed_and_disabled,
    lifecycle::s28_retention_removes_everything,
    leases::s29_a_grant_reserves_for_one_worker,
    leases::s30_a_heartbeat_renews_each_lease_on_its_own,
    leases::s30_a_renewal_in_the_moment_of_the_expiry_holds_or_is_refused,
    journal::s31_a_lost_lease_leaves_the_steps_it_recorded,
    journal::s32_only_the_parallel_step_that_was_not_recorded_is_missing,
    journal::s32_a_program_that_changed_under_its_journal_is_asked_about,
    journal::s33_a_step_in_doubt_waits_for_one_of_three_answers,
    suspension::s34_an_approval_survives_the_worker_that_resumed_with_it,
    flows::s35_a_child_spawned_again_is_one_child,
    journal::s36_a_sleep_wakes_at_the_instant_that_was_fixed_first,
    journal::s37_a_retry_runs_the_step_that_ended_the_attempt,
    journal::s37_a_replay_from_a_step_takes_over_what_stands_before_it,
    journal::s38_a_fork_inherits_what_stands_before_a_step,
    journal::s39_a_pinned_execution_is_finished_by_the_build_that_started_it,
    schedules::s40_a_cron_is_exact_where_the_clock_changes,
    schedules::s40_overlap_decides_while_a_run_is_open,
    schedules::s40_late_instants_are_caught_up_on,
    schedules::s40_each_instant_runs_once_beside_triggers_and_backfills,
    schedules::s40_a_schedule_made_anew_and_a_refused_run,
    bulk::s41_a_bulk_replay_goes_on_at_another_server_and_replays_each_once,
    bulk::s41_a_bulk_job_counts_refuses_and_stops,
    governance::s45_a_provider_that_says_too_much_is_closed_everywhere_and_opens_by_itself,
    journal::s46_a_step_with_the_same_result_is_a_loop_and_a_changing_one_is_not,
    leases::s47_an_exchange_whose_reply_is_lost_is_the_same_exchange,
    governance::s42_reservers_race_one_ceiling,
    governance::s42_a_killed_holder_settles_at_the_reserve_and_a_new_lease_reserves_anew,
    governance::s42_a_budget_asks_one_question_for_all_that_wait,
    governance::s42_a_charge_counts_in_everything_a_budget_stands_under,
    governance::s42_usage_leaves_a_rolling_window_and_lets_in_what_waits,
    governance::s42_an_estimate_is_held_by_the_claim_and_waits_for_its_room,
    governance::s42_the_estimate_of_an_ended_lease_fails_nothing_that_is_claimed_next,
    governance::s42_each_value_of_a_tag_has_a_budget_of_its_own,
    sharing::s43_a_tenant_with_one_does_not_wait_for_a_tenant_with_many,
    sharing::s44_ten_workers_never_run_two_under_a_key_of_one,
    sharing::s44_a_singleton_is_one_while_it_waits_or_runs,
    sharing::s44_the_last_of_a_burst_takes_the_place_of_the_others,
    governance::s49_services_with_different_kinds_share_a_lane,
    flows::s50_an_edge_after_the_decision_lets_the_child_run,
    journal::s51_a_waitpoint_survives_the_wake_of_another,
    journal::s52_a_function_continues_as_new_a_thousand_times,
    subscriptions::s53_each_event_is_delivered_once_or_is_a_dead_letter,
    subscriptions::s53_a_subscription_is_filtered_paused_tested_and_removed,
    subscriptions::s53_waits_breaches_and_creations_are_events_too,
}

static QUIET: tokio::sync::RwLock<()> = tokio::sync::RwLock::const_new(());

/// Runs one sequence by name in a fresh namespace.
pub async fn run(name: &str, servers: Servers) {
    let sequence = SEQUENCES.iter().find(|sequence| sequence.name == name).expect("the macro names only sequences");
    // Rotating a secret with next to no grace is felt by every caller of the deployment.
    let (mut alone, mut together) = (None, None);
    if sequence.name.starts_with("s20") {
        alone = Some(QUIET.write().await);
    } else {
        together = Some(QUIET.read().await);
    }
    let world = World::new(&servers, sequence.name);
    // A thousand generations are two thousand commits, one after the other.
    let patience_s = if sequence.name.starts_with("s52") { 240 } else { 60 };
    let bounded = tokio::time::timeout(std::time::Duration::from_secs(patience_s), (sequence.run)(world)).await;
    assert!(bounded.is_ok(), "{name} did not end within {patience_s} s");
    drop((alone.take(), together.take()));
    servers.close().await;
}
