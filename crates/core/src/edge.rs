//! A dependency edge between two executions of a flow. It is staged with the graph, applied to its child, and changes
//! state once more when its upstream ends, in the commit that changes the child's counters.

use crate::encoding::Document;
use crate::error::{Code, Error, Result};
use crate::id::{EdgeId, ExecutionId, FlowId};
use crate::index::{self, Indexed, kind};
use crate::key::{Entry, Key};
use crate::planted::{Bug, planted};
use crate::state::TerminalOutcome;
use crate::text;

crate::vocabulary! {
    /// Where in its life an edge is.
    #[derive(Default)]
    pub enum EdgeState {
        /// Applied; its upstream has not ended.
        #[default]
        Pending "pending",
        /// Part of the graph, and without effect until it is applied.
        Staged "staged",
        /// Its upstream succeeded.
        Satisfied "satisfied",
        /// Its upstream ended otherwise.
        Impossible "impossible",
    }
}

crate::vocabulary! {
    /// The purpose of an edge.
    #[derive(Default)]
    pub enum EdgeRole {
        /// The downstream starts after the upstream, by its join policy.
        #[default]
        Dependency "dependency",
        /// The upstream is a child that the downstream spawned while it ran and may wait for.
        Child "child",
    }
}

crate::document! {
    /// A dependency between two executions of one flow.
    pub struct Edge {
        /// Its id, made from its two ends.
        "i" id: EdgeId,
        /// The flow of both.
        "f" flow: FlowId,
        /// The execution that must end first.
        "u" upstream: ExecutionId,
        /// The execution that waits for it.
        "d" downstream: ExecutionId,
        /// Its purpose.
        "o" role: EdgeRole,
        /// The name that people give this kind of dependency.
        "k" kind: String,
        /// The name under which the downstream reads the upstream's result; none when it passes no data.
        "r" data_ref: Option<String>,
        /// Where in its life it is.
        "s" state: EdgeState,
        /// How its upstream ended.
        "t" outcome: TerminalOutcome = TerminalOutcome::None,
        /// When it was staged.
        "c" created_at: i64,
        /// When it was applied.
        "a" applied_at: Option<i64>,
        /// When its upstream's end took effect on it.
        "z" resolved_at: Option<i64>,
    }
}

impl Document for Edge {
    const KIND: u8 = kind::EDGE;
    crate::encoding::compiled_here!();
}

impl Indexed for Edge {
    fn key(&self) -> Key {
        Self::key_of(&self.id)
    }

    fn index_entries(&self, _lease_until: i64) -> Vec<Entry> {
        [index::edges_from(self.upstream.uuid), index::edges_to(self.downstream.uuid)]
            .map(|index| Entry { index, member: self.key(), score: self.created_at })
            .to_vec()
    }
}

/// The parts an edge is made from.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NewEdge {
    /// The flow of both ends.
    pub flow: FlowId,
    /// The execution that must end first.
    pub upstream: ExecutionId,
    /// The execution that waits for it.
    pub downstream: ExecutionId,
    /// Its purpose.
    pub role: EdgeRole,
    /// The name that people give this kind of dependency; may be empty.
    pub kind: String,
    /// The name under which the downstream reads the upstream's result.
    pub data_ref: Option<String>,
}

impl Edge {
    /// Where an edge lives in its partition.
    pub fn key_of(id: &EdgeId) -> Key {
        Key::new(kind::EDGE, &[id.as_bytes()])
    }

    /// An edge that is part of the graph and not applied yet.
    pub fn stage(new: NewEdge, now: i64) -> Result<Self> {
        if new.upstream == new.downstream {
            return Err(Error::of(Code::SelfReferencingEdge).with("execution_id", new.upstream));
        }
        // Members live beside their flow.
        if let Some(stranger) = [new.upstream, new.downstream].iter().find(|end| end.partition != new.flow.partition) {
            return Err(Error::of(Code::ExecutionNotInFlow).with("execution_id", stranger).with("flow_id", new.flow));
        }
        if !new.kind.is_empty() {
            text::kind("kind", &new.kind)?;
        }
        if let Some(data_ref) = &new.data_ref {
            text::label("data_ref", data_ref)?;
        }
        Ok(Self {
            id: EdgeId::between(&new.upstream, &new.downstream),
            flow: new.flow,
            upstream: new.upstream,
            downstream: new.downstream,
            role: new.role,
            kind: new.kind,
            data_ref: new.data_ref,
            state: EdgeState::Staged,
            created_at: now,
            ..Default::default()
        })
    }

    /// Staging the same edge again is fine; with other content it is not.
    pub fn check_same(&self, new: &NewEdge) -> Result<()> {
        let ends = (self.flow, self.upstream, self.downstream) == (new.flow, new.upstream, new.downstream);
        if ends && self.role == new.role && self.kind == new.kind && self.data_ref == new.data_ref {
            return Ok(());
        }
        Err(Error::of(Code::DependencyAlreadyExists).with("edge_id", self.id))
    }

    /// Takes effect on its child; says whether it did not have before.
    pub fn apply(&mut self, now: i64) -> bool {
        if self.state != EdgeState::Staged {
            return false;
        }
        self.state = EdgeState::Pending;
        self.applied_at = Some(now.max(self.created_at));
        true
    }

