//! Servers that tests start for themselves, on free ports of 127.0.0.1, and that end with the test.
//!
//! A missing server program is a failure with a message that says how to get it, never a silent skip.

pub mod fuzz;
mod port;
pub mod postgres;
pub mod proxy;
pub mod valkey;
