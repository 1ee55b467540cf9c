//! A connection for the length of a command.

use std::time::Duration;

use flowfabric::{Client, ClientBuilder, RetryPolicy};

use crate::failure::Result;
use crate::output::Output;
use crate::target::{Destination, Target};

/// A person waits for the answer: a server that is not there is told soon.
const IMPATIENT: RetryPolicy = RetryPolicy {
    initial_backoff: Duration::from_millis(50),
    max_backoff: Duration::from_millis(400),
    max_elapsed: Duration::from_secs(1),
};

/// The same for a store in this process that would be waited for: it may be about to start, but not for long.
const STORE_PATIENCE: &str = "startup_timeout_ms=3000";

/// The parts that a command works with.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) out: Output,
    destination: Destination,
}

impl Session {
    /// Connects to what the options say.
    pub(crate) async fn open(target: &Target) -> Result<Self> {
        let destination = target.destination()?;
        let out = target.output();
        let builder = builder(&destination, IMPATIENT);
        if builder.exposes_token() {
            out.note("The token goes to another machine over plain HTTP, where others may read it: use https://.");
        }
        let client = builder.connect().await?;
        Ok(Self { client, out, destination })
    }

    /// The session for a command that may take long: a server that restarts meanwhile is waited for. A store in this
    /// process never goes away by itself.
    pub(crate) async fn patient(self) -> Result<Self> {
        if self.client.engine().is_some() {
            return Ok(self);
        }
        let client = builder(&self.destination, RetryPolicy::default()).connect().await?;
        Ok(Self { client, ..self })
    }

    /// The address, without a password.
    pub(crate) fn address(&self) -> String {
        ff_stores::redacted(&self.destination.server)
    }
}

/// Whether an address names a server, and not a store.
pub(crate) fn is_server(address: &str) -> bool {
    address.starts_with("http://") || address.starts_with("https://")
}

/// The address of a store that says how long it is waited for, unless it says so already.
fn impatient(address: &str) -> String {
    let waits = address.starts_with("valkey://") || address.starts_with("valkeys://");
    if !waits || address.contains("startup_timeout_ms=") {
        return address.to_owned();
    }
    format!("{address}{}{STORE_PATIENCE}", if address.contains('?') { '&' } else { '?' })
}

fn builder(destination: &Destination, retry: RetryPolicy) -> ClientBuilder {
    let mut builder = Client::builder(&impatient(&destination.server)).retry(retry);
    // A store has a password of its own, in its address.
    if let Some(token) = destination.token.as_ref().filter(|_| is_server(&destination.server)) {
        builder = builder.token(&token.0);
    }
    if let Some(ca_file) = &destination.ca_file {
        builder = builder.ca_file(ca_file);
    }
    if let Some(namespace) = &destination.namespace {
        builder = builder.namespace(namespace);
    }
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_waited_for_as_long_as_its_address_says_and_not_long_otherwise() {
        assert_eq!(impatient("valkey://h:1"), "valkey://h:1?startup_timeout_ms=3000");
        assert_eq!(impatient("valkeys://h:1?cluster=true"), "valkeys://h:1?cluster=true&startup_timeout_ms=3000");
        for same in ["valkey://h:1?startup_timeout_ms=9", "postgres://h/d", "sqlite://./x.db", "http://h:1"] {
            assert_eq!(impatient(same), same);
        }
    }
}
