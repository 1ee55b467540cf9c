//! FlowFabric for agent hosts: the Model Context Protocol over a deployment's operations.
//!
//! A kind of work that a worker has described is a tool, a call is an execution, and so is a task of the protocol: nothing
//! is kept here. [`Server`] speaks the protocol, `rmcp` carries it ([`http`], `stdio`), and everything it knows and does goes
//! through the operations of a [`Deployment`], with the caller's own authority.

mod call;
mod deployment;
mod error;
pub mod http;
mod message;
mod operator;
mod progress;
mod question;
mod resource;
mod result;
mod server;
#[cfg(feature = "stdio")]
pub mod stdio;
mod task;
mod tool;

pub use deployment::Deployment;
pub use server::{IDEMPOTENCY_KEY, Server};
