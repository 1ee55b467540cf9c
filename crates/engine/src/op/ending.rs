//! How a lease holder ends its turn: for good, until an instant, until children end, or until a signal.

use std::sync::Arc;

use bytes::Bytes;
use ff_core::condition::SignalFact;
use ff_core::event::Effects;
use ff_core::execution::{Execution, FailOutcome, NewFailure, SuspendRequest, Suspended};
use ff_core::idempotency::{CommandRecord, Identity};
use ff_core::lease::LeaseEnd;
use ff_core::op::parts::Content;
use ff_core::op::{
    Complete, CompleteArgs, CompleteOutcome, Delay, DelayArgs, DelayOutcome, Fail, FailArgs, Suspend, SuspendArgs,
    SuspendOutcome, WaitChildren, WaitChildrenArgs, WaitChildrenOutcome,
};
use ff_core::payload::Payload;
use ff_core::planted::{Bug, planted};
use ff_core::suspension::NewSuspension;
use ff_core::waitpoint::{CloseReason, NewWaitpoint, Waitpoint};
use ff_core::{
    AcceptedSignal, Blob, Code, Document, Error, Indexed, Key, PublicState, Result, SignalId, Suspension, SuspensionId,
    WaitpointId, limits,
};
use ff_store::{Answer, Query};
use serde::{Deserialize, Serialize};

use crate::caller::Caller;
use crate::flow::tell_downstreams;
use crate::limits::bytes;
use crate::op::{Handle, Request};
use crate::services::Services;
use crate::transaction::{Command, Tx};
use crate::transition::stop_instead;
use crate::view::some_instant;
use crate::visibility::{load_visible, share_visible};
use crate::{env, journal, logs, mailbox, payload};

impl Handle<Complete> for Services {
    async fn handle(&self, caller: &Caller, args: CompleteArgs) -> Result<CompleteOutcome> {
        self.transactor.check_id(&args.execution_id)?;
        let result = args.result()?;
        let size = result.as_ref().map_or(0, |result| result.bytes.len());
        bytes("result", size, self.transactor.limits().result_max_bytes)?;
        let partition = args.execution_id.partition();
        let (result, blob) = payload::divide(result);
        let verb = CompleteExecution { caller, args: &args, result, blob };
        let completed = self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await;
        self.transactor.keep_late_reports(caller, &args.execution_id, &args.fence, &args.entries, &completed).await;
        completed
    }
}

/// A completion with the bytes of its result divided into what the document keeps and what goes beside it.
struct CompleteExecution<'a> {
    caller: &'a Caller,
    args: &'a CompleteArgs,
    result: Payload,
    blob: Option<Bytes>,
}

impl Command for CompleteExecution<'_> {
    type Outcome = CompleteOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<CompleteOutcome> {
        let before = share_visible(tx, self.caller, &self.args.execution_id).await?;
        let fence = &self.args.fence;
        let is_repeat = matches!(before.check_holder(fence, LeaseEnd::Completed), Ok(Some(_)));
        let mut effects = Effects::default();
        let mut after = Arc::clone(&before);
        let execution = Arc::make_mut(&mut after);
        execution.complete(fence, self.result.clone(), tx.now, &mut effects)?;
        let outcome = CompleteOutcome { public_state: PublicState::Completed, completed_at: execution.ended_by(fence) };
        if !before.is_terminal() && !is_repeat {
            if let Some(run) = &self.args.run {
                execution.note_run(run);
            }
            tell_downstreams(tx, execution);
            tx.require_holder(&after.key(), fence);
            let entries = self.args.new_entries()?;
            if !entries.is_empty() {
                // Boxed, because most ends bring none.
                Box::pin(journal::append(tx, &after, fence, &entries)).await?;
            }
            payload::write(tx, payload::Which::Result, &after.id, self.blob.clone(), before.result.as_ref());
            payload::write(tx, payload::Which::Continuation, &after.id, None, before.continuation.as_deref());
            tx.relief();
            tx.save_shared(after, effects);
        }
        Ok(outcome)
    }
}

