//! Applies the ends of upstreams to their downstreams: many upstreams in one commit, each edge once.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::event::Effects;
use ff_core::execution::{Execution, ResumedBy};
use ff_core::flow::{Flow, FlowCancellation};
use ff_core::planted::{Bug, planted};
use ff_core::{Edge, EdgeRole, EdgeState, Indexed, Key, Result, SlotId, TerminalOutcome, index, limits};
use ff_store::{Answer, Query, Scan, ScanPage, StoredDocument, Version};

use super::queue::Progress;
use crate::flow::{
    cancel_member, end_if_complete, find_cancellation, needs_upstreams, open_upstreams, other_downstreams,
    resolve_edge, save_flow, sibling_reason, waits_for_its_first_start, wants_siblings_cancelled,
};
use crate::groups::Name;
use crate::journal;
use crate::journal::child_entry;
use crate::transaction::{Command, Tx, fence_of};

/// How far the edges of an upstream have been resolved. Each commit that gets further also writes the upstream. If its
/// version is another one, it was replayed or the store has forgotten the commit, and its edges are resolved from the
/// first one again.
#[derive(Debug, Clone)]
pub(super) struct Position {
    version: Version,
    after: (i64, Key),
}

/// The executions that are being resolved, and how far each is.
pub(super) type Work = BTreeMap<Key, Progress>;

/// The effect of one commit on one execution.
#[derive(Debug, Default)]
pub(super) struct Resolved {
    /// More of its edges are to be resolved, from this position on.
    pub(super) more: Option<Option<Position>>,
    /// Slots that it owes; its mark stays until they have been given back.
    pub(super) owed: Option<OwedSlots>,
    /// Its journals need a commit of their own.
    pub(super) journals: bool,
    /// Its end is to be told to its schedule, in a commit of its own.
    pub(super) schedule: bool,
}

/// Slots that an execution owes to its quota and to its concurrency keys.
#[derive(Debug)]
pub(super) struct OwedSlots {
    /// Namespace and name; no name if the execution has no quota.
    pub(super) quota: Name,
    /// The concurrency keys that have a slot for each of these, too.
    pub(super) keys: Vec<String>,
    /// The budgets that hold an estimate for each of these, too.
    pub(super) budgets: Vec<String>,
    pub(super) slots: Vec<SlotId>,
}

impl OwedSlots {
    pub(super) fn of(execution: &Execution) -> Self {
        let quota = (execution.namespace.clone(), execution.quota.clone().unwrap_or_default());
        let keys = execution.concurrency().iter().map(|limit| limit.key.clone()).collect();
        let budgets = execution.estimate().map(|_| execution.budgets.clone()).unwrap_or_default();
        Self { quota, keys, budgets, slots: execution.owed_slots.clone() }
    }
}

/// One commit's worth of resolution.
pub(super) struct Resolve<'a> {
    pub(super) work: &'a Work,
    /// Edges and cancellations in this commit.
    pub(super) chunk: usize,
}

impl Command for Resolve<'_> {
    type Outcome = Vec<(Key, Resolved)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Outcome> {
        let mut round = Round { budget: self.chunk, ..Default::default() };
        let mut outcomes: BTreeMap<Key, Resolved> = BTreeMap::new();
        for (key, progress) in self.work {
            // After a conflict the execution may have changed, so it is read.
            let Some(written) = progress.given_back().filter(|_| !tx.is_repeat()) else { continue };
            let held = written.execution.document_lease();
            tx.know(&*written.execution, written.version, fence_of(held.epoch, held.lease_id));
            let mut execution = Execution::clone(&written.execution);
            execution.owed_slots.clear();
            round.changed.insert(key.clone());
            round.executions.insert(key.clone(), execution);
            outcomes.insert(key.clone(), Resolved::default());
        }
        let found = self.read(tx, |key| !outcomes.contains_key(key)).await?;
        let mut owing = Vec::new();
        for (key, stored, page) in found {
            let progress = &self.work[&key];
            let Some(loaded) = tx.adopt_readable::<Execution>(key.clone(), stored) else {
                outcomes.insert(key, Resolved::default());
                continue;
            };
            let mut execution = loaded.document;
            // Slots are given back elsewhere, and the edges do not wait for that.
            let owed = progress.owed(&execution).then(|| OwedSlots::of(&execution));
            if owed.is_none() && !execution.owed_slots.is_empty() {
                execution.owed_slots.clear();
                round.changed.insert(key.clone());
            }
            if execution.owes_resolution {
                owing.push((key.clone(), page));
            }
            let (journals, schedule) = (execution.owes_journals(), execution.owes_schedule());
            outcomes.insert(key.clone(), Resolved { more: None, owed, journals, schedule });
            round.executions.insert(key, execution);
        }
        round.load_children(tx, &owing).await?;
        let mut done = Vec::new();
        for (key, page) in owing {
            let progress = &self.work[&key];
            match round.resolve_upstream(tx, &key, page, progress, self.page_limit()).await? {
                Step::Finished => done.push(key),
                Step::Unfinished(position) => outcomes.entry(key).or_default().more = Some(position),
            }
        }
        for (key, resolved) in &mut outcomes {
            if let Some(Some(position)) = resolved.more.as_mut().filter(|_| round.changed.contains(key)) {
                position.version = tx.command;
            }
        }
        round.end_flows(tx, &done).await?;
        for key in done {
            round.clear_mark(&key);
        }
        round.save(tx);
        Ok(outcomes.into_iter().collect())
    }
}

