//! Waitpoints, their tokens, and what arrived at them.

use std::collections::BTreeSet;
use std::sync::Mutex;

use bytes::Bytes;
use ff_core::event::Effects;
use ff_core::execution::Execution;
use ff_core::op::parts::Secret;
use ff_core::op::{
    CloseWaitpoint, CloseWaitpointArgs, CloseWaitpointOutcome, CreatePendingWaitpoint, CreatePendingWaitpointArgs,
    CreatePendingWaitpointOutcome, GetWaitpointToken, GetWaitpointTokenArgs, GetWaitpointTokenOutcome,
    ListPendingWaitpoints, ListPendingWaitpointsArgs, ListPendingWaitpointsOutcome, ListResumeSignals,
    ListResumeSignalsArgs, ListResumeSignalsOutcome, RotateWaitpointSecret, RotateWaitpointSecretArgs,
};
use ff_core::token::RotateWaitpointSecretResult;
use ff_core::waitpoint::{CloseReason, NewWaitpoint, Waitpoint, WaitpointState};
use ff_core::{
    AcceptedSignal, Blob, Code, Document, Error, ExecutionId, Indexed, Key, Partition, Result, ResumeSignal, SignalId,
    TokenSubject, WaitpointId, WaitpointSecrets, index, limits,
};
use ff_store::{Answer, Query, Scan};

use crate::caller::Caller;
use crate::env;
use crate::op::{Handle, Request};
use crate::secrets::already_rotating;
use crate::services::Services;
use crate::transaction::{Command, Tx};
use crate::visibility::load_visible;

impl Handle<CreatePendingWaitpoint> for Services {
    async fn handle(&self, caller: &Caller, args: CreatePendingWaitpointArgs) -> Result<CreatePendingWaitpointOutcome> {
        self.transactor.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let minted = || WaitpointId::in_partition(partition, &env::mint(self.transactor.env(), self.transactor.now()));
        let id = args.waitpoint_id.unwrap_or_else(minted);
        let verb = OpenWaitpoint { caller, args: &args, id };
        // The waitpoint's own id is identity enough, where the caller brought one or a journal entry decides it.
        let identity = match (&args.waitpoint_id, &args.step) {
            (Some(_), _) | (_, Some(_)) => None,
            (None, None) => self.transactor.callers_identity::<CreatePendingWaitpoint>(caller, &args, None),
        };
        let waitpoint = self.transactor.transact_once(partition, identity, &verb).await?;
        Ok(CreatePendingWaitpointOutcome {
            token: self.shared.secrets.sign(&waitpoint).await?,
            waitpoint_id: waitpoint.id,
            waitpoint_key: waitpoint.waitpoint_key,
            expires_at: waitpoint.expires_at,
        })
    }
}

struct OpenWaitpoint<'a> {
    caller: &'a Caller,
    args: &'a CreatePendingWaitpointArgs,
    id: WaitpointId,
}

impl Command for OpenWaitpoint<'_> {
    type Outcome = Waitpoint;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Waitpoint> {
        let execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        execution.check_fence(&self.args.fence)?;
        let waitpoint = match &self.args.step {
            Some(step) => Waitpoint::of_step(execution.id, execution.generation, &execution.namespace, step, tx.now),
            None => {
                let new = NewWaitpoint {
                    id: self.id,
                    execution: execution.id,
                    namespace: execution.namespace.clone(),
                    waitpoint_key: self.args.waitpoint_key.clone().unwrap_or_default(),
                };
                Waitpoint::pending(new, self.args.expires_in_ms, tx.now)?
            }
        };
        match tx.load::<Waitpoint>(waitpoint.key()).await? {
            // A function that runs again asks again, also when the signal has come.
            Some(existing) if self.args.step.is_some() => return Ok(existing.document),
            Some(existing) => return same_waitpoint(existing.document, &waitpoint),
            None => {}
        }
        let open = tx.count(index::pending_waitpoints(execution.id.uuid)).await?;
        if open >= limits::WAITPOINTS_MAX as u64 {
            return Err(Error::of(Code::WaitpointLimitExceeded).with("max", limits::WAITPOINTS_MAX));
        }
        tx.require_holder(&execution.key(), &self.args.fence);
        // The count holds only if no other call counted meanwhile: each of these writes the execution anew.
        tx.save_execution(&execution, Effects::default());
        tx.save(&waitpoint);
        Ok(waitpoint)
    }
}

