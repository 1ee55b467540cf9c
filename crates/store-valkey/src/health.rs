//! What is known of one server: whether it can be reached, and which of its processes is in charge.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::transport::DialError;

/// What all connections to one server have found: whether it can be reached, and which of its processes is in charge.
#[derive(Debug, Default)]
pub(crate) struct Health {
    outage: Mutex<Option<Outage>>,
    charge: Mutex<Charge>,
}

/// The process of a server that was found to be in charge, and since when another process has answered in its place.
#[derive(Debug, Default)]
struct Charge {
    trusted: Option<String>,
    replaced: Option<Instant>,
}

#[derive(Debug, Clone)]
struct Outage {
    since: Instant,
    why: DialError,
}

impl Health {
    /// How long ago the first failed attempt since the last success was. A server that must not be asked for data
    /// counts as one that does not answer.
    pub(crate) fn unreachable_for(&self) -> Option<Duration> {
        let outage = self.outage().as_ref().map(|outage| outage.since.elapsed());
        outage.max(self.charge().replaced.map(|since| since.elapsed()))
    }

    pub(crate) fn failed(&self, why: &DialError) {
        let mut outage = self.outage();
        let since = outage.as_ref().map_or_else(Instant::now, |outage| outage.since);
        *outage = Some(Outage { since, why: why.clone() });
    }

    pub(crate) fn reached(&self) {
        *self.outage() = None;
    }

    pub(crate) fn why(&self) -> Option<DialError> {
        self.outage().as_ref().map(|outage| outage.why.clone())
    }

    /// Notes that this process is in charge. Another process at the same address, after a restart, may have lost its
    /// data while another server took over.
    pub(crate) fn trust(&self, run_id: &str) {
        let mut charge = self.charge();
        charge.replaced = None;
        if charge.trusted.as_deref() != Some(run_id) {
            charge.trusted = Some(run_id.to_owned());
        }
    }

    pub(crate) fn trusts(&self, run_id: &str) -> bool {
        self.charge().trusted.as_deref() == Some(run_id)
    }

    /// A request for data has met a process that is not trusted.
    pub(crate) fn met_another(&self) {
        self.charge().replaced.get_or_insert_with(Instant::now);
    }

    fn charge(&self) -> MutexGuard<'_, Charge> {
        self.charge.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outage(&self) -> MutexGuard<'_, Option<Outage>> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