impl Resolve<'_> {
    /// Edges read at once of each upstream: the more upstreams there are, the fewer of each.
    fn page_limit(&self) -> usize {
        (2 * self.chunk / self.work.len().max(1)).clamp(2, self.chunk.max(2))
    }

    /// Reads the executions and the next page of edges of each, in one call.
    async fn read(
        &self,
        tx: &mut Tx<'_>,
        wanted: impl Fn(&Key) -> bool,
    ) -> Result<Vec<(Key, Option<StoredDocument>, ScanPage)>> {
        let keys: Vec<Key> = self.work.keys().filter(|key| wanted(key)).cloned().collect();
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut queries = vec![Query::Documents(keys.clone())];
        for (key, progress) in keys.iter().map(|key| (key, &self.work[key])) {
            let mut scan = Scan::first(index::edges_from(key.uuid().unwrap_or_default()), self.page_limit());
            scan.documents = true;
            scan.after = progress.position.as_ref().map(|position| position.after.clone());
            queries.push(Query::Scan(scan));
        }
        let mut answers = tx.read(queries).await?.into_iter();
        let documents = answers.next().and_then(Answer::into_documents).unwrap_or_default();
        let pages = answers.map(|answer| answer.into_scan().unwrap_or_default());
        Ok(keys.into_iter().zip(documents).zip(pages).map(|((key, stored), page)| (key, stored, page)).collect())
    }
}

enum Step {
    Finished,
    Unfinished(Option<Position>),
}

/// The documents of one try. Each is loaded once and saved once.
#[derive(Default)]
struct Round {
    budget: usize,
    executions: BTreeMap<Key, Execution>,
    effects: BTreeMap<Key, Effects>,
    changed: BTreeSet<Key>,
    /// Executions that may run now or have ended, which the listener must be told.
    announced: BTreeSet<Key>,
    /// Flows with a member that was alive when this try began, so that they cannot end by it.
    alive: BTreeSet<Key>,
    /// Children whose siblings this try has handled.
    looked_at: BTreeSet<Key>,
    /// The cancellations of flows that this try has read.
    cancellations: BTreeMap<Key, Option<FlowCancellation>>,
}

impl Round {
    /// Loads the downstreams of all pages at once.
    async fn load_children(&mut self, tx: &mut Tx<'_>, owing: &[(Key, ScanPage)]) -> Result<()> {
        let mut wanted = BTreeSet::new();
        for entry in
            owing.iter().flat_map(|(_, page)| &page.entries).take(2 * tx.transactor.chunk(limits::RESOLVE_CHUNK))
        {
            if let Some(stored) = &entry.document {
                let edge = tx.transactor.readable::<Edge>(stored);
                wanted.extend(edge.map(|edge| Execution::key_of(&edge.downstream)));
            }
        }
        self.load(tx, wanted.into_iter().collect()).await
    }

