use proptest::prelude::*;

use super::*;
use crate::error::{Code, Error};
use crate::id::Mint;
use crate::partition::Partition;

const NOW: i64 = 1_700_000_000_123;

fn created(definition: QuotaDefinition) -> QuotaPolicy {
    QuotaPolicy::define(None, ("team", "q"), definition, NOW).unwrap().created()
}

fn rate(max_requests: u32, window_seconds: u32) -> QuotaPolicy {
    created(QuotaDefinition { max_requests, window_seconds, ..Default::default() })
}

fn execution(number: u32) -> ExecutionId {
    let [a, b, c, d] = number.to_be_bytes();
    let mint = Mint { now_ms: 1, random: [a, b, c, d, 0, 0, a, b, c, d] };
    ExecutionId::in_partition(Partition::flow(0), &mint)
}

fn request(number: u32, starts: bool) -> QuotaRequest {
    let execution = execution(number);
    QuotaRequest {
        execution,
        attempt: AttemptIndex(0),
        lease: LeaseId(execution.uuid),
        slot: SlotId(execution.uuid),
        starts,
    }
}

fn start(quota: &mut QuotaPolicy, number: u32, now: i64) -> QuotaDecision {
    quota.admit_rate(&execution(number), AttemptIndex(0), now)
}

#[test]
fn a_definition_is_made_once_and_a_different_one_is_a_conflict() {
    let definition = QuotaDefinition { max_requests: 2, ..Default::default() };
    let quota = created(definition.clone());
    assert_eq!(quota.definition.window_seconds, 60);
    let again = QuotaPolicy::define(Some(&quota), ("team", "q"), definition.clone(), NOW).unwrap();
    assert_eq!(again, Defined::AlreadyExists);
    let other = QuotaDefinition { max_requests: 3, ..definition };
    let error = QuotaPolicy::define(Some(&quota), ("team", "q"), other, NOW).unwrap_err();
    assert_eq!(error.code, Code::DefinitionConflict);
}

#[test]
fn the_third_of_two_is_told_when_the_window_opens_and_is_admitted_then() {
    let mut quota = rate(2, 60);
    assert_eq!(start(&mut quota, 1, NOW), QuotaDecision::Admitted);
    assert_eq!(start(&mut quota, 2, NOW + 10_000), QuotaDecision::Admitted);
    let QuotaDecision::RateExceeded { retry_after_ms } = start(&mut quota, 3, NOW + 20_000) else {
        panic!("the window was full");
    };
    let opens_at = NOW + 20_000 + retry_after_ms;
    assert!((NOW + 60_000..=NOW + 60_000 + 60_000 / limits::QUOTA_SUB_BUCKETS + 1).contains(&opens_at));
    assert!(matches!(start(&mut quota, 3, opens_at - 1), QuotaDecision::RateExceeded { retry_after_ms: 1 }));
    assert_eq!(start(&mut quota, 3, opens_at), QuotaDecision::Admitted);
    assert!(matches!(start(&mut quota, 4, opens_at), QuotaDecision::RateExceeded { .. }));
}

#[test]
fn an_attempt_is_counted_once_and_the_next_attempt_again() {
    let mut quota = rate(2, 60);
    assert_eq!(start(&mut quota, 1, NOW), QuotaDecision::Admitted);
    let before = quota.clone();
    assert_eq!(start(&mut quota, 1, NOW + 5), QuotaDecision::AlreadyAdmitted);
    assert_eq!(quota, before);
    assert_eq!(quota.admit_rate(&execution(1), AttemptIndex(1), NOW + 6), QuotaDecision::Admitted);
    assert_eq!(start(&mut quota, 1, NOW + 7), QuotaDecision::AlreadyAdmitted);
    assert!(!start(&mut quota, 2, NOW + 8).admits());
}

#[test]
fn admissions_are_remembered_up_to_the_limit_and_forgotten_with_their_window() {
    let mut quota = rate(1_000, 60);
    let kept = u32::try_from(limits::QUOTA_RECENT_KEPT).unwrap();
    for number in 0..=kept {
        assert_eq!(start(&mut quota, number, NOW), QuotaDecision::Admitted);
    }
    assert_eq!(quota.recent.len(), limits::QUOTA_RECENT_KEPT * DIGEST_BYTES);
    assert_eq!(start(&mut quota, 1, NOW), QuotaDecision::AlreadyAdmitted);
    assert_eq!(start(&mut quota, 0, NOW), QuotaDecision::Admitted);
    assert_eq!(start(&mut quota, kept, NOW + 70_000), QuotaDecision::Admitted);
    assert_eq!((quota.recent.len(), quota.counters.clone()), (DIGEST_BYTES, vec![1]));
}

#[test]
fn with_neither_limit_nothing_is_recorded() {
    let mut quota = created(QuotaDefinition::default());
    let before = quota.clone();
    for number in 0..10 {
        assert_eq!(quota.admit(&request(number, true), None, NOW + 5), (QuotaDecision::Admitted, None));
    }
    assert_eq!(quota, before);
    assert_eq!((quota.release_count(NOW), quota.opens_at(NOW, 7)), (u64::MAX, None));
}

