//! The life of an execution, step by step, and random commands that must only ever reach legal vectors.

mod timers;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::condition::{Condition, ConditionMatcher, SignalFact};
use crate::event::ReleasedSlot;
use crate::id::{LeaseId, Mint, SlotId, SuspensionId, WaitpointId};
use crate::index::Indexed;
use crate::lease::{AttemptKind, ClaimKind, LeaseEnd, LeaseFence};
use crate::partition::Partition;
use crate::policy::{Backoff, RetryPolicy};
use crate::state::{AttemptState, EligibilityState, OwnershipState};
use crate::suspension::{NewSuspension, SuspendReason, TimeoutBehavior};

const NOW: i64 = 1_800_000_000_000;

fn mint(number: u8) -> Mint {
    Mint { now_ms: NOW, random: [number; 10] }
}

fn request() -> NewExecution {
    NewExecution {
        id: ExecutionId::in_partition(Partition::flow(0), &mint(1)),
        namespace: "default".into(),
        lane: DEFAULT_LANE.into(),
        kind: "test".into(),
        priority: 0,
        creator: String::new(),
        submitted_by: String::new(),
        idempotency_key: String::new(),
        tags: BTreeMap::new(),
        policy: Arc::new(Policy {
            retry: RetryPolicy { max_retries: 1, backoff: Backoff::Fixed { delay_ms: 100 }, ..Default::default() },
            ..Default::default()
        }),
        capabilities: CapabilitySet::default(),
        budgets: Vec::new(),
        quota: None,
        input: Payload::default(),
        delay_until: None,
        deadline_at: None,
        flow: None,
        node: String::new(),
        request_hash: Blob::default(),
        trace_context: String::new(),
        schedule: None,
        sharing: Default::default(),
    }
}

fn created() -> Execution {
    Execution::create(request(), NOW).unwrap()
}

fn claim(number: u8) -> Claim {
    Claim {
        lease_id: LeaseId::mint(&mint(number)),
        worker_id: "w".into(),
        instance_id: "w-1".into(),
        ttl_ms: 30_000,
        build_id: String::new(),
        slot: None,
    }
}

fn claimed(number: u8) -> (Execution, LeaseFence) {
    let mut execution = created();
    let claimed = execution.claim(&claim(number), NOW, &mut Effects::default()).unwrap();
    (execution, claimed.fence)
}

fn failure(random: u32) -> NewFailure<'static> {
    NewFailure { reason: "broke", category: "error", retry_after_ms: None, random }
}

fn suspension(timeout_ms: Option<i64>, behavior: TimeoutBehavior) -> SuspendRequest {
    let waitpoint = WaitpointId::in_partition(Partition::flow(0), &mint(9));
    SuspendRequest {
        suspension: NewSuspension {
            id: SuspensionId::mint(&mint(8)),
            waitpoints: vec![waitpoint],
            condition: Condition::Any(vec![ConditionMatcher::named("approve")]),
            timeout_ms,
            behavior,
            reason: SuspendReason::Approval,
            requested_by: String::new(),
            allow_operator_resume: true,
            idempotency_key: String::new(),
            ask: crate::suspension::Ask::default(),
        },
        buffered: Vec::new(),
        continuation: None,
        detail: "the release manager".into(),
    }
}

fn approve(number: u8) -> SignalFact {
    SignalFact {
        id: SignalId::mint(&mint(number)),
        name: "approve".into(),
        waitpoint: WaitpointId::in_partition(Partition::flow(0), &mint(9)),
        ..Default::default()
    }
}

#[test]
fn a_task_is_created_claimed_and_completed() {
    let (mut execution, fence) = claimed(2);
    assert_eq!((fence.attempt.0, fence.epoch.0), (0, 1));
    let mut effects = Effects::default();
    let (result, _) = Payload::divide(Bytes::from_static(b"done"), "text/plain");
    execution.complete(&fence, result, NOW + 5, &mut effects).unwrap();
    execution.check().unwrap();
    assert_eq!(execution.public_state(), PublicState::Completed);
    assert_eq!(effects.events.last().unwrap().event_type, EventType::Completed);
    // The same call again gets the same answer; another lease does not.
    execution.complete(&fence, Payload::default(), NOW + 6, &mut effects).unwrap();
    assert_eq!(execution.result.as_ref().unwrap().size, 4);
    let other = LeaseFence { lease_id: LeaseId::mint(&mint(3)), ..fence };
    let error = execution.complete(&other, Payload::default(), NOW + 7, &mut effects).unwrap_err();
    assert_eq!(error.code, Code::ExecutionNotActive);
    assert_eq!(error.details["terminal_outcome"], "success");
}