    async fn load(&mut self, tx: &mut Tx<'_>, mut keys: Vec<Key>) -> Result<()> {
        keys.retain(|key| !self.executions.contains_key(key));
        if keys.is_empty() {
            return Ok(());
        }
        for (key, loaded) in keys.clone().into_iter().zip(tx.load_readable::<Execution>(keys).await?) {
            if let Some(loaded) = loaded {
                self.executions.insert(key, loaded.document);
            }
        }
        Ok(())
    }

    /// Resolves a page of an upstream's edges.
    async fn resolve_upstream(
        &mut self,
        tx: &mut Tx<'_>,
        key: &Key,
        page: ScanPage,
        progress: &Progress,
        page_limit: usize,
    ) -> Result<Step> {
        let upstream = self.executions[key].clone();
        let full = page.entries.len() == page_limit;
        let mut position = progress.position.clone();
        if position.as_ref().is_some_and(|position| tx.version_of(key) != Some(position.version)) {
            return Ok(Step::Unfinished(None));
        }
        for entry in page.entries {
            let after = (entry.score, entry.member.clone());
            if let Some(loaded) = tx.adopt_readable::<Edge>(entry.member, entry.document)
                && !self.resolve_one(tx, &upstream, loaded.document).await?
            {
                return Ok(Step::Unfinished(position));
            }
            position = Some(Position { version: tx.command, after });
            self.changed.insert(key.clone());
        }
        Ok(if full { Step::Unfinished(position) } else { Step::Finished })
    }

    /// Resolves one edge; returns whether nothing about it is left to do.
    async fn resolve_one(&mut self, tx: &mut Tx<'_>, upstream: &Execution, mut edge: Edge) -> Result<bool> {
        if edge.state == EdgeState::Staged {
            return Ok(true);
        }
        let key = Execution::key_of(&edge.downstream);
        self.load(tx, vec![key.clone()]).await?;
        let cancellation = self.cancellation_instead(tx, upstream, &edge).await?;
        let Some(child) = self.executions.get_mut(&key) else {
            if let Some(suppressed) = tx.transactor.may_log("an edge leads to an execution that is not there") {
                tracing::error!(edge = %edge.id, suppressed, "an edge leads to an execution that is not there");
            }
            return Ok(true);
        };
        if edge.state == EdgeState::Pending || planted(Bug::EdgeResolvedTwice) {
            if self.budget == 0 {
                return Ok(false);
            }
            self.budget -= 1;
            if !child.is_terminal() {
                self.alive.extend(child.flow.as_ref().map(Flow::key_of));
            }
            let before = (child.is_eligible(), child.is_terminal());
            let effects = self.effects.entry(key.clone()).or_default();
            if let Some(cancellation) = cancellation {
                cancel_member(tx, child, &cancellation.reason, effects).await?;
            }
            if resolve_edge(&mut edge, upstream, child, tx.now, effects)?.is_some() {
                tx.save(&edge);
                // A commit that leaves some of the upstream's edges for later does not write the upstream. Its version
                // is guarded all the same, because it may be replayed meanwhile.
                tx.pin(&upstream.key());
                if let Some(wait) = child.waits_for_child(&upstream.id) {
                    journal::append_decided(tx, child, &[child_entry(&wait, upstream)]).await?;
                    child.wake(ResumedBy::Child, tx.now, effects);
                }
                if !before.1 && child.state.terminal_outcome == TerminalOutcome::Skipped {
                    // If its flow is cancelled before this commit, the child is to be cancelled instead.
                    child.flow.iter().for_each(|flow| tx.pin(&Flow::key_of(flow)));
                }
                self.changed.insert(key.clone());
                if before != (child.is_eligible(), child.is_terminal())
                    || child.is_eligible()
                    || child.state.lifecycle_phase == ff_core::LifecyclePhase::Active
                {
                    self.announced.insert(key.clone());
                }
            }
        }
        self.cancel_siblings(tx, &key).await
    }

