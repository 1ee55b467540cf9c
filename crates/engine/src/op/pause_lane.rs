//! Pauses a lane: running work goes on, nothing new is claimed.

use ff_core::Result;
use ff_core::lane::{LaneState, LaneView};
use ff_core::op::PauseLane;
use ff_core::op::pause_lane::Args;

use crate::engine::{Caller, Engine, Handle};

impl Handle<PauseLane> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<LaneView> {
        let state = Some(LaneState::Paused);
        self.set_lane(caller, args.namespace.as_deref(), &args.lane, state, args.reason.as_deref()).await
    }
}
