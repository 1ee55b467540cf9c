//! Operations on flows, their members, and the edges between these.

mod close;
pub(crate) mod edge;
pub(crate) mod graph;
mod member;
mod remove;
