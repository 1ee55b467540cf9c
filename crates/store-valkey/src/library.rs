//! The function library on the servers.
//!
//! Its name and the names of its functions carry the protocol number, so programs of several versions work on the same
//! servers, each with its own library. A library is never replaced, and a program never calls another's.

use ff_store::{Result, StoreError};

use crate::connection::CallError;
use crate::packing::PROTOCOL;
use crate::refusal::Refusal;
use crate::resp::Frame;
use crate::topology::Node;

/// The source of the library.
const CODE: &str = include_str!("../lua/flowfabric.lua");

pub(crate) const COMMIT: &str = "ff_commit_8";
/// The commit function for batches that free memory: it runs on a full server.
pub(crate) const COMMIT_RELIEF: &str = "ff_commit_relief_8";
pub(crate) const READ: &str = "ff_read_8";
pub(crate) const TIDY: &str = "ff_tidy_8";
const ASK_PROTOCOL: &str = "ff_protocol_8";

/// Whether a node has our library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Missing,
    Protocol(u32),
}

/// Asks a node for the protocol of the library under our name.
pub(crate) async fn protocol(node: &Node) -> Result<Found> {
    match node.ask(&[b"FCALL_RO", ASK_PROTOCOL.as_bytes(), b"0"]).await {
        Ok(Frame::Integer(protocol)) => Ok(u32::try_from(protocol).map_or(Found::Protocol(u32::MAX), Found::Protocol)),
        Ok(Frame::Error(text)) => match Refusal::parse(&text) {
            Refusal::NoLibrary => Ok(Found::Missing),
            Refusal::Other => Err(StoreError::Config(format!("{}: {text}", node.address))),
            refusal => Err(refusal.into_error(&format!("{}: {text}", node.address))),
        },
        Ok(other) => Err(StoreError::Corrupt(format!("{}: {other:?} is no protocol number", node.address))),
        Err(CallError::Denied(text)) => Err(StoreError::Config(text)),
        Err(why) => Err(StoreError::Unavailable(why.at(&node.address))),
    }
}

/// Loads the library where it is missing, and refuses one that bears our name and speaks another protocol.
pub(crate) async fn provide(node: &Node, found: Found, may_load: bool) -> Result<()> {
    let mismatch = |found: String| StoreError::LibraryMismatch { found, known: format!("protocol {PROTOCOL}") };
    match found {
        Found::Protocol(PROTOCOL) => return Ok(()),
        Found::Protocol(other) => return Err(mismatch(format!("protocol {other}"))),
        Found::Missing if !may_load => return Err(mismatch("missing, and load_library is off".into())),
        Found::Missing => {}
    }
    match node.ask(&[b"FUNCTION", b"LOAD", CODE.as_bytes()]).await {
        // Another process has loaded it meanwhile.
        Ok(Frame::Error(text)) if text.contains("already exists") => Ok(()),
        Ok(Frame::Error(text)) => match Refusal::parse(&text) {
            Refusal::Other => Err(StoreError::Config(format!("{} refuses the library: {text}", node.address))),
            refusal => Err(refusal.into_error(&format!("{}: {text}", node.address))),
        },
        Ok(_) => {
            tracing::info!(address = node.address, protocol = PROTOCOL, "function library loaded");
            Ok(())
        }
        Err(CallError::Denied(text)) => Err(StoreError::Config(text)),
        Err(why) => Err(StoreError::Unavailable(why.at(&node.address))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of what the code does, comments left out.
    fn digest() -> u64 {
        let code = CODE.lines().map(str::trim_start).filter(|line| !line.starts_with("--"));
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        code.flat_map(|line| line.bytes().chain([b'\n'])).fold(0xcbf2_9ce4_8422_2325, step)
    }

    #[test]
    fn the_code_of_a_protocol_never_changes() {
        // A server that has the library of a number keeps it: other code needs another number, here and in all names.
        assert_eq!((PROTOCOL, digest()), (8, 4_007_068_077_143_127_699));
    }

    #[test]
    fn every_name_carries_the_protocol_number() {
        assert!(CODE.starts_with(&format!("#!lua name=flowfabric_{PROTOCOL}\n")));
        assert!(CODE.contains(&format!("local PROTOCOL = {PROTOCOL}\n")));
        for name in [COMMIT, COMMIT_RELIEF, READ, TIDY, ASK_PROTOCOL] {
            assert!(name.ends_with(&format!("_{PROTOCOL}")), "{name}");
            assert!(CODE.contains(&format!("'{name}'")), "{name} is not registered");
        }
    }
}
