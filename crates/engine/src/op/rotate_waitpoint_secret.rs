//! Signs new waitpoint tokens with a new secret; the old one verifies for the grace.

use std::sync::Mutex;

use ff_core::op::RotateWaitpointSecret;
use ff_core::op::rotate_waitpoint_secret::{Args, Outcome};
use ff_core::{Code, Error, Partition, Result, WaitpointSecrets};

use crate::engine::{Caller, Engine, Handle};
use crate::secrets::already_rotating;
use crate::transaction::{Command, Tx};

impl Handle<RotateWaitpointSecret> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        if let Some(namespace) = &caller.namespace {
            let detail =
                format!("the secret signs tokens of all namespaces, and this token reaches {namespace:?} only");
            return Err(Error::new(Code::Forbidden, detail));
        }
        let _one_at_a_time = self.secret_state().begin_rotation()?;
        let grace_ms = args.grace_ms.unwrap_or(self.options().secret_grace_ms);
        let identity = self.callers_identity::<RotateWaitpointSecret>(caller, &args, None);
        self.transact_once(Partition::SYSTEM, identity, &Verb { args: &args, grace_ms, found: Mutex::default() }).await
    }
}

struct Verb<'a> {
    args: &'a Args,
    grace_ms: i64,
    /// The kid that signed when this rotation began.
    found: Mutex<Option<String>>,
}

impl Command for Verb<'_> {
    type Outcome = Outcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Outcome> {
        let loaded = tx.load::<WaitpointSecrets>(WaitpointSecrets::key_of()).await?;
        let missing = || Error::new(Code::Internal, "no waitpoint secret is installed");
        let mut secrets = loaded.ok_or_else(missing)?.document;
        // Rotations of one process wait for nobody; those of several are told apart here, by the store: whoever finds
        // that another has come first in the meantime was not alone.
        let found = self
            .found
            .lock()
            .expect("no holder of this lock panics")
            .get_or_insert_with(|| secrets.current.clone())
            .clone();
        if secrets.current != found && secrets.current != self.args.new_kid {
            return Err(already_rotating());
        }
        let outcome = secrets.rotate(&self.args.new_kid, &self.args.new_secret_hex.0, self.grace_ms, tx.now)?;
        if outcome.changed {
            tx.save(&secrets);
        }
        Ok(outcome)
    }
}
