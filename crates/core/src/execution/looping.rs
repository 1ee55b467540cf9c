//! Steps that are taken for a loop: the same name, input and result, as often within the last records of the journal as
//! the policy says. A step whose result changes is no loop, however often it runs.

use super::{Execution, Failure, Question, Wait};
use crate::error::Result;
use crate::event::Effects;
use crate::id::SuspensionId;
use crate::journal::{StepIdentity, StepKind, StepRecord};
use crate::lease::{AttemptOutcome, LeaseEnd, LeaseFence};
use crate::partition::digest16;
use crate::policy::{NoProgressAction, NoProgressPolicy};
use crate::state::TerminalOutcome;
use crate::suspension::SuspendReason;

/// The category of the failure that ends a loop.
const LOOP_DETECTED: &str = "loop_detected";

/// A step that was taken for a loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLoop {
    /// The entry whose result was one too many.
    pub step: StepIdentity,
    /// How many steps were the same.
    pub count: usize,
    /// The number of records within which they were counted.
    pub window: u32,
}

impl FoundLoop {
    fn in_words(&self) -> String {
        let Self { step, count, window } = self;
        format!("step {} had the same result {count} times within the last {window} entries", step.name)
    }
}

impl StepRecord {
    /// A digest that is the same for two steps of one name that did the same; `None` for an entry that is no step or
    /// has not ended. Sleeps and waits do not count: a poller that sleeps between its steps is judged by the results of
    /// the steps.
    pub fn outcome_digest(&self) -> Option<[u8; 16]> {
        if self.kind != StepKind::Step || !self.state.is_ended() {
            return None;
        }
        let inline = self.result.as_ref().map(|result| &result.bytes[..]);
        let size = self.result.as_ref().map_or(0, |result| result.size).to_be_bytes();
        Some(digest16(&[
            self.name.as_bytes(),
            self.input_hash.as_bytes(),
            self.state.as_str().as_bytes(),
            &size,
            inline.unwrap_or_default(),
            &self.result_digest,
            self.category.as_bytes(),
            self.message.as_bytes(),
        ]))
    }
}

/// The first of the new records that is the same as too many others. `earlier` has the records before them, oldest
/// first.
pub fn find_loop(policy: &NoProgressPolicy, earlier: &[StepRecord], new: &[StepRecord]) -> Option<FoundLoop> {
    let digests: Vec<Option<[u8; 16]>> = earlier.iter().chain(new).map(StepRecord::outcome_digest).collect();
    let window = usize::try_from(policy.window).unwrap_or(usize::MAX);
    let same = usize::try_from(policy.same).unwrap_or(usize::MAX);
    (earlier.len()..digests.len()).zip(new).find_map(|(last, record)| {
        let digest = digests[last]?;
        let first = (last + 1).saturating_sub(window);
        let count = digests[first..=last].iter().filter(|other| **other == Some(digest)).count();
        let occurrence = record.key.is_none().then_some(record.occurrence);
        let step = StepIdentity { name: record.name.clone(), key: record.key.clone(), occurrence };
        (count >= same).then_some(FoundLoop { step, count, window: policy.window })
    })
}

impl Execution {
    /// The number of the first record that counts towards a loop.
    pub fn loop_from(&self) -> u64 {
        self.journal.as_ref().map_or(0, |notes| notes.loop_from)
    }

    /// Whether the lease with this fence ended because of a loop.
    pub fn stopped_looping(&self, fence: &LeaseFence) -> bool {
        self.ending_of(fence).is_some_and(|ending| ending.end == LeaseEnd::LoopDetected)
    }