/// The waitpoint that a repeated call made, if it is the same one and still of use.
fn same_waitpoint(existing: Waitpoint, asked: &Waitpoint) -> Result<Waitpoint> {
    if existing.execution != asked.execution || existing.waitpoint_key != asked.waitpoint_key {
        return Err(Error::of(Code::IdempotencyConflict).with("waitpoint_id", asked.id));
    }
    if existing.state != WaitpointState::Pending {
        return Err(Error::of(Code::WaitpointNotPending).with("waitpoint_id", asked.id));
    }
    Ok(existing)
}

impl Handle<ListPendingWaitpoints> for Services {
    async fn handle(&self, caller: &Caller, args: ListPendingWaitpointsArgs) -> Result<ListPendingWaitpointsOutcome> {
        let (execution, _) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        let suspension = execution.suspension.as_deref();
        let active: Vec<Key> = suspension
            .map(|suspension| suspension.waitpoints.iter().map(Waitpoint::key_of).collect())
            .unwrap_or_default();
        let pending = Scan::first(index::pending_waitpoints(execution.id.uuid), limits::PAGE_MAX).with_documents();
        let queries = vec![Query::Documents(active), Query::Scan(pending)];
        let answers = self.transactor.read(args.execution_id.partition(), queries).await?;
        let mut found = Vec::new();
        for answer in answers.answers {
            match answer {
                Answer::Documents(documents) => found.extend(documents.into_iter().flatten()),
                Answer::Scan(page) => found.extend(page.entries.into_iter().filter_map(|entry| entry.document)),
                _ => {}
            }
        }
        let secrets = self.shared.secrets.waitpoint_secrets().await?;
        let mut items = Vec::with_capacity(found.len());
        let mut seen = BTreeSet::new();
        for waitpoint in found.iter().filter_map(|stored| self.transactor.readable::<Waitpoint>(stored)) {
            // Nothing can be signalled any more when the execution has ended. Waitpoints of the journal buffer until their
            // entry or their generation ends.
            let past = waitpoint.generation.is_some_and(|generation| generation != execution.generation);
            let over = past || execution.is_terminal();
            // One of a parked execution is found twice: it is waited for, and it is pending.
            if over || waitpoint.check_open(answers.at).is_err() || !seen.insert(waitpoint.id) {
                continue;
            }
            let token = secrets.sign(&TokenSubject::from(&waitpoint))?;
            items.extend(waitpoint.info(suspension, token.kid().to_owned(), token.fingerprint()));
        }
        Ok(ListPendingWaitpointsOutcome { items })
    }
}

impl Handle<GetWaitpointToken> for Services {
    async fn handle(&self, caller: &Caller, args: GetWaitpointTokenArgs) -> Result<GetWaitpointTokenOutcome> {
        self.transactor.check_id(&args.execution_id)?;
        let key = Waitpoint::key_of(&args.waitpoint_id);
        let found = self.transactor.store().documents(args.execution_id.partition(), vec![key]).await?;
        let found = found.into_iter().next().flatten().map(|stored| Waitpoint::decode(&stored.body)).transpose()?;
        let waitpoint = visible_waitpoint(caller, found, &args.execution_id, &args.waitpoint_id)?;
        if !caller.lanes.is_empty() {
            let (execution, _) = self.transactor.visible_execution(caller, &args.execution_id).await?;
            caller.check_lane(&execution.lane)?;
        }
        waitpoint.check_open(self.transactor.now_in(args.execution_id.partition()))?;
        let token = self.shared.secrets.waitpoint_secrets().await?.sign(&TokenSubject::from(&waitpoint))?;
        Ok(GetWaitpointTokenOutcome {
            waitpoint_id: waitpoint.id,
            waitpoint_key: waitpoint.waitpoint_key,
            kid: token.kid().to_owned(),
            token: Secret(token.reveal()),
        })
    }
}

impl Handle<CloseWaitpoint> for Services {
    async fn handle(&self, caller: &Caller, args: CloseWaitpointArgs) -> Result<CloseWaitpointOutcome> {
        self.transactor.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let identity = self.transactor.identity::<CloseWaitpoint>(caller, &args, None);
        self.transactor.transact_once(partition, identity, &Request::<CloseWaitpoint> { caller, args: &args }).await
    }
}

