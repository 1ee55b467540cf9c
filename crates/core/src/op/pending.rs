//! The shapes of flows in answers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::ExecutionId;
use crate::vocabulary;

vocabulary! {
    /// The state of a flow.
    pub enum FlowState {
        /// It has no members.
        Open "open",
        /// Something runs or may run.
        Running "running",
        /// Everything that has not ended is held back.
        Blocked "blocked",
        /// All members ended well.
        Completed "completed",
        /// A member ended otherwise.
        Failed "failed",
        /// It was cancelled.
        Cancelled "cancelled",
    }
}

vocabulary! {
    /// What became of an edge.
    pub enum EdgeState {
        /// It is in the graph and not yet applied.
        Staged "staged",
        /// Its upstream has not ended.
        Pending "pending",
        /// Its upstream ended well.
        Satisfied "satisfied",
        /// Its upstream ended otherwise.
        Impossible "impossible",
    }
}

vocabulary! {
    /// Which members a cancellation concerns.
    pub enum CancelFlowPolicy {
        /// None; the flow itself takes no more.
        FlowOnly "flow_only",
        /// Those that have not started.
        CancelPending "cancel_pending",
        /// All.
        CancelAll "cancel_all",
    }
}

/// The answer to a cancellation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum CancelFlowResult {
    /// It is certain, and members follow.
    CancellationScheduled {
        /// Which members it concerns.
        policy: CancelFlowPolicy,
        /// How many they are.
        member_count: u32,
        /// The first of them.
        members: Vec<ExecutionId>,
    },
    /// It is done.
    Cancelled {
        /// Which members it concerned.
        policy: CancelFlowPolicy,
        /// The first of them.
        members: Vec<ExecutionId>,
        /// Those that could not be cancelled.
        failed: Vec<ExecutionId>,
    },
}

vocabulary! {
    /// When the dependencies of a child let it run.
    pub enum JoinPolicy {
        /// All of them ended well.
        AllOf "all_of",
        /// One of them did.
        AnyOf "any_of",
    }
}