impl Handle<Fail> for Services {
    async fn handle(&self, caller: &Caller, args: FailArgs) -> Result<FailOutcome> {
        let holder = (&args.fence, args.new_entries()?);
        let failing = self.transactor.change_and_record(caller, &args.execution_id, holder, |execution, context| {
            let failure = NewFailure {
                reason: &args.reason,
                category: args.category.as_deref().unwrap_or_default(),
                retry_after_ms: args.retry_after_ms,
                random: context.random,
            };
            let ended_before = execution.is_terminal();
            let outcome = execution.fail(&args.fence, failure, context.now, context.effects)?;
            if let (Some(run), false) = (&args.run, ended_before) {
                execution.note_run(run);
            }
            // The step that ended the attempt runs again with the retry, and so do steps that were undone; every other
            // entry stands.
            if let FailOutcome::RetryScheduled { at } = &outcome {
                let again = args.cause.iter().chain(&args.undone);
                context.entries.extend(again.map(|step| step.retried_at(*at, &args.reason)));
            }
            Ok(outcome)
        });
        failing.await
    }
}

impl Handle<Delay> for Services {
    async fn handle(&self, caller: &Caller, args: DelayArgs) -> Result<DelayOutcome> {
        let holder = (&args.fence, args.new_entries()?);
        self.transactor
            .change_and_record(caller, &args.execution_id, holder, |execution, context| {
                let until = args.until.unwrap_or_else(|| context.now + args.delay_ms.unwrap_or(0));
                let at = execution.delay(&args.fence, until, context.now, context.effects)?;
                Ok(DelayOutcome { at })
            })
            .await
    }
}

impl Handle<WaitChildren> for Services {
    async fn handle(&self, caller: &Caller, args: WaitChildrenArgs) -> Result<WaitChildrenOutcome> {
        self.transactor.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let verb = Request::<WaitChildren> { caller, args: &args };
        let waiting = self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await;
        self.transactor.keep_late_reports(caller, &args.execution_id, &args.fence, &args.entries, &waiting).await;
        waiting?
    }
}

impl Command for Request<'_, WaitChildren> {
    /// The refusal of a holder that was stopped instead, which is committed.
    type Outcome = Result<WaitChildrenOutcome>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Result<WaitChildrenOutcome>> {
        let mut execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        let before = execution.clone();
        let fence = &self.args.fence;
        let (continuation, blob) = divide_optional(self.args.continuation()?);
        let mut effects = Effects::default();
        let told = execution.wait_children(fence, continuation, tx.now, &mut effects)?;
        let public_state = told.public_state.unwrap_or_else(|| execution.public_state());
        let outcome = WaitChildrenOutcome { open_children: told.open_children, public_state };
        let brought = self.args.new_entries()?;
        if execution == before {
            return Ok(Ok(outcome));
        }
        if let Some(stopped) = stop_instead(tx, &before, fence, &brought).await? {
            return Ok(Err(stopped));
        }
        tx.require_holder(&execution.key(), fence);
        journal::append(tx, &before, fence, &brought).await?;
        payload::write(tx, payload::Which::Continuation, &execution.id, blob, before.continuation.as_deref());
        tx.save_execution(&execution, effects);
        Ok(Ok(outcome))
    }
}

/// A continuation as the execution keeps it, and the bytes that go beside it.
fn divide_optional(content: Option<Content>) -> (Option<Payload>, Option<Bytes>) {
    let Some(content) = content else { return (None, None) };
    let (payload, blob) = payload::divide(Some(content));
    (Some(payload), blob)
}

