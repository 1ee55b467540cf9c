//! Tickets for streams. A ticket is signed and not stored, so that any server of the deployment takes it.

use ff_core::api_token::EVERY_NAMESPACE;
use ff_core::op::parts::Secret;
use ff_core::op::{CreateStreamTicket, CreateStreamTicketArgs, CreateStreamTicketOutcome};
use ff_core::{ApiToken, Code, Error, ExecutionId, Result, Role, limits};
use serde::{Deserialize, Serialize};

use crate::engine::{Caller, Engine, Handle, Standing};

/// What a ticket says. It holds names, no secrets: whoever has it may read it.
#[derive(Serialize, Deserialize)]
struct Ticket {
    name: String,
    namespace: Option<String>,
    role: Role,
    /// The caller had to prove who it is.
    proven: bool,
    /// When its stored token was made; 0 where it has none.
    #[serde(default)]
    token_created_at: i64,
    execution_id: Option<ExecutionId>,
    expires_at: i64,
}

impl Handle<CreateStreamTicket> for Engine {
    async fn handle(&self, caller: &Caller, args: CreateStreamTicketArgs) -> Result<CreateStreamTicketOutcome> {
        if let Some(id) = &args.execution_id {
            self.visible_execution(caller, id).await?;
        }
        let expires_at = self.now() + limits::STREAM_TICKET_MS;
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
        let ticket = self.waitpoint_secrets().await?.seal(&text)?;
        Ok(CreateStreamTicketOutcome { ticket: Secret(ticket), expires_at })
    }
}

impl Engine {
    /// The caller behind a ticket, and the one execution it is good for. Wrong, old and foreign ones read the same.
    pub async fn redeem_ticket(&self, ticket: &str) -> Result<(Caller, Option<ExecutionId>)> {
        let refused = || Error::of(Code::Unauthenticated);
        let now = self.now();
        let text = self.secrets_for(ticket).await?.unseal(ticket, now).ok_or_else(refused)?;
        let ticket: Ticket = serde_json::from_str(&text).map_err(|_| refused())?;
        if ticket.expires_at <= now {
            return Err(refused());
        }
        let standing = if ticket.proven { Standing::Token } else { Standing::Open };
        let token_created_at = ticket.token_created_at;
        let caller = Caller { standing, token_created_at, ..Caller::new(ticket.name, ticket.namespace, ticket.role) };
        self.confirm_caller(&caller).await?;
        Ok((caller, ticket.execution_id))
    }

    /// Refuses a caller whose token was revoked, has expired, or is another one by now. One without a stored token, from
    /// the configuration or from a server without tokens, stays what it is.
    pub async fn confirm_caller(&self, caller: &Caller) -> Result<()> {
        if caller.token_created_at == 0 {
            return Ok(());
        }
        let token = self.system_document::<ApiToken>(&ApiToken::key_of(&caller.name)).await?;
        let token = token.ok_or_else(|| Error::of(Code::Unauthenticated))?;
        let namespace = (token.namespace != EVERY_NAMESPACE).then_some(token.namespace.as_str());
        let same = token.role == caller.role
            && namespace == caller.namespace.as_deref()
            && token.created_at == caller.token_created_at;
        if same && token.is_live(self.now()) { Ok(()) } else { Err(Error::of(Code::Unauthenticated)) }
    }
}
