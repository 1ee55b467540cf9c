//! The server over HTTP, as a client meets it.

mod metrics;
mod refusals;
mod slice;
mod stream;
mod support;
