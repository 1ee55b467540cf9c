//! When a child may start: its join policy over the edges that lead to it, as counters inside the child's execution.
//! The decision is a function of the counters, so the order in which upstreams end does not matter.

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::{limits, text};

crate::vocabulary! {
    /// What becomes of the upstreams that are no longer needed.
    #[derive(Default)]
    pub enum OnSatisfied {
        /// The upstreams that have not ended are cancelled.
        #[default]
        CancelRemaining "cancel_remaining",
        /// They go on.
        LetRun "let_run",
    }
}

crate::document! {
    /// One success is enough.
    pub api struct AnyOf {
        /// What becomes of the others.
        "o" on_satisfied: OnSatisfied,
    }
}

crate::document! {
    /// So many successes are enough.
    pub api struct Quorum {
        /// How many.
        "k" k: u32,
        /// What becomes of the others.
        "o" on_satisfied: OnSatisfied,
    }
}

/// How the outcomes of its upstreams decide about a child.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum JoinPolicy {
    /// Every upstream must succeed.
    #[default]
    AllOf,
    /// One upstream must succeed.
    AnyOf(AnyOf),
    /// So many upstreams must succeed.
    Quorum(Quorum),
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(JoinPolicy);

impl JoinPolicy {
    /// Refuses a quorum of none or of more than a flow can have.
    pub fn validate(&self) -> Result<()> {
        match self {
            JoinPolicy::Quorum(quorum) => text::within("join.quorum.k", quorum.k, 1..=limits::FLOW_MEMBERS_MAX),
            JoinPolicy::AllOf | JoinPolicy::AnyOf(_) => Ok(()),
            JoinPolicy::Unknown(variant) => Err(variant.refused("join")),
        }
    }

    /// How many of so many upstreams must succeed.
    fn needed(&self, total: u32) -> u32 {
        match self {
            JoinPolicy::AllOf | JoinPolicy::Unknown(_) => total,
            JoinPolicy::AnyOf(_) => 1,
            JoinPolicy::Quorum(quorum) => quorum.k,
        }
    }

    /// Whether upstreams that can change nothing any more are cancelled.
    pub fn cancels_remaining(&self) -> bool {
        match self {
            JoinPolicy::AllOf | JoinPolicy::Unknown(_) => false,
            JoinPolicy::AnyOf(any) => any.on_satisfied == OnSatisfied::CancelRemaining,
            JoinPolicy::Quorum(quorum) => quorum.on_satisfied == OnSatisfied::CancelRemaining,
        }
    }
}

crate::document! {
    /// The applied edges that lead to an execution, and what became of them.
    pub struct Join {
        /// How they decide; fixed by the first of them.
        "p" policy: JoinPolicy,
        /// How many were applied.
        "t" total: u32,
        /// How many of their upstreams succeeded.
        "s" succeeded: u32,
        /// How many ended otherwise.
        "f" failed: u32,
        /// Its flow is made step by step, so that further edges may come until the flow is closed.
        "m" more_may_come: bool,
    }
}

/// Where a join stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinState {
    /// More upstreams must end.
    Waiting,
    /// The child may start.
    Satisfied,
    /// The child can never start.
    Impossible,
}

/// The decision that the end of one upstream led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinDecision {
    /// Nothing yet.
    StillWaiting,
    /// The child may start.
    Satisfied {
        /// Whether upstreams that still live are cancelled.
        cancel_remaining: bool,
    },
    /// The child can never start.
    Impossible {
        /// Whether upstreams that still live are cancelled.
        cancel_remaining: bool,
    },
    /// Nothing: an earlier one had decided.
    AlreadyDecided,
}

impl Join {
    /// Where the join stands. Without edges there is nothing to wait for.
    pub fn state(&self) -> JoinState {
        let needed = self.policy.needed(self.total);
        if self.total == 0 || self.succeeded >= needed {
            return JoinState::Satisfied;
        }
        if self.more_may_come && self.lacks_edges() {
            return JoinState::Waiting;
        }
        // A quorum larger than the edges so far is no verdict while nothing has failed and something is open: edges
        // are applied one after the other.
        let decisive = self.failed > 0 || self.unsatisfied() == 0;
        if decisive && self.succeeded + self.unsatisfied() < needed {
            JoinState::Impossible
        } else {
            JoinState::Waiting
        }
    }