#[test]
fn a_lost_lease_is_told_apart_from_a_stale_one() {
    let (mut execution, old) = claimed(2);
    let mut effects = Effects::default();
    execution.expire_lease(&LostLease::default(), NOW + 1_000, &mut effects).unwrap();
    assert_eq!(execution.state.ownership_state, OwnershipState::LeaseExpiredReclaimable);
    assert_eq!(execution.public_state(), PublicState::Waiting);
    let complete = |execution: &mut Execution| {
        execution.complete(&old, Payload::default(), NOW + 2_000, &mut Effects::default()).unwrap_err().code
    };
    assert_eq!(complete(&mut execution), Code::LeaseExpired);
    let new = execution.claim(&claim(3), NOW + 1_500, &mut effects).unwrap();
    assert_eq!((new.kind, new.fence.attempt.0, new.fence.epoch.0), (ClaimKind::Reclaim, 1, 2));
    assert_eq!(complete(&mut execution), Code::StaleLease);
    execution.revoke_lease(None, NOW + 2_000, &mut effects).unwrap();
    let error = execution.check_fence(&new.fence).unwrap_err();
    assert_eq!(error.code, Code::LeaseRevoked);
    assert_eq!(effects.history.len(), 2, "the lost lease and its attempt are remembered");
}

#[test]
fn too_many_lost_leases_fail_it() {
    let mut new = request();
    Arc::make_mut(&mut new.policy).max_reclaim_count = 1;
    let mut execution = Execution::create(new, NOW).unwrap();
    let mut effects = Effects::default();
    for number in 0..2 {
        execution.claim(&claim(number), NOW, &mut effects).unwrap();
        execution.expire_lease(&LostLease::default(), NOW + 1, &mut effects).unwrap();
        execution.check().unwrap();
    }
    assert_eq!(execution.public_state(), PublicState::Failed);
    assert_eq!(execution.failure.unwrap().category, "max_reclaims_exceeded");
}

#[test]
fn a_claim_given_back_is_as_if_it_had_never_been() {
    let (mut execution, fence) = claimed(2);
    execution.return_lease(&fence, NOW + 1, &mut Effects::default()).unwrap();
    execution.check().unwrap();
    let again = execution.claim(&claim(3), NOW + 2, &mut Effects::default()).unwrap();
    assert_eq!((again.kind, again.fence.attempt.0), (ClaimKind::Initial, 0));
    assert_eq!((execution.reclaims, execution.retries), (0, 0));
}

#[test]
fn a_grant_takes_it_out_of_the_queue_and_is_for_one_worker_once() {
    let mut execution = created();
    let grant_id = LeaseId::mint(&mint(2));
    execution.grant(grant_id, "w", 5_000, NOW).unwrap();
    assert!(!execution.is_eligible());
    assert!(execution.index_entries(0).iter().all(|entry| entry.index.as_bytes()[0] != index::QUEUE_PREFIX));
    let mut effects = Effects::default();
    let foreign = Claim { worker_id: "other".into(), ..claim(2) };
    let code = |result: Result<ClaimedAttempt>| result.unwrap_err().code;
    assert_eq!(code(execution.claim_granted(&foreign, NOW + 1, &mut effects)), Code::InvalidClaimGrant);
    assert_eq!(code(execution.claim_granted(&claim(2), NOW + 5_000, &mut effects)), Code::ClaimGrantExpired);
    let taken = execution.claim_granted(&claim(2), NOW + 4_999, &mut effects).unwrap();
    assert_eq!(taken.fence.lease_id, grant_id);
    assert_eq!(code(execution.claim_granted(&claim(2), NOW + 4_999, &mut effects)), Code::InvalidClaimGrant);
    execution.check().unwrap();
}

