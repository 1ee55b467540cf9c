//! Bugs that can be switched on one by one, to see that the simulator and the torture campaigns catch each. Without the
//! feature `planted` the switch is a constant, and the compiler removes the bugs.

macro_rules! bugs {
    ($( $variant:ident $name:literal $what:literal, )*) => {
        /// A bug that a change might bring.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Bug { $( #[doc = $what] $variant, )* }

        impl Bug {
            /// All of them.
            pub const ALL: &'static [Bug] = &[ $( Bug::$variant, )* ];

            /// Its name.
            pub const fn as_str(self) -> &'static str {
                match self { $( Bug::$variant => $name, )* }
            }

            /// The effect of the bug.
            pub const fn what(self) -> &'static str {
                match self { $( Bug::$variant => $what, )* }
            }
        }
    };
}

bugs! {
    EpochNotChecked "epoch_not_checked" "A fence is compared by its lease id alone.",
    FenceNotChecked "fence_not_checked" "Every caller may act as the holder.",
    LateHolderAccepted "late_holder_accepted" "A holder's commit is not guarded by its lease being live.",
    ExpiryIgnoresRenewal "expiry_ignores_renewal" "The timer expires a lease without looking whether it was renewed.",
    IndexNotUpdated "index_not_updated" "Entries of the old state stay in their indexes.",
    TimerEarly "timer_early" "Timers fire half a second early.",
    RetryNotCounted "retry_not_counted" "A retry leaves its counter as it was.",
    AttemptSkipped "attempt_skipped" "A reclaim skips a number of attempts.",
    ReclaimsUnbounded "reclaims_unbounded" "A lost lease is reclaimed however often it was lost.",
    ResultOverwritten "result_overwritten" "A stale holder's completion overwrites the result.",
    CountedVersions "counted_versions" "The store counts versions, and counts again after a forgetful failover.",
    AnswerBeforeCommit "answer_before_commit" "A commit that the store refused is acknowledged.",
    HoldsIgnored "holds_ignored" "A claim takes what something still holds back.",
    MarkNotLeft "mark_not_left" "An ended member leaves no mark for its downstreams.",
    EdgeResolvedTwice "edge_resolved_twice" "An edge that was resolved counts again.",
    ChildStartsEarly "child_starts_early" "The first upstream that succeeds lets its child start.",
    CancelledFlowStarts "cancelled_flow_starts" "Members of a cancelled flow are still handed out.",
    BudgetNotChecked "budget_not_checked" "A claim does not look whether its budget is used up.",
    QuotaSlotLeaked "quota_slot_leaked" "Concurrency slots are not given back.",
    LoserFreesSlot "loser_frees_slot" "A claim that gives back a slot makes room, whether it held one or not.",
    UsageDedupIgnored "usage_dedup_ignored" "A usage report counts again under the same key.",
    ReserveUnchecked "reserve_unchecked" "A reservation does not look at what others hold.",
    SignalCountedTwice "signal_counted_twice" "A signal is accepted again under the same key.",
    TokenNotChecked "token_not_checked" "A waitpoint's token is not verified.",
    FrameAfterClose "frame_after_close" "A worker that once held the attempt may still append frames.",
    SuspensionReused "suspension_reused" "The suspensions of an execution share one identity.",
    ApprovalForgotten "approval_forgotten" "A reclaim or a retry forgets which signals resumed its execution.",
    GrantUsedTwice "grant_used_twice" "A grant that was used is taken again.",
    MarksNotSwept "marks_not_swept" "After a crash no server takes up what was left to do.",
    DedupNotWritten "dedup_not_written" "A submission's idempotency key is not remembered.",
    LateEdgeHolds "late_edge_holds" "An edge that is applied after the join was decided holds its child for good.",
    RemovalReopened "removal_reopened" "A member is replayed while its flow is being removed.",
    HalfApplied "half_applied" "A commit that fails in the middle leaves its documents without their entries.",
    DirtyRead "dirty_read" "A read shows the documents of a commit that was never applied.",
    LastWriterWins "last_writer_wins" "The store applies a commit whichever version is there.",
    SequenceNotJudged "sequence_not_judged" "The store appends whatever number was expected.",
    LeaseEntryStays "lease_entry_stays" "A renewal does not move its entry in the index of what is due.",
    EventsDropped "events_dropped" "The store applies a commit without its events now and then.",
    HintsSilent "hints_silent" "The store loses every hint and says nothing.",
    WriteForgotten "write_forgotten" "The store acknowledges a commit that it never applies.",
    UnknownKeysDropped "unknown_keys_dropped" "What a newer version wrote is lost when an older one writes.",
    TimeRunsBack "time_runs_back" "The store's answers show a time before the last one now and then.",
    PagesEndEarly "pages_end_early" "A page of an index leaves out its last entry.",
    PriorityIgnored "priority_ignored" "Queues are ordered by age alone.",
    WaitersNotWoken "waiters_not_woken" "New work does not wake those who wait for it.",
    LocksLeaked "locks_leaked" "The locks of documents are never forgotten.",
    EdgesNotRemoved "edges_not_removed" "A flow is removed without its edges.",
    StopHangs "stop_hangs" "A claim goes on waiting when its server stops.",
    LateClaimLands "late_claim_lands" "The store applies a claim however late it comes for its slot.",
    InstantForgotten "instant_forgotten" "A schedule moves on over an instant without a run now and then.",
    ClaimOverstays "claim_overstays" "A claim waits past its time.",
}

/// Whether a bug is switched on in this thread.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn planted(_: Bug) -> bool {
    false
}

#[cfg(feature = "planted")]
thread_local! {
    static SELECTED: std::cell::Cell<Option<Bug>> = std::cell::Cell::new(of_process());
}

/// The bug that all threads of a process begin with. A campaign cannot reach into the servers it starts, so it tells them
/// in a variable.
#[cfg(feature = "planted")]
fn of_process() -> Option<Bug> {
    let name = std::env::var("FF_PLANTED_BUG").ok()?;
    Some(*Bug::ALL.iter().find(|bug| bug.as_str() == name).expect("FF_PLANTED_BUG names a planted bug"))
}

/// Whether a bug is switched on in this thread.
#[cfg(feature = "planted")]
pub fn planted(bug: Bug) -> bool {
    SELECTED.get() == Some(bug)
}

/// Switches one bug on, or all off, in this thread. Answers whether this build has bugs at all.
pub fn select(bug: Option<Bug>) -> bool {
    #[cfg(feature = "planted")]
    SELECTED.set(bug);
    let _ = bug;
    cfg!(feature = "planted")
}
