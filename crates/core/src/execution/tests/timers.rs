//! What becomes of an execution because time passes.

use super::*;

#[test]
fn a_document_dated_ahead_of_a_clock_that_was_set_back_makes_nothing_due() {
    let mut effects = Effects::default();
    let (mut execution, fence) = claimed(2);
    execution.deadline_at = NOW + 130;
    execution.fail(&fence, failure(0), NOW + 10, &mut effects).unwrap();
    execution.change_priority(1, NOW + 140).unwrap();
    assert_eq!(execution.fire(NOW + 110, 0, &mut effects), Fired::Changed);
    assert_eq!(execution.public_state(), PublicState::Waiting, "its backoff is over, and its deadline is yet to come");
    assert_eq!(execution.fire(NOW + 130, 0, &mut effects), Fired::Changed);
    assert_eq!(execution.public_state(), PublicState::Expired);
}

#[test]
fn a_failed_attempt_is_retried_once_and_then_fails() {
    let (mut execution, fence) = claimed(2);
    let mut effects = Effects::default();
    let outcome = execution.fail(&fence, failure(0), NOW + 10, &mut effects).unwrap();
    assert_eq!(outcome, FailOutcome::RetryScheduled { at: NOW + 110 });
    assert_eq!(execution.public_state(), PublicState::Delayed);
    assert_eq!(execution.fire(NOW + 109, 0, &mut effects), Fired::Nothing);
    assert_eq!(execution.fire(NOW + 110, 0, &mut effects), Fired::Changed);
    assert_eq!(execution.public_state(), PublicState::Waiting);
    let again = execution.claim(&claim(3), NOW + 120, &mut effects).unwrap();
    assert_eq!((again.kind, again.fence.attempt.0, again.fence.epoch.0), (ClaimKind::Retry, 1, 2));
    assert_eq!(execution.attempt.as_ref().unwrap().kind, AttemptKind::Retry);
    assert_eq!(execution.fail(&again.fence, failure(0), NOW + 130, &mut effects).unwrap(), FailOutcome::TerminalFailed);
    // The first failure's answer is remembered even now.
    let repeated = execution.fail(&fence, failure(7), NOW + 140, &mut effects).unwrap();
    assert_eq!(repeated, FailOutcome::RetryScheduled { at: NOW + 110 });
    execution.check().unwrap();
}

#[test]
fn an_unused_grant_lapses() {
    let mut execution = created();
    let grant_id = LeaseId::mint(&mint(2));
    execution.grant(grant_id, "w", 5_000, NOW).unwrap();
    assert_eq!(execution.fire(NOW + 5_000, 0, &mut Effects::default()), Fired::Changed);
    assert!(execution.is_eligible() && execution.grant_is_over(grant_id));
}

#[test]
fn an_approval_survives_reclaims_and_retries() {
    let mut effects = Effects::default();
    let (mut execution, _) = resumed(20);
    execution.expire_lease(&LostLease::default(), NOW + 10, &mut effects).unwrap();
    let reclaim = execution.claim(&claim(30), NOW + 11, &mut effects).unwrap();
    assert_eq!((reclaim.kind, handed_over(&execution)), (ClaimKind::Reclaim, APPROVED));
    execution.revoke_lease(None, NOW + 12, &mut effects).unwrap();
    let reclaim = execution.claim(&claim(31), NOW + 13, &mut effects).unwrap();
    assert_eq!((reclaim.kind, handed_over(&execution)), (ClaimKind::Reclaim, APPROVED));
    execution.fail(&reclaim.fence, failure(0), NOW + 14, &mut effects).unwrap();
    assert_eq!(execution.fire(NOW + 200, 0, &mut effects), Fired::Changed);
    let retry = execution.claim(&claim(32), NOW + 201, &mut effects).unwrap();
    assert_eq!((retry.kind, handed_over(&execution)), (ClaimKind::Retry, APPROVED));
    execution.return_lease(&retry.fence, NOW + 202, &mut effects).unwrap();
    let retry = execution.claim(&claim(33), NOW + 203, &mut effects).unwrap();
    assert_eq!((retry.kind, handed_over(&execution)), (ClaimKind::Retry, APPROVED));
    execution.check().unwrap();
}

#[test]
fn each_timeout_behaviour_ends_a_suspension_its_own_way() {
    for (behavior, state) in [
        (TimeoutBehavior::Fail, PublicState::Failed),
        (TimeoutBehavior::Cancel, PublicState::Cancelled),
        (TimeoutBehavior::Expire, PublicState::Expired),
        (TimeoutBehavior::AutoResumeWithTimeoutSignal, PublicState::Waiting),
        (TimeoutBehavior::Escalate, PublicState::Suspended),
    ] {
        let (mut execution, fence) = claimed(2);
        let mut effects = Effects::default();
        execution.suspend(&fence, suspension(Some(50), behavior), NOW, &mut effects).unwrap();
        assert_eq!(execution.fire(NOW + 49, 0, &mut effects), Fired::Nothing);
        assert_eq!(execution.fire(NOW + 50, 0, &mut effects), Fired::Changed, "{behavior}");
        execution.check().unwrap();
        assert_eq!(execution.public_state(), state, "{behavior}");
        if behavior == TimeoutBehavior::Escalate {
            assert_eq!(execution.state.blocking_reason, BlockingReason::PausedByOperator);
            execution.resume_by_operator(NOW + 60, &mut effects).unwrap();
            assert_eq!(execution.resumed_by, ResumedBy::Operator);
        }
    }
}