    /// The cancellation of its flow, if that ends the child of an edge whose upstream did not succeed. A child that would
    /// be skipped is cancelled then, because both this and the cancellation go through the members bit by bit, and the
    /// end of a member must not depend on which of them is there first.
    async fn cancellation_instead(
        &mut self,
        tx: &mut Tx<'_>,
        upstream: &Execution,
        edge: &Edge,
    ) -> Result<Option<FlowCancellation>> {
        let may_skip = edge.state == EdgeState::Pending
            && edge.role != EdgeRole::Child
            && upstream.state.terminal_outcome != TerminalOutcome::Success;
        let child = self.executions.get(&Execution::key_of(&edge.downstream)).filter(|_| may_skip);
        let Some(flow) = child.filter(|child| waits_for_its_first_start(child)).and_then(|child| child.flow) else {
            return Ok(None);
        };
        let key = Flow::key_of(&flow);
        if !self.cancellations.contains_key(&key) {
            let cancellation = find_cancellation(tx, key.clone()).await?;
            self.cancellations.insert(key.clone(), cancellation);
        }
        Ok(self.cancellations[&key].clone().filter(FlowCancellation::ends_unstarted))
    }

    /// Cancels the upstreams that a decided child no longer needs; returns whether none is left to cancel.
    async fn cancel_siblings(&mut self, tx: &mut Tx<'_>, child: &Key) -> Result<bool> {
        let Some(execution) = self.executions.get(child).filter(|child| wants_siblings_cancelled(child)).cloned()
        else {
            return Ok(true);
        };
        if !self.looked_at.insert(child.clone()) {
            return Ok(true);
        }
        let reason = sibling_reason(&execution);
        let siblings = open_upstreams(tx, &execution, usize::MAX).await?;
        let keys: Vec<Key> = siblings.iter().map(Execution::key_of).collect();
        for portion in keys.chunks(tx.transactor.chunk(limits::RESOLVE_CHUNK)) {
            self.load(tx, portion.to_vec()).await?;
            for key in portion {
                let Some(sibling) = self.executions.get(key).filter(|sibling| !sibling.is_terminal()) else {
                    continue;
                };
                let id = sibling.id;
                let others = other_downstreams(tx, &id, &execution.id).await?;
                self.load(tx, others.clone()).await?;
                if others.iter().filter_map(|other| self.executions.get(other)).any(needs_upstreams) {
                    continue;
                }
                let Some(sibling) = self.executions.get_mut(key) else { continue };
                if self.budget == 0 {
                    // The next commit handles the rest, because the mark of the upstream that led here stays.
                    self.looked_at.remove(child);
                    return Ok(false);
                }
                self.budget -= 1;
                self.alive.extend(sibling.flow.as_ref().map(Flow::key_of));
                let effects = self.effects.entry(key.clone()).or_default();
                if cancel_member(tx, sibling, reason, effects).await? {
                    self.changed.insert(key.clone());
                    self.announced.insert(key.clone());
                }
            }
        }
        Ok(true)
    }

    /// Ends the flows whose last members these were. An execution that ends in this very try has a mark of its own, and
    /// its flow is checked when that mark is resolved.
    async fn end_flows(&mut self, tx: &mut Tx<'_>, done: &[Key]) -> Result<()> {
        let flows: BTreeSet<Key> =
            done.iter().filter_map(|key| self.executions[key].flow.as_ref().map(Flow::key_of)).collect();
        for key in flows.difference(&self.alive) {
            let Some(loaded) = tx.load::<Flow>(key.clone()).await? else { continue };
            let mut flow = loaded.document;
            // The flow is also saved while the members that it paused are being cancelled, so that a commit that is
            // about to end it notices that another member has ended.
            if end_if_complete(tx, &mut flow).await? || flow.is_lapsing() {
                save_flow(tx, &flow);
            }
        }
        Ok(())
    }

    fn clear_mark(&mut self, key: &Key) {
        if let Some(execution) = self.executions.get_mut(key) {
            execution.owes_resolution = false;
            self.changed.insert(key.clone());
        }
    }

