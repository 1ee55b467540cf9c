//! Random lives of small flows: members, edges, joins, cancellation and replay together, against the rules that no
//! order of events may break.

use std::collections::BTreeMap;

use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::edge::{Edge, EdgeState, NewEdge};
use crate::event::Effects;
use crate::execution::{CancelSource, Claim, Execution, NewExecution, NewFailure};
use crate::id::{ExecutionId, LeaseId};
use crate::join::{AnyOf, JoinDecision, JoinPolicy, JoinState, OnSatisfied, Quorum};
use crate::lease::LeaseFence;
use crate::payload::Payload;
use crate::policy::{Policy, RetryPolicy};
use crate::state::AttemptState;

const MEMBERS: usize = 6;

#[derive(Debug, Clone)]
enum Step {
    Member,
    Edge(usize, usize),
    Claim(usize),
    Complete(usize),
    Fail(usize),
    CancelMember(usize),
    Replay(usize),
    CancelFlow,
}

/// A flow as the engine keeps it: its document, its members and its edges.
struct Life {
    flow: Flow,
    members: Vec<Execution>,
    edges: Vec<Edge>,
    policy: JoinPolicy,
    now: i64,
}

impl Life {
    fn new(policy: JoinPolicy) -> Self {
        let new = NewFlow {
            id: FlowId { partition: 0, uuid: Uuid::from_u128(1) },
            namespace: "default".into(),
            ..Default::default()
        };
        Self { flow: Flow::new(new, 1_000).unwrap(), members: Vec::new(), edges: Vec::new(), policy, now: 1_000 }
    }

    fn counts(&self) -> MemberCounts {
        self.members.iter().map(|member| (member.public_state(), 1)).collect()
    }

    fn fence(&self, member: usize) -> Option<LeaseFence> {
        let lease = self.members[member].lease.as_ref().filter(|lease| lease.ended_at == 0)?;
        Some(LeaseFence { attempt: lease.attempt, lease_id: lease.id, epoch: lease.epoch })
    }

    fn take(&mut self, step: &Step) {
        self.now += 1;
        let effects = &mut Effects::default();
        let known = |member: usize| member % MEMBERS;
        match *step {
            Step::Member => {
                if self.members.len() < MEMBERS && self.flow.add_member().is_ok() {
                    self.members.push(member(self.flow.id, self.members.len(), self.now));
                }
            }
            Step::Edge(from, to) => self.add_edge(known(from), known(to)),
            Step::Claim(number) => {
                let (admits, now) = (self.flow.admits_claims(), self.now);
                if let Some(member) = self.members.get_mut(known(number)).filter(|_| admits) {
                    let lease_id = LeaseId(Uuid::from_u128(u128::try_from(now).unwrap()));
                    let claim = Claim {
                        lease_id,
                        worker_id: "w".into(),
                        instance_id: "w-1".into(),
                        ttl_ms: 30_000,
                        build_id: String::new(),
                        slot: None,
                    };
                    let ready = member.is_eligible();
                    assert_eq!(member.claim(&claim, now, effects).is_ok(), ready);
                }
            }
            Step::Complete(number) => {
                if let Some(fence) = (known(number) < self.members.len()).then(|| self.fence(known(number))).flatten() {
                    self.members[known(number)].complete(&fence, Payload::default(), self.now, effects).unwrap();
                }
            }
            Step::Fail(number) => {
                if let Some(fence) = (known(number) < self.members.len()).then(|| self.fence(known(number))).flatten() {
                    let failure = NewFailure { reason: "broke", category: "", retry_after_ms: None, random: 0 };
                    self.members[known(number)].fail(&fence, failure, self.now, effects).unwrap();
                }
            }
            Step::CancelMember(number) => {
                if let Some(member) = self.members.get_mut(known(number)) {
                    member.cancel(CancelSource::Operator, "", self.now, effects).unwrap();
                }
            }
            Step::Replay(number) => self.replay(known(number)),
            Step::CancelFlow => self.cancel(),
        }
        self.resolve();
    }

    fn add_edge(&mut self, from: usize, to: usize) {
        // Edges lead from lower to higher numbers here, so no cycle can arise; cycles have tests of their own.
        let (from, to) = (from.min(to), from.max(to));
        if from == to || to >= self.members.len() {
            return;
        }
        let new = NewEdge {
            flow: self.flow.id,
            upstream: self.members[from].id,
            downstream: self.members[to].id,
            ..Default::default()
        };
        let mut edge = Edge::stage(new, self.now).unwrap();
        let waits = self.members[to].state.attempt_state == AttemptState::PendingFirstAttempt;
        if self.edges.iter().any(|known| known.id == edge.id) || !waits || self.flow.stage_edge(None).is_err() {
            return;
        }
        if self.members[to].is_terminal()
            || self.members[to].join.as_ref().is_some_and(|join| join.state() == JoinState::Impossible)
        {
            return;
        }
        self.members[to].add_dependency(Some(&self.policy), self.now).unwrap();
        edge.apply(self.now);
        self.edges.push(edge);
    }

    fn replay(&mut self, number: usize) {
        let Some(member) = self.members.get(number).filter(|member| member.is_terminal()) else { return };
        if self.flow.cancellation.is_some() {
            return;
        }
        let skipped = member.public_state() == PublicState::Skipped;
        let id = member.id;
        let mut reopened = 0;
        for edge in self.edges.iter_mut().filter(|edge| edge.downstream == id && skipped) {
            reopened += u32::from(edge.reopen());
        }
        if self.members[number].replay(reopened, None, self.now).is_ok() && self.flow.ended.is_some() {
            self.flow.reopen().unwrap();
        }
    }

