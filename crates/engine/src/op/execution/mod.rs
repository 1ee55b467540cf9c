//! Operations on executions.

mod change;
mod counts;
pub(crate) mod create;
mod explain;
mod namespaces;
mod read;
mod remove;
mod search;
