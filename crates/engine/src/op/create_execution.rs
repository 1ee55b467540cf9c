//! Submits an execution. The same id or key with the same request answers with the first one.

use std::sync::Arc;

use bytes::Bytes;
use ff_core::execution::{DEFAULT_LANE, Execution, NewExecution};
use ff_core::idempotency::IdempotencyRecord;
use ff_core::op::CreateExecution;
use ff_core::op::create_execution::{Args, Outcome};
use ff_core::planted::{Bug, planted};
use ff_core::{Blob, Code, Document, Error, ExecutionId, Indexed, PublicState, Result, limits};

use super::payload;
use crate::engine::{Caller, Engine, Handle};
use crate::env;
use crate::limits::bytes;
use crate::transaction::{Command, Tx};

impl Handle<CreateExecution> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let submission = self.submission(caller, &args).await?;
        if submission.joins_a_flow(&args) {
            // Boxed, because it would make the future of every other submission three times as large.
            return Box::pin(self.create_member(caller, &args, submission)).await;
        }
        let partition = submission.request.id.partition();
        self.transact(partition, self.fresh_command(), &CreateSolo { submission: &submission }).await
    }
}

/// A submission with everything decided before its commit, so that a repeated try is the same request.
#[derive(Debug, Clone)]
pub(crate) struct Submission {
    pub(crate) request: NewExecution,
    pub(crate) blob: Option<Bytes>,
    /// The idempotency key and how long it is remembered.
    pub(crate) key: Option<(String, i64)>,
    /// The caller brought the id.
    pub(crate) own_id: bool,
}

impl Submission {
    /// Whether it is more than an execution of its own.
    pub(crate) fn joins_a_flow(&self, args: &Args) -> bool {
        args.flow_id.is_some() || args.parent.is_some() || !args.dependencies.is_empty()
    }

    /// What the store remembers of the idempotency key.
    pub(crate) fn record(&self) -> Option<(IdempotencyRecord, i64)> {
        let (key, window_ms) = self.key.as_ref().filter(|_| !planted(Bug::DedupNotWritten))?;
        let record = IdempotencyRecord {
            namespace: self.request.namespace.clone(),
            idempotency_key: key.clone(),
            execution_id: self.request.id,
            request_hash: self.request.request_hash.clone(),
            ..Default::default()
        };
        Some((record, *window_ms))
    }

    /// The answer when the execution is there already: the same request, or a conflict.
    pub(crate) fn duplicate_of(&self, existing: &Execution) -> Result<Outcome> {
        if existing.request_hash != self.request.request_hash || existing.namespace != self.request.namespace {
            return Err(Error::of(Code::IdempotencyConflict).with("execution_id", existing.id));
        }
        Ok(Outcome {
            execution_id: existing.id,
            duplicate: true,
            flow_id: existing.flow,
            public_state: existing.public_state(),
        })
    }
}

impl Engine {
    /// Decides everything about a submission that does not depend on what is stored.
    pub(crate) async fn submission(&self, caller: &Caller, args: &Args) -> Result<Submission> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let lane = args.lane.clone().unwrap_or_else(|| DEFAULT_LANE.to_owned());
        self.check_submission(&namespace, &lane).await?;
        let input = args.input()?;
        let size = input.as_ref().map_or(0, |input| input.bytes.len());
        bytes("input", size, self.limits().input_max_bytes)?;
        self.limits().capabilities(&args.required_capabilities)?;
        let (input, blob) = payload::divide(input);
        let id = self.submission_id(&namespace, args)?;
        let policy = args.policy.as_ref().or_else(|| self.options().policies.get(&namespace));
        let mut policy = policy.cloned().unwrap_or_default();
        let kept_ms = self.options().retention_ms;
        if policy.retention_ms.is_none() && kept_ms != limits::RETENTION_DEFAULT_MS {
            policy.retention_ms = Some(kept_ms);
        }
        let request = NewExecution {
            id,
            namespace,
            lane,
            kind: args.kind.clone(),
            priority: args.priority.unwrap_or(0),
            creator: args.creator.clone().unwrap_or_default(),
            tags: args.tags.clone(),
            policy,
            capabilities: args.required_capabilities.clone(),
            budgets: args.budget_ids.clone(),
            quota: args.quota_policy_id.clone(),
            input,
            delay_until: args.delay_until,
            deadline_at: args.deadline_at,
            flow: args.flow_id,
            node: args.node.clone().unwrap_or_default(),
            request_hash: Blob::from(args.content_digest()[..16].to_vec()),
            trace_context: args.trace_context.clone().unwrap_or_default(),
        };
        request.validate()?;
        let window_ms = args.dedup_window_ms.unwrap_or(self.options().dedup_window_ms);
        let key = args.idempotency_key.clone().map(|key| (key, window_ms));
        let mut submission = Submission { request, blob, key, own_id: args.brings_id() };
        if submission.own_id && !submission.joins_a_flow(args) {
            self.record_elsewhere(&mut submission).await?;
        }
        Ok(submission)
    }

    /// A key is known in its own partition. Where the caller's id lies in another one, the id is recorded there first.
    async fn record_elsewhere(&self, submission: &mut Submission) -> Result<()> {
        let Some((key, _)) = &submission.key else { return Ok(()) };
        if self.partitions().key_partition(&submission.request.namespace, key) == submission.request.id.partition() {
            return Ok(());
        }
        self.record_key(submission).await
    }

    /// Records in the partition of its key which execution a submission makes, before there is one: a repeat takes the
    /// recorded id and finishes what was begun.
    pub(crate) async fn record_key(&self, submission: &mut Submission) -> Result<()> {
        let Some((record, window_ms)) = submission.record() else { return Ok(()) };
        let partition = self.partitions().key_partition(&record.namespace, &record.idempotency_key);
        submission.request.id = self.transact(partition, self.fresh_command(), &Record { record, window_ms }).await?;
        submission.key = None;
        submission.own_id = true;
        Ok(())
    }

    /// Where it will live: where its caller says, beside its flow or parent, with its key, or anywhere.
    fn submission_id(&self, namespace: &str, args: &Args) -> Result<ExecutionId> {
        let mint = self.rising(env::mint(self.env(), self.now()));
        if let Some(id) = args.execution_id {
            id.check(self.partitions())?;
            return Ok(id);
        }
        if let Some(flow) = &args.flow_id {
            flow.check(self.partitions())?;
            return Ok(ExecutionId::for_flow(flow, &mint));
        }
        if let Some(parent) = &args.parent {
            parent.execution_id.check(self.partitions())?;
            if let Some(id) = parent.child_id() {
                return Ok(id);
            }
            return Ok(ExecutionId::in_partition(parent.execution_id.partition(), &mint));
        }
        Ok(match &args.idempotency_key {
            Some(key) => ExecutionId::in_partition(self.partitions().key_partition(namespace, key), &mint),
            None => ExecutionId::solo(self.partitions(), &mint),
        })
    }
}