#[test]
fn a_signal_resumes_the_same_attempt() {
    let (mut execution, fence) = claimed(2);
    let mut effects = Effects::default();
    let suspended = execution.suspend(&fence, suspension(None, TimeoutBehavior::Fail), NOW + 1, &mut effects).unwrap();
    assert_eq!(suspended, Suspended::Waiting);
    assert_eq!(execution.state.blocking_reason, BlockingReason::WaitingForApproval);
    assert_eq!(execution.blocking_detail, "the release manager");
    let other = SignalFact { name: "other".into(), ..approve(4) };
    assert!(!execution.deliver_signal(other, 0, NOW + 2, &mut effects).unwrap().resumed);
    assert!(execution.deliver_signal(approve(5), 0, NOW + 3, &mut effects).unwrap().resumed);
    assert_eq!(execution.blocking_detail, "");
    execution.check().unwrap();
    let again = execution.claim(&claim(6), NOW + 4, &mut effects).unwrap();
    assert_eq!((again.kind, again.fence.attempt.0, again.fence.epoch.0), (ClaimKind::Resumed, 0, 2));
    assert_eq!(execution.resume_signals, [SignalId::mint(&mint(5))]);
    let late = execution.deliver_signal(approve(7), 0, NOW + 5, &mut effects).unwrap_err();
    assert_eq!(late.code, Code::TargetNotSignalable);
}

/// Suspended with a continuation, approved, and claimed again.
fn resumed(number: u8) -> (Execution, LeaseFence) {
    let (mut execution, fence) = claimed(number);
    let (continuation, _) = Payload::divide(Bytes::from_static(b"page 7"), "text/plain");
    let request = SuspendRequest { continuation: Some(continuation), ..suspension(None, TimeoutBehavior::Fail) };
    execution.suspend(&fence, request, NOW + 1, &mut Effects::default()).unwrap();
    assert!(execution.deliver_signal(approve(5), 0, NOW + 2, &mut Effects::default()).unwrap().resumed);
    let again = execution.claim(&claim(number + 1), NOW + 3, &mut Effects::default()).unwrap();
    (execution, again.fence)
}

/// The parts of the last suspension that the next claim gets.
fn handed_over(execution: &Execution) -> (ResumedBy, usize, bool) {
    (execution.resumed_by, execution.resume_signals.len(), execution.continuation.is_some())
}

const APPROVED: (ResumedBy, usize, bool) = (ResumedBy::Signals, 1, true);
const NOTHING: (ResumedBy, usize, bool) = (ResumedBy::Nothing, 0, false);

#[test]
fn an_approval_lasts_until_the_next_parting_or_the_end() {
    let part: [fn(&mut Execution, &LeaseFence, &mut Effects); 4] = [
        |execution, fence, effects| assert_eq!(execution.delay(fence, NOW + 50, NOW + 10, effects).unwrap(), NOW + 50),
        |execution, fence, effects| drop(execution.wait_children(fence, None, NOW + 10, effects).unwrap()),
        |execution, fence, effects| {
            let request = suspension(None, TimeoutBehavior::Fail);
            assert_eq!(execution.suspend(fence, request, NOW + 10, effects).unwrap(), Suspended::Waiting);
        },
        |execution, fence, effects| {
            execution.complete(fence, Payload::default(), NOW + 10, effects).unwrap();
            execution.replay(0, None, NOW + 11).unwrap();
        },
    ];
    for (number, part) in part.into_iter().enumerate() {
        let (mut execution, fence) = resumed(20);
        part(&mut execution, &fence, &mut Effects::default());
        assert_eq!(handed_over(&execution), NOTHING, "way {number}");
        execution.check().unwrap();
    }
}

#[test]
fn an_approval_survives_an_operator_who_answers_for_a_budget() {
    let (mut execution, fence) = claimed(2);
    let mut effects = Effects::default();
    execution.suspend(&fence, suspension(None, TimeoutBehavior::Fail), NOW + 1, &mut effects).unwrap();
    assert!(execution.deliver_signal(approve(5), 0, NOW + 2, &mut effects).unwrap().resumed);
    let suspension = crate::id::SuspensionId::mint(&mint(6));
    let asked = super::AskBudget { suspension, gate: "b:small", detail: "nothing is left" };
    execution.ask_budget_at_admission(&asked, NOW + 3, &mut effects).unwrap();
    execution.resume_by_operator(NOW + 4, &mut effects).unwrap();
    execution.check().unwrap();
    execution.claim(&claim(7), NOW + 5, &mut effects).unwrap();
    assert_eq!((execution.resumed_by, execution.resume_signals.len()), (ResumedBy::Signals, 1));
    // One that asks in the middle of an attempt has parted from its worker, and the operator is what resumes it.
    let fence = execution.held_lease().unwrap().fence;
    execution.ask_budget(&fence, &asked, NOW + 6, &mut effects).unwrap();
    execution.resume_by_operator(NOW + 7, &mut effects).unwrap();
    assert_eq!(handed_over(&execution), (ResumedBy::Operator, 0, false));
}

