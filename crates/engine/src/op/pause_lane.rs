//! Pauses a lane: running work goes on, nothing new is claimed.

use ff_core::Result;
use ff_core::lane::{LaneState, LaneView};
use ff_core::op::PauseLane;
use ff_core::op::pause_lane::Args;

use super::configure_lane::SetLane;
use crate::engine::{Caller, Engine, Handle};

impl Handle<PauseLane> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<LaneView> {
        let state = Some(LaneState::Paused);
        let set = SetLane { lane: &args.lane, state, reason: args.reason.as_deref().unwrap_or_default() };
        let identity = self.identity::<PauseLane>(caller, &args, None);
        self.set_lane(caller, args.namespace.as_deref(), set, identity).await
    }
}