impl Handle<Suspend> for Services {
    async fn handle(&self, caller: &Caller, args: SuspendArgs) -> Result<SuspendOutcome> {
        self.transactor.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let mint = || env::mint(self.transactor.env(), self.transactor.now());
        let (continuation, blob) = divide_optional(args.continuation()?);
        let verb = SuspendExecution {
            caller,
            args: &args,
            suspension_id: if planted(Bug::SuspensionReused) {
                SuspensionId(args.execution_id.uuid)
            } else {
                SuspensionId::mint(&mint())
            },
            fresh: WaitpointId::in_partition(partition, &mint()),
            continuation,
            blob,
        };
        let suspended = self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await;
        self.transactor.keep_late_reports(caller, &args.execution_id, &args.fence, &args.entries, &suspended).await;
        match suspended? {
            Decided::Suspended(answer) => self.suspend_outcome(*answer).await,
            Decided::Stopped(why) => Err(why),
        }
    }
}

impl Services {
    async fn suspend_outcome(&self, answer: SuspendAnswer) -> Result<SuspendOutcome> {
        let token = self.shared.secrets.sign(&answer.waitpoint).await?;
        let SuspendAnswer { kept, waitpoint, .. } = answer;
        let (waitpoint_id, waitpoint_key) = (waitpoint.id, waitpoint.waitpoint_key);
        Ok(match kept.signals {
            None => {
                let timeout_at = some_instant(answer.timeout_at);
                SuspendOutcome::Suspended {
                    suspension_id: kept.suspension,
                    waitpoint_id,
                    waitpoint_key,
                    token,
                    timeout_at,
                }
            }
            Some(signals) => SuspendOutcome::AlreadySatisfied {
                suspension_id: kept.suspension,
                waitpoint_id,
                waitpoint_key,
                token,
                resume_signals: self.read_signals(&answer.execution, &signals).await?,
            },
        })
    }
}

/// The decision of a commit.
enum Decided {
    Suspended(Box<SuspendAnswer>),
    /// The entries were taken for a loop: the lease is gone, and so is what it asked for.
    Stopped(Error),
}

/// A suspension as its holder learns of it.
struct SuspendAnswer {
    execution: Execution,
    waitpoint: Waitpoint,
    timeout_at: i64,
    kept: KeptSuspension,
}

/// The part of an answer that is kept when the lease was left as it was: no ending of a lease tells of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct KeptSuspension {
    suspension: SuspensionId,
    waitpoint: WaitpointId,
    /// The signals that satisfied the condition; `None` when the execution waits.
    signals: Option<Vec<SignalId>>,
}

struct SuspendExecution<'a> {
    caller: &'a Caller,
    args: &'a SuspendArgs,
    suspension_id: SuspensionId,
    fresh: WaitpointId,
    continuation: Option<Payload>,
    blob: Option<Bytes>,
}

impl Command for SuspendExecution<'_> {
    type Outcome = Decided;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Decided> {
        let mut execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        let fence = &self.args.fence;
        let ending = match execution.check_suspend(fence).map(|ending| ending.cloned()) {
            Ok(ending) => ending,
            // A suspension that was satisfied at once kept its lease, which may have ended in another way since.
            Err(refusal) => match self.kept_answer(tx).await? {
                Some(kept) => return repeated_answer(tx, execution, kept, 0).await,
                None => return Err(refusal),
            },
        };
        if let Some(ending) = ending {
            let ended =
                KeptSuspension { suspension: ending.suspension_id, waitpoint: ending.waitpoint_id, signals: None };
            let timeout_at = ending.next_at;
            // A lease may have been kept by one suspension before another one ended it.
            if let Some(kept) = self.kept_answer(tx).await? {
                return repeated_answer(tx, execution, kept, 0).await;
            }
            self.check_same_suspension(&execution, ended.suspension)?;
            return repeated_answer(tx, execution, ended, timeout_at).await;
        }
        if let Some(kept) = self.kept_answer(tx).await? {
            return repeated_answer(tx, execution, kept, 0).await;
        }
        let brought = self.args.new_entries()?;
        if let Some(stopped) = stop_instead(tx, &execution, fence, &brought).await? {
            return Ok(Decided::Stopped(stopped));
        }
        let request = self.request(&execution);
        request.validate()?;
        let (mut waitpoints, buffered) = self.take_waitpoints(tx, &execution, &request).await?;
        let buffered = fitting(tx, &request, buffered).await?;
        let before = execution.continuation.clone();
        let suspension = request.id;
        let request = SuspendRequest {
            suspension: request,
            buffered,
            continuation: self.continuation.clone(),
            detail: self.args.detail.clone().unwrap_or_default(),
        };
        let mut effects = Effects::default();
        let suspended = execution.suspend(fence, request, tx.now, &mut effects)?;
        tx.require_holder(&execution.key(), fence);
        journal::append(tx, &execution, fence, &brought).await?;
        payload::write(tx, payload::Which::Continuation, &execution.id, self.blob.clone(), before.as_deref());
        let signals = match suspended {
            Suspended::AlreadySatisfied(signals) => {
                for waitpoint in &mut waitpoints {
                    waitpoint.close(CloseReason::Satisfied, tx.now);
                }
                Some(signals)
            }
            Suspended::Waiting | Suspended::Repeated(_) => None,
        };
        for waitpoint in &waitpoints {
            tx.save(waitpoint);
        }
        let waitpoint = waitpoints.swap_remove(0);
        let kept = KeptSuspension { suspension, waitpoint: waitpoint.id, signals };
        if kept.signals.is_some() {
            let identity = self.identity();
            tx.create_until(&identity.record(logs::encode(&kept)), tx.now + identity.kept_ms);
        }
        let timeout_at = execution.suspension.as_ref().and_then(|suspension| suspension.timeout_at).unwrap_or(0);
        tx.save_execution(&execution, effects);
        Ok(Decided::Suspended(Box::new(SuspendAnswer { execution, waitpoint, timeout_at, kept })))
    }
}