#[test]
fn a_worker_that_suspends_for_a_budget_waits_for_its_own_signal_and_for_no_answer() {
    let (mut execution, fence) = claimed(2);
    let mut request = suspension(Some(10), TimeoutBehavior::Escalate);
    request.suspension.reason = SuspendReason::Budget;
    execution.suspend(&fence, request, NOW + 1, &mut Effects::default()).unwrap();
    execution.check().unwrap();
    assert!(!execution.asks_budget(), "no budget has asked");
    assert!(execution.suspension.as_ref().unwrap().asks(), "people find it among what waits for them");
    execution.fire(NOW + 11, 0, &mut Effects::default());
    assert!(execution.suspension.as_ref().unwrap().escalated, "its time is up, and no gate is looked at");
    assert!(execution.deliver_signal(approve(5), 0, NOW + 12, &mut Effects::default()).unwrap().resumed);
    execution.check().unwrap();
}

#[test]
fn a_suspension_that_was_over_before_it_began_hands_over_what_it_brought() {
    let (mut execution, fence) = claimed(2);
    let (continuation, _) = Payload::divide(Bytes::from_static(b"page 8"), "text/plain");
    let request = SuspendRequest {
        buffered: vec![approve(5)],
        continuation: Some(continuation),
        ..suspension(None, TimeoutBehavior::Fail)
    };
    let suspended = execution.suspend(&fence, request, NOW + 1, &mut Effects::default()).unwrap();
    assert_eq!(suspended, Suspended::AlreadySatisfied(vec![SignalId::mint(&mint(5))]));
    execution.expire_lease(&LostLease::default(), NOW + 10, &mut Effects::default()).unwrap();
    execution.claim(&claim(3), NOW + 11, &mut Effects::default()).unwrap();
    assert_eq!(handed_over(&execution), APPROVED);
}

/// One call of a lease holder.
type HolderCall = fn(&mut Execution, &LeaseFence) -> Result<()>;

/// Every transition that a lease holder may ask for, with the way it ends the lease.
const HOLDER_CALLS: &[(&str, LeaseEnd, HolderCall)] = &[
    ("complete", LeaseEnd::Completed, |execution, fence| {
        execution.complete(fence, Payload::default(), NOW + 90, &mut Effects::default())
    }),
    ("fail", LeaseEnd::Failed, |execution, fence| {
        execution.fail(fence, failure(0), NOW + 90, &mut Effects::default()).map(drop)
    }),
    ("delay", LeaseEnd::Delayed, |execution, fence| {
        execution.delay(fence, NOW + 95, NOW + 90, &mut Effects::default()).map(drop)
    }),
    ("wait_children", LeaseEnd::WaitingChildren, |execution, fence| {
        execution.wait_children(fence, None, NOW + 90, &mut Effects::default()).map(drop)
    }),
    ("cancel", LeaseEnd::Cancelled, |execution, fence| {
        execution.cancel_held(fence, "enough", NOW + 90, &mut Effects::default()).map(drop)
    }),
    ("suspend", LeaseEnd::Suspended, |execution, fence| {
        let request = suspension(None, TimeoutBehavior::Fail);
        execution.suspend(fence, request, NOW + 90, &mut Effects::default()).map(drop)
    }),
    ("return", LeaseEnd::None, |execution, fence| execution.return_lease(fence, NOW + 90, &mut Effects::default())),
    ("progress", LeaseEnd::None, |execution, fence| execution.report_progress(fence, 10, "on it", NOW + 90)),
    ("spawn_child", LeaseEnd::None, |execution, fence| execution.spawn_child(fence, NOW + 90)),
    ("anything else", LeaseEnd::None, |execution, fence| execution.check_fence(fence)),
];

