//! Makes a lane active again.

use crate::lane::LaneView;
use crate::op::operation;

/// What the call says.
pub use crate::op::parts::LaneChange as Args;

operation! {
    /// Makes a lane active again.
    ResumeLane "resume_lane" Post "/v1/lanes/{lane}/resume" Operator administrative validated
}

/// The answer.
pub type Outcome = LaneView;
