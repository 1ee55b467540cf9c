//! Ports for servers that are stopped and started again.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 10_200;
const COUNT: u16 = 22_000;

/// A free port below the range that outgoing connections take theirs from: in there, a client that keeps trying to
/// reach a server that is down is in the end given that server's port as its own, and the server cannot come back.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test processes that run side by side start looking at different places.
    let offset = u16::try_from(std::process::id().wrapping_mul(191) % u32::from(COUNT)).unwrap_or(0);
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + offset.wrapping_add(step) % COUNT;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no port between {FIRST} and {} is free", FIRST + COUNT);
}
