//! The conformance suite: cases that run against every store.
//!
//! A store crate asks for the feature `conformance` of this crate and writes, in a test of its own:
//!
//! ```text
//! async fn open() -> Arc<dyn Store> { .. }
//! ff_store::conformance!(open());
//! ```
//!
//! Each case becomes a test with its name. The expression is evaluated once for each of them and may answer a fresh
//! store or one of many on the same database: a case keeps to keys that no other case uses. It may also answer a pair
//! of the store and something to keep until the case is over, such as a temporary directory.

mod blobs;
mod concurrency;
mod context;
mod documents;
mod guards;
mod hints;
mod history;
mod indexes;
mod leases;
mod limits;
mod logs;
mod scans;

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use context::Context;

use crate::Store;

/// No case takes this long, even on a slow database; a store that hangs fails instead.
const CASE_TIMEOUT: Duration = Duration::from_secs(120);

/// One thing a store must do.
#[derive(Clone, Copy)]
pub struct Case {
    /// `group::behaviour`.
    pub name: &'static str,
    /// Panics when the store does something else.
    pub run: fn(Context) -> CaseFuture,
}

/// A running case.
pub type CaseFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A store to test, and what it needs to live.
pub struct Subject {
    store: Arc<dyn Store>,
    _keep: Option<Box<dyn Any + Send>>,
}

impl From<Arc<dyn Store>> for Subject {
    fn from(store: Arc<dyn Store>) -> Self {
        Self { store, _keep: None }
    }
}

impl<K: Send + 'static> From<(Arc<dyn Store>, K)> for Subject {
    fn from((store, keep): (Arc<dyn Store>, K)) -> Self {
        Self { store, _keep: Some(Box::new(keep)) }
    }
}

/// Runs one case on a runtime of its own.
///
/// # Panics
/// When the store fails the case, or no case has the name.
pub fn run<S: Into<Subject>>(name: &str, open: impl Future<Output = S>) {
    let case = CASES.iter().find(|case| case.name == name).expect("the macro names the cases of the list");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime for the case").block_on(async {
        let subject: Subject = open.await.into();
        let context = Context::new(Arc::clone(&subject.store));
        let time_max = CASE_TIMEOUT.max(history::time_max());
        let ended = tokio::time::timeout(time_max, (case.run)(context)).await;
        assert!(ended.is_ok(), "{name} did not end within {time_max:?}");
    });
}

