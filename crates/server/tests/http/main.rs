//! The server over HTTP, as a client meets it.

mod clients;
mod metrics;
mod refusals;
mod sequences;
mod slice;
mod stream;
mod support;
mod sweep;
