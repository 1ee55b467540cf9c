//! Places that callers share. There is a number for all of them, and a smaller one for each, so that one caller cannot
//! take the places of all.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// Places, taken by callers that a key tells apart.
pub(crate) struct Shares<K: Ord> {
    all: usize,
    each: usize,
    taken: Arc<Mutex<Taken<K>>>,
}

struct Taken<K: Ord> {
    total: usize,
    /// Only callers that have a place are in here.
    by_caller: BTreeMap<K, usize>,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// All places are taken.
    All(usize),
    /// The caller has its share.
    Share(usize),
}

/// A place, until it is dropped.
pub(crate) struct Place<K: Ord> {
    taken: Arc<Mutex<Taken<K>>>,
    caller: K,
}

impl<K: Ord + Clone> Shares<K> {
    /// So many places for all, and so many of them for each caller.
    pub(crate) fn new(all: usize, each: usize) -> Self {
        Self { all, each, taken: Arc::new(Mutex::new(Taken { total: 0, by_caller: BTreeMap::new() })) }
    }

    /// A place for this caller.
    pub(crate) fn enter(&self, caller: K) -> Result<Place<K>, Full> {
        let mut taken = self.taken.lock().expect("no holder of this lock panics");
        if taken.by_caller.get(&caller).is_some_and(|own| *own >= self.each) {
            return Err(Full::Share(self.each));
        }
        if taken.total >= self.all {
            return Err(Full::All(self.all));
        }
        taken.total += 1;
        *taken.by_caller.entry(caller.clone()).or_default() += 1;
        drop(taken);
        Ok(Place { taken: self.taken.clone(), caller })
    }

    /// Places that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken.lock().expect("no holder of this lock panics").total
    }
}

impl<K: Ord> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().expect("no holder of this lock panics");
        taken.total -= 1;
        match taken.by_caller.get_mut(&self.caller) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(taken.by_caller.remove(&self.caller)),
        }
    }
}

/// The address by which a client is known. One with IPv6 has more addresses than a server can remember: its network
/// counts.
pub(crate) fn network(address: IpAddr) -> IpAddr {
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
    fn one_caller_does_not_take_the_places_of_all() {
        let shares = Shares::new(5, 2);
        let mut places = vec![shares.enter("a").unwrap(), shares.enter("a").unwrap()];
        assert_eq!(shares.enter("a").err(), Some(Full::Share(2)));
        places.extend([shares.enter("b").unwrap(), shares.enter("b").unwrap(), shares.enter("c").unwrap()]);
        assert_eq!((shares.enter("c").err(), shares.taken()), (Some(Full::All(5)), 5));
        drop(places.remove(0));
        places.push(shares.enter("a").unwrap());
        drop(places);
        assert_eq!(shares.taken(), 0);
        assert!(shares.taken.lock().unwrap().by_caller.is_empty(), "nothing is kept of those that left");
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let network_of = |address: &str| network(address.parse().unwrap());
        assert_eq!(network_of("2001:db8::1"), network_of("2001:db8::2"));
        assert_ne!(network_of("192.0.2.1"), network_of("192.0.2.2"));
        assert_eq!(network_of("::ffff:192.0.2.1"), network_of("192.0.2.1"));
    }
}
