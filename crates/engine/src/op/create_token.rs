//! Creates an API token. Its secret is shown once.

use ff_core::op::CreateToken;
use ff_core::op::create_token::{Args, Outcome};
use ff_core::op::parts::Secret;
use ff_core::{ApiSecret, ApiToken, Code, Error, NewApiToken, Partition, Result};

use crate::engine::{Caller, Engine, Handle};
use crate::transaction::{Command, Tx};

impl Handle<CreateToken> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let new = NewApiToken {
            name: args.name,
            namespace: caller.namespace(args.namespace.as_deref())?,
            role: args.role,
            expires_in_ms: args.expires_in_ms,
            created_by: caller.name.clone(),
        };
        let verb = Verb { caller, new, random: self.random_bytes() };
        let (token, secret) = self.transact(Partition::SYSTEM, self.fresh_command(), &verb).await?;
        Ok(Outcome { token: token.info(), secret: Secret(secret.reveal()) })
    }
}

struct Verb<'a> {
    caller: &'a Caller,
    new: NewApiToken,
    random: [u8; 32],
}

impl Command for Verb<'_> {
    type Outcome = (ApiToken, ApiSecret);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Outcome> {
        if let Some(existing) = tx.load::<ApiToken>(ApiToken::key_of(&self.new.name)).await? {
            let existing = existing.document;
            // The secret cannot be shown again, so not even the same request is a repeat. A token that is no good any
            // more gives its name back.
            if existing.is_live(tx.now) || !self.caller.sees(&existing.namespace) {
                return Err(Error::of(Code::DefinitionConflict).with("name", &self.new.name));
            }
        }
        let (token, secret) = ApiToken::create(self.new.clone(), self.random, tx.now)?;
        tx.save(&token);
        Ok((token, secret))
    }
}
