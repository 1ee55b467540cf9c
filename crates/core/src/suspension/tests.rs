use uuid::Uuid;

use super::*;
use crate::condition::{ConditionMatcher, CountCondition, Distinct};

fn waitpoint(number: u128) -> WaitpointId {
    WaitpointId { partition: 3, uuid: Uuid::from_u128(number) }
}

fn request(condition: Condition) -> NewSuspension {
    NewSuspension {
        id: SuspensionId(Uuid::from_u128(9)),
        waitpoints: vec![waitpoint(1), waitpoint(2)],
        condition,
        timeout_ms: None,
        behavior: TimeoutBehavior::Fail,
        reason: SuspendReason::Approval,
        requested_by: String::new(),
        allow_operator_resume: true,
        idempotency_key: String::new(),
        ask: Ask::default(),
    }
}

fn all(names: &[&str]) -> Condition {
    Condition::All(names.iter().map(|name| ConditionMatcher::named(*name)).collect())
}

fn fact(id: u128, name: &str, at: i64) -> SignalFact {
    let id = SignalId(Uuid::from_u128(id));
    SignalFact { id, name: name.into(), waitpoint: waitpoint(1), at, ..Default::default() }
}

fn refused(request: NewSuspension, field: &str) {
    let error = Suspension::new(request, 0).unwrap_err();
    assert_eq!(error.details["field"], field, "{error}");
}

#[test]
fn a_refusal_ends_a_question_whatever_else_it_waits_for() {
    let count = CountCondition { n: 2, distinct: Distinct::Sources, ..Default::default() };
    let mut asked = Suspension::new(request(Condition::Count(count.clone())), 100).unwrap();
    assert_eq!(asked.deliver(SignalFact { source: "a".into(), ..fact(1, APPROVE, 101) }), Delivery::Appended);
    let refusal = SignalId(Uuid::from_u128(2));
    assert_eq!(asked.deliver(fact(2, REJECT, 102)), Delivery::Satisfied { signals: vec![refusal] });
    // No question is asked here, so a signal of that name is a signal like any other.
    let plain = NewSuspension { reason: SuspendReason::Signal, ..request(Condition::Count(count)) };
    let mut plain = Suspension::new(plain, 100).unwrap();
    assert_eq!(plain.deliver(fact(2, REJECT, 102)), Delivery::Appended);
    let mut buffered = Suspension::new(request(all(&[APPROVE])), 100).unwrap();
    let delivery = buffered.absorb(vec![fact(4, APPROVE, 103), fact(2, REJECT, 101)]);
    assert_eq!(delivery, Delivery::Satisfied { signals: vec![refusal] });
}

