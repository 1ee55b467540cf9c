//! Lists the attempts of an execution with their leases, oldest first.

use std::collections::BTreeMap;

use ff_core::execution::Execution;
use ff_core::lease::{Attempt, HistoryRecord, Lease};
use ff_core::op::ListAttempts;
use ff_core::op::list_attempts::{Args, Outcome};
use ff_core::op::view::AttemptView;
use ff_core::{AttemptIndex, Result};
use ff_store::LogStart;

use super::view::{self, some_instant, some_text};
use crate::engine::{Caller, Engine, Handle};
use crate::logs;

/// Records read at once.
const PAGE: usize = 1_000;

impl Handle<ListAttempts> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let (execution, lease_until) = self.visible_execution(caller, &args.execution_id).await?;
        let mut attempts = BTreeMap::new();
        for record in self.history(&execution).await? {
            note_lease(&mut attempts, record.lease.as_ref(), 0);
            note_attempt(&mut attempts, record.attempt.as_ref());
        }
        note_lease(&mut attempts, execution.lease.as_ref(), lease_until);
        note_attempt(&mut attempts, execution.attempt.as_ref());
        Ok(Outcome { items: attempts.into_values().collect() })
    }
}

impl Engine {
    /// Ended attempts and leases of an execution, oldest first, without the present ones.
    pub(crate) async fn history(&self, execution: &Execution) -> Result<Vec<HistoryRecord>> {
        let mut records = Vec::new();
        let mut after = 0;
        loop {
            let log = logs::history(&execution.id);
            let page = self.store().log(execution.id.partition(), log.clone(), LogStart::After(after), PAGE).await?;
            let full = page.records.len() == PAGE;
            for record in page.records {
                after = record.sequence;
                records.extend(self.readable_record::<HistoryRecord>(&log, &record.record));
            }
            if !full {
                return Ok(records);
            }
        }
    }
}

fn entry(attempts: &mut BTreeMap<AttemptIndex, AttemptView>, index: AttemptIndex) -> &mut AttemptView {
    attempts.entry(index).or_insert_with(|| AttemptView {
        index,
        kind: Default::default(),
        worker_id: None,
        started_at: None,
        ended_at: None,
        outcome: None,
        failure_reason: None,
        failure_category: None,
        leases: Vec::new(),
    })
}

fn note_lease(attempts: &mut BTreeMap<AttemptIndex, AttemptView>, lease: Option<&Lease>, lease_until: i64) {
    let Some(lease) = lease else { return };
    let attempt = entry(attempts, lease.attempt);
    attempt.worker_id = some_text(&lease.worker_id);
    attempt.leases.push(view::lease(lease, lease_until));
}

fn note_attempt(attempts: &mut BTreeMap<AttemptIndex, AttemptView>, attempt: Option<&Attempt>) {
    let Some(attempt) = attempt else { return };
    let shown = entry(attempts, attempt.index);
    shown.kind = attempt.kind;
    shown.started_at = some_instant(attempt.started_at);
    shown.ended_at = some_instant(attempt.ended_at);
    shown.outcome = (attempt.ended_at != 0).then_some(attempt.outcome);
    shown.failure_reason = some_text(&attempt.failure_reason);
    shown.failure_category = some_text(&attempt.failure_category);
}
