use super::*;
use crate::execution::{Claim, LostLease};
use crate::id::{AttemptIndex, LeaseEpoch, SuspensionId};
use uuid::Uuid;

fn running() -> (Execution, LeaseFence) {
    let mut execution = Execution { namespace: "n".into(), kind: "k".into(), ..Default::default() };
    let fence = claimed(&mut execution, 1);
    (execution, fence)
}

fn claimed(execution: &mut Execution, lease: u128) -> LeaseFence {
    let claim = Claim {
        lease_id: LeaseId(Uuid::from_u128(lease)),
        worker_id: "w".into(),
        instance_id: "w".into(),
        ttl_ms: 1_000,
        build_id: String::new(),
        slot: None,
    };
    execution.claim(&claim, 10, &mut Effects::default()).unwrap().fence
}

fn segment(generation: u32, first: u64, below: u64) -> Segment {
    Segment { generation, first, below }
}

fn asked(name: &str, reason: SuspendReason) -> Wait {
    let question = Question { reason, input_hash: "new".into(), ..Default::default() };
    Wait { name: name.into(), question: Some(question), ..Default::default() }
}

fn step(name: &str) -> StepIdentity {
    StepIdentity { name: name.into(), ..Default::default() }
}

#[test]
fn a_generation_reads_what_it_took_over_and_then_its_own() {
    let mut execution = Execution::default();
    assert_eq!(execution.journal_segments(0), [segment(0, 1, u64::MAX)]);
    execution.begin_generation(Some(5), 100);
    assert_eq!(execution.journal_segments(1), [segment(0, 1, 5), segment(1, 5, u64::MAX)]);
    execution.begin_generation(Some(7), 100);
    let three = [segment(0, 1, 5), segment(1, 5, 7), segment(2, 7, u64::MAX)];
    assert_eq!(execution.journal_segments(2), three);
    // Cutting below what was taken over leaves nothing of the generation in between.
    execution.begin_generation(Some(3), 100);
    assert_eq!(execution.journal_segments(3), [segment(0, 1, 3), segment(3, 3, u64::MAX)]);
    assert_eq!(execution.journal_segments(2), three, "earlier generations read as they did");
    execution.begin_generation(Some(1), 100);
    assert_eq!(execution.journal_segments(4), [segment(4, 1, u64::MAX)], "nothing below the first entry");
    assert_eq!((execution.journal_tail().number(1), execution.journal_tail().sequence(4)), (1, 4));
}

#[test]
fn a_generation_that_another_rests_on_is_kept_and_others_are_dropped() {
    let mut execution = Execution::default();
    execution.begin_generation(None, 1);
    assert!(!execution.owes_journals());
    execution.begin_generation(Some(4), 1);
    assert_eq!((&execution.past_generations[..], execution.dropped_generations()), (&[1][..], &[0][..]));
    execution.generation_removed(0, 5);
    assert!(!execution.owes_journals());
    execution.begin_generation(None, 1);
    assert_eq!(execution.past_generations, [1, 2], "the second rests on the first");
    execution.begin_generation(None, 1);
    assert_eq!((&execution.past_generations[..], execution.dropped_generations()), (&[3][..], &[1, 2][..]));
    execution.generation_removed(1, 5);
    execution.generation_removed(2, 5);
    assert_eq!(execution.journal, None, "nothing is left to know");
}

#[test]
fn too_many_generations_that_rest_on_each_other_are_refused() {
    let mut execution = Execution::default();
    for _ in 0..limits::GENERATIONS_KEPT {
        execution.check_generations(Some(2)).unwrap();
        execution.begin_generation(Some(2), limits::GENERATIONS_KEPT);
    }
    assert_eq!(execution.check_generations(Some(2)).unwrap_err().code, Code::JournalFull);
    execution.check_generations(None).unwrap();
}