    /// Its upstream ended. Says whether that was a success, or nothing when the edge is not waiting for it; then the
    /// child's counters must stay as they are.
    pub fn resolve(&mut self, outcome: TerminalOutcome, now: i64) -> Option<bool> {
        let again = planted(Bug::EdgeResolvedTwice) && self.state != EdgeState::Staged;
        if (self.state != EdgeState::Pending && !again) || outcome == TerminalOutcome::None {
            return None;
        }
        let success = outcome == TerminalOutcome::Success;
        self.state = if success { EdgeState::Satisfied } else { EdgeState::Impossible };
        self.outcome = outcome;
        self.resolved_at = Some(now.max(self.created_at));
        Some(success)
    }

    /// Its skipped child is replayed and waits again; says whether the edge was impossible.
    pub fn reopen(&mut self) -> bool {
        if self.state != EdgeState::Impossible {
            return false;
        }
        self.state = EdgeState::Pending;
        self.outcome = TerminalOutcome::None;
        self.resolved_at = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::limits;

    fn execution(number: u128) -> ExecutionId {
        ExecutionId { partition: 2, uuid: Uuid::from_u128(number) }
    }

    fn new() -> NewEdge {
        NewEdge {
            flow: FlowId { partition: 2, uuid: Uuid::from_u128(9) },
            upstream: execution(1),
            downstream: execution(2),
            kind: "success".into(),
            data_ref: Some("draft".into()),
            ..Default::default()
        }
    }

    #[test]
    fn an_edge_changes_state_once() {
        for (outcome, state) in [
            (TerminalOutcome::Success, EdgeState::Satisfied),
            (TerminalOutcome::Failed, EdgeState::Impossible),
            (TerminalOutcome::Cancelled, EdgeState::Impossible),
            (TerminalOutcome::Expired, EdgeState::Impossible),
            (TerminalOutcome::Skipped, EdgeState::Impossible),
        ] {
            let mut edge = Edge::stage(new(), 10).unwrap();
            assert_eq!(edge.resolve(outcome, 15), None, "not applied yet");
            assert!(edge.apply(20) && !edge.apply(21));
            assert_eq!(edge.resolve(TerminalOutcome::None, 25), None, "its upstream has not ended");
            assert_eq!(edge.resolve(outcome, 30), Some(state == EdgeState::Satisfied));
            let before = edge.clone();
            assert_eq!(edge.resolve(TerminalOutcome::Success, 40), None);
            assert!(!edge.apply(41));
            assert_eq!(edge, before);
            assert_eq!((edge.state, edge.applied_at, edge.resolved_at), (state, Some(20), Some(30)));
            assert_eq!(Edge::decode(&edge.encode()).unwrap(), edge);
        }
    }

    #[test]
    fn only_an_impossible_edge_is_reopened() {
        let mut edge = Edge::stage(new(), 10).unwrap();
        assert!(!edge.reopen());
        edge.apply(20);
        assert!(!edge.reopen());
        edge.resolve(TerminalOutcome::Failed, 30);
        assert!(edge.reopen());
        assert_eq!((edge.state, edge.outcome, edge.resolved_at), (EdgeState::Pending, TerminalOutcome::None, None));
        assert_eq!(edge.resolve(TerminalOutcome::Success, 40), Some(true));
        assert!(!edge.reopen());
    }

    #[test]
    fn an_edge_is_found_from_both_ends() {
        let edge = Edge::stage(new(), 10).unwrap();
        let entry = |index| Entry { index, member: edge.key(), score: 10 };
        let expected = [index::edges_from(Uuid::from_u128(1)), index::edges_to(Uuid::from_u128(2))].map(entry);
        assert_eq!(edge.index_entries(0), expected);
        assert_eq!(edge.key(), Edge::key_of(&EdgeId::between(&execution(1), &execution(2))));
    }

    #[test]
    fn staging_again_is_fine_only_with_the_same_content() {
        let edge = Edge::stage(new(), 10).unwrap();
        edge.check_same(&new()).unwrap();
        for other in [
            NewEdge { kind: "soft".into(), ..new() },
            NewEdge { data_ref: None, ..new() },
            NewEdge { role: EdgeRole::Child, ..new() },
        ] {
            assert_eq!(edge.check_same(&other).unwrap_err().code, Code::DependencyAlreadyExists);
        }
    }

    #[test]
    fn bad_edges_are_refused() {
        let code = |new| Edge::stage(new, 10).unwrap_err().code;
        assert_eq!(code(NewEdge { downstream: execution(1), ..new() }), Code::SelfReferencingEdge);
        let far = ExecutionId { partition: 3, ..execution(2) };
        assert_eq!(code(NewEdge { downstream: far, ..new() }), Code::ExecutionNotInFlow);
        assert_eq!(code(NewEdge { upstream: far, ..new() }), Code::ExecutionNotInFlow);
        let field = |new| Edge::stage(new, 10).unwrap_err().details["field"].clone();
        assert_eq!(field(NewEdge { kind: "k".repeat(limits::KIND_MAX_BYTES + 1), ..new() }), "kind");
        assert_eq!(field(NewEdge { data_ref: Some(String::new()), ..new() }), "data_ref");
        assert_eq!(field(NewEdge { data_ref: Some("r".repeat(limits::LABEL_MAX_BYTES + 1)), ..new() }), "data_ref");
        Edge::stage(NewEdge { kind: String::new(), data_ref: None, ..new() }, 10).unwrap();
    }
}
