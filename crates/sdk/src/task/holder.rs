//! The parts of a worker that its tasks use, as a trait: the module `worker` is built on `task`, so `task` must not
//! know it.

use std::sync::Arc;

use ff_core::op::{ExchangeEnded, ExchangeEnding};
use ff_engine::env::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;

use super::lease::Leases;
use crate::client::Client;
use crate::error::{Result, SdkError};

/// The worker, as its tasks see it.
pub(crate) trait Holder: Send + Sync {
    /// The client it works through.
    fn client(&self) -> &Client;

    /// The leases it renews.
    fn leases(&self) -> &Leases;

    /// Whether endings go out in exchanges, which bring the next task.
    fn exchanges_endings(&self) -> bool;

    /// Ends a task together with others that end now, and passes its permit to the next.
    fn exchange(
        self: Arc<Self>,
        ending: ExchangeEnding,
        place: OwnedSemaphorePermit,
    ) -> BoxFuture<'static, Result<Exchanged>>;
}

/// The outcome of an ending in an exchange. The permit is present if the task may still need it.
pub(crate) enum Exchanged {
    /// The answer or the refusal.
    Answered(ExchangeEnded, Option<OwnedSemaphorePermit>),
    /// The ending has to be sent in a call of its own.
    Alone(ExchangeEnding, OwnedSemaphorePermit),
    /// It is not known whether the ending took effect.
    Lost(SdkError),
}