    /// Its holder recorded a step that is taken for a loop: the lease is released, and a person is asked or the
    /// execution fails, as the policy says.
    pub fn stop_loop(
        &mut self,
        fence: &LeaseFence,
        found: &FoundLoop,
        suspension: SuspensionId,
        now: i64,
        effects: &mut Effects,
    ) -> Result<()> {
        self.check_fence(fence)?;
        let action = self.policy.no_progress.as_ref().map(|policy| policy.action).unwrap_or_default();
        let now = self.mark_updated(now);
        match action {
            NoProgressAction::Ask | NoProgressAction::Unknown(_) => {
                self.part(LeaseEnd::LoopDetected, now, effects);
                let reason = SuspendReason::NoProgress;
                let question = Question { reason, detail: found.in_words(), ..Default::default() };
                let StepIdentity { name, key, occurrence } = found.step.clone();
                let occurrence = occurrence.unwrap_or(0);
                let wait = Wait { name, key, occurrence, question: Some(question), ..Default::default() };
                self.rest(suspension, vec![wait], now, effects);
            }
            NoProgressAction::Fail => {
                self.end_lease(LeaseEnd::LoopDetected, now, effects);
                self.fail_looping(&found.in_words(), now, effects);
            }
        }
        Ok(())
    }

    /// A person lets it go on: the records so far do not count any more.
    pub fn go_on_looping(&mut self, next_number: u64, now: i64, effects: &mut Effects) {
        self.wake(super::ResumedBy::Decision, now, effects);
        self.notes().loop_from = next_number;
    }

    /// A person, or its policy, ends it.
    pub fn fail_looping(&mut self, reason: &str, now: i64, effects: &mut Effects) {
        let now = self.mark_updated(now);
        self.end_attempt(AttemptOutcome::Failed, reason, LOOP_DETECTED, now);
        self.failure = Some(Failure {
            reason: reason.to_owned(),
            category: LOOP_DETECTED.into(),
            by_engine: true,
            attempt: self.attempt.as_ref().map(|attempt| attempt.index).unwrap_or_default(),
            at: now,
            ..Default::default()
        });
        self.finish(TerminalOutcome::Failed, now, effects);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::StepState;

    fn record(name: &str, message: &str) -> StepRecord {
        StepRecord { name: name.into(), state: StepState::Failed, message: message.into(), ..Default::default() }
    }

    fn policy(same: u32, window: u32) -> NoProgressPolicy {
        NoProgressPolicy { same, window, ..Default::default() }
    }

    #[test]
    fn the_same_result_too_often_is_a_loop_whatever_stands_between() {
        let look = || record("look", "nothing");
        let other = |number: u32| record("think", &number.to_string());
        let earlier = [look(), other(1), look(), other(2)];
        assert_eq!(find_loop(&policy(3, 50), &earlier[..3], &[other(2)]), None);
        let found = find_loop(&policy(3, 50), &earlier, &[other(3), look()]).unwrap();
        assert_eq!((found.step.name.as_str(), found.count), ("look", 3));
        assert_eq!(find_loop(&policy(3, 5), &earlier, &[other(3), look()]), None, "the first has left the window");
        assert!(find_loop(&policy(3, 6), &earlier, &[other(3), look()]).is_some());
    }

    #[test]
    fn another_input_result_or_state_is_progress() {
        let same = record("look", "nothing");
        let differing = [
            StepRecord { input_hash: "2".into(), ..same.clone() },
            record("look", "something"),
            record("search", "nothing"),
            StepRecord { state: StepState::Completed, ..same.clone() },
            StepRecord { result_digest: vec![1].into(), ..same.clone() },
        ];
        for other in differing {
            assert_eq!(find_loop(&policy(2, 50), std::slice::from_ref(&same), &[other]), None);
        }
        let keyed = StepRecord { key: Some("7".into()), ..same.clone() };
        assert!(find_loop(&policy(2, 50), &[same], &[keyed]).is_some(), "a key makes no other step of it");
    }

    #[test]
    fn only_steps_that_ended_count() {
        let begun = StepRecord { state: StepState::Begun, ..record("look", "") };
        let sleep = StepRecord { kind: StepKind::Sleep, ..record("rest", "") };
        for one in [begun, sleep] {
            assert_eq!(find_loop(&policy(2, 50), &vec![one.clone(); 9], &[one]), None);
        }
    }
}
