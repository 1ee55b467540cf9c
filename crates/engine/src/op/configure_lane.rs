//! Creates a lane or sets its state.

use ff_core::lane::{Lane, LaneState, LaneView};
use ff_core::op::ConfigureLane;
use ff_core::op::configure_lane::Args;
use ff_core::{Partition, Result, text};

use crate::engine::{Caller, Engine, Handle};
use crate::transaction::{Command, Tx};

impl Handle<ConfigureLane> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<LaneView> {
        self.set_lane(caller, args.namespace.as_deref(), &args.lane, args.state, args.reason.as_deref()).await
    }
}

impl Engine {
    /// Sets what a lane lets through; `None` leaves it, and makes the lane if nobody has used it.
    pub(crate) async fn set_lane(
        &self,
        caller: &Caller,
        namespace: Option<&str>,
        lane: &str,
        state: Option<LaneState>,
        reason: Option<&str>,
    ) -> Result<LaneView> {
        let namespace = caller.namespace(namespace)?;
        self.check_lane(lane)?;
        // Names of callers come from outside and may be longer than a label.
        let who = if text::optional_label("who", &caller.name).is_ok() { caller.name.as_str() } else { "" };
        let verb = SetLane { namespace: &namespace, lane, state, who, reason: reason.unwrap_or_default() };
        self.transact(Partition::SYSTEM, self.fresh_command(), &verb).await
    }
}

struct SetLane<'a> {
    namespace: &'a str,
    lane: &'a str,
    state: Option<LaneState>,
    who: &'a str,
    reason: &'a str,
}

impl Command for SetLane<'_> {
    type Outcome = LaneView;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<LaneView> {
        let existing = tx.load::<Lane>(Lane::key_of(self.namespace, self.lane)).await?;
        let existing = existing.map(|loaded| loaded.document);
        let fresh = existing.is_none();
        let mut lane = match existing {
            Some(lane) => lane,
            None => Lane::open(self.namespace, self.lane, tx.now)?,
        };
        let changed = match self.state {
            Some(state) => lane.set_state(state, self.who, self.reason, tx.now)?,
            None => false,
        };
        if fresh || changed {
            tx.save(&lane);
        }
        Ok(lane.view())
    }
}
