//! Durable steps: a handler that is called again from its first line finds what it already did in its journal.
//!
//! [`Steps`] is what one call of a handler knows of its journal. `step` runs code once, `wait` waits for an instant, a
//! signal or a child, and `drive` calls the handler and parks it when every branch of it waits.

mod book;
mod drive;
mod step;
mod wait;

pub(crate) use book::Steps;
pub(crate) use drive::drive;
pub use step::{OnChange, OnDoubt, Retry, Step};
pub use wait::{ChildCall, SignalWait};
