//! The simulator: many engines, workers and clients on one memory store, in one thread, on virtual time.
//!
//! A seed decides everything: which task runs next, which call is slow or lost, which server dies at which await, when
//! the clock jumps and when the store forgets. The checkers look at every commit and at everything that was
//! acknowledged; when the storm is over, all work must come to its end. A failing seed replays exactly.

mod checker;
mod client;
mod clocks;
mod defects;
mod desk;
mod executor;
mod gates;
pub mod guards;
mod history;
pub mod invariant;
pub mod jobs;
mod journal;
mod newer;
mod operator;
pub mod planted;
mod profile;
mod random;
mod reviver;
pub mod run;
mod signaller;
mod store;
mod subscriber;
mod sweeper;
mod timetable;
mod trouble;
mod viewer;
mod visitor;
mod worker;
mod world;
