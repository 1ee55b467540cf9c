//! The server over HTTP, as a client meets it.

mod slice;
mod support;
