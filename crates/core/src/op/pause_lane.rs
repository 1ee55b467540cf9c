//! Pauses a lane: running work goes on, nothing new is claimed.

use crate::lane::LaneView;
use crate::op::operation;

/// What the call says.
pub use crate::op::parts::LaneChange as Args;

operation! {
    /// Pauses a lane: running work goes on, nothing new is claimed.
    PauseLane "pause_lane" Post "/v1/lanes/{lane}/pause" Operator administrative validated
}

/// The answer.
pub type Outcome = LaneView;