    /// Whether more successes are needed than there are edges.
    pub fn lacks_edges(&self) -> bool {
        self.policy.needed(self.total) > self.total
    }

    /// Edges whose upstream has not ended.
    pub fn unsatisfied(&self) -> u32 {
        self.total.saturating_sub(self.succeeded).saturating_sub(self.failed)
    }

    /// An edge is applied; without a policy of its own it takes the child's. Says how many edges are open.
    pub fn add_edge(&mut self, policy: Option<&JoinPolicy>) -> Result<u32> {
        if let Some(policy) = policy {
            self.check_policy(policy)?;
            self.policy = policy.clone();
        }
        self.total += 1;
        Ok(self.unsatisfied())
    }

    /// Refuses another policy than that of the edges that are there.
    pub fn check_policy(&self, policy: &JoinPolicy) -> Result<()> {
        policy.validate()?;
        if self.total > 0 && *policy != self.policy {
            return Err(Error::of(Code::JoinPolicyConflict).with("policy", &self.policy));
        }
        Ok(())
    }

    /// The upstream of an applied edge ended.
    pub fn resolve(&mut self, success: bool) -> Result<JoinDecision> {
        if self.unsatisfied() == 0 {
            return Err(Error::new(Code::Internal, format!("an edge was resolved twice: {self:?}")));
        }
        let before = self.state();
        if success {
            self.succeeded += 1;
        } else {
            self.failed += 1;
        }
        let cancel_remaining = self.policy.cancels_remaining();
        Ok(match (before, self.state()) {
            (JoinState::Waiting, JoinState::Waiting) => JoinDecision::StillWaiting,
            (JoinState::Waiting, JoinState::Satisfied) => JoinDecision::Satisfied { cancel_remaining },
            (JoinState::Waiting, JoinState::Impossible) => JoinDecision::Impossible { cancel_remaining },
            (JoinState::Satisfied | JoinState::Impossible, _) => JoinDecision::AlreadyDecided,
        })
    }

    /// A skipped child is replayed: so many impossible edges are open again.
    pub fn reopen(&mut self, edges: u32) -> Result<JoinState> {
        let Some(failed) = self.failed.checked_sub(edges) else {
            return Err(Error::new(Code::Internal, format!("{edges} edges were reopened: {self:?}")));
        };
        self.failed = failed;
        Ok(self.state())
    }
}

crate::document! {
    /// Children that a running execution spawned. It waits until all have ended, however they did.
    pub struct ChildWait {
        /// How many it spawned.
        "t" total: u32,
        /// How many of them have not ended.
        "o" open: u32,
    }
}

impl ChildWait {
    /// A child was spawned.
    pub fn spawn(&mut self) {
        self.total += 1;
        self.open += 1;
    }

    /// A child ended; says whether it was the last.
    pub fn resolve(&mut self) -> Result<bool> {
        let Some(open) = self.open.checked_sub(1) else {
            return Err(Error::new(Code::Internal, format!("a child ended twice: {self:?}")));
        };
        self.open = open;
        Ok(open == 0)
    }

