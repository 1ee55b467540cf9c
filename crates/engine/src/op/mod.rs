//! The operations, by noun: load documents, call transitions, save. Decisions live in `ff-core`.

mod approval;
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

pub use event::EventWatch;
pub use hook::HookMessage;

use crate::engine::Caller;

/// A call as the command of a transaction: `impl Command for Request<'_, SomeOperation>` says what it does.
pub(crate) struct Request<'a, O: Operation> {
    /// On whose behalf the operation runs.
    pub(crate) caller: &'a Caller,
    /// What the operation was asked to do.
    pub(crate) args: &'a O::Args,
}
