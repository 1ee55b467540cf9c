//! Submitting executions.

use std::collections::BTreeMap;

use ff_core::execution::Execution;
use ff_core::idempotency::IdempotencyRecord;
use ff_core::op::{
    CreateExecution, CreateExecutionArgs, CreateExecutionOutcome, CreateExecutions, CreateExecutionsArgs,
    CreateExecutionsOutcome, CreateResult, create_execution,
};
use ff_core::partition::digest16;
use ff_core::{Code, Error, ExecutionId, Indexed, Partition, Result, limits};
use uuid::Uuid;

use crate::caller::Caller;
use crate::op::Handle;
use crate::services::Services;
use crate::single_key::{Place, check_key, holder_key, take_key};
use crate::submission::{Submission, existing_outcome, write_new};
use crate::transaction::{Command, Prepared, Tx};

impl Handle<CreateExecution> for Services {
    #[expect(clippy::manual_async_fn, reason = "an async function would hold the arguments, which are long, twice")]
    fn handle(
        &self,
        caller: &Caller,
        args: CreateExecutionArgs,
    ) -> impl Future<Output = Result<CreateExecutionOutcome>> + Send {
        async move {
            let mut submission = self.shared.submissions.submission(caller, &args).await?;
            if submission.joins_a_flow(&args) {
                // Boxed, because it would make the future of every other submission three times as large.
                return Box::pin(self.create_member(caller, &args, submission)).await;
            }
            self.create_solo(&mut submission).await
        }
    }
}

impl Services {
    /// Creates an execution of its own.
    pub(crate) async fn create_solo(&self, submission: &mut Submission) -> Result<CreateExecutionOutcome> {
        // What only some submissions come to is boxed, so that it takes no room in the futures of the others.
        if self.transactor.key_is_elsewhere(submission) {
            let partition = submission.request.id.partition();
            let refusal = Box::pin(self.transactor.rehearse(partition, &FindOwn { submission })).await.err();
            Box::pin(self.record_key(submission, refusal)).await?;
        }
        let partition = submission.request.id.partition();
        let _turn = match holder_key(&submission.request) {
            Some(key) => Some(Box::pin(self.transactor.locks().take(partition, key)).await),
            None => None,
        };
        let verb = CreateSolo { submission };
        match self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await? {
            Solo::Here(outcome) => Ok(outcome),
            Solo::Elsewhere(id) => {
                submission.take_recorded(id);
                let verb = CreateSolo { submission };
                let again = self.transactor.transact(id.partition(), self.transactor.fresh_command(), &verb);
                match Box::pin(again).await? {
                    Solo::Here(outcome) => Ok(outcome),
                    Solo::Elsewhere(_) => Err(Error::new(Code::Internal, "a submission without a key has no record")),
                }
            }
        }
    }

    /// Records in the partition of its key which execution a submission makes, before there is one: a repeat takes the
    /// recorded id and finishes what was begun. A submission that would be refused does not use up its key, but may be
    /// the repeat of one that was not.
    pub(crate) async fn record_key(&self, submission: &mut Submission, refusal: Option<Error>) -> Result<()> {
        let Some((record, window_ms)) = submission.record() else { return refusal.map_or(Ok(()), Err) };
        let partition = self.transactor.partitions().key_partition(&record.namespace, &record.idempotency_key);
        let verb = Record { record, window_ms, refusal };
        let id = self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await?;
        submission.take_recorded(id);
        Ok(())
    }
}

/// Remembers which execution a key stands for, before there is one.
struct Record {
    record: IdempotencyRecord,
    window_ms: i64,
    /// Why there will be no such execution, unless the key already stands for one.
    refusal: Option<Error>,
}

impl Command for Record {
    type Outcome = ExecutionId;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<ExecutionId> {
        if let Some(known) = tx.load::<IdempotencyRecord>(self.record.key()).await? {
            known.document.check_same(&self.record.request_hash)?;
            return Ok(known.document.execution_id);
        }
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        tx.create_until(&self.record, tx.now + self.window_ms);
        Ok(self.record.execution_id)
    }
}

/// An execution of its own. The first try needs no read; a conflict says that something is there, and what.
pub(crate) struct CreateSolo<'a> {
    pub(crate) submission: &'a Submission,
}

/// The outcome of a submission in the partition of its id or key.
pub(crate) enum Solo {
    /// The execution is there.
    Here(CreateExecutionOutcome),
    /// The key stands for an execution in another partition, which may not have been created yet.
    Elsewhere(ExecutionId),
}

