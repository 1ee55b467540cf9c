//! The views of documents that answers show. They are copies made for the caller; nothing in the system is decided by
//! them.

mod execution;
mod flow;
mod journal;
mod schedule;
mod subscription;

pub use execution::*;
pub use flow::*;
pub use journal::*;
pub use schedule::*;
pub use subscription::*;
