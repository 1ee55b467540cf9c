//! Tickets for streams: what a browser's `EventSource`, which sends no headers, shows instead of an API token.

use serde::{Deserialize, Serialize};

use crate::id::ExecutionId;
use crate::op::operation;
use crate::op::parts::Secret;

operation! {
    /// Makes a ticket for `GET /v1/executions/{id}/stream?ticket=` and `GET /v1/events?ticket=`. It shows what the caller may
    /// see, opens streams for a minute, and ends with the caller's own token.
    CreateStreamTicket(CreateStreamTicketArgs) -> CreateStreamTicketOutcome,
    "create_stream_ticket" Post "/v1/stream-tickets" Reader
}

/// The arguments of `create_stream_ticket`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateStreamTicketArgs {
    /// Good for the stream of this execution only; for every stream and for events when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
}

/// The answer to `create_stream_ticket`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreateStreamTicketOutcome {
    /// To be sent as `?ticket=`.
    pub ticket: Secret,
    /// From this instant on it opens nothing; what it has opened goes on.
    pub expires_at: i64,
}
