//! Resumes a lane: whoever waits for its work gets it.

use ff_core::Result;
use ff_core::lane::{LaneState, LaneView};
use ff_core::op::ResumeLane;
use ff_core::op::resume_lane::Args;

use super::configure_lane::SetLane;
use crate::engine::{Caller, Engine, Handle};

impl Handle<ResumeLane> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<LaneView> {
        let state = Some(LaneState::Active);
        let set = SetLane { lane: &args.lane, state, reason: args.reason.as_deref().unwrap_or_default() };
        let identity = self.identity::<ResumeLane>(caller, &args, None);
        self.set_lane(caller, args.namespace.as_deref(), set, identity).await
    }
}