    fn cancel(&mut self) {
        if !matches!(self.flow.cancel(CancelFlowPolicy::CancelAll, "enough", self.now), Ok(true)) {
            return;
        }
        for member in &mut self.members {
            member.cancel(CancelSource::Flow, "enough", self.now, &mut Effects::default()).unwrap();
        }
        self.flow.finish_cancellation();
    }

    /// Resolves after a commit as the resolver does, until nothing is left to resolve.
    fn resolve(&mut self) {
        let mut changed = true;
        while changed {
            changed = false;
            for number in 0..self.members.len() {
                let upstream = (self.members[number].id, self.members[number].state.terminal_outcome);
                if !self.members[number].is_terminal() {
                    continue;
                }
                self.members[number].owes_resolution = false;
                for edge in self.edges.iter_mut().filter(|edge| edge.upstream == upstream.0) {
                    let Some(success) = edge.resolve(upstream.1, self.now) else { continue };
                    changed = true;
                    let child = self.members.iter_mut().find(|member| member.id == edge.downstream).unwrap();
                    let decision = child.upstream_ended(success, self.now).unwrap();
                    if matches!(decision, JoinDecision::Impossible { .. }) && !child.is_terminal() {
                        child.skip("its dependencies failed", self.now, &mut Effects::default()).unwrap();
                    }
                }
            }
        }
        let counts = self.counts();
        self.flow.end(&counts, Some(1_000), self.now);
    }

    /// Asserts the invariants that hold after every step.
    fn check(&self) {
        for member in &self.members {
            member.check().unwrap();
            let incoming: Vec<&Edge> = self.edges.iter().filter(|edge| edge.downstream == member.id).collect();
            if let Some(join) = &member.join {
                let of = |state| incoming.iter().filter(|edge| edge.state == state).count();
                assert_eq!(usize::try_from(join.total).unwrap(), incoming.len(), "every applied edge is counted once");
                assert_eq!(usize::try_from(join.succeeded).unwrap(), of(EdgeState::Satisfied));
                assert_eq!(usize::try_from(join.failed).unwrap(), of(EdgeState::Impossible));
                let satisfied = join.state() == JoinState::Satisfied;
                if member.is_eligible() || member.public_state() == PublicState::Active {
                    assert!(satisfied, "a child started early: {join:?}");
                }
                // A join is the only hold in this test.
                let waits = member.public_state() == PublicState::WaitingChildren;
                assert!(!(waits && satisfied), "a child sticks: {join:?}");
            }
            let entries = member.index_entries(member.updated_at);
            let state = index::member(self.flow.id.uuid, member.public_state());
            assert_eq!(entries.iter().filter(|entry| entry.index == state).count(), 1, "one entry among the members");
        }
        let live = self.members.iter().filter(|member| !member.is_terminal()).count();
        let ended = live == 0 && (!self.members.is_empty() || self.flow.cancellation.is_some());
        assert_eq!(self.flow.ended.is_some(), ended, "a flow ends when its last member does");
        assert_eq!(self.flow.is_terminal(), ended || self.flow.cancellation.is_some());
        assert!(self.flow.cancellation.is_none() || live == 0, "nothing lives after a cancellation");
        assert_eq!(Flow::decode(&self.flow.encode()).unwrap(), self.flow);
        let marks = self.flow.index_entries(0).into_iter().filter(|entry| entry.index == index::marks()).count();
        assert_eq!(marks, 0, "nothing is owed once the resolver is done");
    }
}

fn member(flow: FlowId, number: usize, now: i64) -> Execution {
    let uuid = Uuid::from_u128(100 + u128::try_from(number).unwrap());
    let request = NewExecution {
        id: ExecutionId { partition: flow.partition, uuid },
        namespace: "default".into(),
        lane: "default".into(),
        kind: "test".into(),
        priority: 0,
        creator: String::new(),
        submitted_by: String::new(),
        idempotency_key: String::new(),
        tags: BTreeMap::new(),
        policy: Policy { retry: RetryPolicy { max_retries: 0, ..Default::default() }, ..Default::default() }.into(),
        capabilities: Default::default(),
        budgets: Vec::new(),
        quota: None,
        input: Payload::default(),
        delay_until: None,
        deadline_at: None,
        flow: Some(flow),
        node: String::new(),
        request_hash: Blob::default(),
        trace_context: String::new(),
        schedule: None,
        sharing: Default::default(),
    };
    Execution::create(request, now).unwrap()
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number = 0..MEMBERS;
    let step = prop_oneof![
        4 => Just(Step::Member),
        6 => (number.clone(), number.clone()).prop_map(|(from, to)| Step::Edge(from, to)),
        6 => number.clone().prop_map(Step::Claim),
        4 => number.clone().prop_map(Step::Complete),
        2 => number.clone().prop_map(Step::Fail),
        1 => number.clone().prop_map(Step::CancelMember),
        1 => number.prop_map(Step::Replay),
        1 => Just(Step::CancelFlow),
    ];
    prop::collection::vec(step, 1..60)
}

fn policies() -> impl Strategy<Value = JoinPolicy> {
    let let_run = OnSatisfied::LetRun;
    prop_oneof![
        Just(JoinPolicy::AllOf),
        Just(JoinPolicy::AnyOf(AnyOf { on_satisfied: let_run, ..Default::default() })),
        (1u32..4).prop_map(move |k| JoinPolicy::Quorum(Quorum { k, on_satisfied: let_run, ..Default::default() })),
    ]
}

fn config() -> ProptestConfig {
    let cases = std::env::var("FF_PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(512);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn random_flows_keep_every_rule(policy in policies(), steps in steps()) {
        let mut life = Life::new(policy);
        for step in &steps {
            life.take(step);
            life.check();
        }
    }
}
