//! Reading executions: one, many, and what became of them.

use std::collections::BTreeMap;

use ff_core::execution::Execution;
use ff_core::lease::{Attempt, HistoryRecord, Lease};
use ff_core::op::parts::Content;
use ff_core::op::view::{AttemptView, ExecutionView};
use ff_core::op::{
    GetExecution, GetExecutionArgs, GetInput, GetInputArgs, GetResult, GetResultArgs, GetState, GetStateArgs,
    GetStateOutcome, ListAttempts, ListAttemptsArgs, ListAttemptsOutcome, WaitExecution, WaitExecutionArgs,
    WaitExecutionOutcome,
};
use ff_core::{AttemptIndex, BlockingReason, Code, EligibilityState, Error, LeaseId, Result};
use ff_store::LogStart;

use crate::caller::Caller;
use crate::op::Handle;
use crate::payload::Which;
use crate::services::Services;
use crate::view::{self, some_instant, some_text};
use crate::{env, logs};

impl Handle<GetExecution> for Services {
    async fn handle(&self, caller: &Caller, args: GetExecutionArgs) -> Result<ExecutionView> {
        let (execution, lease_until) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        let mut shown = view::execution(&execution, lease_until);
        if execution.is_eligible() {
            self.show_what_is_not_stored(&execution, &mut shown).await;
        }
        Ok(view::for_caller(caller, shown))
    }
}

impl Services {
    /// A closed lane and missing capabilities are never stored. They are shown if they can be found out.
    async fn show_what_is_not_stored(&self, execution: &Execution, shown: &mut ExecutionView) {
        if let Ok(Some(lane)) = self.closed_lane(execution).await {
            shown.state.eligibility_state = EligibilityState::BlockedByLaneState;
            shown.blocking_detail = Some(format!("lane {} is {}", lane.name, lane.state));
        } else if !execution.capabilities.is_empty()
            && let Ok(Some(reason)) = self.worker_missing(execution).await
        {
            shown.state.eligibility_state = EligibilityState::BlockedByRoute;
            shown.state.blocking_reason = BlockingReason::WaitingForCapableWorker;
            shown.blocking_detail = Some(reason.message);
        }
    }
}

impl Handle<GetState> for Services {
    async fn handle(&self, caller: &Caller, args: GetStateArgs) -> Result<GetStateOutcome> {
        let (execution, _) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        Ok(GetStateOutcome {
            execution_id: execution.id,
            public_state: execution.public_state(),
            state: execution.state,
        })
    }
}

impl Handle<GetResult> for Services {
    async fn handle(&self, caller: &Caller, args: GetResultArgs) -> Result<Content> {
        let (execution, _) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        match &execution.result {
            Some(result) => self.transactor.content(Which::Result, &execution.id, result).await,
            None => {
                let code = if execution.is_terminal() { Code::NoResult } else { Code::ResultNotReady };
                Err(Error::of(code).with("public_state", execution.public_state()))
            }
        }
    }
}

impl Handle<GetInput> for Services {
    async fn handle(&self, caller: &Caller, args: GetInputArgs) -> Result<Content> {
        let (execution, _) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        let input = self.transactor.optional_content(Which::Input, &execution.id, &execution.input).await?;
        input.ok_or_else(|| Error::of(Code::NoInput).with("execution_id", execution.id))
    }
}

/// A caller that waits for any change of an execution sees it within this time.
const CHANGE_RECHECK_MS: i64 = 500;

