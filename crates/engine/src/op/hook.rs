//! Inbound hooks: what becomes of signed messages from outside.

use std::collections::BTreeMap;

use bytes::Bytes;
use ff_core::execution::{DEFAULT_NAMESPACE, Execution};
use ff_core::hook::{Hook, HookScheme};
use ff_core::idempotency::Identity;
use ff_core::op::parts::{NamespacePage, Secret};
use ff_core::op::{
    CreateExecution, CreateExecutionArgs, CreateFlow, CreateFlowArgs, CreateFlowOutcome, CreateHook, CreateHookArgs,
    CreateHookOutcome, DeleteHook, DeleteHookOutcome, DeliverSignal, DeliverSignalArgs, GetHook, HookName, HookReceipt,
    HookSignal, HookTarget, HookView, ListHooks, ListHooksOutcome, NodeRequest,
};
use ff_core::signal::SignalOutcome;
use ff_core::{Blob, Code, Error, ExecutionId, HookId, Indexed, Partition, Result, Role, index, text};
use ff_store::Scan;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::caller::Caller;
use crate::named_documents::{no_such, page};
use crate::op::Handle;
use crate::services::Services;
use crate::transaction::{Command, Tx};
use crate::{cursor, env};

/// Partitions that are read at the same time.
const PARTITIONS_AT_ONCE: usize = 16;
/// Executions with one tag that are read at once in each partition, the newest first.
const CORRELATED_PAGE: usize = 100;
/// Such pages that are read at most before all of them are taken to have ended.
const CORRELATED_PAGES_MAX: usize = 100;
/// How often a message looks for another execution because the one it found has ended meanwhile.
const RETARGETS_MAX: usize = 5;

impl Handle<CreateHook> for Services {
    async fn handle(&self, caller: &Caller, args: CreateHookArgs) -> Result<CreateHookOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let lanes = args.target.lanes();
        match lanes.is_empty() {
            // It signals executions of every lane.
            true => caller.check_every_lane()?,
            false => lanes
                .iter()
                .try_for_each(|lane| caller.check_lane(lane).and_then(|()| self.shared.system.check_lane(lane)))?,
        }
        let scheme = args.scheme.unwrap_or_default();
        let (secret, made) = match &args.secret {
            Some(secret) => (scheme.read_secret("secret", &secret.0)?, None),
            None => {
                let random = env::random_bytes(self.transactor.env());
                let (secret, shown) = scheme.make_secret(random);
                (secret, Some(shown))
            }
        };
        let hook = Hook {
            id: HookId::mint(&env::mint(self.transactor.env(), self.transactor.now())),
            namespace,
            name: args.name.clone(),
            scheme,
            secret,
            target: args.target.encode()?,
            created_by: text::label("caller", &caller.name).map(|()| caller.name.clone()).unwrap_or_default(),
            ..Default::default()
        };
        hook.check()?;
        let identity = self.transactor.callers_identity::<CreateHook>(caller, &args, None);
        let verb = Define { hook: &hook, own_secret: made.is_none() };
        let mut outcome = self.transactor.transact_once(Partition::SYSTEM, identity, &verb).await?;
        if let CreateHookOutcome::Created { hook_id, secret } = &mut outcome
            && made.is_some()
        {
            // From the hook and not from the kept answer: what is kept of the call holds no secret.
            let created = self.transactor.find::<Hook>(Partition::SYSTEM, hook.key()).await?;
            let created = created.filter(|created| created.id == *hook_id);
            *secret = created.and_then(|created| created.shown_secret()).map(Secret);
        }
        Ok(outcome)
    }
}

struct Define<'a> {
    hook: &'a Hook,
    own_secret: bool,
}

impl Command for Define<'_> {
    type Outcome = CreateHookOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<CreateHookOutcome> {
        if let Some(loaded) = tx.load::<Hook>(self.hook.key()).await? {
            loaded.document.check_same(self.hook, self.own_secret)?;
            return Ok(CreateHookOutcome::AlreadyExists { hook_id: loaded.document.id });
        }
        tx.save(&Hook { created_at: tx.now, ..self.hook.clone() });
        Ok(CreateHookOutcome::Created { hook_id: self.hook.id, secret: None })
    }
}

impl Handle<GetHook> for Services {
    async fn handle(&self, caller: &Caller, args: HookName) -> Result<HookView> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let found = self.transactor.find::<Hook>(Partition::SYSTEM, Hook::key_of(&namespace, &args.name)).await?;
        HookView::of(&found.ok_or_else(|| no_such(Code::HookNotFound, &args.name))?)
    }
}

