//! The engine on the memory store under virtual time, in one test binary.
#![expect(clippy::disallowed_methods, reason = "a test moves virtual time and has patience in it")]

mod budgets;
mod delivery;
mod events;
mod execution;
mod explain;
mod flow_edges;
mod flow_storms;
mod flows;
mod gates;
mod grants;
mod isolation;
mod lanes;
mod leases;
mod limits;
mod lists;
mod metrics;
mod operator;
mod options;
mod quotas;
mod reconcile;
mod servers;
mod streams;
mod support;
mod suspend;
mod tokens;
mod transactions;
mod unreadable;
