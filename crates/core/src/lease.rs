//! Leases, grants and attempts: which worker runs an execution, under which attempt number and lease, and how each of
//! them ended.

use serde::{Deserialize, Serialize};

use crate::document;
use crate::id::{AttemptIndex, ExecutionId, LeaseEpoch, LeaseId, SlotId, SuspensionId, WaitpointId};
use crate::state::PublicState;
use crate::vocabulary;

/// The proof that a lease holder shows with every call. Attempt, id and epoch must all be those of the present lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct LeaseFence {
    /// The attempt the lease runs.
    pub attempt: AttemptIndex,
    /// The lease.
    pub lease_id: LeaseId,
    /// Which lease of the execution it is.
    pub epoch: LeaseEpoch,
}
crate::newer::open_struct!(LeaseFence);

vocabulary! {
    /// Why an attempt was started.
    #[derive(Default)]
    pub enum AttemptKind {
        /// It is the first.
        #[default]
        Initial "initial",
        /// The attempt before it failed.
        Retry "retry",
        /// The attempt before it lost its lease.
        Reclaim "reclaim",
        /// The execution had ended and was run again.
        Replay "replay",
    }
}

vocabulary! {
    /// The kind of attempt that a claim got: a new one, or one that is taken up.
    #[derive(Default)]
    pub enum ClaimKind {
        /// A first attempt.
        #[default]
        Initial "initial",
        /// A retry.
        Retry "retry",
        /// An attempt in place of a lost one.
        Reclaim "reclaim",
        /// A replay.
        Replay "replay",
        /// An interrupted attempt that continues.
        Resumed "resumed",
    }
}

vocabulary! {
    /// How an attempt ended.
    #[derive(Default)]
    pub enum AttemptOutcome {
        /// It has not.
        #[default]
        None "none",
        /// Completed.
        Success "success",
        /// Failed.
        Failed "failed",
        /// Took longer than it may.
        TimedOut "timed_out",
        /// Lost its lease.
        InterruptedReclaimed "interrupted_reclaimed",
        /// Was cancelled with its execution.
        Cancelled "cancelled",
        /// Expired with its execution.
        Expired "expired",
    }
}

vocabulary! {
    /// How a lease ended.
    #[derive(Default)]
    pub enum LeaseEnd {
        /// It has not.
        #[default]
        None "none",
        /// The holder completed.
        Completed "completed",
        /// The holder reported a failure.
        Failed "failed",
        /// The holder cancelled the execution.
        Cancelled "cancelled",
        /// The holder asked for a delay.
        Delayed "delayed",
        /// The holder waits for children.
        WaitingChildren "waiting_children",
        /// The holder suspended.
        Suspended "suspended",
        /// The holder waits for the first of several things.
        Parked "parked",
        /// It could not be delivered to the claimer, or the claimer handed it back.
        Returned "returned",
        /// It ran out.
        Expired "expired",
        /// An operator took it away.
        Revoked "revoked",
        /// The execution was cancelled by another caller than the holder.
        ExecutionCancelled "execution_cancelled",
        /// The execution's deadline passed.
        DeadlinePassed "deadline_passed",
        /// The attempt took longer than it may.
        AttemptTimedOut "attempt_timed_out",
        /// The holder began its function anew with another input and an empty journal.
        Continued "continued",
        /// A step that the holder recorded was taken for a loop.
        LoopDetected "loop_detected",
    }
}

impl LeaseEnd {
    /// Whether its holder ended it, and so was alive.
    pub const fn is_by_holder(self) -> bool {
        match self {
            LeaseEnd::Completed
            | LeaseEnd::Failed
            | LeaseEnd::Cancelled
            | LeaseEnd::Delayed
            | LeaseEnd::WaitingChildren
            | LeaseEnd::Suspended
            | LeaseEnd::Parked
            | LeaseEnd::Continued
            | LeaseEnd::LoopDetected => true,
            LeaseEnd::None
            | LeaseEnd::Returned
            | LeaseEnd::Expired
            | LeaseEnd::Revoked
            | LeaseEnd::ExecutionCancelled
            | LeaseEnd::DeadlinePassed
            | LeaseEnd::AttemptTimedOut
            | LeaseEnd::Unknown(_) => false,
        }
    }
}

