//! Disables a lane: nothing is claimed, submissions are refused.

use crate::lane::LaneView;
use crate::op::operation;

/// What the call says.
pub use crate::op::parts::LaneChange as Args;

operation! {
    /// Disables a lane: nothing is claimed, submissions are refused.
    DisableLane "disable_lane" Post "/v1/lanes/{lane}/disable" Operator administrative validated
}

/// The answer.
pub type Outcome = LaneView;
