//! Waits until an execution has ended, or the time is up.

use ff_core::Result;
use ff_core::execution::Execution;
use ff_core::op::WaitExecution;
use ff_core::op::wait_execution::{Args, Outcome};

use super::view;
use crate::engine::{Caller, Engine, Handle};
use crate::env;

impl Handle<WaitExecution> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let id = &args.execution_id;
        self.check_id(id)?;
        let wait_ms = self.limits().tail_wait("wait_ms", args.wait_ms.unwrap_or(self.limits().tail_wait_max_ms))?;
        let deadline = self.env().now_ms() + wait_ms;
        let mut listener = self.listen_to(id.partition(), Execution::key_of(id));
        loop {
            self.refuse_if_closing()?;
            let (execution, lease_until) = self.visible_execution(caller, id).await?;
            let left = deadline - self.env().now_ms();
            if execution.is_terminal() || left <= 0 {
                let terminal = execution.is_terminal();
                return Ok(Outcome { terminal, execution: view::execution(&execution, lease_until) });
            }
            env::within(self.env_handle(), left, listener.changed()).await;
        }
    }
}