const SUSPEND: &str = "suspend";

impl SuspendExecution<'_> {
    /// A key names a suspension of its lease; another lease may use it again. Without one this call is known by
    /// the id of its suspension.
    fn identity(&self) -> Identity {
        let lease = [self.args.execution_id.uuid.as_bytes().as_slice(), self.args.fence.lease_id.as_bytes()];
        let (name, kept_ms) = match &self.args.idempotency_key {
            Some(key) => (key.as_bytes(), limits::DEDUP_WINDOW_MS),
            None => (self.suspension_id.as_bytes().as_slice(), limits::OWN_EVIDENCE_MS),
        };
        Identity::new(SUSPEND, &[lease[0], lease[1], name], kept_ms)
    }

    /// A key that is not that of the suspension which ended the lease names another one, which the released lease cannot
    /// begin. That can be told while it is in force.
    fn check_same_suspension(&self, execution: &Execution, ended: SuspensionId) -> Result<()> {
        let in_force = execution.suspension.as_ref().filter(|suspension| suspension.id == ended);
        let (Some(key), Some(suspension)) = (&self.args.idempotency_key, in_force) else { return Ok(()) };
        if suspension.idempotency_key.is_empty() || suspension.idempotency_key == *key {
            return Ok(());
        }
        Err(Error::of(Code::AlreadySuspended).with("suspension_id", suspension.id))
    }

    /// The first answer to this call, where the lease was kept.
    async fn kept_answer(&self, tx: &mut Tx<'_>) -> Result<Option<KeptSuspension>> {
        if self.args.idempotency_key.is_none() && !tx.is_repeat() {
            return Ok(None);
        }
        let record = tx.load::<CommandRecord>(self.identity().key()).await?;
        Ok(record.and_then(|record| logs::decode(&record.document.answer)))
    }

    fn request(&self, execution: &Execution) -> NewSuspension {
        let args = self.args;
        let policy = &execution.policy.suspension;
        let waitpoints = if args.waitpoint_ids.is_empty() { vec![self.fresh] } else { args.waitpoint_ids.clone() };
        NewSuspension {
            id: self.suspension_id,
            waitpoints,
            condition: args.condition.clone(),
            timeout_ms: args.timeout_ms.or(policy.default_timeout_ms),
            behavior: args.timeout_behavior.or(policy.timeout_behavior).unwrap_or_default(),
            reason: args.reason,
            requested_by: args.requested_by.clone().unwrap_or_default(),
            allow_operator_resume: args.allow_operator_resume.unwrap_or(true),
            idempotency_key: args.idempotency_key.clone().unwrap_or_default(),
            ask: args.ask(),
        }
    }

    /// The waitpoints as the suspension has them, and what they buffered.
    async fn take_waitpoints(
        &self,
        tx: &mut Tx<'_>,
        execution: &Execution,
        request: &NewSuspension,
    ) -> Result<(Vec<Waitpoint>, Vec<SignalFact>)> {
        if self.args.waitpoint_ids.is_empty() {
            let new = NewWaitpoint {
                id: self.fresh,
                execution: execution.id,
                namespace: execution.namespace.clone(),
                waitpoint_key: self.args.waitpoint_key.clone().unwrap_or_default(),
            };
            let waitpoint = Waitpoint::active(new, tx.now)?;
            tx.create(&waitpoint);
            // A suspension that is satisfied at once keeps its lease. Only by its key is a repeat of the call known then.
            let early = match self.args.idempotency_key {
                Some(_) => mailbox::take_early(tx, execution, request, waitpoint.id).await?,
                None => Vec::new(),
            };
            return Ok((vec![waitpoint], early));
        }
        let ids = &self.args.waitpoint_ids;
        let keys: Vec<Key> = ids.iter().map(Waitpoint::key_of).collect();
        let (mut waitpoints, mut buffered) = (Vec::new(), Vec::new());
        for (id, loaded) in ids.iter().zip(tx.load_many::<Waitpoint>(keys).await?) {
            let own = loaded.map(|loaded| loaded.document).filter(|found| found.id == *id);
            let mut waitpoint = own
                .filter(|found| found.execution == execution.id)
                .ok_or_else(|| Error::of(Code::WaitpointNotFound).with("waitpoint_id", id))?;
            buffered.extend(waitpoint.activate(tx.now)?);
            waitpoints.push(waitpoint);
        }
        Ok((waitpoints, buffered))
    }
}

