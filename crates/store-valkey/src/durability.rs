//! The durability tiers: which losses an acknowledged commit survives.

use std::fmt;
use std::str::FromStr;

/// The durability of a commit, chosen for the whole process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tier {
    /// Acknowledged when the primary has it in memory. A failover may lose commits that the replica had not received.
    #[default]
    Async,
    /// Acknowledged when the replicas have it too: survives the loss of the primary.
    Replicated,
    /// Acknowledged when the primary has it on disk: survives power loss. Needs `appendfsync always`.
    Fsynced,
}

impl FromStr for Tier {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "async" => Ok(Tier::Async),
            "replicated" => Ok(Tier::Replicated),
            "fsynced" => Ok(Tier::Fsynced),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tier::Async => "async",
            Tier::Replicated => "replicated",
            Tier::Fsynced => "fsynced",
        })
    }
}

impl Tier {
    /// The promise in words, for logs and the doctor.
    pub(crate) fn promise(self, replicas: u32) -> String {
        match self {
            Tier::Async => "in the primary's memory; its own persistence and replicas follow".into(),
            Tier::Replicated => format!("in the primary and {replicas} of its replicas"),
            Tier::Fsynced if replicas > 0 => format!("on the primary's disk and in {replicas} of its replicas"),
            Tier::Fsynced => "on the primary's disk".into(),
        }
    }
}