    fn save(mut self, tx: &mut Tx<'_>) {
        for key in &self.changed {
            let execution = &self.executions[key];
            let effects = self.effects.remove(key).unwrap_or_default();
            if self.announced.contains(key) {
                tx.save_execution(execution, effects);
            } else {
                tx.save(execution);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use ff_core::PublicState;
    use ff_core::op::{
        CancelFlow, Claim, Complete, CreateFlow, Fail, GetExecution, Operation, ReplayExecution, create_flow,
    };
    use ff_store::memory::{Call, Faults, MemoryStore, Plan};
    use serde_json::json;

    use super::*;
    use crate::engine::Engine;
    use crate::env::TokioEnv;
    use crate::{Caller, Options, Serves};

    /// The first read of nothing but one execution takes a while, once it is armed.
    #[derive(Default)]
    struct SlowChild(AtomicBool);

    impl Faults for SlowChild {
        fn plan(&self, call: Call<'_>) -> Plan {
            let child = matches!(call, Call::Read { queries: [Query::Documents(keys)], .. } if keys.len() == 1);
            if !child || !self.0.swap(false, Ordering::SeqCst) {
                return Plan::default();
            }
            #[expect(clippy::disallowed_methods, reason = "a test has patience in virtual time")]
            let pause = tokio::time::sleep(std::time::Duration::from_millis(50));
            Plan { before: Some(Box::pin(pause)), ..Plan::default() }
        }
    }

    /// The first commit takes a while, once it is armed.
    #[derive(Default)]
    struct SlowCommit(AtomicBool);

    impl Faults for SlowCommit {
        fn plan(&self, call: Call<'_>) -> Plan {
            if !matches!(call, Call::Commit { .. }) || !self.0.swap(false, Ordering::SeqCst) {
                return Plan::default();
            }
            #[expect(clippy::disallowed_methods, reason = "a test has patience in virtual time")]
            let pause = tokio::time::sleep(std::time::Duration::from_millis(50));
            Plan { before: Some(Box::pin(pause)), ..Plan::default() }
        }
    }

    async fn call<O: Operation>(engine: &Engine, args: serde_json::Value) -> O::Outcome
    where
        Engine: Serves<O>,
    {
        let args = serde_json::from_value(args).expect("the arguments are readable");
        engine.call::<O>(&Caller::system(), args).await.expect("it succeeds")
    }

    #[tokio::test(start_paused = true)]
    async fn an_edge_that_another_engine_resolves_between_two_reads_is_no_error() {
        let slow = Arc::new(SlowChild::default());
        let store = MemoryStore::with_clock(Arc::new(|| 1_800_000_000_000)).with_faults(slow.clone());
        let options = Options { services: false, ..Options::default() };
        let engine = Engine::start(Arc::new(store), Arc::new(TokioEnv::current()), options).await.unwrap();
        let node = |name: &str| json!({ "name": name, "request": { "kind": "test" } });
        let graph = json!({ "nodes": [node("a"), node("b")], "edges": [{ "from": "a", "to": "b" }] });
        let create_flow::Outcome::Created { executions, .. } = call::<CreateFlow>(&engine, graph).await else {
            panic!("the flow is new")
        };
        let claim = json!({ "instance_id": "w", "lanes": ["default"] });
        let task = call::<Claim>(&engine, claim).await.tasks.remove(0);
        call::<Complete>(&engine, json!({ "execution_id": task.execution_id, "fence": task.fence })).await;
        let partition = task.execution_id.partition();
        let work = Work::from([(Execution::key_of(&task.execution_id), Progress::default())]);
        slow.0.store(true, Ordering::SeqCst);
        let transactor = &engine.services.transactor;
        let resolve = async || {
            transactor.transact(partition, transactor.fresh_command(), &Resolve { work: &work, chunk: 10 }).await
        };
        let (first, second) = futures_util::future::join(resolve(), resolve()).await;
        assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
        let found = engine.store().documents(partition, vec![Execution::key_of(&executions["b"])]).await.unwrap();
        let child = <Execution as ff_core::Document>::decode(&found[0].as_ref().unwrap().body).unwrap();
        assert!(child.is_eligible(), "{child:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_upstream_that_is_replayed_meanwhile_decides_about_nobody() {
        let slow = Arc::new(SlowCommit::default());
        let store = MemoryStore::with_clock(Arc::new(|| 1_800_000_000_000)).with_faults(slow.clone());
        let options = Options { services: false, ..Options::default() };
        let engine = Engine::start(Arc::new(store), Arc::new(TokioEnv::current()), options).await.unwrap();
        let policy = json!({ "retry": { "max_retries": 0 } });
        let node = |name: &str| json!({ "name": name, "request": { "kind": "test", "policy": policy } });
        let edges = ["b", "c", "d"].map(|to| json!({ "from": "a", "to": to }));
        let graph = json!({ "nodes": [node("a"), node("b"), node("c"), node("d")], "edges": edges });
        let create_flow::Outcome::Created { executions, .. } = call::<CreateFlow>(&engine, graph).await else {
            panic!("the flow is new")
        };
        let claim = json!({ "instance_id": "w", "lanes": ["default"] });
        let task = call::<Claim>(&engine, claim).await.tasks.remove(0);
        let failure = json!({ "execution_id": task.execution_id, "fence": task.fence, "reason": "broke" });
        call::<Fail>(&engine, failure).await;
        let partition = task.execution_id.partition();
        let work = Work::from([(Execution::key_of(&task.execution_id), Progress::default())]);
        // Less than all of its edges go into one commit, which therefore does not change the upstream itself.
        slow.0.store(true, Ordering::SeqCst);
        let transactor = &engine.services.transactor;
        let verb = Resolve { work: &work, chunk: 1 };
        let resolve = transactor.transact(partition, transactor.fresh_command(), &verb);
        let replay = call::<ReplayExecution>(&engine, json!({ "execution_id": task.execution_id }));
        let (resolved, _) = futures_util::future::join(resolve, replay).await;
        resolved.unwrap();
        for name in ["b", "c", "d"] {
            let view = call::<GetExecution>(&engine, json!({ "execution_id": executions[name] })).await;
            assert_eq!(view.public_state, PublicState::WaitingChildren, "{name} waits for the replayed one");
        }
    }

    /// An upstream that has failed and whose only downstream does not know it yet.
    async fn failed_upstream(engine: &Engine) -> (ff_core::FlowId, ff_core::ExecutionId, Work) {
        let policy = json!({ "retry": { "max_retries": 0 } });
        let node = |name: &str| json!({ "name": name, "request": { "kind": "test", "policy": policy } });
        let graph = json!({ "nodes": [node("a"), node("b")], "edges": [{ "from": "a", "to": "b" }] });
        let create_flow::Outcome::Created { flow_id, executions, .. } = call::<CreateFlow>(engine, graph).await else {
            panic!("the flow is new")
        };
        let task = call::<Claim>(engine, json!({ "instance_id": "w", "lanes": ["default"] })).await.tasks.remove(0);
        let failure = json!({ "execution_id": task.execution_id, "fence": task.fence, "reason": "broke" });
        call::<Fail>(engine, failure).await;
        let work = Work::from([(Execution::key_of(&task.execution_id), Progress::default())]);
        (flow_id, executions["b"], work)
    }

    #[tokio::test(start_paused = true)]
    async fn the_child_of_a_cancelled_flow_is_cancelled_and_not_skipped() {
        use PublicState::{Cancelled, Skipped};
        for (policy, then) in [("cancel_all", Cancelled), ("cancel_pending", Cancelled), ("flow_only", Skipped)] {
            // The cancellation is recorded before the resolver begins, or while its commit is under way.
            for meanwhile in [false, true] {
                let slow = Arc::new(SlowCommit::default());
                let store = MemoryStore::with_clock(Arc::new(|| 1_800_000_000_000)).with_faults(slow.clone());
                let options = Options { services: false, ..Options::default() };
                let engine = Engine::start(Arc::new(store), Arc::new(TokioEnv::current()), options).await.unwrap();
                let (flow, child, work) = failed_upstream(&engine).await;
                let transactor = &engine.services.transactor;
                let verb = Resolve { work: &work, chunk: 10 };
                let resolve = transactor.transact(child.partition(), transactor.fresh_command(), &verb);
                let cancel = json!({ "flow_id": flow, "policy": policy, "reason": "stop" });
                let cancel = call::<CancelFlow>(&engine, cancel);
                if meanwhile {
                    slow.0.store(true, Ordering::SeqCst);
                    futures_util::future::join(resolve, cancel).await.0.unwrap();
                } else {
                    cancel.await;
                    resolve.await.unwrap();
                }
                let view = call::<GetExecution>(&engine, json!({ "execution_id": child })).await;
                assert_eq!(view.public_state, then, "{policy}, meanwhile: {meanwhile}");
                let reason = view.cancellation.and_then(|cancellation| cancellation.reason);
                assert_eq!(reason.as_deref(), (then == Cancelled).then_some("stop"));
                engine.close().await;
            }
        }
    }
}
