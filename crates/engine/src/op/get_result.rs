//! Fetches the result of an execution.

use ff_core::op::GetResult;
use ff_core::op::get_result::Args;
use ff_core::op::parts::Content;
use ff_core::{Code, Error, Result};

use super::payload::Which;
use crate::engine::{Caller, Engine, Handle};

impl Handle<GetResult> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Content> {
        let (execution, _) = self.visible_execution(caller, &args.execution_id).await?;
        match &execution.result {
            Some(result) => self.content(Which::Result, &execution.id, result).await,
            None => {
                let code = if execution.is_terminal() { Code::NoResult } else { Code::ResultNotReady };
                Err(Error::of(code).with("public_state", execution.public_state()))
            }
        }
    }
}
