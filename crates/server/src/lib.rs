//! FlowFabric's server: every operation of [`ff_core::op`] over HTTP, streams over SSE, tokens and roles, metrics, and
//! the configuration of it all.
//!
//! The modules are built one on another. At the bottom, `answer`, `arguments`, `body` and `cookie` know the parts of a request
//! and of a response; `origin` and `auth` say from where and by whom a call is made; `route` is the table of routes, made from
//! the list of operations; `sse` shows streams and events while they grow, `session` lets a browser call without keeping its
//! token, `dashboard` is what it shows. `http` sends each request to one of them, `http2` carries many of them
//! over one connection, `certificate` proves to clients which server they speak to, and `serve` owns the listener, the
//! connections and their limits, and the orderly end.

mod answer;
mod app;
mod arguments;
mod auth;
mod body;
mod certificate;
pub mod config;
mod cookie;
mod courier;
#[cfg(feature = "dashboard")]
mod dashboard;
mod explained;
mod feeds;
mod hooks;
mod http;
mod http2;
mod mcp;
pub mod metrics;
mod networks;
mod openapi;
mod origin;
mod queues;
mod route;
mod serve;
mod session;
mod shares;
mod sse;
mod strangers;
mod tls;
mod token_digest;
mod trace;
mod write_timeout;

pub use config::{Config, ConfigError, LogFormat, Settings, default_threads};
pub use serve::Server;
