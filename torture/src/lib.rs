//! Torture: servers, workers and stores are killed, stopped, cut off, filled and moved under a load that writes down every
//! answer it gets. Afterwards a checker that sees only the history and the state at the end judges every rule.
//!
//! A load without faults shows nothing, and a checker that never finds anything may be blind: the controls run on stores
//! that forget what they acknowledged, and must fail.

mod build;
pub mod caller;
pub mod campaign;
pub mod check;
mod command;
pub mod count;
pub mod crew;
pub mod fault;
pub mod fleet;
pub mod history;
pub mod http;
pub mod instant;
pub mod nemesis;
pub mod options;
pub mod outcome;
pub mod random;
mod recovery;
pub mod rows;
pub mod score;
pub mod store;
pub mod workload;

pub use command::torture;
pub use recovery::recovery;
pub use workload::work_if_asked;
