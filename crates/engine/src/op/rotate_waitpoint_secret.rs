//! Signs new waitpoint tokens with a new secret; the old one verifies for the grace.

use ff_core::op::RotateWaitpointSecret;
use ff_core::op::rotate_waitpoint_secret::{Args, Outcome};
use ff_core::{Code, Error, Partition, Result, WaitpointSecrets};

use crate::engine::{Caller, Engine, Handle};
use crate::transaction::{Command, Tx};

impl Handle<RotateWaitpointSecret> for Engine {
    async fn handle(&self, _caller: &Caller, args: Args) -> Result<Outcome> {
        let _one_at_a_time = self.secret_state().begin_rotation()?;
        let grace_ms = args.grace_ms.unwrap_or(self.options().secret_grace_ms);
        self.transact(Partition::SYSTEM, self.fresh_command(), &Verb { args: &args, grace_ms }).await
    }
}

struct Verb<'a> {
    args: &'a Args,
    grace_ms: i64,
}

impl Command for Verb<'_> {
    type Outcome = Outcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Outcome> {
        let loaded = tx.load::<WaitpointSecrets>(WaitpointSecrets::key_of()).await?;
        let missing = || Error::new(Code::Internal, "no waitpoint secret is installed");
        let mut secrets = loaded.ok_or_else(missing)?.document;
        let outcome = secrets.rotate(&self.args.new_kid, &self.args.new_secret_hex.0, self.grace_ms, tx.now)?;
        if outcome.changed {
            tx.save(&secrets);
        }
        Ok(outcome)
    }
}
