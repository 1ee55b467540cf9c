//! Pages the journal of an execution, oldest record first.

use ff_core::op::ListSteps;
use ff_core::op::list_steps::{Args, Outcome};
use ff_core::{Result, limits};

use crate::engine::{Caller, Engine, Handle};

impl Handle<ListSteps> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let (execution, _) = self.visible_execution(caller, &args.execution_id).await?;
        let generation = args.generation.unwrap_or(execution.generation);
        let limit = args.limit.unwrap_or(limits::PAGE_DEFAULT);
        let after = args.after.unwrap_or(0);
        let max_bytes = limits::JOURNAL_PER_ANSWER_MAX_BYTES;
        let page = self.read_journal(&execution.id, generation, after, limit, max_bytes).await?;
        let next_after = page.entries.last().map(|entry| entry.number).filter(|_| page.more);
        Ok(Outcome { generation, items: page.entries, next_number: page.next_number, next_after })
    }
}
