//! Replaces the tags of an execution.

use ff_core::Result;
use ff_core::op::SetTags;
use ff_core::op::set_tags::{Args, Outcome};

use crate::engine::{Caller, Engine, Handle};

impl Handle<SetTags> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        self.change(caller, &args.execution_id, None, |execution, moment| {
            execution.set_tags(args.tags.clone(), moment.now)?;
            Ok(Outcome { tags: execution.tags.clone() })
        })
        .await
    }
}