#[test]
fn slots_are_taken_and_given_back_one_by_one() {
    let mut quota = created(QuotaDefinition { max_concurrent: 1, ..Default::default() });
    let (decision, slot) = quota.admit(&request(1, true), None, NOW + 5);
    let slot = slot.unwrap();
    assert_eq!((decision, quota.in_use), (QuotaDecision::Admitted, 1));
    assert_eq!((slot.execution, slot.taken_at, slot.quota.as_str()), (execution(1), NOW + 5, "q"));
    let repeated = quota.admit(&request(1, true), Some(&slot), NOW + 6);
    assert_eq!((repeated, quota.in_use), ((QuotaDecision::AlreadyAdmitted, None), 1));
    assert_eq!(quota.admit(&request(2, false), None, NOW + 6), (QuotaDecision::ConcurrencyExceeded, None));
    assert_eq!(quota.release_count(NOW + 6), 0);
    quota.release(NOW + 7);
    assert_eq!((quota.in_use, quota.given_back, quota.release_count(NOW + 7)), (0, 1, 1));
    assert!(quota.admit(&request(2, false), None, NOW + 8).1.is_some());
}

#[test]
fn a_refusal_by_one_limit_takes_nothing_of_the_other() {
    let mut quota = created(QuotaDefinition { max_requests: 1, max_concurrent: 1, ..Default::default() });
    assert!(quota.admit(&request(1, true), None, NOW).0.admits());
    assert_eq!(quota.admit(&request(2, true), None, NOW + 1).0, QuotaDecision::ConcurrencyExceeded);
    quota.release(NOW + 2);
    assert!(matches!(quota.admit(&request(2, true), None, NOW + 3), (QuotaDecision::RateExceeded { .. }, None)));
    assert_eq!((quota.in_use, quota.status(NOW + 3).started_in_window), (0, 1));
    let resumed = quota.admit(&request(2, false), None, NOW + 4);
    assert!(resumed.0.admits() && resumed.1.is_some());
    assert_eq!(quota.status(NOW + 4).started_in_window, 1);
}

#[test]
fn a_lost_claim_that_comes_again_with_another_lease_is_not_counted_twice() {
    let mut quota = created(QuotaDefinition { max_requests: 1, max_concurrent: 1, ..Default::default() });
    quota.admit(&request(1, true), None, NOW);
    quota.release(NOW + 1);
    let again = QuotaRequest { slot: SlotId(execution(9).uuid), ..request(1, true) };
    let (decision, slot) = quota.admit(&again, None, NOW + 2);
    assert!(decision.admits() && slot.is_some());
    assert_eq!(quota.status(NOW + 2).started_in_window, 1);
}

#[test]
fn a_wrong_number_of_slots_is_corrected_and_reported() {
    let mut quota = created(QuotaDefinition { max_concurrent: 5, ..Default::default() });
    quota.in_use = 4;
    assert_eq!((quota.recount(2, NOW), quota.in_use), (Some(4), 2));
    assert_eq!(quota.recount(2, NOW), None);
    quota.recount(0, NOW);
    quota.release(NOW);
    assert_eq!(quota.in_use, 0);
}

#[test]
fn jitter_spreads_the_reopening_within_its_bound() {
    let mut quota = created(QuotaDefinition { max_requests: 1, jitter_ms: 100, ..Default::default() });
    start(&mut quota, 1, NOW);
    let plain = quota.opens_at(NOW, 0).unwrap();
    assert_eq!(quota.opens_at(NOW, 100), Some(plain + 100));
    assert_eq!(quota.opens_at(NOW, 101), Some(plain));
    assert_eq!(quota.opens_at(NOW, u64::MAX).map(|at| (plain..=plain + 100).contains(&at)), Some(true));
    assert_eq!(quota.opens_at(plain, 50), None);
}

#[test]
fn definitions_hold_at_their_limits_and_not_one_past_them() {
    let most = QuotaDefinition {
        window_seconds: limits::QUOTA_WINDOW_MAX_SECONDS,
        max_requests: limits::QUOTA_REQUESTS_MAX,
        max_concurrent: limits::QUOTA_CONCURRENT_MAX,
        jitter_ms: limits::QUOTA_JITTER_MAX_MS,
        ..Default::default()
    };
    most.validate().unwrap();
    QuotaDefinition { window_seconds: 1, ..most.clone() }.validate().unwrap();
    let refused = |definition: QuotaDefinition, field: &str| {
        let error: Error = definition.validate().unwrap_err();
        assert_eq!((error.code, &error.details["field"]), (Code::Invalid, &field.into()));
    };
    refused(QuotaDefinition { window_seconds: 0, ..most.clone() }, "window_seconds");
    refused(QuotaDefinition { window_seconds: most.window_seconds + 1, ..most.clone() }, "window_seconds");
    refused(QuotaDefinition { max_requests: most.max_requests + 1, ..most.clone() }, "max_requests");
    refused(QuotaDefinition { max_concurrent: most.max_concurrent + 1, ..most.clone() }, "max_concurrent");
    refused(QuotaDefinition { jitter_ms: most.jitter_ms + 1, ..most.clone() }, "jitter_ms");
    refused(QuotaDefinition { jitter_ms: -1, ..most }, "jitter_ms");
}

