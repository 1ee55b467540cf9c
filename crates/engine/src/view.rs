//! Documents as answers show them.

use ff_core::event::Event;
use ff_core::execution::{Execution, Hold};
use ff_core::journal::StepView;
use ff_core::lease::Lease;
use ff_core::op::view::{
    CancellationView, EventView, ExecutionSummary, ExecutionView, FailureView, InputView, JoinView, LeaseView,
    ProgressView, QuestionView, ResultView, SignedView, SuspensionView,
};
use ff_core::policy::Policy;
use ff_core::{EligibilityState, JsonText, LeaseId, LifecyclePhase, Partition, SignalFact, SingleUse, Suspension};
use ff_store::LogRecord;

use crate::caller::Caller;

/// Everything `get` shows, as it is stored. Parts that are shown and never stored are added by the caller.
pub(crate) fn execution(execution: &Execution, lease_until: i64) -> ExecutionView {
    let held = |hold| execution.state.lifecycle_phase == LifecyclePhase::Runnable && execution.holds.has(hold);
    let held_by = [
        (Hold::Operator, EligibilityState::BlockedByOperator),
        (Hold::Dependencies, EligibilityState::BlockedByDependencies),
        (Hold::Time, EligibilityState::NotEligibleUntilTime),
        (Hold::Budget, EligibilityState::BlockedByBudget),
        (Hold::Quota, EligibilityState::BlockedByQuota),
        (Hold::Copy, EligibilityState::BlockedByOperator),
    ]
    .into_iter()
    .filter(|(hold, _)| held(*hold))
    .map(|(_, shown)| shown)
    .collect();
    let active = execution.state.lifecycle_phase == LifecyclePhase::Active;
    ExecutionView {
        execution_id: execution.id,
        namespace: execution.namespace.clone(),
        lane: execution.lane.clone(),
        kind: execution.kind.clone(),
        priority: execution.priority,
        creator: some_text(&execution.creator),
        tags: execution.tags.clone(),
        public_state: execution.public_state(),
        state: execution.state.clone(),
        blocking_detail: some_text(&execution.blocking_detail),
        held_by,
        attempt: execution.attempt.as_ref().map(|attempt| attempt.index),
        retry_count: execution.retries,
        reclaim_count: execution.reclaims,
        replay_count: execution.replays,
        progress: progress(execution),
        flow_id: execution.flow,
        node: some_text(&execution.node),
        schedule: execution.scheduled_run().map(|run| run.name.clone()),
        scheduled_for: execution.scheduled_run().map(|run| run.scheduled_for),
        join: execution.join.as_deref().map(join),
        policy: Policy::clone(&execution.policy),
        required_capabilities: execution.capabilities.clone(),
        budget_ids: execution.budgets.clone(),
        quota_policy_id: execution.quota.clone(),
        concurrency: execution.concurrency().to_vec(),
        fair_key: some_text(execution.fair_key()),
        singleton_key: execution.single_key(SingleUse::Singleton).map(str::to_owned),
        debounce_key: execution.single_key(SingleUse::Debounce).map(str::to_owned),
        idempotency_key: some_text(&execution.idempotency_key),
        created_at: execution.created_at,
        updated_at: execution.updated_at,
        started_at: some_instant(execution.started_at),
        completed_at: some_instant(execution.ended_at),
        delay_until: some_instant(execution.not_before),
        deadline_at: some_instant(execution.deadline_at),
        last_failure: failure(execution),
        cancellation: execution.cancellation.as_ref().map(|cancellation| CancellationView {
            reason: some_text(&cancellation.reason),
            source: cancellation.source.as_str().to_owned(),
            cancelled_at: execution.ended_at,
            superseded_by: cancellation.superseded_by,
        }),
        lease: execution.lease.as_ref().filter(|_| active).map(|held| lease(held, lease_until)),
        suspension: execution.suspension.as_ref().map(|suspension| SuspensionView {
            suspension_id: suspension.id,
            reason: suspension.reason,
            condition: suspension.condition.clone(),
            waitpoint_ids: suspension.waitpoints.clone(),
            requested_by: some_text(&suspension.requested_by),
            allow_operator_resume: suspension.allow_operator_resume,
            suspended_at: suspension.suspended_at,
            timeout_at: suspension.timeout_at,
            timeout_behavior: suspension.behavior,
            question: some_text(&suspension.question),
            schema: some_text(&suspension.schema).map(JsonText),
            assignees: suspension.assignees.clone(),
            signed: signed(suspension),
        }),
        questions: QuestionView::of(execution),
        last_words: execution.last_words().to_vec(),
        generation: execution.generation,
        pinned_build: some_text(&execution.pinned_build),
        forked_from: execution.fork().map(|fork| fork.origin),
        steps_not_visited: execution.steps_not_visited(),
        steps_changed: execution.steps_changed(),
        input: Some(&execution.input)
            .filter(|input| !input.is_absent())
            .map(|input| InputView { content_type: input.content_type.clone(), size: input.size }),
        result: execution
            .result
            .as_ref()
            .map(|result| ResultView { content_type: result.content_type.clone(), size: result.size }),
    }
}