    /// Whether there is nothing to wait for.
    pub fn is_over(&self) -> bool {
        self.open == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_of(on_satisfied: OnSatisfied) -> JoinPolicy {
        JoinPolicy::AnyOf(AnyOf { on_satisfied, ..Default::default() })
    }

    fn quorum(k: u32, on_satisfied: OnSatisfied) -> JoinPolicy {
        JoinPolicy::Quorum(Quorum { k, on_satisfied, ..Default::default() })
    }

    fn join(policy: &JoinPolicy, edges: u32) -> Join {
        let mut join = Join::default();
        for _ in 0..edges {
            join.add_edge(Some(policy)).unwrap();
        }
        join
    }

    #[test]
    fn all_of_waits_for_everyone_and_gives_up_at_the_first_failure() {
        let mut good = join(&JoinPolicy::AllOf, 2);
        assert_eq!(good.resolve(true).unwrap(), JoinDecision::StillWaiting);
        assert_eq!(good.resolve(true).unwrap(), JoinDecision::Satisfied { cancel_remaining: false });
        let mut bad = join(&JoinPolicy::AllOf, 2);
        assert_eq!(bad.resolve(false).unwrap(), JoinDecision::Impossible { cancel_remaining: false });
        assert_eq!(bad.resolve(true).unwrap(), JoinDecision::AlreadyDecided);
    }

    #[test]
    fn two_of_three_are_enough_and_two_failures_too_many() {
        for (on_satisfied, cancel_remaining) in [(OnSatisfied::CancelRemaining, true), (OnSatisfied::LetRun, false)] {
            let mut good = join(&quorum(2, on_satisfied), 3);
            assert_eq!(good.resolve(true).unwrap(), JoinDecision::StillWaiting);
            assert_eq!(good.resolve(true).unwrap(), JoinDecision::Satisfied { cancel_remaining });
            assert_eq!(good.resolve(false).unwrap(), JoinDecision::AlreadyDecided);
            let mut bad = join(&quorum(2, on_satisfied), 3);
            assert_eq!(bad.resolve(false).unwrap(), JoinDecision::StillWaiting);
            assert_eq!(bad.resolve(false).unwrap(), JoinDecision::Impossible { cancel_remaining });
        }
    }

    #[test]
    fn one_success_is_enough_for_any_of() {
        let mut join = join(&any_of(OnSatisfied::CancelRemaining), 2);
        assert_eq!(join.resolve(false).unwrap(), JoinDecision::StillWaiting);
        assert_eq!(join.resolve(true).unwrap(), JoinDecision::Satisfied { cancel_remaining: true });
    }

    #[test]
    fn a_quorum_larger_than_its_edges_is_impossible_once_they_ended() {
        let mut join = join(&quorum(3, OnSatisfied::LetRun), 2);
        assert_eq!(join.state(), JoinState::Waiting);
        assert_eq!(join.resolve(true).unwrap(), JoinDecision::StillWaiting);
        assert_eq!(join.resolve(true).unwrap(), JoinDecision::Impossible { cancel_remaining: false });
    }

    #[test]
    fn a_quorum_larger_than_its_edges_waits_for_further_ones_while_they_may_come() {
        for success in [true, false] {
            let mut join = Join { more_may_come: true, ..join(&quorum(2, OnSatisfied::LetRun), 1) };
            assert_eq!(join.resolve(success).unwrap(), JoinDecision::StillWaiting);
            join.add_edge(None).unwrap();
            join.add_edge(None).unwrap();
            assert_eq!(join.resolve(true).unwrap() == JoinDecision::StillWaiting, !success);
            assert_eq!(join.resolve(true).unwrap() == JoinDecision::AlreadyDecided, success);
            assert_eq!(join.state(), JoinState::Satisfied);
        }
        let mut join = Join { more_may_come: true, ..join(&quorum(2, OnSatisfied::LetRun), 2) };
        assert_eq!(join.resolve(false).unwrap(), JoinDecision::Impossible { cancel_remaining: false });
    }

    #[test]
    fn the_first_edge_fixes_the_policy() {
        let mut join = Join::default();
        assert_eq!(join.state(), JoinState::Satisfied);
        assert_eq!(join.add_edge(Some(&any_of(OnSatisfied::LetRun))).unwrap(), 1);
        assert_eq!(join.add_edge(None).unwrap(), 2);
        assert_eq!(join.add_edge(Some(&any_of(OnSatisfied::LetRun))).unwrap(), 3);
        let before = join.clone();
        for other in [JoinPolicy::AllOf, any_of(OnSatisfied::CancelRemaining), quorum(1, OnSatisfied::LetRun)] {
            assert_eq!(join.add_edge(Some(&other)).unwrap_err().code, Code::JoinPolicyConflict);
        }
        assert_eq!(join, before);
        let mut plain = Join::default();
        plain.add_edge(None).unwrap();
        assert_eq!(plain.policy, JoinPolicy::AllOf);
    }

    #[test]
    fn a_further_edge_holds_a_child_back_again() {
        let mut join = join(&JoinPolicy::AllOf, 1);
        join.resolve(true).unwrap();
        assert_eq!(join.state(), JoinState::Satisfied);
        join.add_edge(None).unwrap();
        assert_eq!(join.state(), JoinState::Waiting);
    }

    #[test]
    fn a_replayed_child_waits_for_its_reopened_edges() {
        let mut join = join(&JoinPolicy::AllOf, 3);
        join.resolve(true).unwrap();
        join.resolve(false).unwrap();
        assert_eq!(join.reopen(2).unwrap_err().code, Code::Internal);
        assert_eq!(join.reopen(1).unwrap(), JoinState::Waiting);
        assert_eq!(join.resolve(true).unwrap(), JoinDecision::StillWaiting);
        assert_eq!(join.resolve(true).unwrap(), JoinDecision::Satisfied { cancel_remaining: false });
        assert_eq!(join.resolve(true).unwrap_err().code, Code::Internal);
    }

    #[test]
    fn a_quorum_holds_at_its_limits_and_not_past_them() {
        for (k, good) in
            [(0, false), (1, true), (limits::FLOW_MEMBERS_MAX, true), (limits::FLOW_MEMBERS_MAX + 1, false)]
        {
            let mut join = Join::default();
            let result = join.add_edge(Some(&quorum(k, OnSatisfied::LetRun)));
            assert_eq!(result.is_ok(), good, "{k}");
            assert_eq!(join.total, u32::from(good));
        }
    }

    #[test]
    fn policies_read_as_people_write_them_and_survive_the_store() {
        for (text, policy) in [
            (r#""all_of""#, JoinPolicy::AllOf),
            (r#"{"any_of":{"on_satisfied":"let_run"}}"#, any_of(OnSatisfied::LetRun)),
            (r#"{"quorum":{"k":2,"on_satisfied":"cancel_remaining"}}"#, quorum(2, OnSatisfied::CancelRemaining)),
        ] {
            assert_eq!(serde_json::from_str::<JoinPolicy>(text).unwrap(), policy);
            assert_eq!(serde_json::to_string(&policy).unwrap(), text);
            let join = join(&policy, 3);
            let bytes = rmp_serde::to_vec(&join).unwrap();
            assert_eq!(rmp_serde::from_slice::<Join>(&bytes).unwrap(), join);
        }
        assert_eq!(
            serde_json::from_str::<JoinPolicy>(r#"{"any_of":{}}"#).unwrap(),
            any_of(OnSatisfied::CancelRemaining)
        );
        assert!(serde_json::from_str::<JoinPolicy>(r#"{"quorum":{"n":2}}"#).is_err());
    }

    #[test]
    fn a_parent_waits_for_every_child_however_it_ended() {
        let mut children = ChildWait::default();
        assert!(children.is_over());
        children.spawn();
        children.spawn();
        assert!(!children.is_over());
        assert!(!children.resolve().unwrap());
        assert!(children.resolve().unwrap() && children.is_over());
        assert_eq!(children.resolve().unwrap_err().code, Code::Internal);
    }

    fn policies() -> impl Strategy<Value = JoinPolicy> {
        prop_oneof![
            Just(JoinPolicy::AllOf),
            Just(any_of(OnSatisfied::LetRun)),
            (1..6u32).prop_map(|k| quorum(k, OnSatisfied::CancelRemaining)),
        ]
    }

    fn orders() -> impl Strategy<Value = (Vec<bool>, Vec<bool>)> {
        proptest::collection::vec(any::<bool>(), 1..6).prop_flat_map(|outcomes| {
            let shuffled = Just(outcomes.clone()).prop_shuffle();
            (Just(outcomes), shuffled)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..Default::default() })]

        #[test]
        fn every_order_reaches_the_decision_of_the_outcomes(policy in policies(), (outcomes, shuffled) in orders()) {
            let total = u32::try_from(outcomes.len()).unwrap();
            let successes = u32::try_from(outcomes.iter().filter(|success| **success).count()).unwrap();
            let expected = match &policy {
                JoinPolicy::AllOf => successes == total,
                JoinPolicy::AnyOf(_) => successes >= 1,
                JoinPolicy::Quorum(quorum) => successes >= quorum.k,
                JoinPolicy::Unknown(variant) => panic!("{variant:?} decides"),
            };
            for order in [&outcomes, &shuffled] {
                let mut join = join(&policy, total);
                let mut decided = None;
                for (position, success) in order.iter().enumerate() {
                    let still_open = order.len() - position - 1;
                    match join.resolve(*success).unwrap() {
                        JoinDecision::StillWaiting => {
                            prop_assert!(decided.is_none() && still_open > 0, "undecided at the end");
                        }
                        JoinDecision::Satisfied { .. } => prop_assert_eq!(decided.replace(true), None),
                        JoinDecision::Impossible { .. } => prop_assert_eq!(decided.replace(false), None),
                        JoinDecision::AlreadyDecided => prop_assert!(decided.is_some()),
                    }
                }
                prop_assert_eq!(decided, Some(expected));
            }
        }
    }
}
