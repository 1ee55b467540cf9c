//! Removes a registration: by the process itself when it stops, or by an operator. Leases are not touched.

use ff_core::op::DeregisterWorker;
use ff_core::op::deregister_worker::{Args, Outcome};
use ff_core::worker::Worker;
use ff_core::{Key, Partition, Result};

use crate::engine::{Caller, Engine, Handle};
use crate::transaction::{Command, Tx};

impl Handle<DeregisterWorker> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let key = Worker::key_of(&namespace, &args.instance_id);
        self.registry().forget(&key);
        let verb = Verb { key, nonce: args.nonce.as_deref() };
        self.transact(Partition::SYSTEM, self.fresh_command(), &verb).await
    }
}

struct Verb<'a> {
    key: Key,
    nonce: Option<&'a str>,
}

impl Command for Verb<'_> {
    type Outcome = Outcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Outcome> {
        let Some(loaded) = tx.load::<Worker>(self.key.clone()).await? else { return Ok(Outcome { changed: false }) };
        loaded.document.check_deregister(self.nonce)?;
        tx.delete(&self.key);
        Ok(Outcome { changed: true })
    }
}
