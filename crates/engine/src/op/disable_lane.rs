//! Disables a lane: nothing is claimed and nothing submitted.

use ff_core::Result;
use ff_core::lane::{LaneState, LaneView};
use ff_core::op::DisableLane;
use ff_core::op::disable_lane::Args;

use super::configure_lane::SetLane;
use crate::engine::{Caller, Engine, Handle};

impl Handle<DisableLane> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<LaneView> {
        let state = Some(LaneState::Disabled);
        let set = SetLane { lane: &args.lane, state, reason: args.reason.as_deref().unwrap_or_default() };
        let identity = self.identity::<DisableLane>(caller, &args, None);
        self.set_lane(caller, args.namespace.as_deref(), set, identity).await
    }
}
