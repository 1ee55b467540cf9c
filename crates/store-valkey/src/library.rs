//! The function library on the servers.

use ff_store::{Result, StoreError};

use crate::connection::{CallError, Request};
use crate::packing::REVISION;
use crate::refusal::Refusal;
use crate::resp::{Frame, command};
use crate::topology::{Node, Purpose};

/// What the servers run.
const CODE: &str = include_str!("../lua/flowfabric_1.lua");

/// How a node's library relates to ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Missing,
    Revision(u32),
}

/// Asks a node for the revision of its library.
pub(crate) async fn revision(node: &Node) -> Result<Found> {
    match node.ask(&[b"FCALL_RO", b"ff_revision_1", b"0"]).await {
        Ok(Frame::Integer(revision)) => Ok(u32::try_from(revision).map_or(Found::Revision(u32::MAX), Found::Revision)),
        Ok(Frame::Error(text)) => match Refusal::parse(&text) {
            Refusal::NoLibrary => Ok(Found::Missing),
            Refusal::Other => Err(StoreError::Config(format!("{}: {text}", node.address))),
            refusal => Err(refusal.into_error(&format!("{}: {text}", node.address))),
        },
        Ok(other) => Err(StoreError::Corrupt(format!("{}: {other:?} is no revision", node.address))),
        Err(CallError::Denied(text)) => Err(StoreError::Config(text)),
        Err(why) => Err(StoreError::Unavailable(why.at(&node.address))),
    }
}

/// Makes a node's library ours: loads it where it is missing or older, refuses where it is newer.
pub(crate) async fn reconcile(node: &Node, found: Found, may_load: bool) -> Result<()> {
    let mismatch = |found: String| StoreError::LibraryMismatch { found, known: format!("revision {REVISION}") };
    let replace = match found {
        Found::Revision(revision) if revision == REVISION => return Ok(()),
        Found::Revision(revision) if revision > REVISION => return Err(mismatch(format!("revision {revision}"))),
        Found::Revision(revision) if !may_load => return Err(mismatch(format!("revision {revision}"))),
        Found::Missing if !may_load => return Err(mismatch("missing, and load_library is off".into())),
        Found::Revision(_) => true,
        Found::Missing => false,
    };
    let code = CODE.as_bytes();
    let load = if replace {
        command(&[b"FUNCTION", b"LOAD", b"REPLACE", code])
    } else {
        command(&[b"FUNCTION", b"LOAD", code])
    };
    match node.call(0, Purpose::Read, Request::plain(load)).await {
        // Somebody else was faster.
        Ok(Frame::Error(text)) if text.contains("already exists") => Ok(()),
        Ok(Frame::Error(text)) => match Refusal::parse(&text) {
            Refusal::Other => Err(StoreError::Config(format!("{} refuses the library: {text}", node.address))),
            refusal => Err(refusal.into_error(&format!("{}: {text}", node.address))),
        },
        Ok(_) => {
            tracing::info!(address = node.address, revision = REVISION, "function library loaded");
            Ok(())
        }
        Err(CallError::Denied(text)) => Err(StoreError::Config(text)),
        Err(why) => Err(StoreError::Unavailable(why.at(&node.address))),
    }
}
