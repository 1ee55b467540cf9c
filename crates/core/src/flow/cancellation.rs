//! The cancellation of a flow: its policy, what the flow remembers of it, and the answer to its caller.

use serde::{Deserialize, Serialize};

use super::FlowState;
use crate::error::Error;
use crate::id::ExecutionId;

crate::vocabulary! {
    /// The effect of a flow's cancellation on its members.
    #[derive(Default)]
    pub enum CancelFlowPolicy {
        /// Cancels every member that has not ended.
        #[default]
        CancelAll "cancel_all",
        /// Cancels the members that have not started.
        CancelPending "cancel_pending",
        /// Leaves running members alone; nothing new starts.
        FlowOnly "flow_only",
    }
}

crate::document! {
    /// Why and how a flow was cancelled.
    pub struct FlowCancellation {
        /// Its effect on the members.
        "p" policy: CancelFlowPolicy,
        /// The reason, for people.
        "r" reason: String,
        /// When it was cancelled.
        "a" at: i64,
        /// Whether members still have to be told.
        "o" outstanding: bool,
        /// The members that it paused were kept for the retention and are being cancelled now.
        "l" lapsed: bool,
    }
}

impl FlowCancellation {
    /// Its effect on members now.
    pub fn policy_now(&self) -> CancelFlowPolicy {
        if self.lapsed { CancelFlowPolicy::CancelPending } else { self.policy }
    }

    /// Whether it ends members that have not started; otherwise it pauses them.
    pub fn ends_unstarted(&self) -> bool {
        matches!(self.policy_now(), CancelFlowPolicy::CancelAll | CancelFlowPolicy::CancelPending)
    }
}

/// A member that could not be cancelled with its flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CancelFailure {
    /// The member.
    pub execution_id: ExecutionId,
    /// The refusal.
    pub error: Error,
}

/// The answer to the cancellation of a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum CancelFlowResult {
    /// Nothing starts any more; members follow.
    CancellationScheduled {
        /// Its effect on the members.
        policy: CancelFlowPolicy,
        /// How many members the flow has.
        member_count: u32,
        /// The first of those that are cancelled, at most 1,000.
        members: Vec<ExecutionId>,
    },
    /// Every member was told.
    Cancelled {
        /// Its effect on the members.
        policy: CancelFlowPolicy,
        /// How many members the flow has; cancelling it again lists them page by page.
        #[serde(default)]
        member_count: u32,
        /// The first of those that were cancelled, at most 1,000.
        members: Vec<ExecutionId>,
        /// Members that could not be cancelled.
        failed: Vec<CancelFailure>,
    },
    /// It had ended or been cancelled before this call, which changed nothing.
    AlreadyTerminal {
        /// The state it ended in; members that its cancellation let run may not have ended.
        state: FlowState,
        /// The effect of its cancellation on the members, if it was cancelled.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        policy: Option<CancelFlowPolicy>,
        /// Why it was cancelled, if it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// How many members it has.
        member_count: u32,
        /// A page of them, in the order of their creation.
        members: Vec<ExecutionId>,
        /// Where the next page begins, if there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next_cursor: Option<String>,
    },
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(CancelFlowResult);
