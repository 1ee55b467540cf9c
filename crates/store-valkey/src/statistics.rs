//! The time that the servers spent on each command, by their own count.

use std::collections::BTreeMap;

use ff_store::{Result, StoreError};

use crate::resp::Frame;
use crate::topology::Topology;

/// Calls of one command and the time they took inside of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommandCost {
    /// How often it was called, by clients or by functions.
    pub calls: u64,
    /// How long it ran in all. A function's time includes the commands it called.
    pub microseconds: u64,
}

/// The sums over all primaries, by the lower-case name of the command.
pub(crate) async fn command_costs(topology: &Topology) -> Result<BTreeMap<String, CommandCost>> {
    let mut costs = BTreeMap::<String, CommandCost>::new();
    for text in info(topology, b"commandstats").await? {
        for (name, cost) in text.lines().filter_map(parse_line) {
            let sum = costs.entry(name.to_owned()).or_default();
            sum.calls += cost.calls;
            sum.microseconds += cost.microseconds;
        }
    }
    Ok(costs)
}

/// Bytes of memory that all primaries use.
pub(crate) async fn used_memory(topology: &Topology) -> Result<u64> {
    let used =
        |text: &String| text.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim_end().parse::<u64>().ok());
    let used = info(topology, b"memory").await?.iter().map(used).sum::<Option<u64>>();
    used.ok_or_else(|| StoreError::Corrupt("INFO tells nothing of used memory".into()))
}

/// A section of the INFO of each primary.
async fn info(topology: &Topology, section: &[u8]) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for node in topology.map().primaries() {
        match node.ask(&[b"INFO", section]).await {
            Ok(Frame::Bulk(text)) => {
                let text =
                    String::from_utf8(text.into()).map_err(|_| StoreError::Corrupt("INFO is not text".into()))?;
                texts.push(text);
            }
            other => return Err(StoreError::Unavailable(format!("{}: {other:?}", node.address))),
        }
    }
    Ok(texts)
}

/// `cmdstat_get:calls=2,usec=3,...`
fn parse_line(line: &str) -> Option<(&str, CommandCost)> {
    let (name, fields) = line.strip_prefix("cmdstat_")?.split_once(':')?;
    let field = |wanted: &str| {
        let mut pairs = fields.split(',').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == wanted).and_then(|(_, value)| value.trim_end().parse().ok())
    };
    Some((name, CommandCost { calls: field("calls")?, microseconds: field("usec")? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_statistics_names_a_command_and_its_cost() {
        let line = "cmdstat_config|get:calls=21,usec=412,usec_per_call=19.62,rejected_calls=0,failed_calls=0\r";
        assert_eq!(parse_line(line), Some(("config|get", CommandCost { calls: 21, microseconds: 412 })));
        assert_eq!(parse_line("# Commandstats"), None);
    }
}
