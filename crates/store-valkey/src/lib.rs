//! FlowFabric on Valkey: standalone, a primary with replicas, or a Cluster.
//!
//! A commit is one call of one function on one hash slot (`lua/flowfabric.lua`), which commits that wait together share
//! (`joint`); every read is one read-only call. `commit` and `read` translate between the trait and those calls,
//! `apart` reads key by key while a slot moves, `barrier` confirms answers that needed no commit, `route` finds the
//! node and repeats calls that a changing deployment refuses, `topology` and `primary` know which server is in charge,
//! `connection` and `session` pipeline, `health` knows which servers can be reached, `watch` and `hint_gate` deliver hints, and `startup` checks the servers before the first
//! call.
//!
//! The client is our own, because three things must be exact: whether a request had been sent when its connection broke
//! (it did nothing, or its outcome is unknown), that a WAIT runs on the connection that wrote and serves a whole group
//! of commits, and that no commit is repeated without its caller's knowledge.

mod answer;
mod apart;
mod barrier;
mod call;
mod commit;
mod connection;
mod durability;
mod health;
mod hint_gate;
mod joint;
mod library;
mod packing;
mod preflight;
mod primary;
mod read;
mod refusal;
mod resp;
mod route;
mod session;
mod startup;
mod statistics;
mod store;
mod topology;
mod transport;
mod url;
mod watch;

pub use durability::Tier;
pub use statistics::CommandCost;
pub use store::ValkeyStore;
pub use url::{ClientCertificate, Options};
