//! Audit: every administrative act leaves one record, in the log target `audit` and in the system partition, whether it
//! was done or refused.

use ff_core::execution::Execution;
use ff_core::flow::Flow;
use ff_core::idempotency::Identity;
use ff_core::op::{DeliverSignal, Operation, SignalWaitpoint};
use ff_core::{
    AuditRecord, Code, Document, Error, ExecutionId, FlowId, Partition, Result, Waitpoint, WaitpointId, limits,
};
use ff_store::Append;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::caller::{Caller, Standing};
use crate::env::BoxFuture;
use crate::logs;
use crate::op::Handle;
use crate::services::Services;
use crate::transaction::{Command, Tx};

/// The fields that name the object of an operation whose path does not.
const NAMING_FIELDS: [&str; 3] = ["name", "new_kid", "instance_id"];
/// The operations whose `name` is the name of a signal, which belongs into the record.
const SIGNALS: [&str; 2] = [DeliverSignal::NAME, SignalWaitpoint::NAME];
/// How long the evidence is kept that a record was written: longer than its commit can be under way.
const EVIDENCE_MS: i64 = 60_000;

/// The target of an act.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Target {
    namespace: String,
    name: String,
    /// Objects whose namespace the arguments do not name.
    execution: Option<ExecutionId>,
    flow: Option<FlowId>,
    waitpoint: Option<WaitpointId>,
    /// More about the act, such as which way a decision went.
    detail: String,
}

impl Target {
    /// Reads it from the arguments: those that are in the path, and the namespace. Nothing else of them is looked at,
    /// so no secret can find its way into a record.
    fn of(caller: &Caller, operation: &str, path: &str, args: &Value) -> Self {
        let text = |field: &str| match args.get(field) {
            Some(Value::String(text)) => Some(text.clone()),
            Some(Value::Number(number)) => Some(number.to_string()),
            _ => None,
        };
        let in_path: Vec<String> = ff_core::op::path_parameters(path).filter_map(text).collect();
        let name = match in_path.is_empty() {
            true => NAMING_FIELDS.into_iter().find_map(text).unwrap_or_default(),
            false => in_path.join("/"),
        };
        let namespace = text("namespace").or_else(|| caller.namespace.clone()).unwrap_or_default();
        let execution = text("execution_id").and_then(|id| id.parse().ok());
        let flow = text("flow_id").and_then(|id| id.parse().ok());
        let waitpoint = text("waitpoint_id").and_then(|id| id.parse().ok());
        let detail = text("name").filter(|_| SIGNALS.contains(&operation)).unwrap_or_default();
        Self { namespace, name, execution, flow, waitpoint, detail }
    }
}

/// An act that was carried out: why it was refused, if it was, and how to tell its caller.
type Done = (Option<Error>, Box<dyn FnOnce() + Send>);

impl Services {
    /// Carries out an administrative act and records it. It runs in a task of its own: once begun it is recorded, also
    /// when the caller has gone.
    pub(crate) async fn administer<O: Operation>(&self, caller: &Caller, args: O::Args) -> Result<O::Outcome>
    where
        Self: Handle<O>,
    {
        let (reply, answer) = oneshot::channel();
        let fields = O::to_text(&args).and_then(|text| serde_json::from_str(&text)).unwrap_or(Value::Null);
        let target = Target::of(caller, O::NAME, O::PATH, &fields);
        let (services, acting) = (self.clone(), caller.clone());
        let act = async move {
            let outcome = services.perform::<O>(&acting, args).await;
            let refusal = outcome.as_ref().err().cloned();
            // The caller may have gone; the act stands all the same.
            (refusal, Box::new(move || drop(reply.send(outcome))) as Box<dyn FnOnce() + Send>)
        };
        self.transactor.spawn_short(self.clone().record(caller.clone(), O::NAME, target, Box::pin(act)));
        answer.await.map_err(|_| Error::of(Code::ShuttingDown))?
    }

    /// Carries out an act, records it, and then tells its caller. It knows the act as a box, so that it is compiled once and not
    /// for each operation.
    async fn record(self, caller: Caller, operation: &'static str, mut target: Target, act: BoxFuture<'static, Done>) {
        if target.namespace.is_empty() {
            target.namespace = self.namespace_of(&target).await.unwrap_or_default();
        }
        let (refusal, tell) = act.await;
        // A stranger who guesses the tokens of waitpoints could fill the record with attempts.
        let guessed = |error: &Error| matches!(error.code, Code::InvalidToken | Code::TokenExpired);
        let attempt = caller.standing == Standing::Stranger || refusal.as_ref().is_some_and(guessed);
        if refusal.is_none() || !attempt {
            self.audit(&caller, operation, &target, refusal.as_ref()).await;
        }
        tell();
    }

    /// Where the object of an act lives, if it is there. Asked before the act, which may remove it.
    async fn namespace_of(&self, target: &Target) -> Option<String> {
        let found = |partition, key| async move {
            let mut found = self.transactor.store().documents(partition, vec![key]).await.ok()?;
            found.pop().flatten().map(|stored| stored.body)
        };
        if let Some(id) = target.execution.filter(|id| id.check(self.transactor.partitions()).is_ok()) {
            let body = found(id.partition(), Execution::key_of(&id)).await?;
            return Some(Execution::decode(&body).ok()?.namespace);
        }
        if let Some(id) = target.waitpoint.filter(|_| target.flow.is_none()) {
            let home = ExecutionId { partition: id.partition, uuid: id.uuid };
            home.check(self.transactor.partitions()).ok()?;
            let body = found(home.partition(), Waitpoint::key_of(&id)).await?;
            return Some(Waitpoint::decode(&body).ok()?.namespace);
        }
        let id = target.flow.filter(|id| id.check(self.transactor.partitions()).is_ok())?;
        let body = found(id.partition(), Flow::key_of(&id)).await?;
        Some(Flow::decode(&body).ok()?.namespace)
    }

    /// Records an act. A record that cannot be stored does not undo the act: it is still in the process's log.
    async fn audit(&self, caller: &Caller, operation: &str, target: &Target, refusal: Option<&Error>) {
        let done = AuditRecord::done(&caller.name, operation, &target.name, self.transactor.now())
            .in_namespace(&target.namespace);
        let done = done.with_detail(&target.detail);
        let record = match refusal {
            None => done,
            Some(error) => done.refused(error),
        };
        let AuditRecord { who, what, namespace, target, detail, .. } = &record;
        match refusal {
            None => tracing::info!(target: "audit", who, what, namespace, target, outcome = "ok"),
            Some(_) => {
                let outcome = record.outcome();
                tracing::error!(target: "audit", who, what, namespace, target, outcome, detail);
            }
        }
        if let Err(error) = self
            .transactor
            .transact(Partition::SYSTEM, self.transactor.fresh_command(), &Write { record: &record })
            .await
        {
            tracing::error!(target: "audit", who, what, %error, "an audit record could not be stored");
        }
    }
}

struct Write<'a> {
    record: &'a AuditRecord,
}

impl Command for Write<'_> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        // An append has no version of its own; this document tells a commit that is sent again that it was applied.
        let evidence = Identity::new("audit", &[tx.command.as_bytes()], EVIDENCE_MS);
        tx.create_until(&evidence.record(""), tx.now + evidence.kept_ms);
        let records = vec![self.record.encode().into()];
        let (log, cap) = match self.record.succeeded() {
            true => (logs::audit(), limits::AUDIT_KEPT),
            false => (logs::audit_refusals(), limits::AUDIT_REFUSALS_KEPT),
        };
        tx.append(Append { log, records, expected: None, cap, in_turn: false });
        Ok(())
    }
}