#[test]
fn an_answer_is_checked_against_the_schema_of_its_question() {
    let schema = r#"{"type":"object","required":["amount"]}"#.to_owned();
    let ask = Ask { question: "How much?".into(), schema, assignees: vec!["ann".into()] };
    let asked = Suspension::new(NewSuspension { ask, ..request(all(&[APPROVE])) }, 100).unwrap();
    let check = |name: &str, payload: Option<&str>| asked.check_answer(&fact(1, name, 101), payload.map(str::as_bytes));
    assert!(check(APPROVE, Some(r#"{"amount":1}"#)).is_ok());
    for wrong in [None, Some("{}"), Some("nonsense")] {
        assert!(check(APPROVE, wrong).is_err(), "{wrong:?}");
    }
    assert!(check(REJECT, None).is_ok());
    assert!(check(REJECT, Some("{}")).is_err());
    assert!(check("other", Some("{}")).is_ok(), "it does not count");
    let unreadable = Ask { schema: r#"{"pattern":"a"}"#.into(), ..Ask::default() };
    refused(NewSuspension { ask: unreadable, ..request(all(&[APPROVE])) }, "schema.pattern");
}

#[test]
fn signals_append_repeat_and_resume() {
    let mut suspension = Suspension::new(request(all(&["a", "b"])), 100).unwrap();
    assert_eq!(suspension.deliver(fact(1, "a", 101)), Delivery::Appended);
    assert_eq!(suspension.deliver(fact(2, "a", 102)), Delivery::NoOp);
    assert_eq!(suspension.deliver(fact(1, "a", 103)), Delivery::NoOp);
    assert_eq!(suspension.facts.len(), 1, "what did not count is not kept");
    let signals = vec![fact(1, "", 0).id, fact(3, "", 0).id];
    assert_eq!(suspension.deliver(fact(3, "b", 104)), Delivery::Satisfied { signals });
}

#[test]
fn a_signal_on_a_foreign_waitpoint_changes_nothing() {
    let mut suspension = Suspension::new(request(Condition::default()), 100).unwrap();
    let before = suspension.clone();
    assert_eq!(suspension.deliver(SignalFact { waitpoint: waitpoint(7), ..fact(1, "a", 1) }), Delivery::NoOp);
    assert_eq!(suspension, before);
}

#[test]
fn buffered_signals_count_in_the_order_they_were_accepted() {
    let mut suspension = Suspension::new(request(all(&["a", "b"])), 100).unwrap();
    let late_first = vec![fact(4, "b", 40), fact(2, "a", 20), fact(1, "a", 10), fact(3, "x", 30)];
    let signals = vec![fact(1, "", 0).id, fact(4, "", 0).id];
    assert_eq!(suspension.absorb(late_first), Delivery::Satisfied { signals });
    let mut open = Suspension::new(request(all(&["a", "b"])), 100).unwrap();
    assert_eq!(open.absorb(vec![]), Delivery::NoOp);
    assert_eq!(open.absorb(vec![fact(1, "a", 1), fact(2, "x", 2)]), Delivery::Appended);
}

#[test]
fn as_many_signals_as_a_buffer_holds_are_absorbed_by_as_many_nodes_as_a_condition_may_have() {
    let nodes = limits::CONDITION_NODES_MAX - 1;
    let n = limits::CONDITION_COUNT_MAX;
    let mut parts = vec![Condition::Count(CountCondition { n, ..Default::default() })];
    parts.extend((1..nodes).map(|_| Condition::AnyOf(vec![Condition::OperatorOnly])).take(nodes / 2));
    let mut suspension = Suspension::new(request(Condition::AllOf(parts)), 100).unwrap();
    let facts = (0..limits::BUFFERED_SIGNALS_MAX).map(|number| {
        let at = i64::try_from(number).unwrap();
        fact(u128::try_from(number).unwrap() + 1, "a", at)
    });
    // Feeding every earlier signal again for each of them would be a quarter of a billion steps.
    assert_eq!(suspension.absorb(facts.collect()), Delivery::Appended);
    assert_eq!(suspension.facts.len(), limits::BUFFERED_SIGNALS_MAX);
}

#[test]
fn absorbing_is_delivering_one_after_the_other() {
    let any = |name: &str| Condition::Any(vec![ConditionMatcher::named(name)]);
    let count = |n| Condition::Count(CountCondition { n, distinct: Distinct::Sources, ..Default::default() });
    let conditions = [
        all(&["a", "b"]),
        all(&["a", "", "a"]),
        count(2),
        Condition::AllOf(vec![any("b"), count(3)]),
        Condition::AnyOf(vec![all(&["a", "a", "b"]), count(4)]),
        Condition::OperatorOnly,
    ];
    let arrivals = ["a", "a", "x", "b", "a", "b", "x"];
    let buffered: Vec<SignalFact> = (1..)
        .zip(arrivals)
        .map(|(number, name)| {
            let source = format!("{}", number % 5);
            let place = if number == 3 { waitpoint(7) } else { waitpoint(1 + number % 2) };
            SignalFact { source, waitpoint: place, ..fact(number, name, i64::try_from(number).unwrap()) }
        })
        .collect();
    let twice: Vec<SignalFact> = buffered.iter().chain(&buffered).cloned().collect();
    for condition in conditions {
        let mut absorbing = Suspension::new(request(condition), 100).unwrap();
        let mut delivering = absorbing.clone();
        let mut expected = Delivery::NoOp;
        let mut in_order = twice.clone();
        in_order.sort_by_key(|fact| fact.at);
        for fact in in_order {
            match delivering.deliver(fact) {
                Delivery::NoOp => {}
                delivery => expected = delivery,
            }
            if matches!(expected, Delivery::Satisfied { .. }) {
                break;
            }
        }
        assert_eq!(absorbing.absorb(twice.clone()), expected, "{:?}", absorbing.condition);
        assert_eq!(absorbing, delivering);
    }
}

#[test]
fn time_runs_out_at_its_instant_and_once() {
    let mut suspension =
        Suspension::new(NewSuspension { timeout_ms: Some(50), ..request(Condition::TimeoutOnly) }, 100).unwrap();
    assert_eq!(suspension.next_timer(), Some(150));
    assert!(!suspension.timeout_due(149) && suspension.timeout_due(150));
    assert_eq!(suspension.blocking_reason(), BlockingReason::WaitingForApproval);
    suspension.escalate();
    assert_eq!(suspension.next_timer(), None);
    assert!(!suspension.timeout_due(i64::MAX));
    assert_eq!(suspension.blocking_reason(), BlockingReason::PausedByOperator);
}

#[test]
fn an_escalation_lets_the_operator_in_and_signals_too() {
    let closed = NewSuspension { allow_operator_resume: false, ..request(Condition::default()) };
    let mut suspension = Suspension::new(closed, 100).unwrap();
    assert_eq!(suspension.check_operator_resume().unwrap_err().code, Code::OperatorResumeNotAllowed);
    suspension.escalate();
    suspension.check_operator_resume().unwrap();
    assert!(matches!(suspension.deliver(fact(1, "a", 1)), Delivery::Satisfied { .. }));
}

#[test]
fn what_could_never_end_is_refused() {
    refused(request(Condition::TimeoutOnly), "timeout_ms");
    let alone = |condition| NewSuspension { allow_operator_resume: false, ..request(condition) };
    refused(alone(Condition::OperatorOnly), "condition");
    refused(alone(Condition::AllOf(vec![Condition::OperatorOnly, Condition::default()])), "condition");
    Suspension::new(alone(Condition::AnyOf(vec![Condition::OperatorOnly, Condition::default()])), 0).unwrap();
    let waitpoints = |n| Condition::Count(CountCondition { n, distinct: Distinct::Waitpoints, ..Default::default() });
    Suspension::new(alone(waitpoints(2)), 0).unwrap();
    refused(alone(waitpoints(3)), "condition");
}

#[test]
fn limits_hold_at_the_limit_and_not_one_past_it() {
    let timeout = |ms| NewSuspension { timeout_ms: Some(ms), ..request(Condition::default()) };
    Suspension::new(timeout(1), 0).unwrap();
    Suspension::new(timeout(limits::DURATION_MAX_MS), 0).unwrap();
    refused(timeout(0), "timeout_ms");
    refused(timeout(limits::DURATION_MAX_MS + 1), "timeout_ms");
    let many = |count: usize| {
        let waitpoints = (0..count).map(|n| waitpoint(u128::try_from(n).unwrap())).collect();
        NewSuspension { waitpoints, ..request(Condition::default()) }
    };
    Suspension::new(many(limits::WAITPOINTS_MAX), 0).unwrap();
    refused(many(limits::WAITPOINTS_MAX + 1), "waitpoints");
    refused(many(0), "waitpoints");
    refused(NewSuspension { waitpoints: vec![waitpoint(1); 2], ..request(Condition::default()) }, "waitpoints");
    refused(NewSuspension { requested_by: "a\n".into(), ..request(Condition::default()) }, "requested_by");
    refused(NewSuspension { idempotency_key: "k".repeat(257), ..request(Condition::default()) }, "idempotency_key");
    refused(request(Condition::AnyOf(vec![])), "condition.any_of");
}

#[test]
fn the_short_name_of_auto_resume_is_read_and_never_written() {
    let read: TimeoutBehavior = serde_json::from_str("\"auto_resume\"").unwrap();
    assert_eq!(read, TimeoutBehavior::AutoResumeWithTimeoutSignal);
    assert_eq!(serde_json::to_string(&read).unwrap(), "\"auto_resume_with_timeout_signal\"");
}

#[test]
fn every_reason_is_one_a_suspended_execution_may_show() {
    use crate::state::{AttemptState, EligibilityState, LifecyclePhase, StateVector};
    for reason in SuspendReason::ALL {
        let state = StateVector {
            lifecycle_phase: LifecyclePhase::Suspended,
            eligibility_state: EligibilityState::NotApplicable,
            blocking_reason: reason.blocking_reason(),
            attempt_state: AttemptState::AttemptInterrupted,
            ..Default::default()
        };
        state.check().unwrap();
    }
}

#[test]
fn a_suspension_survives_the_store() {
    let mut suspension =
        Suspension::new(NewSuspension { timeout_ms: Some(5), ..request(all(&["a", "b"])) }, 100).unwrap();
    suspension.deliver(fact(1, "a", 101));
    let bytes = rmp_serde::to_vec(&suspension).unwrap();
    assert_eq!(rmp_serde::from_slice::<Suspension>(&bytes).unwrap(), suspension);
}