/// The buffered signals that the schema of the question allows. They came before a sender could tell what would be
/// asked: one that does not fit decides nothing.
async fn fitting(tx: &mut Tx<'_>, request: &NewSuspension, buffered: Vec<SignalFact>) -> Result<Vec<SignalFact>> {
    if request.ask.schema.is_empty() || buffered.is_empty() {
        return Ok(buffered);
    }
    let keys: Vec<Key> = buffered.iter().map(|fact| AcceptedSignal::key_of(&fact.id)).collect();
    let mut answers = tx.read(vec![Query::Documents(keys.clone()), Query::Blobs(keys)]).await?.into_iter();
    let documents = answers.next().and_then(Answer::into_documents).unwrap_or_default();
    let blobs = answers.next().and_then(Answer::into_blobs).unwrap_or_default();
    let suspension = Suspension::new(request.clone(), tx.now)?;
    let mut fitting = Vec::new();
    for ((fact, document), blob) in buffered.into_iter().zip(documents).zip(blobs) {
        let signal = document.map(|stored| AcceptedSignal::decode(&stored.body)).transpose()?;
        let payload = signal.and_then(|signal| signal.payload).or(blob.map(Blob));
        if suspension.check_answer(&fact, payload.as_ref().map(|payload| &payload[..])).is_ok() {
            fitting.push(fact);
        }
    }
    Ok(fitting)
}

/// The answer to a repeated call, from what was kept of the first.
async fn repeated_answer(
    tx: &mut Tx<'_>,
    execution: Execution,
    kept: KeptSuspension,
    timeout_at: i64,
) -> Result<Decided> {
    let loaded = tx.load::<Waitpoint>(Waitpoint::key_of(&kept.waitpoint)).await?;
    let missing = || Error::of(Code::WaitpointNotFound).with("waitpoint_id", kept.waitpoint);
    let waitpoint = loaded.ok_or_else(missing)?.document;
    Ok(Decided::Suspended(Box::new(SuspendAnswer { execution, waitpoint, timeout_at, kept })))
}
