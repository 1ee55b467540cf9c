//! Revokes an API token, everywhere within a second.

use ff_core::op::RevokeToken;
use ff_core::op::revoke_token::{Args, Outcome};
use ff_core::{ApiToken, Code, Error, Partition, Result};

use crate::engine::{Caller, Engine, Handle};
use crate::transaction::{Command, Tx};

impl Handle<RevokeToken> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        self.transact(Partition::SYSTEM, self.fresh_command(), &Verb { caller, args: &args }).await
    }
}

struct Verb<'a> {
    caller: &'a Caller,
    args: &'a Args,
}

impl Command for Verb<'_> {
    type Outcome = Outcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Outcome> {
        let loaded = tx.load::<ApiToken>(ApiToken::key_of(&self.args.name)).await?;
        let found = loaded.map(|loaded| loaded.document).filter(|token| self.caller.sees(&token.namespace));
        let mut token = found.ok_or_else(|| Error::of(Code::TokenNotFound).with("name", &self.args.name))?;
        let changed = token.revoke(tx.now);
        if changed {
            tx.save(&token);
        }
        Ok(Outcome { changed })
    }
}
