//! Checks before the first call: every server answers, is new enough and carries our library.
//!
//! A deployment may be in the middle of a rolling upgrade, a failover or a restart, so faults that may pass are waited
//! for, within the start-up limit. Wrong credentials and contradictions are reported at once.

use std::collections::HashMap;
use std::time::Duration;

use ff_store::{Layout, Look, Result, StoreError};
use tokio::time::{Instant, sleep};

use crate::Tier;
use crate::connection::CallError;
use crate::library;
use crate::packing::PROTOCOL;
use crate::preflight;
use crate::resp::Frame;
use crate::session::missing_sync;
use crate::topology::{Node, Topology};

const BACKOFF_MIN: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Major and minor version of the oldest Valkey that will do.
const REQUIRED: (u32, u32) = (8, 0);

/// The findings of the checks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Findings {
    /// The lowest version among the servers.
    pub(crate) version: String,
    /// Advice to the operator.
    pub(crate) warnings: Vec<String>,
}

/// Checks the deployment, waiting where waiting helps.
pub(crate) async fn check(topology: &Topology) -> Result<Findings> {
    let deadline = Instant::now() + topology.dialer.options.startup_timeout;
    let mut backoff = BACKOFF_MIN;
    loop {
        let error = match check_once(topology).await {
            Ok(findings) => return Ok(findings),
            Err(error) => error,
        };
        let waiting_helps = error.retryable() || matches!(error, StoreError::TooOld { .. });
        if !waiting_helps || Instant::now() >= deadline {
            return Err(error);
        }
        tracing::warn!(%error, "the store is not ready");
        sleep(backoff.min(deadline - Instant::now())).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

async fn check_once(topology: &Topology) -> Result<Findings> {
    topology.discover().await?;
    let map = topology.map();
    if map.uncovered() > 0 {
        return Err(StoreError::Unavailable(format!("{} slots of the cluster have no server", map.uncovered())));
    }
    let mut findings = Findings::default();
    let mut lowest = None;
    for node in map.primaries() {
        check_primary(topology, &node, &mut lowest, &mut findings.warnings).await?;
        let found = library::protocol(&node).await?;
        library::provide(&node, found, topology.dialer.options.load_library).await?;
        preflight::check(topology, &node).await?;
    }
    findings.version = lowest.map(|(_, reported)| reported).unwrap_or_default();
    for address in map.replicas() {
        // A replica that is away does no harm yet; a replica that is too old could be promoted.
        match info(&topology.node(&address)).await {
            Ok(info) => drop(required_version(&address, &info)?),
            Err(error @ StoreError::Config(_)) => return Err(error),
            Err(error) => findings.warnings.push(format!("the replica {address} could not be checked: {error}")),
        }
    }
    for warning in &findings.warnings {
        tracing::warn!("{warning}");
    }
    Ok(findings)
}

/// Inspects the deployment as it is now, without waiting and without loading anything.
pub(crate) async fn look(topology: &Topology) -> Result<Look> {
    topology.discover().await?;
    let map = topology.map();
    let mut look = Look {
        version: String::new(),
        layout: Layout { found: None, needed: PROTOCOL },
        settings: Vec::new(),
        warnings: Vec::new(),
    };
    if map.uncovered() > 0 {
        look.warnings.push(format!("{} slots of the cluster have no server", map.uncovered()));
    }
    let mut libraries = Vec::new();
    let mut lowest = None;
    for node in map.primaries() {
        let info = check_primary(topology, &node, &mut lowest, &mut look.warnings).await?;
        libraries.push(match library::protocol(&node).await? {
            library::Found::Missing => None,
            library::Found::Protocol(protocol) => Some(protocol),
        });
        for name in ["aof_enabled", "maxmemory_policy", "maxmemory_human", "used_memory_human", "connected_slaves"] {
            if let Some(value) = info.get(name) {
                look.settings.push((format!("{} {name}", node.address), value.clone()));
            }
        }
    }
    look.version = lowest.map(|(_, reported)| reported).unwrap_or_default();
    // If one server lacks the library, the deployment does.
    look.layout.found = libraries.into_iter().min().flatten();
    Ok(look)
}

type Info = HashMap<String, String>;
/// A version, and the text it was reported as.
type Version = ((u32, u32), String);

/// Checks the requirements for every primary. Keeps the lowest version seen and adds to the warnings.
async fn check_primary(
    topology: &Topology,
    node: &Node,
    lowest: &mut Option<Version>,
    warnings: &mut Vec<String>,
) -> Result<Info> {
    let info = info(node).await?;
    let version = required_version(&node.address, &info)?;
    if lowest.as_ref().is_none_or(|(lowest, _)| version < *lowest) {
        *lowest = Some((version, reported_version(&info).unwrap_or_default().to_owned()));
    }
    check_mode(topology, node, &info)?;
    check_settings(topology, node, &info, warnings).await?;
    Ok(info)
}

async fn info(node: &Node) -> Result<Info> {
    let unavailable = |why: String| StoreError::Unavailable(format!("{}: {why}", node.address));
    match node.ask(&[b"INFO"]).await {
        Ok(Frame::Bulk(bytes)) => {
            let text = std::str::from_utf8(&bytes).map_err(|_| unavailable("INFO is not text".into()))?;
            let info = parse_info(text);
            if info.get("loading").is_some_and(|loading| loading == "1") {
                return Err(unavailable("is loading its data".into()));
            }
            Ok(info)
        }
        Ok(Frame::Error(text)) => Err(crate::refusal::Refusal::parse(&text).into_error(&text)),
        Ok(_) => Err(unavailable("INFO gave nothing".into())),
        Err(CallError::Denied(text)) => Err(StoreError::Config(text)),
        Err(why) => Err(StoreError::Unavailable(why.at(&node.address))),
    }
}

fn parse_info(text: &str) -> Info {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.trim_end().to_owned())).collect()
}

