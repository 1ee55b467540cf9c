//! Callers without an API token that bring a waitpoint's: people with a mailed link, and webhooks. They have few places
//! and an allowance for each address, so that a caller that tries tokens out does it slowly and takes nothing from the
//! others.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use ff_core::{Code, Error, Result};
use tokio::time::Instant;

use crate::shares::{Full, Place, Shares, network};

/// Calls at once.
const PLACES: usize = 64;
/// Calls at once from one address.
const PLACES_PER_ADDRESS: usize = 8;
/// How long the body of such a call may take to arrive: it is a few hundred bytes.
pub(crate) const BODY_TIMEOUT: Duration = Duration::from_secs(2);
/// Calls an address may make in a row.
const BURST: f64 = 50.0;
/// Calls an address earns in a second.
const PER_SECOND: f64 = 10.0;
/// Addresses that are remembered; past it those that have earned everything back are forgotten, and if none has, all.
const ADDRESSES_MAX: usize = 10_000;

/// The allowances that addresses have left, and which calls are inside.
pub(crate) struct Strangers {
    allowances: Mutex<BTreeMap<IpAddr, Allowance>>,
    inside: Shares<IpAddr>,
}

impl Default for Strangers {
    fn default() -> Self {
        Self { allowances: Mutex::default(), inside: Shares::new(PLACES, PLACES_PER_ADDRESS) }
    }
}

struct Allowance {
    left: f64,
    at: Instant,
}

impl Allowance {
    fn at(&self, now: Instant) -> f64 {
        (self.left + now.duration_since(self.at).as_secs_f64() * PER_SECOND).min(BURST)
    }
}

impl Strangers {
    /// A place for a call whose request has arrived. One address cannot take those of all.
    pub(crate) fn enter(&self, address: IpAddr) -> Result<Place<IpAddr>> {
        self.inside.enter(network(address)).map_err(|(Full::All(max) | Full::Share(max))| {
            let detail = format!("all {max} places for callers without an API token are taken");
            let refusal = Error::new(Code::ConcurrencyLimitExceeded, detail);
            refusal.with("pool", "strangers").with("max", max).retry_after(1_000)
        })
    }

    /// Takes one call of an address's allowance.
    pub(crate) fn take(&self, address: IpAddr, now: Instant) -> Result<()> {
        let mut allowances = self.allowances.lock().expect("no holder of this lock panics");
        if allowances.len() >= ADDRESSES_MAX {
            allowances.retain(|_, allowance| allowance.at(now) < BURST);
            if allowances.len() >= ADDRESSES_MAX {
                allowances.clear();
            }
        }
        let allowance = allowances.entry(network(address)).or_insert(Allowance { left: BURST, at: now });
        let left = allowance.at(now);
        *allowance = Allowance { left: left.max(1.0) - 1.0, at: now };
        if left >= 1.0 {
            return Ok(());
        }
        let detail = "too many calls without an API token come from this address";
        Err(Error::new(Code::ConcurrencyLimitExceeded, detail).with("pool", "strangers").retry_after(1_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_asks_too_often_waits_and_others_do_not() {
        let (allowances, began) = (Strangers::default(), Instant::now());
        let (one, neighbour, other): (IpAddr, IpAddr, IpAddr) =
            ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap(), "192.0.2.1".parse().unwrap());
        let mut taken = 0;
        while allowances.take(one, began).is_ok() {
            taken += 1;
        }
        assert_eq!(f64::from(taken), BURST);
        assert_eq!(allowances.take(neighbour, began).unwrap_err().details["pool"], "strangers");
        assert!(allowances.take(other, began).is_ok());
        assert!(allowances.take(one, began + Duration::from_secs(1)).is_ok());
    }
}
