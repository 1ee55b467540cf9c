//! Lists lanes by name: those with a document, those of a closed list, and those in which this engine knows of work.
//! A lane that was only used has no document; it is active.

use std::collections::BTreeMap;

use ff_core::lane::{Lane, LaneView};
use ff_core::op::ListLanes;
use ff_core::op::list_lanes::{Args, Outcome};
use ff_core::{Partition, Result};

use super::named::page;
use crate::cursor;
use crate::engine::{Caller, Engine, Handle};

impl Handle<ListLanes> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let limit = self.limits().page(args.limit)?;
        let cursor = cursor::decode::<String>(args.cursor.as_deref())?;
        let cursor = cursor.as_deref();
        let named = self.named_after::<Lane>(vec![Partition::SYSTEM], &namespace, cursor, |lane| &lane.name).await?;
        let mut lanes: BTreeMap<String, LaneView> =
            named.into_iter().map(|lane| (lane.name.clone(), lane.view())).collect();
        let in_use = self.scheduler().ready().lanes(&namespace);
        for name in in_use.into_iter().chain(self.options().lanes.iter().flatten().cloned()) {
            if cursor.is_none_or(|cursor| name.as_str() > cursor) && !lanes.contains_key(&name) {
                lanes.insert(name.clone(), Lane::open(&namespace, &name, 0)?.view());
            }
        }
        let (items, next_cursor) = page(lanes.into_values().collect(), limit, |lane| &lane.name);
        Ok(Outcome { items, next_cursor })
    }
}
