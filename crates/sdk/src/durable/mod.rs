//! Durable steps: a handler that is called again from its first line finds the results of its steps in its journal.
//!
//! [`Steps`] (in `book`) is what one call of a handler knows of its journal. `step` runs code once, `wait` waits for an
//! instant, a signal or a child, `provider` waits for its turn at a provider, `value` draws the time and random values,
//! `race` lets branches compete, `drive` calls the handler and parks it when every branch of it waits, and `watcher`
//! lets tests observe all that.

mod book;
mod drive;
mod provider;
mod race;
mod step;
mod value;
mod wait;
mod watcher;

pub(crate) use book::Steps;
pub(crate) use drive::drive;
pub use provider::{Acquire, Metered, Permit};
pub use race::Race;
pub(crate) use race::join;
pub use step::{OnChange, OnDoubt, Retry, Step};
pub use wait::{ChildCall, SignalWait, Waitpoint};
pub use watcher::Moment;
pub(crate) use watcher::Watcher;
