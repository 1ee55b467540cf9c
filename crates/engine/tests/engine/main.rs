//! The engine on the memory store under virtual time, in one test binary.
#![expect(clippy::disallowed_methods, reason = "a test moves virtual time and has patience in it")]

mod budgets;
mod clocks;
mod confirmation;
mod delivery;
mod events;
mod evidence;
mod execution;
mod explain;
mod flow_edges;
mod flow_storms;
mod flows;
mod gates;
mod grants;
mod isolation;
mod journal;
mod lanes;
mod leases;
mod leaving;
mod limits;
mod lists;
mod metrics;
mod operator;
mod options;
mod outages;
mod quotas;
mod reconcile;
mod recovery;
mod servers;
mod streams;
mod support;
mod suspend;
mod tokens;
mod transactions;
mod turns;
mod unreadable;
