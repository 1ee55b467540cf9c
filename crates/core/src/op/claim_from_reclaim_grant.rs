//! Turns a grant into a lease, and insists on an interrupted or lost attempt.

use crate::op::operation;

operation! {
    /// Turns a grant into a lease, and insists on an interrupted or lost attempt.
    ClaimFromReclaimGrant "claim_from_reclaim_grant" Post "/v1/workers/{instance_id}/grants/{grant_id}/reclaim" Worker validated
}

/// What the call says.
pub type Args = crate::op::claim_from_grant::Args;

/// The answer.
pub type Outcome = crate::op::claim_from_grant::Outcome;