document! {
    /// The present lease, or the last one. When it ends is not here but beside the document, where renewals move it.
    pub api struct Lease {
        /// Chosen by the claimer.
        "i" id: LeaseId,
        /// Which lease of the execution it is.
        "e" epoch: LeaseEpoch,
        /// Which attempt it runs.
        "a" attempt: AttemptIndex,
        /// The worker's logical name.
        "w" worker_id: String,
        /// The very process.
        "p" instance_id: String,
        /// The kind of attempt that its claim got.
        "k" kind: ClaimKind,
        /// When it was taken.
        "s" acquired_at: i64,
        /// How long it lasts without a renewal.
        "t" ttl_ms: i64,
        /// When it ended; 0 while it holds.
        "x" ended_at: i64,
        /// Why it ended.
        "y" end: LeaseEnd,
        /// The build of the worker's program; empty if it names none.
        "b" build_id: String,
    }
}

document! {
    /// The answer to a lease's ending, kept so that the same call again gets the same answer.
    pub struct LeaseEnding {
        /// The lease.
        "i" lease_id: LeaseId,
        /// Its epoch.
        "e" epoch: LeaseEpoch,
        /// Its attempt.
        "a" attempt: AttemptIndex,
        /// How it ended.
        "y" end: LeaseEnd,
        /// When the next attempt may start, the delay ends, or the suspension times out; 0 for never. Where the lease ended
        /// the execution, and it was replayed since: when it ended.
        "n" next_at: i64,
        /// The generation that it began.
        "g" generation: u32,
        /// The suspension it led to.
        "s" suspension_id: SuspensionId,
        /// Where signals for it arrive.
        "w" waitpoint_id: WaitpointId,
        /// The state that the holder was told, where its answer has one.
        "p" public_state: Option<PublicState>,
        /// The number of open children that the holder was told.
        "c" open_children: u32,
    }
}

document! {
    /// One attempt: the current one inside the execution, earlier ones in its history.
    pub api struct Attempt {
        /// From 0, without gaps.
        "i" index: AttemptIndex,
        /// Why it was started.
        "k" kind: AttemptKind,
        /// When its first lease was taken.
        "s" started_at: i64,
        /// When it ended; 0 while it has not.
        "x" ended_at: i64,
        /// How it ended.
        "o" outcome: AttemptOutcome,
        /// The reason of the failure.
        "r" failure_reason: String,
        /// The category of the failure.
        "c" failure_category: String,
        /// Time spent under its earlier leases.
        "u" used_ms: i64,
    }
}

document! {
    /// Something in the past of an execution: an ended attempt or an ended lease.
    pub struct HistoryRecord {
        /// An attempt that ended.
        "a" attempt: Option<Attempt>,
        /// A lease that ended.
        "l" lease: Option<Lease>,
    }
}

document! {
    /// The right of one worker to claim one execution, for a short time.
    pub struct Grant {
        /// Becomes the id of the lease.
        "i" id: LeaseId,
        /// The worker it is for.
        "w" worker_id: String,
        /// When it lapses.
        "x" expires_at: i64,
        /// The concurrency slot of the execution's quota that it took, and that its lease takes over.
        "sl" slot: Option<SlotId>,
    }
}

vocabulary! {
    /// Whether a grant is for work that has not begun, or for an interrupted or lost attempt.
    pub enum GrantKind {
        /// A new attempt.
        Claim "claim",
        /// An attempt that was interrupted or lost.
        Reclaim "reclaim",
    }
}

/// The right to claim an execution, as its worker receives it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ClaimGrant {
    /// Becomes the id of the lease.
    pub grant_id: LeaseId,
    /// The execution that may be claimed.
    pub execution_id: ExecutionId,
    /// The flow partition it lives in.
    pub partition: u16,
    /// Its lane.
    pub lane: String,
    /// New work, or an interrupted or lost attempt.
    pub kind: GrantKind,
    /// The only worker that may use it.
    pub worker_id: String,
    /// When it lapses.
    pub expires_at: i64,
}
crate::newer::open_struct!(ClaimGrant);