/// The one list of cases; the array and the tests are both made from it.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($then:ident $(, $open:expr)?) => {
        $crate::$then! {
            [$($open)?]
            documents {
                what_was_put_reads_back
                an_unknown_key_reads_as_absent
                documents_come_in_the_order_asked
                a_put_replaces_body_version_and_fence
                an_empty_body_is_a_document
                every_byte_value_survives
                keys_are_binary
                a_deleted_document_is_absent
                deleting_what_is_not_there_is_fine
                a_document_reads_as_absent_from_its_expiry_on
                an_expiry_in_the_past_reads_as_absent_at_once
                a_put_without_expiry_stays
                a_new_document_inherits_no_lease
                partitions_are_isolated
            }
            guards {
                absent_holds_without_a_document_only
                version_holds_for_the_last_writer_only
                fence_holds_for_epoch_and_lease_together
                live_holds_until_the_lease_ends
                expired_holds_once_the_lease_has_ended
                not_after_holds_until_the_instant
                one_failing_guard_among_many_writes_nothing
                a_wrong_sequence_writes_nothing
                the_first_guard_that_fails_is_named
                guards_alone_are_a_batch
                a_guard_on_one_document_protects_another
                a_conflict_harms_no_other_batch
                batches_of_one_call_see_the_ones_before
                an_invalid_batch_refuses_the_whole_call
                a_repeated_commit_meets_its_own_version
                versions_are_compared_for_equality_only
            }
            leases {
                a_lease_runs_from_the_time_of_the_commit
                a_renewal_moves_the_lease_and_leaves_the_document
                a_renewal_never_takes_back_what_was_promised
                a_put_keeps_the_lease
                a_cleared_lease_leaves_no_entry
                a_delete_may_clear_the_lease_entry
                a_stale_fence_renews_nothing
                a_lease_that_ran_out_is_not_renewed
                either_the_renewal_or_the_expiry_wins
                a_lease_holder_appends_under_its_fence
                renewals_of_one_call_are_independent
            }
            indexes {
                an_entry_is_set_moved_and_removed
                removing_what_is_not_there_is_fine
                one_member_stands_in_many_indexes
                many_members_of_one_index_change_in_one_batch
                counts_include_both_ends
                only_non_empty_indexes_are_listed
                indexes_are_listed_in_byte_order_up_to_the_limit
                names_of_indexes_are_read_page_by_page
                index_names_and_members_are_binary
                the_longest_index_name_works
            }
            scans {
                entries_are_ordered_by_score_and_member
                extreme_scores_stay_exact
                a_descending_scan_is_the_reverse
                a_range_includes_both_ends
                a_limit_is_kept
                a_scan_goes_on_behind_an_entry
                pages_make_the_whole
                pages_miss_nothing_that_stayed
                documents_come_with_their_entries
                an_unknown_index_is_empty
                queries_are_answered_in_order
            }
            logs {
                an_unknown_log_is_empty
                a_log_is_numbered_from_one
                a_wrong_number_is_a_conflict
                a_log_is_read_from_any_number
                the_newest_records_come_first_when_asked
                a_log_is_read_from_an_instant
                a_cap_keeps_the_newest
                a_trim_removes_the_oldest_and_keeps_the_numbering
                a_removed_log_begins_anew
                unguarded_numbers_only_grow
                a_page_says_up_to_where_records_were_removed
                a_trim_spares_what_a_later_batch_appends
                several_logs_answer_in_order
                records_are_binary
            }
            blobs {
                a_mebibyte_of_every_byte_value_survives
                a_blob_is_replaced_and_removed
                an_empty_blob_is_a_blob
                documents_blobs_and_logs_have_separate_keys
                blobs_come_in_the_order_asked
            }
            hints {
                a_hint_arrives_after_its_commit
                every_watcher_hears_every_hint
                a_conflict_sends_no_hint
            }
            concurrency {
                no_update_is_lost
                one_of_many_creators_wins
                unguarded_appends_get_numbers_of_their_own
                expected_appends_leave_no_hole
                transfers_in_both_directions_keep_the_sum
                calls_in_opposite_order_all_end
                documents_of_one_answer_are_from_one_instant
                entries_and_documents_of_one_answer_agree
            }
            history {
                a_random_history_ends_as_in_memory
            }
            limits {
                the_largest_number_of_operations_is_applied
                the_largest_number_of_bytes_is_applied
                two_thousand_entries_fit_one_commit
                a_thousand_batches_fit_one_call
                a_thousand_keys_fit_one_read
                nothing_asked_is_answered
                time_advances_and_never_goes_back
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_list {
    ([] $($group:ident { $($case:ident)* })*) => {
        /// Every case, by group.
        pub const CASES: &[Case] = &[$($(
            Case {
                name: concat!(stringify!($group), "::", stringify!($case)),
                run: |context| Box::pin($group::$case(context)),
            },
        )*)*];
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ([$open:expr] $($group:ident { $($case:ident)* })*) => {
        $(mod $group {
            use super::*;
            $(
                #[test]
                fn $case() {
                    $crate::conformance::run(concat!(stringify!($group), "::", stringify!($case)), async { $open.await });
                }
            )*
        })*
    };
}

/// Makes a test of every case. The argument is a future that answers the store, evaluated once for each test.
#[macro_export]
macro_rules! conformance {
    ($open:expr) => {
        $crate::conformance_cases!(conformance_tests, $open);
    };
}

crate::conformance_cases!(conformance_list);
