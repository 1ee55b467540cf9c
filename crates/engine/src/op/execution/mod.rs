//! Operations on executions.

pub(crate) mod change;
mod counts;
pub(crate) mod create;
mod explain;
mod namespaces;
mod read;
mod remove;
pub(crate) mod search;
