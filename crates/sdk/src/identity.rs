//! The sources of the ids of calls. A call gets its identity once, before the first try, so that a repeat is the same
//! call; which operations need one, and how it is made, they say themselves ([`Operation::identify`]).
//!
//! [`Operation::identify`]: ff_core::op::Operation::identify

use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use ff_core::op::Minting;
use ff_core::{Mint, PartitionConfig, Rising};
use uuid::Uuid;

/// The source of rising ids: an execution that is submitted first has the smaller id.
static RISING: LazyLock<Rising> = LazyLock::new(Rising::default);

/// The values to mint an id from: this process's clock and the operating system's entropy.
pub(crate) fn mint() -> Mint {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let bytes = Uuid::new_v4().into_bytes();
    // Bytes 6 and 8 of such a UUID are not all random.
    let mut random = [0; 10];
    random[..6].copy_from_slice(&bytes[..6]);
    random[6..].copy_from_slice(&bytes[9..13]);
    Mint { now_ms: i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX), random }
}

/// A text that no other call has.
pub(crate) fn unique() -> String {
    mint().uuid().to_string()
}

/// The sources of ids for calls to a deployment.
pub(crate) fn minting(partitions: &PartitionConfig) -> Minting<'_> {
    Minting { partitions, mint, rising: &RISING }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ff_core::op::{CreateExecution, Operation, create_execution};

    #[test]
    fn what_the_caller_chose_stays() {
        let minting = minting(&PartitionConfig::SINGLE);
        let mut keyed = create_execution::Args { idempotency_key: Some("k".into()), ..Default::default() };
        CreateExecution::identify(&mut keyed, &minting);
        assert_eq!(keyed.execution_id, None);
        let mut plain = create_execution::Args::default();
        CreateExecution::identify(&mut plain, &minting);
        let first = plain.execution_id;
        assert!(first.is_some());
        CreateExecution::identify(&mut plain, &minting);
        assert_eq!(plain.execution_id, first);
    }
}
