//! Creates an API token. Its secret is shown once, and again to a repeat of the call that has its idempotency key.
//!
//! The secret of such a call is derived from the key and from random bytes that the record of the call keeps: neither of
//! the two reveals it without the other, and the store holds only one of them.

use ff_core::idempotency::Identity;
use ff_core::op::CreateToken;
use ff_core::op::create_token::{Args, Outcome};
use ff_core::op::parts::Secret;
use ff_core::{ApiSecret, ApiToken, Code, Error, NewApiToken, Partition, Result};

use crate::engine::{Caller, Engine, Handle};
use crate::transaction::{Command, Tx};

impl Handle<CreateToken> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let identity = self.callers_identity::<CreateToken>(caller, &args, None);
        let new = NewApiToken {
            name: args.name,
            namespace: caller.namespace(args.namespace.as_deref())?,
            role: args.role,
            expires_in_ms: args.expires_in_ms,
            created_by: caller.name.clone(),
        };
        let key = caller.idempotency_key.as_deref();
        let verb = Verb { caller, new, random: self.random_bytes(), identity, key };
        let (token, secret) = self.transact(Partition::SYSTEM, self.fresh_command(), &verb).await?;
        Ok(Outcome { token: token.info(), secret: Secret(secret.reveal()) })
    }
}

struct Verb<'a> {
    caller: &'a Caller,
    new: NewApiToken,
    random: [u8; 32],
    identity: Option<Identity>,
    key: Option<&'a str>,
}

impl Verb<'_> {
    /// The secret part, from what is kept of the call and what only its caller knows.
    fn secret(&self, kept: [u8; 32]) -> [u8; 32] {
        self.key.map_or(kept, |key| ApiToken::derived_secret(kept, key.as_bytes()))
    }

    /// The token that this very call made before.
    async fn repeated(&self, tx: &mut Tx<'_>) -> Result<Option<(ApiToken, ApiSecret)>> {
        let kept = match &self.identity {
            Some(identity) => tx.kept_answer::<[u8; 32]>(identity).await?,
            None => None,
        };
        let Some(loaded) = tx.load::<ApiToken>(ApiToken::key_of(&self.new.name)).await? else { return Ok(None) };
        let secret = ApiSecret::new(&self.new.name, self.secret(kept.unwrap_or(self.random)));
        // A token that was made anew under the name since has another secret.
        Ok(loaded.document.has_secret(&secret).then_some((loaded.document, secret)))
    }
}

impl Command for Verb<'_> {
    type Outcome = (ApiToken, ApiSecret);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Outcome> {
        if let Some(repeated) = self.repeated(tx).await? {
            return Ok(repeated);
        }
        if let Some(existing) = tx.load::<ApiToken>(ApiToken::key_of(&self.new.name)).await? {
            let existing = existing.document;
            // Without an idempotency key the secret cannot be shown again, so not even the same request is a repeat. A
            // token that is no good any more gives its name back.
            if existing.is_live(tx.now) || !self.caller.sees(&existing.namespace) {
                return Err(Error::of(Code::DefinitionConflict).with("name", &self.new.name));
            }
        }
        let (token, secret) = ApiToken::create(self.new.clone(), self.secret(self.random), tx.now)?;
        tx.save(&token);
        if let Some(identity) = &self.identity {
            tx.keep_answer(identity, &self.random);
        }
        Ok((token, secret))
    }
}
