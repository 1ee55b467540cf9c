//! `children_wait`: edges change state once and together with their child's counters, nothing starts before its join
//! is satisfied or in a cancelled flow, and a flow ends with its last member.

use ff_core::encoding::Document;
use ff_core::execution::Execution;
use ff_core::index::kind;
use ff_core::{CancelFlowPolicy, Edge, EdgeRole, EdgeState, Flow, FlowId, JoinPolicy, Key, Partition, TerminalOutcome};
use ff_store::memory::RawDocument;

use super::{Checker, Commit, touched};
use crate::invariant::Invariant;

impl Checker {
    /// An edge was written or removed.
    pub(super) fn edge_changed(&mut self, commit: Commit<'_>, key: &Key, after: Option<&RawDocument>) {
        let place = (commit.partition, key.clone());
        let Some(edge) = after.and_then(|raw| Edge::decode(&raw.body).ok()) else {
            self.facts.edges.remove(&place);
            return;
        };
        let before = self.facts.edges.insert(place, edge.clone());
        let state = before.as_ref().map_or(EdgeState::Staged, |before| before.state);
        let legal = match (state, edge.state) {
            (before, after) if before == after => true,
            (EdgeState::Staged, _) => true,
            (EdgeState::Pending, EdgeState::Satisfied | EdgeState::Impossible) => true,
            // Reopened for a child that is replayed; at once satisfied if its upstream was replayed before it and succeeded.
            (EdgeState::Impossible, EdgeState::Pending | EdgeState::Satisfied) => {
                replayed_in(commit, &Execution::key_of(&edge.downstream))
            }
            _ => false,
        };
        self.expect(legal, Invariant::ChildrenWait, || format!("{:?} went from {state:?} to {edge:?}", edge.id));
        // A bulk job may replay a child, which finds its upstream ended, and then the upstream, in one commit.
        let upstream_runs_again = replayed_in(commit, &Execution::key_of(&edge.upstream));
        let resolved = matches!(edge.state, EdgeState::Satisfied | EdgeState::Impossible);
        if state != edge.state && resolved && !upstream_runs_again {
            self.resolved.push(edge);
        }
    }

    /// The edges that a commit resolved, once all that it wrote is known: it may have ended their upstream, too.
    pub(super) fn check_resolutions(&mut self, partition: Partition) {
        for edge in std::mem::take(&mut self.resolved) {
            self.check_resolution(partition, &edge);
        }
    }

    /// An edge says what its upstream did.
    fn check_resolution(&mut self, partition: Partition, edge: &Edge) {
        let place = (partition, Execution::key_of(&edge.upstream));
        let Some(upstream) = self.facts.executions.get(&place) else { return };
        let outcome = upstream.document.state.terminal_outcome;
        let (success, ended) = (outcome == TerminalOutcome::Success, outcome != TerminalOutcome::None);
        let right = ended && success == (edge.state == EdgeState::Satisfied);
        self.expect(right, Invariant::ChildrenWait, || {
            format!("{:?} became {:?} while its upstream was {outcome:?}", edge.id, edge.state)
        });
    }

    /// The counters of every child that a commit touched are those of its edges.
    pub(super) fn check_joins(&mut self, commit: Commit<'_>) {
        let mut children = std::collections::BTreeSet::new();
        for key in touched(commit.batch) {
            match key.kind() {
                kind::EXECUTION => {
                    children.insert(key);
                }
                kind::EDGE => {
                    let edge = self.facts.edges.get(&(commit.partition, key));
                    children.extend(edge.map(|edge| Execution::key_of(&edge.downstream)));
                }
                _ => {}
            }
        }
        for child in children {
            self.check_join(commit.partition, &child);
        }
    }

    fn check_join(&mut self, partition: Partition, child: &Key) {
        let Some(seen) = self.facts.executions.get(&(partition, child.clone())) else { return };
        let document = &seen.document;
        let Some(flow) = document.flow else { return };
        // Its edges leave before it does.
        if self.facts.flows.get(&flow).is_some_and(|flow| flow.removing) {
            return;
        }
        let count = |role: EdgeRole, state: EdgeState| {
            let edges = self.facts.edges.values();
            edges.filter(|edge| edge.downstream == document.id && edge.role == role && edge.state == state).count()
        };
        let dependencies = [EdgeState::Pending, EdgeState::Satisfied, EdgeState::Impossible]
            .map(|state| u32::try_from(count(EdgeRole::Dependency, state)).unwrap_or(u32::MAX));
        let join = document.join.clone().unwrap_or_default();
        let counted = [join.unsatisfied(), join.succeeded, join.failed];
        let open = u32::try_from(count(EdgeRole::Child, EdgeState::Pending)).unwrap_or(u32::MAX);
        let (id, waiting) = (document.id, document.child_wait.open);
        self.expect(counted == dependencies, Invariant::ChildrenWait, || {
            format!("{id} counts {counted:?} (open, satisfied, impossible) where its edges are {dependencies:?}")
        });
        self.expect(waiting == open, Invariant::ChildrenWait, || {
            format!("{id} waits for {waiting} children where {open} are open")
        });
    }

