//! The SDK from the outside, in process and over HTTP.

mod client;
mod support;
mod worker;