#[test]
fn a_deadline_ends_it_from_any_state() {
    let with_deadline = || Execution::create(NewExecution { deadline_at: Some(NOW + 100), ..request() }, NOW).unwrap();
    let mut effects = Effects::default();
    let waiting = with_deadline();
    let delayed = Execution::create(
        NewExecution { deadline_at: Some(NOW + 100), delay_until: Some(NOW + 500), ..request() },
        NOW,
    )
    .unwrap();
    let mut active = with_deadline();
    let fence = active.claim(&claim(2), NOW, &mut effects).unwrap().fence;
    let mut suspended = active.clone();
    suspended.suspend(&fence, suspension(None, TimeoutBehavior::Fail), NOW, &mut effects).unwrap();
    let mut held = with_deadline();
    held.hold("stop", NOW).unwrap();
    for mut execution in [waiting, delayed, active, suspended, held] {
        assert_eq!(execution.fire(NOW + 100, 0, &mut effects), Fired::Changed);
        execution.check().unwrap();
        assert_eq!(execution.public_state(), PublicState::Expired);
    }
}

#[test]
fn a_deadline_that_lies_ahead_survives_a_replay() {
    let deadline_at = Some(NOW + 100);
    let mut chosen = Execution::create(NewExecution { deadline_at, ..request() }, NOW).unwrap();
    let mut new = request();
    Arc::make_mut(&mut new.policy).timeout.execution_deadline_ms = Some(100);
    let mut from_policy = Execution::create(new, NOW).unwrap();
    let mut passed = chosen.clone();
    let mut new = NewExecution { deadline_at, ..request() };
    Arc::make_mut(&mut new.policy).timeout.execution_deadline_ms = Some(1_000);
    let mut both = Execution::create(new, NOW).unwrap();
    let mut both_passed = both.clone();
    for (execution, now, replayed) in [
        (&mut chosen, NOW + 50, NOW + 100),
        (&mut from_policy, NOW + 50, NOW + 150),
        (&mut passed, NOW + 200, 0),
        (&mut both, NOW + 50, NOW + 100),
        (&mut both_passed, NOW + 200, NOW + 1_200),
    ] {
        let mut effects = Effects::default();
        execution.cancel(CancelSource::Operator, "", now, &mut effects).unwrap();
        execution.replay(0, None, now).unwrap();
        assert_eq!(execution.deadline_at, replayed);
        execution.check().unwrap();
    }
}

#[test]
fn an_attempt_timeout_counts_only_time_under_a_lease() {
    let mut new = request();
    Arc::make_mut(&mut new.policy).timeout.attempt_timeout_ms = Some(100);
    let mut execution = Execution::create(new, NOW).unwrap();
    let mut effects = Effects::default();
    let fence = execution.claim(&claim(2), NOW, &mut effects).unwrap().fence;
    execution.delay(&fence, NOW + 1_000, NOW + 60, &mut effects).unwrap();
    execution.fire(NOW + 1_000, 0, &mut effects);
    execution.claim(&claim(3), NOW + 2_000, &mut effects).unwrap();
    assert_eq!(execution.attempt_times_out_at(), Some(NOW + 2_040));
    assert_eq!(execution.fire(NOW + 2_040, 0, &mut effects), Fired::Changed);
    assert_eq!(execution.public_state(), PublicState::Delayed, "a timeout is a failure that is retried");
    assert_eq!(execution.failure.as_ref().unwrap().category, "timeout");
    execution.check().unwrap();
}

#[test]
fn holds_are_a_set_and_the_strongest_is_shown() {
    let mut execution = Execution::create(NewExecution { delay_until: Some(NOW + 100), ..request() }, NOW).unwrap();
    execution.hold("stop", NOW).unwrap();
    assert_eq!(execution.state.eligibility_state, EligibilityState::BlockedByOperator);
    execution.fire(NOW + 100, 0, &mut Effects::default());
    assert!(!execution.is_eligible(), "the delay is over, the operator is not");
    execution.release(NOW + 200).unwrap();
    assert!(execution.is_eligible());
    execution.park("b:team", "tokens 10/10", NOW + 900, NOW + 300).unwrap();
    assert_eq!(execution.public_state(), PublicState::RateLimited);
    execution.check().unwrap();
    execution.fire(NOW + 900, 0, &mut Effects::default());
    assert!(execution.is_eligible(), "a parked one is looked at again");
}

#[test]
fn a_parked_one_stands_among_those_of_its_key_or_where_an_earlier_version_put_it() {
    let stands = |execution: &Execution| {
        let entries = execution.index_entries(0);
        entries.iter().filter_map(|entry| index::BlockedName::parse(&entry.index)).map(|name| name.fair_key).collect()
    };
    let mut execution = created();
    execution.park("q:rate", "full", NOW + 900, NOW).unwrap();
    let found: Vec<Option<String>> = stands(&execution);
    assert_eq!(found, [None]);
    execution.fire(NOW + 900, 0, &mut Effects::default());
    assert_eq!(stands(&execution), []);
    execution.sharing = Some(Box::new(crate::sharing::Sharing { fair_key: "acme".into(), ..Default::default() }));
    execution.park("q:rate", "full", NOW + 1_900, NOW + 1_000).unwrap();
    assert_eq!(stands(&execution), [Some("acme".to_owned())]);
    execution.parked_by_key = false;
    assert_eq!(stands(&execution), [None], "the entry that an earlier version wrote is the one that is removed");
}
