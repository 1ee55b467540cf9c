//! A connection for the length of a command.

use std::time::Duration;

use flowfabric::{Client, RetryPolicy};

use crate::failure::Result;
use crate::output::Output;
use crate::target::{Destination, Target};

/// A person waits for the answer: a server that is not there is told soon.
const IMPATIENT: RetryPolicy = RetryPolicy {
    initial_backoff: Duration::from_millis(50),
    max_backoff: Duration::from_millis(400),
    max_elapsed: Duration::from_secs(1),
};

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
        let client = connect(&destination, IMPATIENT).await?;
        Ok(Self { client, out: target.output(), destination })
    }

    /// The session for a command that may take long: a server that restarts meanwhile is waited for. A store in this
    /// process never goes away by itself.
    pub(crate) async fn patient(self) -> Result<Self> {
        if self.client.engine().is_some() {
            return Ok(self);
        }
        let client = connect(&self.destination, RetryPolicy::default()).await?;
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

async fn connect(destination: &Destination, retry: RetryPolicy) -> Result<Client> {
    let mut builder = Client::builder(&destination.server).retry(retry);
    // A store has a password of its own, in its address.
    if let Some(token) = destination.token.as_ref().filter(|_| is_server(&destination.server)) {
        builder = builder.token(&token.0);
    }
    if let Some(namespace) = &destination.namespace {
        builder = builder.namespace(namespace);
    }
    Ok(builder.connect().await?)
}
