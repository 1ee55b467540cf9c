//! The server over HTTP, as a client meets it.

mod approvals;
mod authority;
mod balancer;
mod canary;
mod clients;
mod hooks;
mod journal;
mod manners;
mod mcp;
mod metrics;
mod reference;
mod refusals;
mod removals;
mod repeats;
mod search;
mod sequences;
mod session;
mod slice;
mod strangers;
mod stream;
mod support;
mod sweep;
mod test_clock;
mod traces;
mod webhooks;