/// The short form of lists.
pub(crate) fn summary(execution: &Execution) -> ExecutionSummary {
    ExecutionSummary {
        execution_id: execution.id,
        namespace: execution.namespace.clone(),
        lane: execution.lane.clone(),
        kind: execution.kind.clone(),
        public_state: execution.public_state(),
        priority: execution.priority,
        created_at: execution.created_at,
        flow_id: execution.flow,
        node: some_text(&execution.node),
        tags: execution.tags.clone(),
        attempt: execution.attempt.as_ref().map(|attempt| attempt.index),
        updated_at: execution.updated_at,
        started_at: some_instant(execution.started_at),
        completed_at: some_instant(execution.ended_at),
        delay_until: some_instant(execution.not_before),
        deadline_at: some_instant(execution.deadline_at),
        failure_category: execution.failure.as_ref().and_then(|failure| some_text(&failure.category)),
        progress: progress(execution),
    }
}

/// An execution as a caller is shown it: one that may not operate it sees no fences.
pub(crate) fn for_caller(caller: &Caller, mut shown: ExecutionView) -> ExecutionView {
    if !caller.sees_fences() {
        if let Some(lease) = &mut shown.lease {
            lease.lease_id = LeaseId::default();
        }
        hide_reporters(&mut shown.questions);
    }
    shown
}

/// The open questions of an execution, as a caller is shown them.
pub(crate) fn questions(caller: &Caller, execution: &Execution) -> Vec<QuestionView> {
    let mut questions = QuestionView::of(execution);
    if !caller.sees_fences() {
        hide_reporters(&mut questions);
    }
    questions
}

fn hide_reporters(questions: &mut [QuestionView]) {
    for report in questions.iter_mut().flat_map(|question| &mut question.evidence) {
        report.lease_id = LeaseId::default();
    }
}

/// A journal as a caller is shown it.
pub(crate) fn steps(caller: &Caller, mut entries: Vec<StepView>) -> Vec<StepView> {
    if !caller.sees_fences() {
        entries.iter_mut().for_each(|entry| entry.lease_id = LeaseId::default());
    }
    entries
}

/// Events as a caller is shown them.
pub(crate) fn events(caller: &Caller, mut events: Vec<EventView>) -> Vec<EventView> {
    if !caller.sees_fences() {
        events.iter_mut().for_each(|shown| shown.event.lease_id = None);
    }
    events
}

/// The signals that have counted so far, with the names behind them.
pub(crate) fn signed(suspension: &Suspension) -> Vec<SignedView> {
    let signed = |fact: &SignalFact| SignedView {
        signal_id: fact.id,
        name: fact.name.clone(),
        by: some_text(&fact.by),
        at: fact.at,
        waitpoint_id: Some(fact.waitpoint),
    };
    suspension.facts.iter().map(signed).collect()
}

/// The last progress that the worker reported.
fn progress(execution: &Execution) -> Option<ProgressView> {
    execution.progress.as_ref().map(|progress| ProgressView {
        pct: Some(progress.pct),
        message: some_text(&progress.message),
        reported_at: progress.at,
    })
}

/// The last failure.
pub(crate) fn failure(execution: &Execution) -> Option<FailureView> {
    execution.failure.as_ref().map(|failure| FailureView {
        reason: failure.reason.clone(),
        category: some_text(&failure.category),
        attempt: execution.attempt.as_ref().map(|_| failure.attempt),
        failed_at: failure.at,
        by_engine: failure.by_engine,
    })
}

/// The present or an ended lease.
pub(crate) fn lease(lease: &Lease, lease_until: i64) -> LeaseView {
    let ended = lease.ended_at != 0;
    LeaseView {
        lease_id: lease.id,
        epoch: lease.epoch,
        attempt: lease.attempt,
        worker_id: lease.worker_id.clone(),
        instance_id: lease.instance_id.clone(),
        acquired_at: lease.acquired_at,
        expires_at: (!ended).then_some(lease_until),
        ended_at: some_instant(lease.ended_at),
        end: ended.then_some(lease.end),
        build_id: some_text(&lease.build_id),
    }
}

/// Where a child's join stands.
pub(crate) fn join(join: &ff_core::join::Join) -> JoinView {
    JoinView { policy: join.policy.clone(), total: join.total, succeeded: join.succeeded, failed: join.failed }
}

/// Empty text means that nothing was said.
pub(crate) fn some_text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Zero means never.
pub(crate) fn some_instant(at: i64) -> Option<i64> {
    (at != 0).then_some(at)
}

/// An event as subscribers see it. Its id grows within the partition.
pub(crate) fn event_view(partition: Partition, record: &LogRecord, event: Event) -> EventView {
    let event_id = format!("{}-{:04x}-{}", record.at, partition.number, record.sequence);
    EventView { event_id, happened_at: record.at, event }
}