/// Valkey also reports an old `redis_version` for compatibility, which counts only if `valkey_version` is absent.
fn reported_version(info: &Info) -> Option<&str> {
    info.get("valkey_version").or_else(|| info.get("redis_version")).map(String::as_str)
}

fn required_version(address: &str, info: &Info) -> Result<(u32, u32)> {
    let reported = reported_version(info).unwrap_or("unknown");
    match parse_version(reported) {
        Some(version) if version >= REQUIRED => Ok(version),
        _ => Err(StoreError::TooOld {
            found: format!("{reported} at {address}"),
            required: format!("Valkey {}.{}", REQUIRED.0, REQUIRED.1),
        }),
    }
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn check_mode(topology: &Topology, node: &Node, info: &Info) -> Result<()> {
    let is_cluster = info.get("cluster_enabled").is_some_and(|enabled| enabled == "1");
    if is_cluster && !topology.dialer.options.cluster {
        let why = format!("{} is part of a cluster: add cluster=true to the address", node.address);
        return Err(StoreError::Config(why));
    }
    Ok(())
}

async fn check_settings(topology: &Topology, node: &Node, info: &Info, warnings: &mut Vec<String>) -> Result<()> {
    let options = &topology.dialer.options;
    let address = &node.address;
    let policy = info.get("maxmemory_policy").map_or("unknown", String::as_str);
    if policy != "noeviction" {
        warnings.push(format!("{address} has maxmemory-policy {policy}: it may evict data; set noeviction"));
    }
    if info.get("aof_enabled").is_none_or(|enabled| enabled != "1") {
        warnings
            .push(format!("{address} runs without append-only file: a restart loses what it had; set appendonly yes"));
    }
    let connected: u32 = info.get("connected_slaves").and_then(|count| count.parse().ok()).unwrap_or(0);
    if connected < options.replicas {
        let wanted = options.replicas;
        warnings.push(format!("{address} has {connected} replicas, but tier={} waits for {wanted}", options.tier));
    }
    if options.tier == Tier::Fsynced {
        let missing = match node.ask(&[b"CONFIG", b"GET", b"appendfsync", b"appendonly"]).await {
            Ok(Frame::Error(text)) => Some(format!("tier=fsynced has to ask for the server's settings: {text}")),
            Ok(frame) => missing_sync(&frame),
            Err(why) => return Err(StoreError::Unavailable(why.at(address))),
        };
        if let Some(why) = missing {
            return Err(StoreError::Config(format!("{address}: {why}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valkeys_own_version_counts_and_redis_only_without_it() {
        let found = |text: &str| required_version("h:1", &parse_info(text));
        assert_eq!(found("redis_version:7.2.4\r\nvalkey_version:8.1.3\r\n"), Ok((8, 1)));
        assert_eq!(found("valkey_version:8.0.1\r\n"), Ok((8, 0)));
        for (text, reported) in [
            ("redis_version:7.2.4\r\nvalkey_version:7.2.5\r\n", "7.2.5"),
            ("redis_version:7.2.4\r\n", "7.2.4"),
            ("redis_mode:standalone\r\n", "unknown"),
            ("valkey_version:new\r\n", "new"),
        ] {
            let Err(StoreError::TooOld { found, required }) = found(text) else { panic!("{text} was taken") };
            assert!(found.starts_with(reported) && required == "Valkey 8.0", "{found} {required}");
        }
    }
}
