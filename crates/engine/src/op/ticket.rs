//! Tickets for streams. A ticket is signed and not stored, so that any server of the deployment takes it.

use ff_core::op::parts::Secret;
use ff_core::op::{CreateStreamTicket, CreateStreamTicketArgs, CreateStreamTicketOutcome};
use ff_core::{Code, Error, ExecutionId, Result, Role, limits};
use serde::{Deserialize, Serialize};

use crate::caller::{Caller, Standing};
use crate::op::Handle;
use crate::services::Services;

/// The contents of a ticket. It holds names, no secrets: its bearer may read it.
#[derive(Serialize, Deserialize)]
struct Ticket {
    name: String,
    namespace: Option<String>,
    role: Role,
    /// The caller had to prove itself.
    proven: bool,
    /// When its stored token was made; 0 where it has none.
    #[serde(default)]
    token_created_at: i64,
    execution_id: Option<ExecutionId>,
    expires_at: i64,
}

impl Handle<CreateStreamTicket> for Services {
    async fn handle(&self, caller: &Caller, args: CreateStreamTicketArgs) -> Result<CreateStreamTicketOutcome> {
        if let Some(id) = &args.execution_id {
            self.transactor.visible_execution(caller, id).await?;
        }
        let expires_at = self.transactor.now() + limits::STREAM_TICKET_MS;
        let ticket = Ticket {
            name: caller.name.clone(),
            namespace: caller.namespace.clone(),
            role: caller.role,
            proven: caller.standing != Standing::Open,
            token_created_at: caller.token_created_at,
            execution_id: args.execution_id,
            expires_at,
        };
        let text = serde_json::to_string(&ticket)
            .map_err(|error| Error::new(Code::Internal, format!("a ticket cannot be written: {error}")))?;
        let ticket = self.shared.secrets.waitpoint_secrets().await?.seal(&text)?;
        Ok(CreateStreamTicketOutcome { ticket: Secret(ticket), expires_at })
    }
}

impl Services {
    /// The caller behind a ticket, and the one execution it is good for. Wrong, old and foreign ones read the same.
    pub(crate) async fn redeem_ticket(&self, ticket: &str) -> Result<(Caller, Option<ExecutionId>)> {
        let refused = || Error::of(Code::Unauthenticated);
        let now = self.transactor.now();
        let text = self.shared.secrets.secrets_for(ticket).await?.unseal(ticket, now).ok_or_else(refused)?;
        let ticket: Ticket = serde_json::from_str(&text).map_err(|_| refused())?;
        if ticket.expires_at <= now {
            return Err(refused());
        }
        let standing = if ticket.proven { Standing::Token } else { Standing::Open };
        let token_created_at = ticket.token_created_at;
        let caller = Caller { standing, token_created_at, ..Caller::new(ticket.name, ticket.namespace, ticket.role) };
        self.shared.system.confirm_caller(&caller).await?;
        Ok((caller, ticket.execution_id))
    }
}
