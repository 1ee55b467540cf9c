//! The operations, by noun: load documents, call transitions, save. Decisions live in `ff-core`.

mod approval;
mod audit;
mod budget;
mod bulk;
mod continuation;
mod decision;
mod deployment;
mod ending;
pub(crate) mod event;
mod exchange;
pub(crate) mod execution;
mod flow;
mod fork;
mod grant;
mod hook;
mod journal;
mod lane;
mod lease;
mod provider;
mod quota;
mod schedule;
mod signal;
mod spend;
mod stream;
mod subscription;
mod test_clock;
mod ticket;
mod token;
mod tool;
mod waitpoint;
mod worker;

use ff_core::op::Operation;
use ff_core::{Code, Error, Result, Role};

pub use event::EventWatch;
pub use hook::HookMessage;

use crate::caller::Caller;
use crate::rooms::Rooms;

/// A call as the command of a transaction: `impl Command for Request<'_, SomeOperation>` says what it does.
pub(crate) struct Request<'a, O: Operation> {
    /// On whose behalf the operation runs.
    pub(crate) caller: &'a Caller,
    /// The arguments of the call.
    pub(crate) args: &'a O::Args,
}

/// Carries out one operation. Each stands in the file of its noun.
pub(crate) trait Handle<O: Operation> {
    /// Does it, on behalf of a caller.
    fn handle(&self, caller: &Caller, args: O::Args) -> impl Future<Output = Result<O::Outcome>> + Send;
}

impl Rooms {
    /// Carries out an operation, and counts it.
    pub(crate) async fn carry_out<O: Operation>(&self, caller: &Caller, args: O::Args) -> Result<O::Outcome>
    where
        Self: Handle<O>,
    {
        let started = self.transactor.env().now_us();
        let outcome = if O::is_audited(&args) {
            self.administer::<O>(caller, args).await
        } else {
            self.perform::<O>(caller, args).await
        };
        self.transactor.metrics().operation(
            O::NAME,
            outcome.as_ref().err().map(|error| error.code),
            self.transactor.env().now_us() - started,
        );
        outcome
    }

    /// Does it, if the arguments make sense and the caller may.
    pub(crate) async fn perform<O: Operation>(&self, caller: &Caller, args: O::Args) -> Result<O::Outcome>
    where
        Self: Handle<O>,
    {
        let required = O::role(&args);
        if O::takes_any_role(&args) || caller.role.allows(required) {
            O::validate(&args)?;
            return Handle::<O>::handle(self, caller, args).await;
        }
        // A submitter is let through, and refused where it comes to what somebody else submitted.
        if O::OWN && caller.role == Role::Submitter {
            O::validate(&args)?;
            let caller = Caller { only_own: true, ..caller.clone() };
            return Handle::<O>::handle(self, &caller, args).await;
        }
        let detail = format!("this needs the role {required}, the caller has {}", caller.role);
        Err(Error::new(Code::Forbidden, detail).with("required", required))
    }
}
