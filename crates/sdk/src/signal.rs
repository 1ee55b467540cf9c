//! Signals: as types, and in the making.

use bytes::Bytes;
use ff_core::op::DeliverSignal;
use ff_core::op::deliver_signal::Args;
use ff_core::op::parts::Secret;
use ff_core::{Blob, ExecutionId, JsonText, SignalOutcome, WaitpointId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::error::{Result, SdkError};

/// A signal as a type: its value is the payload. A function waits for it with
/// [`wait_for`](crate::TaskContext::wait_for), others send it with [`Execution::send`](crate::Execution::send).
///
/// ```
/// # async fn example(execution: flowfabric::Execution) -> flowfabric::Result<()> {
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Decision { approved: bool }
///
/// impl flowfabric::Signal for Decision {
///     const NAME: &'static str = "decision";
/// }
///
/// execution.send(&Decision { approved: true }).await?;
/// # Ok(())
/// # }
/// ```
pub trait Signal: Serialize + DeserializeOwned + Send + 'static {
    /// The name of the signal, as a string would give it.
    const NAME: &'static str;
}

/// A signal, from [`Execution::signal`](crate::Execution::signal) or
/// [`FlowFabricWorker::deliver_signal`](crate::FlowFabricWorker::deliver_signal).
#[derive(Debug)]
#[must_use = "nothing is sent before `send`"]
pub struct Signaling {
    client: Client,
    args: Args,
    broken: Option<SdkError>,
}

impl Signaling {
    pub(crate) fn new(client: Client, execution_id: ExecutionId, name: String) -> Self {
        let args = Args {
            execution_id,
            waitpoint_id: None,
            token: None,
            name,
            category: None,
            source_type: None,
            source_identity: None,
            payload: None,
            payload_base64: None,
            content_type: None,
            idempotency_key: None,
            signal_id: None,
            correlation_id: None,
            created_at: None,
            resume_delay_ms: None,
        };
        Self { client, args, broken: None }
    }

    /// Where it goes, with the token that allows it. An operator needs none, and no waitpoint where there is only one.
    pub fn waitpoint(mut self, waitpoint_id: WaitpointId, token: Secret) -> Self {
        self.args.waitpoint_id = Some(waitpoint_id);
        self.args.token = Some(token);
        self
    }

    /// Its payload, as JSON.
    pub fn payload(mut self, payload: &(impl Serialize + ?Sized)) -> Self {
        match serde_json::to_string(payload) {
            Ok(text) => self.args.payload = Some(JsonText(text)),
            Err(source) => self.broken = Some(SdkError::Payload { what: "payload", source }),
        }
        self
    }

    /// Its payload, as bytes of some content type.
    pub fn payload_bytes(mut self, bytes: impl Into<Bytes>, content_type: impl Into<String>) -> Self {
        self.args.payload_base64 = Some(Blob(bytes.into()));
        self.args.content_type = Some(content_type.into());
        self
    }

    /// The sender; conditions may count distinct senders.
    pub fn source(mut self, source_type: impl Into<String>, source_identity: impl Into<String>) -> Self {
        self.args.source_type = Some(source_type.into());
        self.args.source_identity = Some(source_identity.into());
        self
    }

    /// The same key means the same signal, for a day.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.args.idempotency_key = Some(key.into());
        self
    }

    /// Changes any other argument.
    pub fn with(mut self, change: impl FnOnce(&mut Args)) -> Self {
        change(&mut self.args);
        self
    }

    /// Sends it.
    pub async fn send(self) -> Result<SignalOutcome> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        self.client.call::<DeliverSignal>(self.args).await
    }
}
