//! Signs a waitpoint's token with the current secret.

use ff_core::op::GetWaitpointToken;
use ff_core::op::get_waitpoint_token::{Args, Outcome};
use ff_core::op::parts::Secret;
use ff_core::waitpoint::Waitpoint;
use ff_core::{Document, Result, TokenSubject};

use super::close_waitpoint::visible;
use crate::engine::{Caller, Engine, Handle};

impl Handle<GetWaitpointToken> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        self.check_id(&args.execution_id)?;
        let key = Waitpoint::key_of(&args.waitpoint_id);
        let found = self.store().documents(args.execution_id.partition(), vec![key]).await?;
        let found = found.into_iter().next().flatten().map(|stored| Waitpoint::decode(&stored.body)).transpose()?;
        let waitpoint = visible(caller, found, &args.execution_id, &args.waitpoint_id)?;
        waitpoint.check_open(self.now_in(args.execution_id.partition()))?;
        let token = self.waitpoint_secrets().await?.sign(&TokenSubject::from(&waitpoint))?;
        Ok(Outcome {
            waitpoint_id: waitpoint.id,
            waitpoint_key: waitpoint.waitpoint_key,
            kid: token.kid().to_owned(),
            token: Secret(token.reveal()),
        })
    }
}