#[test]
fn every_call_of_a_holder_is_refused_in_the_same_order() {
    let effects = || Effects::default();
    let reclaimed = |act: &dyn Fn(&mut Execution, &LeaseFence)| {
        let (mut execution, old) = claimed(2);
        execution.expire_lease(&LostLease::default(), NOW + 1, &mut effects()).unwrap();
        let new = execution.claim(&claim(3), NOW + 2, &mut effects()).unwrap();
        act(&mut execution, &new.fence);
        (execution, old)
    };
    let own = |act: &dyn Fn(&mut Execution)| {
        let (mut execution, fence) = claimed(2);
        act(&mut execution);
        (execution, fence)
    };
    let situations: Vec<(&str, (Execution, LeaseFence), Code)> = vec![
        ("another lease is held", reclaimed(&|_, _| {}), Code::StaleLease),
        (
            "another lease suspended it",
            reclaimed(&|execution, fence| HOLDER_CALLS[5].2(execution, fence).unwrap()),
            Code::ExecutionNotActive,
        ),
        (
            "another lease completed it",
            reclaimed(&|execution, fence| HOLDER_CALLS[0].2(execution, fence).unwrap()),
            Code::ExecutionNotActive,
        ),
        (
            "another lease delayed it",
            reclaimed(&|execution, fence| HOLDER_CALLS[2].2(execution, fence).unwrap()),
            Code::ExecutionNotActive,
        ),
        (
            "its own lease ran out",
            own(&|execution| execution.expire_lease(&LostLease::default(), NOW + 1, &mut effects()).unwrap()),
            Code::LeaseExpired,
        ),
        (
            "its own lease was revoked",
            own(&|execution| {
                execution.revoke_lease(None, NOW + 1, &mut effects()).unwrap();
            }),
            Code::LeaseRevoked,
        ),
        (
            "it was cancelled",
            own(&|execution| {
                execution.cancel(CancelSource::Operator, "enough", NOW + 1, &mut effects()).unwrap();
            }),
            Code::LeaseRevoked,
        ),
    ];
    for (situation, (execution, fence), code) in &situations {
        for (name, _, call) in HOLDER_CALLS {
            let mut after = execution.clone();
            let refused = call(&mut after, fence).unwrap_err();
            assert_eq!(refused.code, *code, "{name}, when {situation}");
            assert_eq!(after, *execution, "{name}, when {situation}, changes nothing");
        }
    }
    for (ended, end, act) in HOLDER_CALLS.iter().filter(|(_, end, _)| *end != LeaseEnd::None) {
        let (mut execution, fence) = claimed(2);
        act(&mut execution, &fence).unwrap();
        for (name, other, call) in HOLDER_CALLS {
            let mut after = execution.clone();
            let answer = call(&mut after, &fence).map_err(|error| error.code);
            let expected = if other == end { Ok(()) } else { Err(Code::ExecutionNotActive) };
            assert_eq!(answer, expected, "{name} after {ended}");
            assert_eq!(after, execution, "{name} after {ended} changes nothing");
        }
    }
}

#[test]
fn signals_are_counted_up_to_the_limit_of_the_policy() {
    let mut execution = created();
    Arc::make_mut(&mut execution.policy).max_signals_per_execution = 2;
    execution.count_signal(NOW + 1).unwrap();
    execution.count_signal(NOW + 2).unwrap();
    let before = execution.clone();
    assert_eq!(execution.count_signal(NOW + 3).unwrap_err().code, Code::SignalLimitExceeded);
    assert_eq!(execution, before);
}

#[test]
fn every_terminal_state_can_be_replayed_and_only_so_often() {
    let (mut execution, fence) = claimed(2);
    let mut effects = Effects::default();
    execution.complete(&fence, Payload::default(), NOW, &mut effects).unwrap();
    for replay in 0..limits::REPLAYS_DEFAULT {
        execution.replay(0, None, NOW + 1).unwrap();
        execution.check().unwrap();
        assert_eq!(execution.state.attempt_state, AttemptState::PendingReplayAttempt);
        let again = execution.claim(&claim(u8::try_from(replay).unwrap() + 10), NOW + 2, &mut effects).unwrap();
        assert_eq!((again.kind, again.fence.attempt.0), (ClaimKind::Replay, replay + 1));
        execution.cancel(CancelSource::Operator, "again", NOW + 3, &mut effects).unwrap();
    }
    assert_eq!(execution.replay(0, None, NOW + 4).unwrap_err().code, Code::MaxReplaysExhausted);
    assert!(execution.result.is_some(), "the old result stays");
}

#[test]
fn a_document_of_the_first_schema_still_reads() {
    // Written by the first version of this layout; kept as bytes so that no change of the code can change them.
    let bytes = include_bytes!("execution_schema_1.bin");
    let execution = Execution::decode(bytes).unwrap();
    assert_eq!(execution.kind, "test");
    assert_eq!(execution.public_state(), PublicState::Delayed);
    assert_eq!(execution.lease.as_ref().unwrap().end, LeaseEnd::Failed);
    assert_eq!(execution.tags["team"], "a");
    assert!(execution.holds.has(Hold::Time), "what the first layout did not keep is derived");
    assert_eq!(execution.extra.len(), 1, "a key of a later version is kept");
    assert_eq!(Execution::decode(&execution.encode()).unwrap(), execution);
    execution.check().unwrap();
}

