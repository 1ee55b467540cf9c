//! Callers without an API token who bring a waitpoint's: people with a mailed link, and webhooks. They have few places and
//! an allowance for each address, so that whoever tries tokens out does it slowly and takes nothing from the others.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Mutex;

use ff_core::{Code, Error, Result};
use tokio::time::Instant;

/// Calls at once.
pub(crate) const PLACES: usize = 64;
/// Calls an address may make in a row.
const BURST: f64 = 50.0;
/// Calls an address earns in a second.
const PER_SECOND: f64 = 10.0;
/// Addresses that are remembered; past it those that have earned everything back are forgotten, and if none has, all.
const ADDRESSES_MAX: usize = 10_000;

/// What addresses have left.
#[derive(Default)]
pub(crate) struct Allowances(Mutex<BTreeMap<IpAddr, Allowance>>);

struct Allowance {
    left: f64,
    at: Instant,
}

impl Allowance {
    fn at(&self, now: Instant) -> f64 {
        (self.left + now.duration_since(self.at).as_secs_f64() * PER_SECOND).min(BURST)
    }
}

impl Allowances {
    /// Takes one call of an address's allowance.
    pub(crate) fn take(&self, address: IpAddr, now: Instant) -> Result<()> {
        let mut allowances = self.0.lock().expect("no holder of this lock panics");
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

/// Somebody with IPv6 has more addresses than anybody could remember: the network counts.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let mut segments = address.segments();
            segments[4..].fill(0);
            IpAddr::V6(segments.into())
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_address_that_asks_too_often_waits_and_others_do_not() {
        let (allowances, began) = (Allowances::default(), Instant::now());
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