impl Command for Request<'_, CloseWaitpoint> {
    type Outcome = CloseWaitpointOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<CloseWaitpointOutcome> {
        let id = &self.args.waitpoint_id;
        let loaded = tx.load::<Waitpoint>(Waitpoint::key_of(id)).await?;
        let found = loaded.map(|loaded| loaded.document);
        let mut waitpoint = visible_waitpoint(self.caller, found, &self.args.execution_id, id)?;
        if !self.caller.lanes.is_empty() {
            load_visible(tx, self.caller, &self.args.execution_id).await?;
        }
        if waitpoint.state == WaitpointState::Active {
            // Its suspension would be left with nowhere to hear from.
            return Err(Error::of(Code::WaitpointNotPending).with("waitpoint_id", id));
        }
        let changed = waitpoint.close(CloseReason::Requested, tx.now);
        if changed {
            tx.save(&waitpoint);
        }
        Ok(CloseWaitpointOutcome { changed })
    }
}

/// The waitpoint, if it is one of this execution and the caller may see it.
pub(crate) fn visible_waitpoint(
    caller: &Caller,
    found: Option<Waitpoint>,
    execution: &ExecutionId,
    id: &WaitpointId,
) -> Result<Waitpoint> {
    found
        .filter(|found| found.id == *id && found.execution == *execution && caller.sees(&found.namespace))
        .ok_or_else(|| Error::of(Code::WaitpointNotFound).with("waitpoint_id", id))
}

impl Handle<ListResumeSignals> for Services {
    async fn handle(&self, caller: &Caller, args: ListResumeSignalsArgs) -> Result<ListResumeSignalsOutcome> {
        let (execution, _) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        Ok(ListResumeSignalsOutcome { items: self.resume_signals(&execution).await? })
    }
}

impl Services {
    /// Signals with their payloads, in one round trip.
    pub(crate) async fn read_signals(&self, execution: &Execution, ids: &[SignalId]) -> Result<Vec<ResumeSignal>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<Key> = ids.iter().map(AcceptedSignal::key_of).collect();
        let queries = vec![Query::Documents(keys.clone()), Query::Blobs(keys)];
        let mut answers = self.transactor.read(execution.id.partition(), queries).await?.answers.into_iter();
        let documents = answers.next().and_then(Answer::into_documents).unwrap_or_default();
        let blobs: Vec<Option<Bytes>> = answers.next().and_then(Answer::into_blobs).unwrap_or_default();
        let mut signals = Vec::with_capacity(ids.len());
        for (document, blob) in documents.into_iter().zip(blobs) {
            let signal = document.and_then(|stored| self.transactor.readable::<AcceptedSignal>(&stored));
            signals.extend(signal.map(|signal| signal.into_resume_signal(blob.map(Blob))));
        }
        Ok(signals)
    }
}

impl Handle<RotateWaitpointSecret> for Services {
    async fn handle(&self, caller: &Caller, args: RotateWaitpointSecretArgs) -> Result<RotateWaitpointSecretResult> {
        if let Some(namespace) = &caller.namespace {
            let detail =
                format!("the secret signs tokens of all namespaces, and this token reaches {namespace:?} only");
            return Err(Error::new(Code::Forbidden, detail));
        }
        caller.check_every_lane()?;
        let _one_at_a_time = self.shared.secrets.begin_rotation()?;
        let grace_ms = args.grace_ms.unwrap_or(self.transactor.options().secret_grace_ms);
        let identity = self.transactor.callers_identity::<RotateWaitpointSecret>(caller, &args, None);
        self.transactor
            .transact_once(
                Partition::SYSTEM,
                identity,
                &RotateSecret { args: &args, grace_ms, found: Mutex::default() },
            )
            .await
    }
}

struct RotateSecret<'a> {
    args: &'a RotateWaitpointSecretArgs,
    grace_ms: i64,
    /// The kid that signed when this rotation began.
    found: Mutex<Option<String>>,
}

impl Command for RotateSecret<'_> {
    type Outcome = RotateWaitpointSecretResult;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<RotateWaitpointSecretResult> {
        let loaded = tx.load::<WaitpointSecrets>(WaitpointSecrets::key_of()).await?;
        let missing = || Error::new(Code::Internal, "no waitpoint secret is installed");
        let mut secrets = loaded.ok_or_else(missing)?.document;
        // A second rotation in this process was refused above. Rotations of several processes are told apart here, by the
        // store: one that finds that another has come first in the meantime was not alone.
        let found = self
            .found
            .lock()
            .expect("no holder of this lock panics")
            .get_or_insert_with(|| secrets.current.clone())
            .clone();
        if secrets.current != found && secrets.current != self.args.new_kid {
            return Err(already_rotating());
        }
        let outcome = secrets.rotate(&self.args.new_kid, &self.args.new_secret_hex.0, self.grace_ms, tx.now)?;
        if outcome.changed {
            tx.save(&secrets);
        }
        Ok(outcome)
    }
}
