//! One commit and one read at each primary, with every command that real calls use. A right that the user of the
//! address lacks is thus reported when the store is opened, and not in the middle of a caller's commit.

use std::sync::Arc;

use bytes::Bytes;
use ff_core::{CommandId, IndexName, Key, Partition, PartitionConfig};
use ff_store::{
    Append, Batch, BlobChange, EntryChange, Fence, Guard, LeaseChange, LogStart, Put, Query, Result, Scan, StoreError,
    Trim,
};
use uuid::Uuid;

use crate::call::{CHANNEL, slot_channel};
use crate::commit::Part;
use crate::connection::{Body, CallError, Reply, Request};
use crate::packing::{Space, Tag};
use crate::read;
use crate::refusal::Refusal;
use crate::resp::{Frame, command};
use crate::topology::{Node, Topology, slot_of};

/// Tries everything that commits, reads and hints do at a server.
pub(crate) async fn check(topology: &Topology, node: &Node) -> Result<()> {
    let sharded = topology.dialer.options.cluster;
    let map = topology.map();
    let here =
        |partition: &Partition| map.primary(slot_of(*partition)).is_some_and(|primary| primary.address == node.address);
    // A server whose slots hold no partition is never asked for anything.
    let Some(partition) = PartitionConfig::CLUSTER.all().find(here) else { return Ok(()) };
    let name = [&b"preflight "[..], Uuid::now_v7().as_bytes()].concat();
    let batches: Arc<[Batch]> = batches(&name).into();
    let count = batches.len();
    let part = Part::new(partition, batches, 0..count, false)?;
    let tried = try_call(node, partition, Body::Commit(Arc::new(part))).await;
    if tried.is_err() {
        // The commit may have failed in its middle. If the user has no right to delete, a few bytes stay behind.
        let tag = Tag::of(partition);
        for space in [Space::Document, Space::Blob, Space::Log] {
            let _ = node.ask(&[b"DEL", &tag.name(space, &name)]).await;
        }
        let _ = node.ask(&[b"DEL", &tag.name(Space::Index, index(&name).as_bytes())]).await;
    }
    tried?;
    let looked = read::encode(partition, &queries(&name), read::Style::NamedKeys);
    try_call(node, partition, Body::Command(looked)).await?;
    // A message that every listener ignores.
    let publication = if sharded {
        command(&[b"SPUBLISH", &slot_channel(partition), b""])
    } else {
        command(&[b"PUBLISH", CHANNEL, b""])
    };
    try_call(node, partition, Body::Command(publication)).await
}

async fn try_call(node: &Node, partition: Partition, body: Body) -> Result<()> {
    let request = Request { body, asking: false, alone: true, confirmed: false, about_server: true };
    match node.call(slot_of(partition), request).await {
        Ok(Reply::Frame(Frame::Error(text))) => {
            let at_node = format!("{}: {text}", node.address);
            match Refusal::parse(&text) {
                // A full server is no reason to refuse the start: it may have room again later, and calls handle it.
                Refusal::Full => Ok(()),
                _ if text.contains("ACL failure") || text.contains("NOPERM") => Err(StoreError::Config(format!(
                    "the user may not do what the store needs (all commands of the function library, keys that begin \
                     with a hash tag, channels that begin with flowfabric_1): {at_node}"
                ))),
                // Calls handle a moving slot, too.
                Refusal::Moved(_) | Refusal::Ask(_) | Refusal::Moving => Ok(()),
                refusal => Err(refusal.into_error(&at_node)),
            }
        }
        Ok(_) => Ok(()),
        Err(CallError::Denied(text)) => Err(StoreError::Config(text)),
        Err(why) => Err(StoreError::Unavailable(why.at(&node.address))),
    }
}

/// An index that is not listed, so that nothing of it is left.
fn index(name: &[u8]) -> IndexName {
    IndexName::from_bytes([b"!", name].concat())
}

/// A document with everything that belongs to one: made, leased and removed.
fn batches(name: &[u8]) -> [Batch; 4] {
    let key = Key::from_bytes(name);
    let commands = [(); 4].map(|()| CommandId(Uuid::now_v7()));
    let put = Put { key: key.clone(), body: Bytes::new(), fence: Fence::default(), expires_at: None };
    let lease = LeaseChange {
        key: key.clone(),
        ttl_ms: Some(1),
        index: index(name),
        member: Key::from_bytes([name, b" lease"].concat()),
    };
    let remove = |member: &Key| EntryChange::Remove { index: index(name), member: member.clone() };
    [
        Batch {
            guards: vec![Guard::Absent(key.clone())],
            puts: vec![put.clone()],
            entries: vec![EntryChange::Set { index: index(name), member: key.clone(), score: 0 }],
            appends: vec![Append {
                log: key.clone(),
                records: vec![Bytes::new()],
                expected: None,
                cap: 0,
                in_turn: false,
            }],
            blobs: vec![BlobChange { key: key.clone(), bytes: Some(Bytes::new()) }],
            relief: true,
            ..Batch::new(commands[0])
        },
        Batch {
            guards: vec![Guard::Version(key.clone(), commands[0])],
            puts: vec![put],
            leases: vec![lease.clone()],
            trims: vec![Trim { log: key.clone(), before: 1 }],
            relief: true,
            ..Batch::new(commands[1])
        },
        Batch {
            guards: vec![Guard::Version(key.clone(), commands[1])],
            leases: vec![lease.clone()],
            relief: true,
            ..Batch::new(commands[2])
        },
        Batch {
            guards: vec![Guard::Version(key.clone(), commands[1])],
            deletes: vec![key.clone()],
            entries: vec![remove(&key), remove(&lease.member)],
            trims: vec![Trim { log: key.clone(), before: u64::MAX }],
            blobs: vec![BlobChange { key, bytes: None }],
            relief: true,
            ..Batch::new(commands[3])
        },
    ]
}

fn queries(name: &[u8]) -> Vec<Query> {
    let key = Key::from_bytes(name);
    vec![
        Query::Documents(vec![key.clone()]),
        Query::Scan(Scan::first(index(name), 1)),
        Query::Count { index: index(name), min: 0, max: 0, at_most: u64::MAX },
        Query::Indexes { prefix: name.to_vec(), after: None, limit: 1 },
        Query::Log { log: key, start: LogStart::After(0), limit: 1 },
    ]
}
