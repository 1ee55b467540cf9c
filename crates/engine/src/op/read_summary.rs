//! Reads the document that the `summary` frames of an attempt add up to.

use ff_core::op::ReadSummary;
use ff_core::op::read_summary::{Args, Outcome};
use ff_core::{Document, Result, Summary};

use crate::engine::{Caller, Engine, Handle};

impl Handle<ReadSummary> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let (execution, _) = self.visible_execution(caller, &args.execution_id).await?;
        let key = Summary::key_of(&execution.id, args.attempt);
        let found = self.store().documents(execution.id.partition(), vec![key]).await?;
        let summary = match found.into_iter().next().flatten() {
            Some(stored) => Summary::decode(&stored.body)?,
            None => Summary::empty(execution.id, args.attempt),
        };
        Ok(Outcome { document: summary.value, last_sequence: summary.sequence })
    }
}
