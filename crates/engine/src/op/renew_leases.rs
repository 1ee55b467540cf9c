//! Renews leases, each on its own.

use ff_core::Result;
use ff_core::op::RenewLeases;
use ff_core::op::renew_leases::{Args, Outcome};

use crate::engine::{Caller, Engine, Handle};

impl Handle<RenewLeases> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        self.limits().renewals(&args.leases)?;
        Ok(Outcome { results: self.renew_all(caller, &args.leases).await })
    }
}
