//! The operations, by noun: load documents, call transitions, save. Decisions live in `ff-core`.

mod approval;
mod audit;
mod budget;
mod bulk;
mod capacity;
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
use futures_util::FutureExt as _;
use futures_util::future::{Either, ready};

pub use event::EventWatch;
pub use hook::HookMessage;

use crate::caller::Caller;
use crate::env::BoxFuture;
use crate::services::Services;

/// A call as the command of a transaction: `impl Command for Request<'_, SomeOperation>` says what it does.
pub(crate) struct Request<'a, O: Operation> {
    /// On whose behalf the operation runs.
    pub(crate) caller: &'a Caller,
    /// The arguments of the call.
    pub(crate) args: &'a O::Args,
}

/// Carries out one operation. Its implementation is in the file of its noun.
pub(crate) trait Handle<O: Operation> {
    /// Carries out the operation on behalf of a caller.
    fn handle(&self, caller: &Caller, args: O::Args) -> impl Future<Output = Result<O::Outcome>> + Send;
}

impl Services {
    /// Carries out an operation, and counts it.
    ///
    /// The two branches are separated before the future is made: a future with both would be compiled with both, even
    /// for the many operations that only ever take one of them.
    pub(crate) fn carry_out<'a, O: Operation>(
        &'a self,
        caller: &'a Caller,
        args: O::Args,
    ) -> BoxFuture<'a, Result<O::Outcome>>
    where
        Self: Handle<O>,
    {
        if O::ADMINISTRATIVE {
            return Box::pin(self.count(O::NAME, self.administer::<O>(caller, args)));
        }
        if O::AUDITED && O::is_audited(&args) {
            return Box::pin(self.count(O::NAME, self.administer::<O>(caller, args)));
        }
        Box::pin(self.count(O::NAME, self.perform::<O>(caller, args)))
    }

    /// Counts an operation by its outcome. It is no `async fn`, because that would hold the work
    /// twice: as its argument and as the awaited future.
    fn count<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T>>,
    ) -> impl Future<Output = Result<T>> {
        work.map(move |outcome| {
            self.transactor.metrics().operation(operation, outcome.as_ref().err().map(|error| error.code));
            outcome
        })
    }

    /// Carries out the operation if its arguments are valid and the caller has the role.
    pub(crate) fn perform<'a, O: Operation>(
        &'a self,
        caller: &'a Caller,
        args: O::Args,
    ) -> impl Future<Output = Result<O::Outcome>> + Send + 'a
    where
        Self: Handle<O>,
    {
        let allowed = allow(caller, O::role(&args), O::takes_any_role(&args), O::OWN);
        match allowed.and_then(|own| O::validate(&args).map(|()| own)) {
            Ok(None) => Either::Left(Handle::<O>::handle(self, caller, args)),
            Ok(Some(own)) => {
                let alone: BoxFuture<'a, _> = Box::pin(async move { Handle::<O>::handle(self, &own, args).await });
                Either::Right(alone)
            }
            Err(error) => Either::Right(Box::pin(ready(Err(error))) as BoxFuture<'a, _>),
        }
    }
}

/// Refuses a caller that may not do this. For an operation that a submitter may call on its own executions, it returns
/// a caller that is limited to those.
fn allow(caller: &Caller, required: Role, any_role: bool, own: bool) -> Result<Option<Caller>> {
    if any_role || caller.role.allows(required) {
        return Ok(None);
    }
    if own && caller.role == Role::Submitter {
        return Ok(Some(Caller { only_own: true, ..caller.clone() }));
    }
    let detail = format!("this needs the role {required}, the caller has {}", caller.role);
    Err(Error::new(Code::Forbidden, detail).with("required", required))
}