#[test]
fn decisions_speak_in_names() {
    let json = serde_json::json!({ "outcome": "rate_exceeded", "retry_after_ms": 7 });
    assert_eq!(serde_json::to_value(QuotaDecision::RateExceeded { retry_after_ms: 7 }).unwrap(), json);
}

#[test]
fn yesterdays_bytes_are_read_today() {
    let stored = [
        1, 0x85, 0xa1, b'n', 0xa1, b't', 0xa1, b'm', 0xa1, b'q', 0xa1, b'd', 0x81, 0xa1, b'r', 5, 0xa1, b'f', 9, 0xa1,
        b'k', 0x92, 1, 2,
    ];
    let quota = QuotaPolicy::decode(&stored).unwrap();
    assert_eq!((quota.definition.max_requests, quota.definition.window_seconds), (5, 60));
    assert_eq!((quota.first_bucket, quota.counters.as_slice()), (9, &[1, 2][..]));
    assert_eq!(quota.encode()[1..], stored[1..]);
}

proptest! {
    #[test]
    fn no_window_ever_holds_more_than_the_limit_and_it_opens_in_time(
        max in 1..6u32,
        window_seconds in 1..100u32,
        origin in 0..2_000_000_000_000i64,
        steps in prop::collection::vec(prop_oneof![3 => 0..50i64, 2 => 0..2_000i64, 1 => -500..40_000i64], 1..200),
    ) {
        let mut quota = rate(max, window_seconds);
        quota.updated_at = origin;
        let window = i64::from(window_seconds) * 1000;
        let late = window / limits::QUOTA_SUB_BUCKETS + 1;
        let (mut now, mut admitted) = (origin, Vec::<i64>::new());
        for (step, number) in steps.into_iter().zip(0u32..) {
            now += step;
            let at = now.max(quota.updated_at);
            let free = quota.release_count(now);
            match start(&mut quota, number, now) {
                QuotaDecision::Admitted => {
                    prop_assert!(free > 0);
                    admitted.push(at);
                }
                QuotaDecision::RateExceeded { retry_after_ms } => {
                    prop_assert!(free == 0 && retry_after_ms > 0);
                    // It is full for a reason: with a window longer by one part there really are that many.
                    let started = admitted.iter().filter(|earlier| **earlier >= at - window - late).count();
                    prop_assert!(started >= max as usize);
                    // And what it promises holds: admitted then, refused a moment before.
                    let mut then = quota.clone();
                    prop_assert_eq!(start(&mut then, u32::MAX, at + retry_after_ms), QuotaDecision::Admitted);
                    let mut before = quota.clone();
                    prop_assert!(!start(&mut before, u32::MAX, at + retry_after_ms - 1).admits());
                }
                other => prop_assert!(false, "{other:?}"),
            }
            prop_assert!(quota.counters.len() <= 65);
            prop_assert_eq!(&QuotaPolicy::decode(&quota.encode()).unwrap(), &quota);
        }
        for first in &admitted {
            let within = admitted.iter().filter(|at| (*first..=*first + window).contains(at)).count();
            prop_assert!(within <= max as usize, "{within} within a window of {max}");
        }
    }

    #[test]
    fn the_number_of_slots_is_exact_and_never_over_the_limit(
        max in 1..4u32,
        commands in prop::collection::vec((0..8u32, any::<bool>()), 1..100),
    ) {
        let mut quota = created(QuotaDefinition { max_concurrent: max, ..Default::default() });
        let mut slots = std::collections::BTreeMap::<u32, Slot>::new();
        for (number, take) in commands {
            if take {
                let (decision, slot) = quota.admit(&request(number, true), slots.get(&number), NOW);
                let full = slots.len() == max as usize && !slots.contains_key(&number);
                prop_assert_eq!(decision.admits(), !full);
                slots.extend(slot.map(|slot| (number, slot)));
            } else if slots.remove(&number).is_some() {
                quota.release(NOW);
            }
            prop_assert_eq!(quota.in_use as usize, slots.len());
            prop_assert!(quota.in_use <= max);
        }
    }
}

#[test]
fn an_attempt_that_was_admitted_before_counts_when_it_starts() {
    let mut quota = rate(2, 60);
    let window_ms = quota.definition.window_ms();
    assert_eq!(start(&mut quota, 1, NOW), QuotaDecision::Admitted);
    // Its claim did not come about; it starts at the end of the window, and again within the same moment.
    let late = NOW + window_ms - 1_000;
    assert_eq!(start(&mut quota, 1, late), QuotaDecision::AlreadyAdmitted);
    assert_eq!(start(&mut quota, 1, late), QuotaDecision::AlreadyAdmitted);
    assert_eq!(quota.status(late).started_in_window, 1);
    // The window that begins with that start has room for one other.
    let next = NOW + window_ms + 2_000;
    assert_eq!(start(&mut quota, 2, next), QuotaDecision::Admitted);
    assert!(matches!(start(&mut quota, 3, next), QuotaDecision::RateExceeded { .. }));
}
