//! Operations on executions.

mod change;
pub(crate) mod create;
mod explain;
mod read;
