//! Executions that join a flow one by one.

use ff_core::event::Effects;
use ff_core::execution::Execution;
use ff_core::flow::{Flow, NewFlow};
use ff_core::op::{
    AddExecutionToFlow, AddExecutionToFlowArgs, AddExecutionToFlowOutcome, CreateExecutionArgs, CreateExecutionOutcome,
    Dependency, ParentLink,
};
use ff_core::{Code, Edge, EdgeId, EdgeRole, Error, ExecutionId, FlowId, Indexed, NewEdge, Result};

use crate::caller::Caller;
use crate::flow::{
    cancel_siblings, check_cancellable, check_member, connect, flow_not_found, load_flow, load_member, new_edge,
    save_flow,
};
use crate::op::execution::create::{Solo, find_duplicate, keep_key};
use crate::op::flow::edge::refuse_cycle;
use crate::op::{Handle, Request};
use crate::services::Services;
use crate::submission::{Submission, write_new};
use crate::transaction::{Command, Tx};
use crate::visibility::{check_reachable, load_visible, not_found};
use crate::{env, substitute};

impl Services {
    /// Creates a member. It lives beside its flow: where that is not with its key, the key is recorded first.
    pub(crate) async fn create_member(
        &self,
        caller: &Caller,
        args: &CreateExecutionArgs,
        mut submission: Submission,
    ) -> Result<CreateExecutionOutcome> {
        let beside = args.flow_id.map(|flow| flow.partition).or(args.parent.as_ref().map(|p| p.execution_id.partition));
        if beside.is_some_and(|partition| partition != submission.request.id.partition) {
            return Err(Error::of(Code::PartitionMismatch).with("execution_id", submission.request.id));
        }
        if self.transactor.key_is_elsewhere(&submission) {
            let verb = CreateMember { caller, args, submission: &submission };
            let refusal = self.transactor.rehearse(submission.request.id.partition(), &verb).await.err();
            self.record_key(&mut submission, refusal).await?;
        }
        let partition = submission.request.id.partition();
        // A flow that grows fast changes all the time: callers that add to it and the claims of its members take turns.
        let own =
            |parent: &ParentLink| FlowId { partition: parent.execution_id.partition, uuid: parent.execution_id.uuid };
        let flow = args.flow_id.or(args.parent.as_ref().map(own));
        let _turn = match &flow {
            Some(flow) => Some(self.transactor.locks().take(partition, Flow::key_of(flow)).await),
            None => None,
        };
        let verb = CreateMember { caller, args, submission: &submission };
        self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await
    }
}

struct CreateMember<'a> {
    caller: &'a Caller,
    args: &'a CreateExecutionArgs,
    submission: &'a Submission,
}

impl Command for CreateMember<'_> {
    type Outcome = CreateExecutionOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<CreateExecutionOutcome> {
        let mut parent = match &self.args.parent {
            Some(link) => Some(self.spawning_parent(tx, link).await?),
            None => None,
        };
        let mut submission = self.submission.clone();
        let child_key = self.args.parent.as_ref().and_then(|link| link.key.as_deref());
        let named = parent.as_ref().zip(child_key).map(|(parent, key)| parent.child_id(key));
        submission.request.id = named.unwrap_or(submission.request.id);
        if let Some(parent) = parent.as_ref().filter(|_| named.is_some() || submission.own_id)
            && let Some(outcome) = self.spawned_before(tx, parent, &mut submission).await?
        {
            return Ok(outcome);
        }
        if (submission.own_id && parent.is_none()) || submission.key.is_some() || tx.is_repeat() {
            match find_duplicate(tx, &submission).await? {
                Some(Solo::Here(outcome)) => return Ok(outcome),
                // The key of a submission to another flow; the flow is part of the request, so that it differs.
                Some(Solo::Elsewhere(id)) => {
                    return Err(Error::of(Code::IdempotencyConflict).with("execution_id", id));
                }
                None => {}
            }
        }
        submission.check_new()?;
        if let (Some(parent), Some(link)) = (&mut parent, &self.args.parent) {
            parent.spawn_child(&link.fence, tx.now)?;
            tx.require_holder(&parent.key(), &link.fence);
        }
        let mut flow = self.flow(tx, parent.as_mut()).await?;
        flow.keep_for(self.submission.request.policy.retention_ms);
        flow.add_member()?;
        let mut request = submission.request;
        if let (Some(parent), Some(link)) = (&parent, &self.args.parent)
            && !link.detached
        {
            request.inherit(parent);
        }
        request.flow = Some(flow.id);
        let mut child = Execution::create(request, tx.now)?;
        let mut effects = Effects::default();
        self.add_dependencies(tx, &flow, &mut child, &mut effects).await?;
        if let (Some(parent), Some(link)) = (&parent, &self.args.parent) {
            self.link_to_parent(tx, &flow, &child, parent, link).await?;
        }
        save_flow(tx, &flow);
        keep_key(tx, self.submission, self.submission.request.id);
        write_new(tx, child.clone(), self.submission.blob.clone(), self.submission.announced);
        tx.apply(&child.id, effects);
        let upstreams: Vec<_> = self.args.dependencies.iter().map(|dependency| dependency.upstream).collect();
        cancel_siblings(tx, &child, &upstreams).await?;
        let public_state = child.public_state();
        let flow_id = Some(flow.id);
        Ok(CreateExecutionOutcome { execution_id: child.id, duplicate: false, flow_id, public_state, superseded: None })
    }
}