/// Remembers which execution a key stands for, before there is one.
struct Record {
    record: IdempotencyRecord,
    window_ms: i64,
}

impl Command for Record {
    type Outcome = ExecutionId;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<ExecutionId> {
        if let Some(known) = tx.load::<IdempotencyRecord>(self.record.key()).await? {
            known.document.check_same(&self.record.request_hash)?;
            return Ok(known.document.execution_id);
        }
        tx.create_until(&self.record, tx.now + self.window_ms);
        Ok(self.record.execution_id)
    }
}

/// An execution of its own. The first try needs no read; a conflict says that something is there, and what.
pub(crate) struct CreateSolo<'a> {
    pub(crate) submission: &'a Submission,
}

impl Command for CreateSolo<'_> {
    type Outcome = Outcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Outcome> {
        let submission = self.submission;
        if tx.is_repeat()
            && let Some(outcome) = find_duplicate(tx, submission).await?
        {
            return Ok(outcome);
        }
        let execution = Execution::create(submission.request.clone(), tx.now)?;
        if let Some((record, window_ms)) = submission.record() {
            tx.create_until(&record, tx.now + window_ms);
        }
        let outcome = Outcome {
            execution_id: execution.id,
            duplicate: false,
            flow_id: execution.flow,
            public_state: execution.public_state(),
        };
        write_new(tx, execution, submission.blob.clone());
        Ok(outcome)
    }
}

/// What an earlier request with the same id or key made, if it is the same request.
pub(crate) async fn find_duplicate(tx: &mut Tx<'_>, submission: &Submission) -> Result<Option<Outcome>> {
    if let Some((record, _)) = submission.record()
        && let Some(known) = tx.load::<IdempotencyRecord>(record.key()).await?
    {
        let known = known.document;
        known.check_same(&submission.request.request_hash)?;
        // It ended and was removed before its key expired.
        let public_state = state_anywhere(tx, &known.execution_id).await?.unwrap_or(PublicState::Completed);
        let flow_id = submission.request.flow;
        return Ok(Some(Outcome { execution_id: known.execution_id, duplicate: true, flow_id, public_state }));
    }
    match tx.find_execution(&submission.request.id).await? {
        Some(existing) => submission.duplicate_of(&existing).map(Some),
        None => Ok(None),
    }
}

/// The state of an execution that a key stands for: its caller may have brought an id of another partition.
async fn state_anywhere(tx: &mut Tx<'_>, id: &ExecutionId) -> Result<Option<PublicState>> {
    if id.partition() == tx.partition {
        return Ok(tx.find_execution(id).await?.map(|existing| existing.public_state()));
    }
    let mut found = tx.engine.store().documents(id.partition(), vec![Execution::key_of(id)]).await?;
    let existing = found.pop().flatten().map(|stored| Execution::decode(&stored.body)).transpose()?;
    Ok(existing.map(|existing| existing.public_state()))
}

/// Writes a new execution with its input.
pub(crate) fn write_new(tx: &mut Tx<'_>, execution: Execution, blob: Option<Bytes>) {
    payload::write(tx, payload::Which::Input, &execution.id, blob, None);
    tx.create_execution(Arc::new(execution));
}