#[test]
fn continuing_keeps_the_attempt_and_counts_from_zero() {
    let (mut execution, fence) = running();
    (execution.retries, execution.reclaims, execution.signals) = (2, 3, 4);
    let input = Payload { content_type: "application/json".into(), size: 1, ..Default::default() };
    let mut effects = Effects::default();
    assert_eq!(execution.continue_as_new(&fence, Some(input.clone()), 20, &mut effects).unwrap().generation, 1);
    execution.check().unwrap();
    assert!(execution.is_eligible());
    assert_eq!((execution.retries, execution.reclaims, execution.signals), (0, 0, 0));
    assert_eq!((&execution.input, execution.attempt.as_ref().unwrap().index), (&input, AttemptIndex(0)));
    let before = execution.clone();
    assert_eq!(
        execution.continue_as_new(&fence, None, 30, &mut effects).unwrap().generation,
        1,
        "a repeat says the same"
    );
    assert_eq!(execution, before);
    let second = claimed(&mut execution, 2);
    assert_eq!(execution.continue_as_new(&fence, None, 30, &mut effects).unwrap().generation, 1);
    let stale = LeaseFence { epoch: LeaseEpoch(9), ..second };
    assert_eq!(execution.continue_as_new(&stale, None, 30, &mut effects).unwrap_err().code, Code::StaleLease);
    assert_eq!(execution.continue_as_new(&second, None, 30, &mut effects).unwrap().generation, 2);
}

#[test]
fn the_children_of_first_runs_and_replays_have_the_ids_that_earlier_versions_gave_them() {
    let (mut execution, fence) = running();
    let child = |execution: &Execution| execution.child_id("a").uuid.to_string();
    assert_eq!(child(&execution), "d9435149-5eea-8c27-9b08-fc3e61cb805f");
    execution.continue_as_new(&fence, None, 20, &mut Effects::default()).unwrap();
    let continued = child(&execution);
    assert_ne!(continued, "d9435149-5eea-8c27-9b08-fc3e61cb805f");
    let fence = claimed(&mut execution, 2);
    execution.continue_as_new(&fence, None, 20, &mut Effects::default()).unwrap();
    assert_ne!(child(&execution), continued);
    execution.cancel(crate::execution::CancelSource::Operator, "no", 30, &mut Effects::default()).unwrap();
    execution.replay(0, None, 40).unwrap();
    assert_eq!(child(&execution), "94741f45-8ce7-8b12-99eb-5eb59c6b685b");
}

#[test]
fn a_fork_is_held_until_its_journal_is_whole_also_after_an_end_in_between() {
    let fork = Fork { below: 4, next: 1, ..Default::default() };
    let mut execution = Execution { namespace: "n".into(), kind: "k".into(), ..Default::default() };
    execution.fork_from(fork.clone());
    execution.check().unwrap();
    assert!(!execution.is_eligible() && execution.owes_journals() && execution.begins_with_entries());
    execution.hold("wait", 1).unwrap();
    execution.release(2).unwrap();
    assert!(!execution.is_eligible(), "an operator does not let it go early");
    execution.cancel(crate::execution::CancelSource::Operator, "no", 3, &mut Effects::default()).unwrap();
    execution.check().unwrap();
    assert!(!execution.owes_journals(), "nothing is copied for what has ended");
    execution.replay(0, None, 4).unwrap();
    execution.check().unwrap();
    assert!(!execution.is_eligible() && execution.owes_journals());
    execution.fork_copied(Fork { copied: 3, next: 3, ..fork }, true, 5);
    execution.check().unwrap();
    assert!(execution.is_eligible() && !execution.owes_journals());
    let mut empty = Execution::default();
    empty.fork_from(Fork { below: 1, next: 1, ..Default::default() });
    assert!(empty.is_eligible(), "there is nothing to copy");
    let mut orphan = Execution::default();
    orphan.fork_from(Fork { below: 4, next: 1, ..Default::default() });
    orphan.fork_failed("gone", 5, &mut Effects::default());
    orphan.check().unwrap();
    assert!(orphan.is_terminal());
}