impl Command for CreateSolo<'_> {
    type Outcome = Solo;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Solo> {
        let submission = self.submission;
        let single = submission.request.sharing.single.is_some();
        if (single || submission.refusal.is_some() || tx.is_repeat())
            && let Some(found) = Box::pin(find_duplicate(tx, submission)).await?
        {
            return Ok(found);
        }
        let mut request = submission.request.clone();
        let superseded = match single {
            true => match Box::pin(take_key(tx, &mut request, submission)).await? {
                Place::Free { superseded } => superseded,
                Place::Taken(outcome) => {
                    // A repeat is answered with this one also when it has ended and the key stands for another.
                    keep_key(tx, submission, outcome.execution_id);
                    return Ok(Solo::Here(outcome));
                }
            },
            false => None,
        };
        submission.check_new()?;
        let execution = Execution::create(request, tx.now)?;
        if !tx.transactor.key_is_elsewhere(submission) {
            keep_key(tx, submission, execution.id);
        }
        let outcome = CreateExecutionOutcome {
            execution_id: execution.id,
            duplicate: false,
            flow_id: execution.flow,
            public_state: execution.public_state(),
            superseded,
        };
        write_new(tx, execution, submission.blob.clone(), submission.announced);
        Ok(Solo::Here(outcome))
    }
}

/// Refuses a submission whose id belongs to another caller's execution, and a new one to a lane that takes none or under
/// a key that it may not take.
struct FindOwn<'a> {
    submission: &'a Submission,
}

impl Command for FindOwn<'_> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        match tx.find_execution(&self.submission.request.id).await? {
            Some(existing) => self.submission.duplicate_of(&existing).map(drop),
            None => {
                self.submission.check_new()?;
                check_key(tx, self.submission).await
            }
        }
    }
}

/// The execution that an earlier request with the same id or key made, if it is the same request. A key ends with its
/// execution: where both were written in one commit and the execution is gone, it was removed.
pub(crate) async fn find_duplicate(tx: &mut Tx<'_>, submission: &Submission) -> Result<Option<Solo>> {
    let single = submission.request.sharing.single.is_some();
    let may_be_here = single || !tx.transactor.key_is_elsewhere(submission);
    if let Some((record, _)) = submission.record().filter(|_| may_be_here)
        && let Some(known) = tx.load::<IdempotencyRecord>(record.key()).await?
    {
        let known = known.document;
        if known.execution_id.partition() != tx.partition {
            known.check_same(&submission.request.request_hash)?;
            return Ok(Some(Solo::Elsewhere(known.execution_id)));
        }
        if let Some(existing) = tx.find_execution(&known.execution_id).await? {
            known.check_same(&submission.request.request_hash)?;
            // The key of a singleton may stand for an execution that another request made.
            let outcome = if single { existing_outcome(&existing) } else { submission.duplicate_of(&existing)? };
            return Ok(Some(Solo::Here(outcome)));
        }
    }
    match tx.find_execution(&submission.request.id).await? {
        Some(existing) => submission.duplicate_of(&existing).map(|outcome| Some(Solo::Here(outcome))),
        None => Ok(None),
    }
}

/// Writes down which execution a key stands for, in the commit that creates it or finds it.
pub(crate) fn keep_key(tx: &mut Tx<'_>, submission: &Submission, id: ExecutionId) {
    if let Some((record, window_ms)) = submission.record() {
        tx.create_until(&IdempotencyRecord { execution_id: id, ..record }, tx.now + window_ms);
    }
}

/// Members of flows, and executions with keys that others may have, that are created at the same time.
const APART_AT_ONCE: usize = 16;