impl Handle<WaitExecution> for Services {
    async fn handle(&self, caller: &Caller, args: WaitExecutionArgs) -> Result<WaitExecutionOutcome> {
        let id = &args.execution_id;
        self.transactor.check_id(id)?;
        let wait_ms = self
            .transactor
            .limits()
            .tail_wait("wait_ms", args.wait_ms.unwrap_or(self.transactor.limits().tail_wait_max_ms))?;
        let deadline = self.transactor.env().now_ms() + wait_ms;
        let mut listener = self.shared.board.listen(id.partition(), Execution::key_of(id));
        loop {
            self.transactor.refuse_if_closing()?;
            let (execution, lease_until) = self.transactor.visible_execution(caller, id).await?;
            let left = deadline - self.transactor.env().now_ms();
            let changed = args.changed_after.is_some_and(|known| execution.updated_at > known);
            if execution.is_terminal() || changed || left <= 0 {
                let terminal = execution.is_terminal();
                let execution = view::for_caller(caller, view::execution(&execution, lease_until));
                return Ok(WaitExecutionOutcome { terminal, execution });
            }
            // The store hints at the end of an execution and of its waits. It does not hint at a claim or at progress, because
            // those are many and hardly any caller waits for them; one that does looks for itself.
            let look_again_in = if args.changed_after.is_some() { left.min(CHANGE_RECHECK_MS) } else { left };
            env::within(self.transactor.env_handle(), look_again_in, listener.changed()).await;
        }
    }
}

/// Records read at once.
const ATTEMPT_EVENTS_PAGE: usize = 1_000;

impl Handle<ListAttempts> for Services {
    async fn handle(&self, caller: &Caller, args: ListAttemptsArgs) -> Result<ListAttemptsOutcome> {
        let (execution, lease_until) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        let mut attempts = BTreeMap::new();
        for record in self.history(&execution).await? {
            note_lease(&mut attempts, record.lease.as_ref(), 0);
            note_attempt(&mut attempts, record.attempt.as_ref());
        }
        note_lease(&mut attempts, execution.lease.as_ref(), lease_until);
        note_attempt(&mut attempts, execution.attempt.as_ref());
        if !caller.sees_fences() {
            let leases = attempts.values_mut().flat_map(|attempt: &mut AttemptView| &mut attempt.leases);
            leases.for_each(|lease| lease.lease_id = LeaseId::default());
        }
        Ok(ListAttemptsOutcome { items: attempts.into_values().collect() })
    }
}

impl Services {
    /// Ended attempts and leases of an execution, oldest first, without the present ones.
    pub(crate) async fn history(&self, execution: &Execution) -> Result<Vec<HistoryRecord>> {
        let mut records = Vec::new();
        let mut after = 0;
        loop {
            let log = logs::history(&execution.id);
            let page = self
                .transactor
                .store()
                .log(execution.id.partition(), log.clone(), LogStart::After(after), ATTEMPT_EVENTS_PAGE)
                .await?;
            let full = page.records.len() == ATTEMPT_EVENTS_PAGE;
            for record in page.records {
                after = record.sequence;
                records.extend(self.transactor.readable_record::<HistoryRecord>(&log, &record.record));
            }
            if !full {
                return Ok(records);
            }
        }
    }
}

fn attempt_entry(attempts: &mut BTreeMap<AttemptIndex, AttemptView>, index: AttemptIndex) -> &mut AttemptView {
    attempts.entry(index).or_insert_with(|| AttemptView {
        index,
        kind: Default::default(),
        worker_id: None,
        build_id: None,
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
    let attempt = attempt_entry(attempts, lease.attempt);
    attempt.worker_id = some_text(&lease.worker_id);
    attempt.build_id = some_text(&lease.build_id);
    attempt.leases.push(view::lease(lease, lease_until));
}

fn note_attempt(attempts: &mut BTreeMap<AttemptIndex, AttemptView>, attempt: Option<&Attempt>) {
    let Some(attempt) = attempt else { return };
    let shown = attempt_entry(attempts, attempt.index);
    shown.kind = attempt.kind;
    shown.started_at = some_instant(attempt.started_at);
    shown.ended_at = some_instant(attempt.ended_at);
    shown.outcome = (attempt.ended_at != 0).then_some(attempt.outcome);
    shown.failure_reason = some_text(&attempt.failure_reason);
    shown.failure_category = some_text(&attempt.failure_category);
}
