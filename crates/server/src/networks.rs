//! Which addresses webhooks may go to. A caller that may create a subscription must not be able to reach through the
//! server what only the server can reach: its own machine, its network, and the services that clouds put on link-local
//! addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Addresses that begin alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Network {
    address: IpAddr,
    prefix: u32,
}

impl Network {
    fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - self.prefix).unwrap_or(0);
                u32::from(network) & mask == u32::from(address) & mask
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - self.prefix).unwrap_or(0);
                u128::from(network) & mask == u128::from(address) & mask
            }
            _ => false,
        }
    }
}

/// `10.0.0.0/8`, or one address.
impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || format!("{text:?} is neither an address nor a network such as 10.0.0.0/8");
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.trim().parse().map_err(|_| refuse())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(most), |prefix| prefix.trim().parse()).map_err(|_| refuse())?;
        if prefix > most {
            return Err(refuse());
        }
        Ok(Self { address, prefix })
    }
}

/// Addresses that webhooks may go to: those of the Internet, and the networks that an operator allowed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reachable {
    allowed: Vec<Network>,
}

impl Reachable {
    /// Allows these networks beside the Internet.
    pub(crate) fn with(networks: &[String]) -> Result<Self, String> {
        let allowed = networks.iter().map(|one| one.trim()).filter(|one| !one.is_empty()).map(str::parse);
        Ok(Self { allowed: allowed.collect::<Result<_, _>>()? })
    }

    /// Whether a webhook may go there.
    pub(crate) fn admits(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        is_global(address) || self.allowed.iter().any(|network| network.contains(address))
    }
}

fn is_global(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_global_v4(address),
        IpAddr::V6(address) => is_global_v6(address),
    }
}

fn is_global_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = matches!(
        (a, b, c),
        // This network, private, loopback, link-local, multicast, reserved and broadcast.
        (0 | 10 | 127 | 224..=255, _, _)
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 168, _)
            // Shared by the customers of a carrier.
            | (100, 64..=127, _)
            // Protocols, documentation, relays, benchmarks.
            | (192, 0, 0 | 2)
            | (192, 88, 99)
            | (198, 18 | 19, _)
            | (198, 51, 100)
            | (203, 0, 113)
    );
    !special
}

fn is_global_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    // Addresses that stand for one of IPv4: a translator or a tunnel leads there.
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_global_v4(Ipv4Addr::new(a, b, c, d))
    };
    match segments {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
        [0x2002, high, low, ..] => embedded(high, low),
        // Only this part is given out. Documentation, tunnels that hide their end, and benchmarks lie in it.
        [0x2001, 0 | 2 | 0xdb8, ..] => false,
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_internet_are_reached() {
        let reachable = Reachable::default();
        for inside in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2001:0:1::",
            "2001:db8::1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!reachable.admits(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "::ffff:8.8.8.8", "2606:4700::1111", "2a00::1"] {
            assert!(reachable.admits(outside.parse().unwrap()), "{outside}");
        }
    }

    #[test]
    fn an_operator_allows_networks_of_its_own_and_no_others() {
        let reachable = Reachable::with(&["10.1.0.0/16".into(), "::1".into(), " 192.168.7.7 ".into()]).unwrap();
        for allowed in ["10.1.2.3", "::ffff:10.1.2.3", "::1", "192.168.7.7"] {
            assert!(reachable.admits(allowed.parse().unwrap()), "{allowed}");
        }
        for refused in ["10.2.0.1", "127.0.0.1", "192.168.7.8", "::2"] {
            assert!(!reachable.admits(refused.parse().unwrap()), "{refused}");
        }
        let all = Reachable::with(&["0.0.0.0/0".into()]).unwrap();
        assert!(all.admits("127.0.0.1".parse().unwrap()) && !all.admits("::1".parse().unwrap()));
        for bad in ["10.0.0.0/33", "10.0.0/8", "x", "::/129", "10.0.0.0/-1"] {
            assert!(Reachable::with(&[bad.to_owned()]).is_err(), "{bad}");
        }
    }
}
