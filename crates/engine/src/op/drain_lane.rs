//! Drains a lane: what is there is worked off, nothing new is taken.

use ff_core::Result;
use ff_core::lane::{LaneState, LaneView};
use ff_core::op::DrainLane;
use ff_core::op::drain_lane::Args;

use super::configure_lane::SetLane;
use crate::engine::{Caller, Engine, Handle};

impl Handle<DrainLane> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<LaneView> {
        let state = Some(LaneState::Draining);
        let set = SetLane { lane: &args.lane, state, reason: args.reason.as_deref().unwrap_or_default() };
        let identity = self.identity::<DrainLane>(caller, &args, None);
        self.set_lane(caller, args.namespace.as_deref(), set, identity).await
    }
}