impl Handle<CreateExecutions> for Services {
    async fn handle(&self, caller: &Caller, mut args: CreateExecutionsArgs) -> Result<CreateExecutionsOutcome> {
        if let Some(key) = &caller.idempotency_key {
            name_items(&mut args.executions, caller.key_scope(), key);
        }
        let mut results: Vec<Option<Result<create_execution::Outcome>>> = Vec::new();
        results.resize_with(args.executions.len(), || None);
        let mut solo: BTreeMap<Partition, Vec<(usize, Submission)>> = BTreeMap::new();
        let mut apart = Vec::new();
        for (place, one) in args.executions.iter().enumerate() {
            let checked = match one.validate() {
                Ok(()) => self.shared.submissions.submission(caller, one).await,
                Err(error) => Err(error),
            };
            match checked {
                Ok(submission) if submission.is_apart(one) || self.transactor.key_is_elsewhere(&submission) => {
                    apart.push((place, one, submission));
                }
                Ok(submission) => solo.entry(submission.request.id.partition()).or_default().push((place, submission)),
                Err(error) => results[place] = Some(Err(error)),
            }
        }
        let groups = solo.into_iter().map(|(partition, group)| self.create_group(partition, group));
        for (place, result) in futures_util::future::join_all(groups).await.into_iter().flatten() {
            results[place] = Some(result);
        }
        while !apart.is_empty() {
            let rest = apart.split_off(apart.len().min(APART_AT_ONCE));
            let creating = std::mem::replace(&mut apart, rest).into_iter();
            let creating = creating.map(|(place, one, mut submission)| async move {
                if submission.joins_a_flow(one) {
                    return (place, self.create_member(caller, one, submission).await);
                }
                (place, self.create_solo(&mut submission).await)
            });
            for (place, result) in futures_util::future::join_all(creating).await {
                results[place] = Some(result);
            }
        }
        let results = results.into_iter().flatten().map(|result| match result {
            Ok(created) => CreateResult::Created(created),
            Err(error) => CreateResult::Refused { error },
        });
        Ok(CreateExecutionsOutcome { results: results.collect() })
    }
}

/// The items of a batch with a key are known by the key and their place in it, unless they bring an identity.
fn name_items(items: &mut [create_execution::Args], scope: &[u8], key: &str) {
    for (place, item) in items.iter_mut().enumerate() {
        if item.idempotency_key.is_none() && item.execution_id.is_none() {
            let digest = digest16(&[b"create_executions", scope, key.as_bytes(), &place.to_be_bytes()]);
            item.idempotency_key = Some(Uuid::from_bytes(digest).simple().to_string());
        }
    }
}

type Placed = (usize, Result<create_execution::Outcome>);

impl Services {
    /// Submissions to one partition, in as few commit calls as the store's limits allow.
    async fn create_group(&self, partition: Partition, group: Vec<(usize, Submission)>) -> Vec<Placed> {
        let mut results = Vec::with_capacity(group.len());
        let mut call = Call::default();
        for (place, submission) in group {
            match self
                .transactor
                .prepare(partition, self.transactor.fresh_command(), &CreateSolo { submission: &submission })
                .await
            {
                // The first try looks at nothing, so that it finds nothing elsewhere.
                Ok((Solo::Elsewhere(_), _)) => results.push((place, Err(Error::of(Code::Internal)))),
                Ok((Solo::Here(outcome), prepared)) => {
                    if !call.has_room_for(&prepared) {
                        self.send_group(partition, std::mem::take(&mut call), &mut results).await;
                    }
                    call.add(place, submission, outcome, prepared);
                }
                Err(error) => results.push((place, Err(error))),
            }
        }
        self.send_group(partition, call, &mut results).await;
        results
    }

    async fn send_group(&self, partition: Partition, call: Call, results: &mut Vec<Placed>) {
        if call.waiting.is_empty() {
            return;
        }
        match self.transactor.send_all(partition, call.prepared).await {
            Ok(conflicts) => {
                for ((place, mut submission, outcome), conflict) in call.waiting.into_iter().zip(conflicts) {
                    let result = match conflict {
                        None => Ok(outcome),
                        // Something is there under its id or key; the single way finds out what.
                        Some(_) => Box::pin(self.create_solo(&mut submission)).await,
                    };
                    results.push((place, result));
                }
            }
            Err(error) => {
                results.extend(call.waiting.into_iter().map(|(place, ..)| (place, Err(error.clone()))));
            }
        }
    }
}

/// One commit call in the making.
#[derive(Default)]
struct Call {
    waiting: Vec<(usize, Submission, create_execution::Outcome)>,
    prepared: Vec<Prepared>,
    operations: usize,
    bytes: usize,
}

impl Call {
    fn has_room_for(&self, prepared: &Prepared) -> bool {
        let (operations, bytes) = prepared.size();
        self.operations + operations <= limits::COMMIT_OPERATIONS_MAX && self.bytes + bytes <= limits::COMMIT_MAX_BYTES
    }

    fn add(&mut self, place: usize, submission: Submission, outcome: create_execution::Outcome, prepared: Prepared) {
        let (operations, bytes) = prepared.size();
        self.operations += operations;
        self.bytes += bytes;
        self.waiting.push((place, submission, outcome));
        self.prepared.push(prepared);
    }
}