impl CreateMember<'_> {
    /// The running execution that spawns it. Its holder is judged before anything is said about the child.
    async fn spawning_parent(&self, tx: &mut Tx<'_>, link: &ParentLink) -> Result<Execution> {
        let parent = tx.execution(&link.execution_id).await?;
        check_reachable(self.caller, &parent)?;
        if parent.namespace != self.submission.request.namespace {
            return Err(crate::visibility::not_found(&parent.id));
        }
        parent.check_fence(&link.fence)?;
        Ok(parent)
    }

    /// The child that an earlier call spawned under this id. An id that its caller derived is no secret: if another
    /// caller has created an execution there, the child gets a substitute. An id that was minted and is taken is a
    /// mistake.
    async fn spawned_before(
        &self,
        tx: &mut Tx<'_>,
        parent: &Execution,
        submission: &mut Submission,
    ) -> Result<Option<CreateExecutionOutcome>> {
        let id = submission.request.id;
        let Some(existing) = tx.find_execution(&id).await? else { return Ok(None) };
        let conflict = match submission.duplicate_of(&existing) {
            Ok(outcome) => return Ok(Some(outcome)),
            Err(conflict) => conflict,
        };
        let is_minted = id.uuid.get_version_num() == 7 && existing.namespace == parent.namespace;
        let is_child = tx.load::<Edge>(Edge::key_of(&EdgeId::between(&id, &parent.id))).await?.is_some();
        if is_minted || is_child {
            return Err(conflict);
        }
        submission.request.id.uuid = substitute::find_or_mint(tx, &parent.id, id.uuid).await?;
        let existing = tx.find_execution(&submission.request.id).await?;
        existing.map(|existing| submission.duplicate_of(&existing)).transpose()
    }

    /// The flow it joins. A parent without one gets a flow of its own, whose id is made from the parent's, so that
    /// every try opens the same one, unless another caller has opened a flow under that id.
    async fn flow(&self, tx: &mut Tx<'_>, parent: Option<&mut Execution>) -> Result<Flow> {
        let namespace = &self.submission.request.namespace;
        let Some(id) = self.args.flow_id.or(parent.as_ref().and_then(|parent| parent.flow)) else {
            let Some(parent) = parent else {
                return Err(Error::invalid("flow_id", "is needed for an execution with dependencies"));
            };
            let mut id = FlowId { partition: parent.id.partition, uuid: parent.id.uuid };
            if tx.is_repeat() && tx.load::<Flow>(Flow::key_of(&id)).await?.is_some() {
                id = FlowId::in_partition(id.partition(), &env::mint(tx.transactor.env(), tx.now));
            }
            let new = NewFlow { id, namespace: namespace.clone(), kind: parent.kind.clone(), ..Default::default() };
            let mut flow = Flow::new(new, tx.now)?;
            flow.keep_for(parent.policy.retention_ms);
            flow.add_member()?;
            parent.flow = Some(id);
            tx.create(&flow);
            return Ok(flow);
        };
        let loaded = tx.load::<Flow>(Flow::key_of(&id)).await?.map(|loaded| loaded.document);
        let flow = loaded.filter(|flow| flow.namespace == *namespace).ok_or_else(|| flow_not_found(&id))?;
        if let Some(parent) = parent {
            check_member(&flow, parent)?;
        }
        Ok(flow)
    }

    async fn add_dependencies(
        &self,
        tx: &mut Tx<'_>,
        flow: &Flow,
        child: &mut Execution,
        effects: &mut Effects,
    ) -> Result<()> {
        let mut ended = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        for dependency in &self.args.dependencies {
            if !seen.insert(dependency.upstream) {
                return Err(Error::invalid("dependencies", format!("name {} twice", dependency.upstream)));
            }
            let upstream = load_member(tx, flow, &dependency.upstream).await?;
            let edge = Edge::stage(described(flow, dependency, child.id), tx.now)?;
            child.add_dependency(self.args.join.as_ref(), tx.now)?;
            check_cancellable(self.caller, child, &upstream)?;
            // Whether the join is decided is asked only once it knows all its edges.
            ended.push((edge, upstream));
        }
        child.expect_further_edges(flow.stays_open);
        for (edge, upstream) in ended {
            let edge = connect(tx, edge, &upstream, child, effects)?;
            tx.create(&edge);
        }
        Ok(())
    }

    async fn link_to_parent(
        &self,
        tx: &mut Tx<'_>,
        flow: &Flow,
        child: &Execution,
        parent: &Execution,
        link: &ParentLink,
    ) -> Result<()> {
        for dependency in &self.args.dependencies {
            // The parent waits for the child: it must not be behind anything the child waits for.
            refuse_cycle(tx, dependency.upstream, parent.id).await?;
        }
        let new = NewEdge {
            role: EdgeRole::Child,
            kind: link.kind.clone().unwrap_or_default(),
            data_ref: link.data_ref.clone(),
            ..new_edge(&flow.id, child.id, parent.id)
        };
        let mut edge = Edge::stage(new, tx.now)?;
        edge.apply(tx.now);
        tx.create(&edge);
        tx.save_execution(parent, Effects::default());
        Ok(())
    }
}