#[test]
fn a_waiting_execution_is_small() {
    let new = NewExecution { input: Payload::divide(vec![7; 100].into(), "application/json").0, ..request() };
    let size = Execution::create(new, NOW).unwrap().encode().len();
    assert!(size < 260, "{size} bytes");
}

/// One step of a random life.
#[derive(Debug, Clone)]
enum Step {
    Claim(u8),
    Grant(u8),
    ClaimGranted,
    Complete,
    Fail(bool),
    Delay(i64),
    Suspend(TimeoutBehavior),
    Signal(u8),
    ResumeByOperator,
    WaitChildren,
    Cancel,
    Hold,
    Release,
    Park,
    Unpark,
    Expire,
    Revoke,
    Return,
    Priority(i64),
    Replay,
    Progress,
    Skip,
    Pass(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let behavior = prop::sample::select(TimeoutBehavior::ALL.to_vec());
    let step = prop_oneof![
        6 => (2u8..250).prop_map(Step::Claim),
        1 => (2u8..250).prop_map(Step::Grant),
        1 => Just(Step::ClaimGranted),
        2 => Just(Step::Complete),
        3 => any::<bool>().prop_map(Step::Fail),
        2 => (0i64..500).prop_map(Step::Delay),
        2 => behavior.prop_map(Step::Suspend),
        2 => (2u8..250).prop_map(Step::Signal),
        1 => Just(Step::ResumeByOperator),
        1 => Just(Step::WaitChildren),
        1 => Just(Step::Cancel),
        1 => Just(Step::Hold),
        1 => Just(Step::Release),
        1 => Just(Step::Park),
        1 => Just(Step::Unpark),
        1 => Just(Step::Expire),
        1 => Just(Step::Revoke),
        1 => Just(Step::Return),
        1 => (0i64..20_000).prop_map(Step::Priority),
        2 => Just(Step::Replay),
        1 => Just(Step::Progress),
        1 => Just(Step::Skip),
        5 => (0i64..400).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..80)
}

fn take(execution: &mut Execution, step: &Step, now: &mut i64) {
    let effects = &mut Effects::default();
    let before = execution.clone();
    let at = *now;
    let fence = execution.lease.as_ref().map_or(
        LeaseFence { attempt: Default::default(), lease_id: LeaseId::default(), epoch: LeaseEpoch(0) },
        |lease| LeaseFence { attempt: lease.attempt, lease_id: lease.id, epoch: lease.epoch },
    );
    let refused = match step {
        Step::Claim(number) => execution.claim(&claim(*number), at, effects).is_err(),
        Step::Grant(number) => execution.grant(LeaseId::mint(&mint(*number)), "w", 100, at).is_err(),
        Step::ClaimGranted => {
            let lease_id = execution.grant.as_ref().map(|grant| grant.id).unwrap_or_default();
            execution.claim_granted(&Claim { lease_id, ..claim(2) }, at, effects).is_err()
        }
        Step::Complete => execution.complete(&fence, Payload::default(), at, effects).is_err(),
        Step::Fail(retry) => {
            let category = if *retry { "error" } else { "fatal" };
            execution.fail(&fence, NewFailure { category, ..failure(7) }, at, effects).is_err()
        }
        Step::Delay(ms) => execution.delay(&fence, at + ms, at, effects).is_err(),
        Step::Suspend(behavior) => execution.suspend(&fence, suspension(Some(90), *behavior), at, effects).is_err(),
        Step::Signal(number) => execution.deliver_signal(approve(*number), 5, at, effects).is_err(),
        Step::ResumeByOperator => execution.resume_by_operator(at, effects).is_err(),
        Step::WaitChildren => execution.wait_children(&fence, None, at, effects).is_err(),
        Step::Cancel => execution.cancel(CancelSource::Operator, "", at, effects).is_err(),
        Step::Hold => execution.hold("", at).is_err(),
        Step::Release => execution.release(at).is_err(),
        Step::Park => execution.park("q:rate", "full", at + 50, at).is_err(),
        Step::Unpark => {
            execution.unpark(at, effects);
            false
        }
        Step::Expire => execution.expire_lease(&LostLease::default(), at, effects).is_err(),
        Step::Revoke => execution.revoke_lease(None, at, effects).is_err(),
        Step::Return => execution.return_lease(&fence, at, effects).is_err(),
        Step::Priority(priority) => execution.change_priority(*priority, at).is_err(),
        Step::Replay => execution.replay(0, None, at).is_err(),
        Step::Progress => execution.report_progress(&fence, 50, "half", at).is_err(),
        Step::Skip => execution.skip("impossible", at, effects).is_err(),
        Step::Pass(ms) => {
            *now += ms;
            execution.fire(*now, 3, effects);
            false
        }
    };
    let told = |wanted| effects.events.iter().filter(|event| event.event_type == wanted).count();
    let waits = |execution: &Execution| execution.public_state() == PublicState::Suspended;
    let begun = !waits(&before) && waits(execution);
    let ended = waits(&before) && !waits(execution) && !execution.is_terminal();
    assert_eq!((told(EventType::Suspended), told(EventType::Resumed)), (usize::from(begun), usize::from(ended)));
    if refused {
        assert_eq!(*execution, before, "a refused {step:?} changed something");
    }
    assert!(execution.epoch >= before.epoch, "the epoch went back");
    assert!(execution.updated_at >= before.updated_at, "time went back");
    if before.is_terminal() && !execution.is_terminal() {
        assert!(matches!(step, Step::Replay), "{step:?} left a terminal state");
    }
}

/// Every non-terminal execution is in exactly the index its state says, or held by a lease, grant or timer.
fn check_entries(execution: &Execution) {
    let entries = execution.index_entries(NOW);
    let count = |kind: u8| entries.iter().filter(|entry| entry.index.as_bytes()[0] == kind).count();
    assert_eq!(count(b's'), 1, "one state entry");
    assert_eq!(count(index::QUEUE_PREFIX), usize::from(execution.is_eligible()));
    let worker = execution.lease.as_ref().map(|lease| index::worker(&execution.namespace, &lease.instance_id));
    let held = entries.iter().filter(|entry| Some(&entry.index) == worker.as_ref()).count();
    assert_eq!(held, usize::from(execution.public_state() == PublicState::Active));
    let due = entries.iter().filter(|entry| entry.index == index::due()).count();
    let lease = usize::from(execution.public_state() == PublicState::Active);
    assert_eq!(due, lease + usize::from(execution.next_timer().is_some()));
    let reachable = match execution.public_state() {
        PublicState::Waiting => execution.is_eligible() || due > 0 || execution.holds.has(Hold::Operator),
        PublicState::Delayed | PublicState::RateLimited | PublicState::Active => due > 0,
        _ => true,
    };
    assert!(reachable, "{:?} would be lost", execution.state);
}

/// A million steps take a minute in release; `FF_PROPTEST_CASES` sets how many lives of about forty steps are tried.
fn config() -> ProptestConfig {
    let cases = std::env::var("FF_PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(512);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

#[test]
fn a_function_whose_journal_is_full_is_not_retried() {
    for (category, outcome) in
        [("journal_full", FailOutcome::TerminalFailed), ("other", FailOutcome::RetryScheduled { at: NOW + 10 })]
    {
        let mut new = request();
        Arc::make_mut(&mut new.policy).retry.max_retries = 5;
        let mut execution = Execution::create(new, NOW).unwrap();
        let fence = execution.claim(&claim(1), NOW, &mut Effects::default()).unwrap().fence;
        let failure = NewFailure { reason: "no room", category, retry_after_ms: Some(10), random: 0 };
        assert_eq!(execution.fail(&fence, failure, NOW, &mut Effects::default()).unwrap(), outcome);
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn random_lives_only_reach_legal_states(steps in steps()) {
        let mut now = NOW;
        let mut new = request();
        Arc::make_mut(&mut new.policy).retry.non_retryable_categories = vec!["fatal".into()];
        Arc::make_mut(&mut new.policy).timeout.attempt_timeout_ms = Some(300);
        let mut execution = Execution::create(new, now).unwrap();
        for step in &steps {
            take(&mut execution, step, &mut now);
            prop_assert!(execution.check().is_ok(), "{:?} after {step:?}", execution.check());
            check_entries(&execution);
            let back = Execution::decode(&execution.encode()).unwrap();
            prop_assert_eq!(&back, &execution);
        }
    }
}

#[test]
fn the_slot_of_a_grant_goes_to_its_lease_or_is_owed_back() {
    let mut effects = Effects::default();
    let (grant_id, slot) = (LeaseId::mint(&mint(7)), SlotId::mint(&mint(8)));
    let granted = || {
        let mut execution = created();
        execution.grant(grant_id, "w", 5_000, NOW).unwrap();
        execution.grant.as_mut().unwrap().slot = Some(slot);
        execution
    };
    let mut claimed = granted();
    assert!(claimed.uses_slot(&slot));
    claimed.claim_granted(&claim(7), NOW, &mut effects).unwrap();
    assert_eq!((claimed.slot, claimed.owed_slots.len()), (Some(slot), 0));
    let mut lapsed = granted();
    lapsed.drop_grant(grant_id, NOW).unwrap();
    let mut held = granted();
    held.hold("", NOW).unwrap();
    let mut cancelled = granted();
    cancelled.cancel(CancelSource::Operator, "", NOW, &mut effects).unwrap();
    for execution in [lapsed, held, cancelled] {
        execution.check().unwrap();
        assert_eq!(execution.owed_slots, [slot]);
        assert!(!execution.uses_slot(&slot));
    }
}

#[test]
fn a_lease_that_ends_before_its_slot_is_looked_at_leaves_no_mark() {
    let id = SlotId::mint(&mint(8));
    let ended_at = |now: i64| {
        let (mut execution, mut effects) = (created(), Effects::default());
        let slot = Some(ClaimedSlot { id, unseen_until: NOW + 9_000 });
        let claimed = execution.claim(&Claim { slot, ..claim(1) }, NOW, &mut effects).unwrap();
        assert!(execution.may_end_unmarked(NOW + 9_000) && !execution.may_end_unmarked(NOW + 9_001));
        execution.complete(&claimed.fence, Payload::default(), now, &mut effects).unwrap();
        execution.check().unwrap();
        assert!(!execution.uses_slot(&id) && !execution.may_end_unmarked(now));
        (execution, effects.released)
    };
    let (execution, released) = ended_at(NOW + 8_000);
    assert_eq!(released, [ReleasedSlot { slot: id, until: NOW + 9_000 }]);
    assert!(!execution.owes_anything() && execution.owed_slots.is_empty());
    let (execution, released) = ended_at(NOW + 8_001);
    assert_eq!((released.len(), execution.owed_slots), (0, vec![id]));
}

#[test]
fn what_admission_refuses_for_good_fails_without_an_attempt() {
    let mut effects = Effects::default();
    let mut execution = created();
    execution.fail_at_admission("the budget is used up", "budget_exhausted", NOW, &mut effects).unwrap();
    execution.check().unwrap();
    assert_eq!((execution.public_state(), execution.attempt.is_none()), (PublicState::Failed, true));
    assert_eq!(execution.failure.as_ref().unwrap().category, "budget_exhausted");
    assert!(execution.fail_at_admission("again", "", NOW, &mut effects).is_err());
}

#[test]
fn an_initial_claim_that_was_returned_never_started() {
    let mut execution = created();
    for number in 1..4 {
        let claimed = execution.claim(&claim(number), NOW + 1, &mut Effects::default()).unwrap();
        assert_eq!((claimed.kind, claimed.fence.attempt.0), (ClaimKind::Initial, 0));
        assert!(execution.has_started() && execution.started_at != 0);
        execution.return_lease(&claimed.fence, NOW + 2, &mut Effects::default()).unwrap();
        execution.check().unwrap();
        assert!(!execution.has_started() && execution.started_at == 0);
    }
    // One that has run before stays started.
    let claimed = execution.claim(&claim(5), NOW + 3, &mut Effects::default()).unwrap();
    execution.expire_lease(&LostLease::default(), NOW + 40_000, &mut Effects::default()).unwrap();
    let again = execution.claim(&claim(6), NOW + 40_001, &mut Effects::default()).unwrap();
    execution.return_lease(&again.fence, NOW + 40_002, &mut Effects::default()).unwrap();
    execution.check().unwrap();
    assert!(execution.has_started() && claimed.fence.attempt < again.fence.attempt);
}

#[test]
fn an_execution_that_was_cancelled_after_a_failed_attempt_ended_for_the_reason_of_its_cancellation() {
    let mut effects = Effects::default();
    let (mut execution, fence) = claimed(1);
    execution.fail(&fence, failure(0), NOW + 10, &mut effects).unwrap();
    assert_ne!(execution.end_reason(), "no longer wanted");
    execution.cancel(CancelSource::Operator, "no longer wanted", NOW + 20, &mut effects).unwrap();
    assert_eq!(execution.end_reason(), "no longer wanted");
}
