//! Lists what happened to an execution, as far as the log reaches back.

use ff_core::Result;
use ff_core::event::Event;
use ff_core::op::ListExecutionEvents;
use ff_core::op::list_execution_events::{Args, Outcome};
use ff_store::LogStart;

use super::list_events::event_view;
use crate::engine::{Caller, Engine, Handle};
use crate::{cursor, logs};

/// Records read at once.
const PAGE: usize = 1_000;
/// Pages one call looks through; the rest is behind the cursor.
const PAGES_MAX: usize = 100;
/// An execution is dated by an estimate of the store's time, its events by the store itself: reading begins a little
/// before the execution did.
const DATED_AHEAD_MAX_MS: i64 = 1_000;

impl Handle<ListExecutionEvents> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let (execution, _) = self.visible_execution(caller, &args.execution_id).await?;
        let partition = execution.id.partition();
        let limit = self.limits().page(args.limit)?;
        let mut start = match cursor::decode::<u64>(args.cursor.as_deref())? {
            Some(after) => LogStart::After(after),
            None => LogStart::Since(execution.created_at - DATED_AHEAD_MAX_MS),
        };
        let mut items = Vec::new();
        for _ in 0..PAGES_MAX {
            let page = self.store().log(partition, logs::events(), start, PAGE).await?;
            let full = page.records.len() == PAGE;
            for record in page.records {
                start = LogStart::After(record.sequence);
                let Some(event) = self.readable_record::<Event>(&logs::events(), &record.record) else { continue };
                if event.execution_id != execution.id {
                    continue;
                }
                items.push(event_view(partition, &record, event));
                if items.len() == limit {
                    return Ok(Outcome { items, next_cursor: Some(cursor::encode(&record.sequence)) });
                }
            }
            if !full {
                return Ok(Outcome { items, next_cursor: None });
            }
        }
        let next_cursor = match start {
            LogStart::After(after) => Some(cursor::encode(&after)),
            _ => None,
        };
        Ok(Outcome { items, next_cursor })
    }
}
