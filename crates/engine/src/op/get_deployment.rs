//! Shows what a deployment is.

use std::sync::atomic::Ordering;

use ff_core::Result;
use ff_core::op::GetDeployment;
use ff_core::op::get_deployment::{Args, Outcome};

use crate::engine::{Caller, Engine, Handle};

impl Handle<GetDeployment> for Engine {
    async fn handle(&self, _caller: &Caller, _args: Args) -> Result<Outcome> {
        let info = self.store().info();
        Ok(Outcome {
            partitions: *self.partitions(),
            store: info.kind.to_string(),
            store_version: info.version,
            durability: info.durability,
            now: self.now(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            undecodable: self.metrics().undecodable.load(Ordering::Relaxed),
            undecodable_entries: self.metrics().undecodable_entries.entries(),
        })
    }
}
