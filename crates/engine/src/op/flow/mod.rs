//! Operations on flows, their members, and the edges between these.

pub(crate) mod edge;
mod graph;
mod member;