fn described(flow: &Flow, dependency: &Dependency, child: ExecutionId) -> NewEdge {
    NewEdge {
        kind: dependency.kind.clone().unwrap_or_default(),
        data_ref: dependency.data_ref.clone(),
        ..new_edge(&flow.id, dependency.upstream, child)
    }
}

impl Handle<AddExecutionToFlow> for Services {
    async fn handle(&self, caller: &Caller, args: AddExecutionToFlowArgs) -> Result<AddExecutionToFlowOutcome> {
        self.transactor.check_flow_id(&args.flow_id)?;
        let partition = args.flow_id.partition();
        let _turn = self.transactor.locks().take(partition, Flow::key_of(&args.flow_id)).await;
        let identity = self.transactor.callers_identity::<AddExecutionToFlow>(caller, &args, None);
        self.transactor.transact_once(partition, identity, &Request::<AddExecutionToFlow> { caller, args: &args }).await
    }
}

impl Command for Request<'_, AddExecutionToFlow> {
    type Outcome = AddExecutionToFlowOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<AddExecutionToFlowOutcome> {
        let mut flow = load_flow(tx, self.caller, &self.args.flow_id).await?;
        let mut execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        if execution.namespace != flow.namespace {
            return Err(not_found(&execution.id));
        }
        if execution.flow == Some(flow.id) {
            return Ok(AddExecutionToFlowOutcome::AlreadyMember { node_count: flow.node_count });
        }
        flow.keep_for(execution.policy.retention_ms);
        let node_count = flow.add_member()?;
        if let Some(other) = execution.flow {
            return Err(Error::of(Code::ExecutionInOtherFlow).with("flow_id", other));
        }
        execution.join_flow(flow.id, self.args.node.as_deref(), tx.now);
        save_flow(tx, &flow);
        tx.save_execution(&execution, Effects::default());
        Ok(AddExecutionToFlowOutcome::Added { node_count })
    }
}
