//! FlowFabric's server: every operation of [`ff_core::op`] over HTTP, streams over SSE, tokens and roles, metrics, and
//! the configuration of it all.
//!
//! `http` turns a request into the arguments of an operation and its answer into a response; the routes are made from
//! the list of operations. `sse` shows streams and events while they grow. `auth` says who calls, `session` lets a
//! browser call without keeping its token, `dashboard` is what it shows. `serve` owns the listener, the connections and
//! their limits, and the orderly end.

mod app;
pub mod auth;
pub mod config;
#[cfg(feature = "dashboard")]
mod dashboard;
mod http;
pub mod metrics;
pub mod openapi;
mod patience;
mod queues;
mod serve;
mod session;
mod sse;
mod strangers;
mod trace;

pub use config::{Config, ConfigError, LogFormat, Settings};
pub use serve::Server;