impl Handle<ListHooks> for Services {
    async fn handle(&self, caller: &Caller, args: NamespacePage) -> Result<ListHooksOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let limit = self.transactor.limits().page(args.limit)?;
        let cursor = cursor::decode::<String>(args.cursor.as_deref())?;
        let partitions = vec![Partition::SYSTEM];
        let all =
            self.transactor.named_after::<Hook>(partitions, &namespace, cursor.as_deref(), |one| &one.name).await?;
        let (hooks, next_cursor) = page(all, limit, |one| &one.name);
        Ok(ListHooksOutcome { items: hooks.iter().map(HookView::of).collect::<Result<_>>()?, next_cursor })
    }
}

impl Handle<DeleteHook> for Services {
    async fn handle(&self, caller: &Caller, args: HookName) -> Result<DeleteHookOutcome> {
        caller.check_every_lane()?;
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let identity = self.transactor.identity::<DeleteHook>(caller, &args, None);
        let verb = Delete { namespace: &namespace, name: &args.name };
        self.transactor.transact_once(Partition::SYSTEM, identity, &verb).await
    }
}

struct Delete<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl Command for Delete<'_> {
    type Outcome = DeleteHookOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<DeleteHookOutcome> {
        let loaded = tx.load::<Hook>(Hook::key_of(self.namespace, self.name)).await?;
        let hook = loaded.ok_or_else(|| no_such(Code::HookNotFound, self.name))?.document;
        tx.relief();
        tx.delete(&hook.key());
        Ok(DeleteHookOutcome { hook_id: hook.id })
    }
}

/// A message that was posted to a hook.
#[derive(Debug, Clone)]
pub struct HookMessage {
    /// The hook by name.
    pub name: String,
    /// Where it works; `default` when absent.
    pub namespace: Option<String>,
    /// Headers, their names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Its body.
    pub body: Bytes,
}

impl Services {
    /// Verifies a message that was posted to a hook from outside, and does what the hook says, once for each message. A
    /// hook that does not exist and a signature that is wrong are refused alike.
    pub(crate) async fn receive_hook(&self, message: HookMessage) -> Result<HookReceipt> {
        let namespace = message.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
        text::name("namespace", namespace)?;
        text::name("name", &message.name)?;
        let found = self.shared.system.system_document::<Hook>(&Hook::key_of(namespace, &message.name)).await?;
        let Some(hook) = found else {
            // The time it takes tells no sender that there is no such hook.
            let nobody = Hook { secret: HookScheme::Standard.make_secret([0; 32]).0, ..Default::default() };
            drop(nobody.verify(&message.headers, &message.body, self.transactor.now()));
            return Err(Error::of(Code::InvalidSignature));
        };
        let id = hook.verify(&message.headers, &message.body, self.transactor.now())?;
        let key = hook.message_key(&id);
        let caller = Caller::new(format!("hook:{}", hook.name), Some(hook.namespace.clone()), Role::Operator);
        match HookTarget::decode(&hook.target)? {
            HookTarget::Execution(request) => {
                let (body, content_type) = message.content();
                let args = CreateExecutionArgs {
                    idempotency_key: Some(key),
                    input_base64: Some(body),
                    content_type: Some(content_type),
                    ..*request
                };
                let created = self.perform::<CreateExecution>(&caller, args).await?;
                let execution_id = Some(created.execution_id);
                Ok(HookReceipt { duplicate: created.duplicate, execution_id, ..Default::default() })
            }
            HookTarget::Flow(request) => {
                let mut args = CreateFlowArgs { idempotency_key: Some(key), ..*request };
                let (body, content_type) = message.content();
                let bare =
                    |node: &&mut NodeRequest| node.request.input.is_none() && node.request.input_base64.is_none();
                for node in args.nodes.iter_mut().filter(bare) {
                    node.request.input_base64 = Some(body.clone());
                    node.request.content_type = Some(content_type.clone());
                }
                let outcome = self.perform::<CreateFlow>(&caller, args).await?;
                let duplicate = matches!(outcome, CreateFlowOutcome::AlreadyExists { .. });
                Ok(HookReceipt { duplicate, flow_id: outcome.flow_id(), ..Default::default() })
            }
            HookTarget::Signal(signal) => self.signal_by_hook(&caller, &hook, &signal, &message, key).await,
            HookTarget::Unknown(variant) => Err(variant.refused("target")),
        }
    }

