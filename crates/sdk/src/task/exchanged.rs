//! Endings that go out in an exchange: their permit passes to the task that comes back.

use std::sync::atomic::Ordering;

use ff_core::op::{
    CancelExecution, Complete, ContinueAsNew, Delay, ExchangeEnded, ExchangeEnding, Fail, Operation, Park, Suspend,
    WaitChildren,
};
use ff_engine::{Engine, Serves};
use tokio::sync::OwnedSemaphorePermit;

use super::{ClaimedTask, Exchanged};
use crate::error::{Result, SdkError};

/// An operation that is also a part of exchanges.
pub(crate) trait Ending: Operation {
    /// The part of an exchange that does the same as this operation.
    fn part(args: Self::Args) -> ExchangeEnding;
    /// The arguments of such a part.
    fn args(part: ExchangeEnding) -> Option<Self::Args>;
    /// The answer of such a part.
    fn outcome(ended: ExchangeEnded) -> Option<Self::Outcome>;
}

macro_rules! endings {
    ($($operation:ident as $part:ident;)*) => {
        $(
            impl Ending for $operation {
                fn part(args: Self::Args) -> ExchangeEnding {
                    ExchangeEnding::$part(args)
                }

                fn args(part: ExchangeEnding) -> Option<Self::Args> {
                    match part {
                        ExchangeEnding::$part(args) => Some(args),
                        _ => None,
                    }
                }

                fn outcome(ended: ExchangeEnded) -> Option<Self::Outcome> {
                    match ended {
                        ExchangeEnded::$part(outcome) => Some(outcome),
                        _ => None,
                    }
                }
            }
        )*
    };
}

endings! {
    Complete as Complete;
    Fail as Fail;
    Delay as Delay;
    WaitChildren as WaitChildren;
    Park as Park;
    ContinueAsNew as ContinueAsNew;
    CancelExecution as Cancel;
}

impl Ending for Suspend {
    fn part(args: Self::Args) -> ExchangeEnding {
        ExchangeEnding::Suspend(Box::new(args))
    }

    fn args(part: ExchangeEnding) -> Option<Self::Args> {
        match part {
            ExchangeEnding::Suspend(args) => Some(*args),
            _ => None,
        }
    }

    fn outcome(ended: ExchangeEnded) -> Option<Self::Outcome> {
        match ended {
            ExchangeEnded::Suspend(outcome) => Some(outcome),
            _ => None,
        }
    }
}

impl ClaimedTask {
    /// Notes that a handler works with the task from now on, or no longer does.
    pub(crate) fn set_lent(&self, lent: bool) {
        self.lent.store(lent, Ordering::Relaxed);
    }

    /// The permit of the task, if it is free as soon as the task has ended and the worker takes another task for it.
    pub(super) fn place_to_pass_on(&self) -> Option<OwnedSemaphorePermit> {
        if self.lent.load(Ordering::Relaxed) { None } else { self.place() }
    }

    /// The permit of the task, whether or not a handler works with the task.
    pub(super) fn place(&self) -> Option<OwnedSemaphorePermit> {
        let exchanges = self.core.holder.exchanges_endings();
        exchanges.then(|| self.permit.lock().expect("no holder of this lock panics").take()).flatten()
    }

    /// Ends the task in an exchange, or by itself if an exchange cannot. A task that stays in hand gets its permit
    /// back.
    pub(super) async fn exchange<O: Ending>(&self, args: O::Args, place: OwnedSemaphorePermit) -> Result<O::Outcome>
    where
        Engine: Serves<O>,
    {
        let keep = |place| *self.permit.lock().expect("no holder of this lock panics") = place;
        let told = match self.core.holder.clone().exchange(O::part(args), place).await? {
            Exchanged::Answered(told, place) => {
                keep(place);
                told
            }
            Exchanged::Alone(part, place) => {
                keep(Some(place));
                let args = O::args(part).ok_or_else(mixed_up)?;
                // Boxed, because it is rare, and each task of a runtime holds this future.
                return Box::pin(self.core.call::<O>(args)).await;
            }
            Exchanged::Lost(error) => return Err(error),
        };
        self.core.noted(match told {
            ExchangeEnded::Problem(error) => Err(error.into()),
            ended => O::outcome(ended).ok_or_else(mixed_up),
        })
    }
}

fn mixed_up() -> SdkError {
    SdkError::Unreadable("the parts of an exchange are mixed up".into())
}
