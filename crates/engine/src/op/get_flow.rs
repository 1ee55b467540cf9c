//! Shows a flow: its state is exact, because its members are counted from their index, and its end is waited for in the
//! moment after its last member has ended.

use ff_core::Result;
use ff_core::op::GetFlow;
use ff_core::op::get_flow::Args;
use ff_core::op::view::FlowView;

use super::flow;
use crate::engine::{Caller, Engine, Handle};

impl Handle<GetFlow> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<FlowView> {
        let (flow, counts) = self.settled_flow(caller, &args.flow_id).await?;
        Ok(flow::view(&flow, counts))
    }
}