#[test]
fn a_question_takes_its_own_answers_and_ends_the_wait() {
    let (mut execution, fence) = running();
    assert_eq!(execution.open_question(None).unwrap_err().code, Code::ExecutionNotSuspended);
    let waits = vec![asked("pay", SuspendReason::InDoubt), asked("fetch", SuspendReason::JournalMismatch)];
    let id = SuspensionId(Uuid::from_u128(5));
    execution.await_first(&fence, id, waits, 20, &mut Effects::default()).unwrap();
    execution.check().unwrap();
    assert_eq!(execution.state.blocking_reason, crate::BlockingReason::WaitingForDecision);
    assert_eq!(execution.open_question(None).unwrap_err().details["field"], "step");
    assert_eq!(execution.open_question(Some(&step("other"))).unwrap_err().code, Code::QuestionNotOpen);
    let pay = execution.open_question(Some(&step("pay"))).unwrap().question.clone().unwrap();
    pay.check_answer(StepAnswer::Happened).unwrap();
    assert_eq!(pay.check_answer(StepAnswer::Keep).unwrap_err().details["field"], "answer");
    let fetch = execution.open_question(Some(&step("fetch"))).unwrap().question.clone().unwrap();
    fetch.check_answer(StepAnswer::RunAgain).unwrap();
    assert!(fetch.check_answer(StepAnswer::DidNotHappen).is_err());
    assert_eq!(
        execution.resume_by_operator(30, &mut Effects::default()).unwrap_err().code,
        Code::OperatorResumeNotAllowed
    );
    execution.answer_question(&step("fetch"), Some(3), 30, &mut Effects::default()).unwrap();
    execution.check().unwrap();
    assert!(execution.is_eligible());
    assert_eq!((execution.generation, execution.resumed_by), (1, ResumedBy::Decision));
    assert_eq!(execution.open_question(None).unwrap_err().code, Code::ExecutionNotSuspended);
}

#[test]
fn each_answer_leaves_its_entry() {
    let wait = asked("pay", SuspendReason::InDoubt);
    let entry = |answer| wait.answered(answer, "the bank says so", 50);
    assert_eq!(entry(StepAnswer::Happened).state, StepState::Completed);
    let again = entry(StepAnswer::DidNotHappen);
    assert_eq!((again.state, again.next_at, again.input_hash.as_deref()), (StepState::Retrying, Some(50), Some("new")));
    let failed = entry(StepAnswer::Fail);
    assert_eq!((failed.state, failed.category.as_deref()), (StepState::Failed, Some("in_doubt")));
    assert_eq!(failed.message.as_deref(), Some("a person let it fail: the bank says so"));
    [entry(StepAnswer::Happened), again, failed].iter().for_each(|entry| entry.validate().unwrap());
}

#[test]
fn only_who_held_a_lease_leaves_evidence_and_only_once() {
    let (mut execution, fence) = running();
    let entry = StepEntry { name: "pay".into(), state: StepState::Completed, ..Default::default() };
    assert!(!execution.keep_late_report(&fence, &entry, 20).unwrap(), "its lease holds");
    execution.expire_lease(&LostLease::default(), 20, &mut Effects::default()).unwrap();
    let foreign = LeaseFence { lease_id: LeaseId(Uuid::from_u128(99)), ..fence };
    assert!(!execution.keep_late_report(&foreign, &entry, 21).unwrap());
    let begun = StepEntry { state: StepState::Begun, ..entry.clone() };
    assert!(!execution.keep_late_report(&fence, &begun, 21).unwrap());
    assert!(execution.keep_late_report(&fence, &entry, 21).unwrap());
    assert!(!execution.keep_late_report(&fence, &entry, 22).unwrap());
    assert_eq!(execution.late_reports(&step("pay")).count(), 1);
    for number in 0..20 {
        let other = StepEntry { key: Some(format!("{number}")), ..entry.clone() };
        execution.keep_late_report(&fence, &other, 23).unwrap();
    }
    let kept = execution.journal.as_ref().unwrap().late_reports.len();
    assert_eq!(kept, limits::LATE_REPORTS_KEPT);
    let bytes = crate::Document::encode(&execution);
    assert_eq!(<Execution as crate::Document>::decode(&bytes).unwrap(), execution);
    assert_eq!(execution.id, ExecutionId::default());
}
