//! Resumes a lane: whoever waits for its work gets it.

use ff_core::Result;
use ff_core::lane::{LaneState, LaneView};
use ff_core::op::ResumeLane;
use ff_core::op::resume_lane::Args;

use crate::engine::{Caller, Engine, Handle};

impl Handle<ResumeLane> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<LaneView> {
        let state = Some(LaneState::Active);
        self.set_lane(caller, args.namespace.as_deref(), &args.lane, state, args.reason.as_deref()).await
    }
}
