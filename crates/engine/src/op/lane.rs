//! Lanes, and whether they admit work.

use std::collections::BTreeMap;

use ff_core::execution::Execution;
use ff_core::idempotency::Identity;
use ff_core::lane::{Lane, LaneState, LaneView};
use ff_core::op::parts::{LaneChange, NamespacePage, Removed};
use ff_core::op::{
    ConfigureLane, ConfigureLaneArgs, DeleteLane, DeleteLaneArgs, DisableLane, DrainLane, ListLanes, ListLanesOutcome,
    PauseLane, ResumeLane,
};
use ff_core::{Code, Partition, Result, text};

use crate::caller::Caller;
use crate::cursor;
use crate::named_documents::{RemoveNamed, page};
use crate::op::Handle;
use crate::services::Services;
use crate::transaction::{Command, Tx};

/// Lists lanes by name: those with a document, those of a closed list, and those in which this engine knows of work. A
/// lane that was only used has no document; it is active.
impl Handle<ListLanes> for Services {
    async fn handle(&self, caller: &Caller, args: NamespacePage) -> Result<ListLanesOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let limit = self.transactor.limits().page(args.limit)?;
        let cursor = cursor::decode::<String>(args.cursor.as_deref())?;
        let cursor = cursor.as_deref();
        let named =
            self.transactor.named_after::<Lane>(vec![Partition::SYSTEM], &namespace, cursor, |lane| &lane.name).await?;
        let mut lanes: BTreeMap<String, LaneView> =
            named.into_iter().map(|lane| (lane.name.clone(), lane.view())).collect();
        let in_use = self.scheduler.ready().lanes(&namespace);
        for name in in_use.into_iter().chain(self.transactor.options().lanes.iter().flatten().cloned()) {
            if cursor.is_none_or(|cursor| name.as_str() > cursor) && !lanes.contains_key(&name) {
                lanes.insert(name.clone(), Lane::open(&namespace, &name, 0)?.view());
            }
        }
        let (items, next_cursor) = page(lanes.into_values().collect(), limit, |lane| &lane.name);
        Ok(ListLanesOutcome { items, next_cursor })
    }
}

impl Handle<ConfigureLane> for Services {
    async fn handle(&self, caller: &Caller, args: ConfigureLaneArgs) -> Result<LaneView> {
        let reason = args.reason.as_deref().unwrap_or_default();
        let set = SetLane { lane: &args.lane, state: args.state, aging_ms: args.aging_ms, reason };
        let identity = self.transactor.identity::<ConfigureLane>(caller, &args, None);
        self.set_lane(caller, args.namespace.as_deref(), set, identity).await
    }
}

impl Services {
    /// Sets how much a lane lets through; `None` leaves it, and makes the lane if it was never used.
    pub(crate) async fn set_lane(
        &self,
        caller: &Caller,
        namespace: Option<&str>,
        set: SetLane<'_>,
        identity: Option<Identity>,
    ) -> Result<LaneView> {
        let namespace = caller.namespace(namespace)?;
        caller.check_lane(set.lane)?;
        self.shared.system.check_lane(set.lane)?;
        // Names of callers come from outside and may be longer than a label.
        let who = if text::optional_label("who", &caller.name).is_ok() { caller.name.as_str() } else { "" };
        let verb = ChangeLane { namespace: &namespace, set, who };
        self.transactor.transact_once(Partition::SYSTEM, identity, &verb).await
    }
}

/// A change of a lane.
pub(crate) struct SetLane<'a> {
    pub(crate) lane: &'a str,
    pub(crate) state: Option<LaneState>,
    pub(crate) aging_ms: Option<i64>,
    pub(crate) reason: &'a str,
}

impl<'a> SetLane<'a> {
    fn state(change: &'a LaneChange, state: Option<LaneState>) -> Self {
        Self { lane: &change.lane, state, aging_ms: None, reason: change.reason.as_deref().unwrap_or_default() }
    }
}

struct ChangeLane<'a> {
    namespace: &'a str,
    set: SetLane<'a>,
    who: &'a str,
}

impl Command for ChangeLane<'_> {
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
        let aged = self.set.aging_ms.map_or(Ok(false), |aging_ms| lane.set_aging(aging_ms))?;
        if fresh || changed || aged {
            tx.save(&lane);
        }
        Ok(lane.view())
    }
}

impl Handle<PauseLane> for Services {
    async fn handle(&self, caller: &Caller, args: LaneChange) -> Result<LaneView> {
        let state = Some(LaneState::Paused);
        let set = SetLane::state(&args, state);
        let identity = self.transactor.identity::<PauseLane>(caller, &args, None);
        self.set_lane(caller, args.namespace.as_deref(), set, identity).await
    }
}

impl Handle<ResumeLane> for Services {
    async fn handle(&self, caller: &Caller, args: LaneChange) -> Result<LaneView> {
        let state = Some(LaneState::Active);
        let set = SetLane::state(&args, state);
        let identity = self.transactor.identity::<ResumeLane>(caller, &args, None);
        self.set_lane(caller, args.namespace.as_deref(), set, identity).await
    }
}

impl Handle<DrainLane> for Services {
    async fn handle(&self, caller: &Caller, args: LaneChange) -> Result<LaneView> {
        let state = Some(LaneState::Draining);
        let set = SetLane::state(&args, state);
        let identity = self.transactor.identity::<DrainLane>(caller, &args, None);
        self.set_lane(caller, args.namespace.as_deref(), set, identity).await
    }
}

impl Handle<DisableLane> for Services {
    async fn handle(&self, caller: &Caller, args: LaneChange) -> Result<LaneView> {
        let state = Some(LaneState::Disabled);
        let set = SetLane::state(&args, state);
        let identity = self.transactor.identity::<DisableLane>(caller, &args, None);
        self.set_lane(caller, args.namespace.as_deref(), set, identity).await
    }
}

impl Handle<DeleteLane> for Services {
    async fn handle(&self, caller: &Caller, args: DeleteLaneArgs) -> Result<Removed> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        caller.check_lane(&args.lane)?;
        if !args.force {
            let what = format!("the lane {}", args.lane);
            let inside = |execution: &Execution| execution.lane == args.lane;
            self.transactor.refuse_in_use(&namespace, &what, inside).await?;
        }
        let identity = self.transactor.identity::<DeleteLane>(caller, &args, None);
        let verb = RemoveNamed::<Lane>::new(Lane::key_of(&namespace, &args.lane), &args.lane, Code::LaneNotFound);
        match self.transactor.transact_once(Partition::SYSTEM, identity, &verb).await {
            // A lane that was only used has nothing to remove. It is listed until its work is done.
            Err(error)
                if error.code == Code::LaneNotFound
                    && args.force
                    && self.scheduler.ready().lanes(&namespace).contains(&args.lane) =>
            {
                Ok(Removed::Removed)
            }
            removed => removed,
        }
    }
}
