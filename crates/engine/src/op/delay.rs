//! Releases the lease until an instant; the attempt stays open.

use ff_core::Result;
use ff_core::op::Delay;
use ff_core::op::delay::{Args, Outcome};

use crate::engine::{Caller, Engine, Handle};

impl Handle<Delay> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let holder = (&args.fence, args.new_entries()?);
        self.change_and_record(caller, &args.execution_id, holder, |execution, moment| {
            let until = args.until.unwrap_or_else(|| moment.now + args.delay_ms.unwrap_or(0));
            let at = execution.delay(&args.fence, until, moment.now, moment.effects)?;
            Ok(Outcome { at })
        })
        .await
    }
}
