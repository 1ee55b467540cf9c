//! The SDK from the outside, in process and over HTTP.

mod changes;
mod client;
mod crash;
mod exchange;
mod gathering;
mod logs;
mod lost_replies;
mod newer_server;
mod providers;
mod round_trips;
mod runtime;
mod steps;
mod support;
mod testing;
mod worker;
