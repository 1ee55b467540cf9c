//! Creates a lane or sets its state.

use ff_core::idempotency::Identity;
use ff_core::lane::{Lane, LaneState, LaneView};
use ff_core::op::ConfigureLane;
use ff_core::op::configure_lane::Args;
use ff_core::{Partition, Result, text};

use crate::engine::{Caller, Engine, Handle};
use crate::transaction::{Command, Tx};

impl Handle<ConfigureLane> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<LaneView> {
        let set = SetLane { lane: &args.lane, state: args.state, reason: args.reason.as_deref().unwrap_or_default() };
        let identity = self.identity::<ConfigureLane>(caller, &args, None);
        self.set_lane(caller, args.namespace.as_deref(), set, identity).await
    }
}

impl Engine {
    /// Sets what a lane lets through; `None` leaves it, and makes the lane if nobody has used it.
    pub(crate) async fn set_lane(
        &self,
        caller: &Caller,
        namespace: Option<&str>,
        set: SetLane<'_>,
        identity: Option<Identity>,
    ) -> Result<LaneView> {
        let namespace = caller.namespace(namespace)?;
        self.check_lane(set.lane)?;
        // Names of callers come from outside and may be longer than a label.
        let who = if text::optional_label("who", &caller.name).is_ok() { caller.name.as_str() } else { "" };
        let verb = Verb { namespace: &namespace, set, who };
        self.transact_once(Partition::SYSTEM, identity, &verb).await
    }
}

/// What is to become of a lane.
pub(crate) struct SetLane<'a> {
    pub(crate) lane: &'a str,
    pub(crate) state: Option<LaneState>,
    pub(crate) reason: &'a str,
}

struct Verb<'a> {
    namespace: &'a str,
    set: SetLane<'a>,
    who: &'a str,
}

impl Command for Verb<'_> {
    type Outcome = LaneView;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<LaneView> {
        let existing = tx.load::<Lane>(Lane::key_of(self.namespace, self.set.lane)).await?;
        let existing = existing.map(|loaded| loaded.document);
        let fresh = existing.is_none();
        let mut lane = match existing {
            Some(lane) => lane,
            None => Lane::open(self.namespace, self.set.lane, tx.now)?,
        };
        let changed = match self.set.state {
            Some(state) => lane.set_state(state, self.who, self.set.reason, tx.now)?,
            None => false,
        };
        if fresh || changed {
            tx.save(&lane);
        }
        Ok(lane.view())
    }
}
