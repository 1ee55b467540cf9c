//! The parts of a worker that its tasks use. The worker is built on tasks, so it comes in from above.

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

    /// Whether an ending may bring the next task.
    fn exchanges_endings(&self) -> bool;

    /// Ends a task together with others that end now, and gives its place to the next.
    fn exchange(
        self: Arc<Self>,
        ending: ExchangeEnding,
        place: OwnedSemaphorePermit,
    ) -> BoxFuture<'static, Result<Exchanged>>;
}

/// The outcome of an ending. The place is there if the task may still need it.
pub(crate) enum Exchanged {
    /// Its answer, or what it was refused for.
    Answered(ExchangeEnded, Option<OwnedSemaphorePermit>),
    /// It has to be sent by itself.
    Alone(ExchangeEnding, OwnedSemaphorePermit),
    /// It is not known whether it took effect.
    Lost(SdkError),
}
