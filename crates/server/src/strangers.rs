//! Callers without an API token that bring a waitpoint's: people with a mailed link, and webhooks. They have few places
//! and an allowance for each address, so that a caller that tries tokens out does it slowly and takes nothing from the
//! others.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ff_core::{Code, Error, Result};
use tokio::time::Instant;

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
#[derive(Default)]
pub(crate) struct Strangers {
    allowances: Mutex<BTreeMap<IpAddr, Allowance>>,
    inside: Arc<Mutex<BTreeMap<IpAddr, usize>>>,
}

/// A place of a call, until it is dropped.
pub(crate) struct Place {
    inside: Arc<Mutex<BTreeMap<IpAddr, usize>>>,
    address: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inside = self.inside.lock().expect("no holder of this lock panics");
        match inside.get_mut(&self.address) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(inside.remove(&self.address)),
        }
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
    pub(crate) fn enter(&self, address: IpAddr) -> Result<Place> {
        let address = network(address);
        let mut inside = self.inside.lock().expect("no holder of this lock panics");
        let (all, own) = (inside.values().sum::<usize>(), inside.get(&address).copied().unwrap_or(0));
        if all >= PLACES || own >= PLACES_PER_ADDRESS {
            let max = if own >= PLACES_PER_ADDRESS { PLACES_PER_ADDRESS } else { PLACES };
            let detail = format!("all {max} places for callers without an API token are taken");
            let refusal = Error::new(Code::ConcurrencyLimitExceeded, detail);
            return Err(refusal.with("pool", "strangers").with("max", max).retry_after(1_000));
        }
        *inside.entry(address).or_default() += 1;
        Ok(Place { inside: self.inside.clone(), address })
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

/// A client with IPv6 has more addresses than a server can remember: the network counts.
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

    #[test]
    fn one_address_does_not_take_the_places_of_all() {
        let strangers = Strangers::default();
        let address = |number: usize| -> IpAddr { format!("192.0.2.{number}").parse().unwrap() };
        let mut places: Vec<Place> = (0..PLACES_PER_ADDRESS).map(|_| strangers.enter(address(1)).unwrap()).collect();
        assert_eq!(strangers.enter(address(1)).err().unwrap().details["max"], PLACES_PER_ADDRESS);
        places.push(strangers.enter(address(2)).unwrap());
        drop(places.remove(0));
        places.push(strangers.enter(address(1)).unwrap());
        for number in 3.. {
            match strangers.enter(address(number)) {
                Ok(place) => places.push(place),
                Err(full) => {
                    assert_eq!(full.details["max"], PLACES);
                    break;
                }
            }
        }
        assert_eq!(places.len(), PLACES);
        drop(places);
        assert!(strangers.inside.lock().unwrap().is_empty(), "nothing is kept of those that left");
    }
}