    async fn signal_by_hook(
        &self,
        caller: &Caller,
        hook: &Hook,
        signal: &HookSignal,
        message: &HookMessage,
        key: String,
    ) -> Result<HookReceipt> {
        let partition = self.transactor.partitions().key_partition(&hook.namespace, &key);
        let identity = Identity::new("receive_hook", &[key.as_bytes()], self.transactor.options().dedup_window_ms);
        let value = signal.correlate(&message.body)?;
        let (body, content_type) = message.content();
        let mut args = DeliverSignalArgs {
            execution_id: ExecutionId::default(),
            waitpoint_id: None,
            token: None,
            name: signal.name.clone(),
            category: None,
            source_type: Some("hook".to_owned()),
            source_identity: Some(hook.name.clone()),
            payload: None,
            payload_base64: Some(body),
            content_type: Some(content_type),
            idempotency_key: Some(key),
            signal_id: None,
            correlation_id: Some(value.clone()),
            created_at: None,
            resume_delay_ms: None,
        };
        // Which execution is the newest changes: one of all copies of the message decides it before any of them signals, and
        // an execution takes one signal of a key, whatever it waits for by then.
        let mut chosen = self.transactor.kept::<HookReceipt>(partition, &identity).await?;
        for _ in 0..RETARGETS_MAX {
            let receipt = match chosen.take().filter(|kept| kept.execution_id.is_some()) {
                Some(kept) => kept,
                None => {
                    let execution_id = Some(self.correlated(&hook.namespace, signal.tag(), &value).await?);
                    let receipt = HookReceipt { execution_id, ..Default::default() };
                    self.transactor.keep_first(partition, &identity, receipt).await?
                }
            };
            // The evidence outlives the execution: a message that comes again has no effect on the next one.
            if receipt.duplicate {
                return Ok(receipt);
            }
            args.execution_id = receipt.execution_id.unwrap_or_default();
            match self.perform::<DeliverSignal>(caller, args.clone()).await {
                Ok(outcome) => {
                    let had_its_effect = HookReceipt { duplicate: true, ..receipt.clone() };
                    self.transactor.replace_answer(partition, &identity, &receipt, Some(&had_its_effect)).await?;
                    let duplicate = matches!(outcome, SignalOutcome::Duplicate { .. });
                    return Ok(HookReceipt { duplicate, ..receipt });
                }
                // It ended before the message reached it: the message had no effect, and is for the next one.
                Err(ended) if matches!(ended.code, Code::TargetNotSignalable | Code::ExecutionNotFound) => {
                    self.transactor.replace_answer(partition, &identity, &receipt, None).await?;
                }
                Err(refused) => return Err(refused),
            }
        }
        Err(Error::new(Code::ExecutionNotFound, "all executions that have this tag ended while they were signalled"))
    }

    /// The newest execution with a tag that has not ended.
    async fn correlated(&self, namespace: &str, tag: &str, value: &str) -> Result<ExecutionId> {
        let look = |partition| async move {
            let mut scan = Scan::last(index::tag(namespace, tag, value), CORRELATED_PAGE).with_documents();
            for _ in 0..CORRELATED_PAGES_MAX {
                let page = self.transactor.store().scan(partition, scan.clone()).await?;
                let last = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
                scan.after = last.filter(|_| page.entries.len() == CORRELATED_PAGE);
                let documents = page.entries.into_iter().filter_map(|entry| entry.document);
                let executions = documents.filter_map(|stored| self.transactor.readable::<Execution>(&stored));
                let open = executions.filter(|execution| !execution.is_terminal());
                let newest = open.map(|execution| (execution.created_at, execution.id)).max();
                if newest.is_some() || scan.after.is_none() {
                    return Ok::<_, Error>(newest);
                }
            }
            Ok(None)
        };
        let found = stream::iter(self.transactor.flow_partitions()).map(look).buffer_unordered(PARTITIONS_AT_ONCE);
        let newest = found.try_collect::<Vec<_>>().await?.into_iter().flatten().max();
        let nobody = || Error::new(Code::ExecutionNotFound, "no open execution has this tag").with(tag, value);
        newest.map(|(_, id)| id).ok_or_else(nobody)
    }
}

impl HookMessage {
    fn content(&self) -> (Blob, String) {
        let sent = self.headers.get("content-type").map(String::as_str).unwrap_or_default();
        let essence = sent.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let usable = !essence.is_empty() && text::content_type("content_type", &essence).is_ok();
        let content_type = if usable { essence } else { ff_core::op::parts::OCTETS.to_owned() };
        (Blob(self.body.clone()), content_type)
    }
}
