//! Drains a lane: what is there is worked off, nothing new is taken.

use ff_core::Result;
use ff_core::lane::{LaneState, LaneView};
use ff_core::op::DrainLane;
use ff_core::op::drain_lane::Args;

use crate::engine::{Caller, Engine, Handle};

impl Handle<DrainLane> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<LaneView> {
        let state = Some(LaneState::Draining);
        self.set_lane(caller, args.namespace.as_deref(), &args.lane, state, args.reason.as_deref()).await
    }
}