    /// A member is about to run.
    pub(super) fn check_start(&mut self, document: &Execution) {
        let id = document.id;
        let satisfied = self.join_satisfied(document);
        self.expect(satisfied, Invariant::ChildrenWait, || {
            format!("{id} starts while its join is {:?}", document.join)
        });
        let Some(flow) = document.flow else { return };
        // A cancellation may leave those alone that have started; they come to their end.
        let admits = self.facts.flows.get(&flow).is_some_and(|flow| match &flow.cancellation {
            None => true,
            Some(cancellation) => {
                self.facts.started.contains(&id) && cancellation.policy != CancelFlowPolicy::CancelAll
            }
        });
        self.expect(admits, Invariant::ChildrenWait, || format!("{id} starts in {flow}, which is cancelled or gone"));
    }

    /// Whether enough of the edges that lead to an execution are satisfied: counted here, not asked of the code under
    /// test.
    fn join_satisfied(&self, document: &Execution) -> bool {
        let dependencies: Vec<&Edge> = self
            .facts
            .edges
            .values()
            .filter(|edge| edge.downstream == document.id && edge.role == EdgeRole::Dependency)
            .filter(|edge| edge.state != EdgeState::Staged)
            .collect();
        let satisfied = dependencies.iter().filter(|edge| edge.state == EdgeState::Satisfied).count();
        let needed = match document.join.as_ref().map(|join| &join.policy) {
            _ if dependencies.is_empty() => 0,
            None | Some(JoinPolicy::AllOf | JoinPolicy::Unknown(_)) => dependencies.len(),
            Some(JoinPolicy::AnyOf(_)) => 1,
            Some(JoinPolicy::Quorum(quorum)) => usize::try_from(quorum.k).unwrap_or(usize::MAX),
        };
        satisfied >= needed
    }

    /// A flow was written or removed.
    pub(super) fn flow_changed(&mut self, partition: Partition, key: &Key, after: Option<&RawDocument>) {
        let Some(flow) = after.and_then(|raw| Flow::decode(&raw.body).ok()) else {
            if let Some(uuid) = key.uuid() {
                self.facts.flows.remove(&FlowId { partition: partition.number, uuid });
            }
            return;
        };
        let ended = flow.ended.is_some();
        let before = self.facts.flows.insert(flow.id, flow.clone());
        if before.is_none() {
            self.check_run(flow.schedule.as_ref().map(|run| run.schedule), partition, key);
        }
        let back = before.as_ref().is_some_and(|before| before.removing) && !flow.removing;
        self.expect(!back, Invariant::RemovalGoesOn, || format!("{} came back while it was being removed", flow.id));
        if !ended || before.is_some_and(|before| before.ended.is_some()) {
            return;
        }
        let open = self.open_member(&flow.id);
        self.expect(open.is_none(), Invariant::ChildrenWait, || format!("{} ended while {open:?} had not", flow.id));
    }

    fn open_member(&self, flow: &FlowId) -> Option<ff_core::ExecutionId> {
        let mut members = self.facts.executions.values().filter(|seen| seen.document.flow == Some(*flow));
        members.find(|seen| !seen.document.is_terminal()).map(|seen| seen.document.id)
    }

    /// At rest every flow with members has ended.
    pub(super) fn check_flows_at_rest(&mut self) {
        for flow in self.facts.flows.values().cloned().collect::<Vec<_>>() {
            let empty = flow.node_count == 0;
            self.expect(empty || flow.ended.is_some(), Invariant::ChildrenWait, || {
                format!("{} has not ended, although its members have", flow.id)
            });
        }
    }
}

/// Whether a commit runs an execution again that had ended.
fn replayed_in(commit: Commit<'_>, key: &Key) -> bool {
    let decode = |raw: &RawDocument| Execution::decode(&raw.body).ok();
    let (before, after) = (commit.before.get(key).and_then(decode), commit.contents.document(key).and_then(decode));
    before.zip(after).is_some_and(|(before, after)| before.is_terminal() && after.replays == before.replays + 1)
}
