//! Shows what a deployment is.

use ff_core::Result;
use ff_core::op::GetDeployment;
use ff_core::op::get_deployment::{Args, Outcome};

use crate::engine::{Caller, Engine, Handle};

impl Handle<GetDeployment> for Engine {
    async fn handle(&self, _caller: &Caller, _args: Args) -> Result<Outcome> {
        Ok(Outcome {
            partitions: *self.partitions(),
            store: self.store().info().kind.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }
}
