//! Drains a lane: what is there is worked off, nothing new is taken.

use crate::lane::LaneView;
use crate::op::operation;

/// What the call says.
pub use crate::op::parts::LaneChange as Args;

operation! {
    /// Drains a lane: what is there is worked off, nothing new is taken.
    DrainLane "drain_lane" Post "/v1/lanes/{lane}/drain" Operator administrative validated
}

/// The answer.
pub type Outcome = LaneView;
