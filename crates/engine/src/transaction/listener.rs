//! The transactor's messages about its commits, and the trait of the component that acts on them.

use std::sync::Arc;

use ff_core::execution::Execution;
use ff_core::{Key, Partition, SlotId};
use ff_store::Version;

use crate::hint::Item;

/// Acts on commits. Transactions know nothing of the services that this concerns.
pub(crate) trait Listener: Send + Sync {
    /// A commit of this engine was applied.
    fn applied(&self, applied: AppliedCommit);

    /// A commit of this engine may have been applied, and no answer will ever say whether it was.
    fn perhaps_applied(&self, applied: PerhapsApplied<'_>);
}

/// A commit that was applied.
pub(crate) struct AppliedCommit {
    pub(crate) partition: Partition,
    /// The version of everything that it wrote.
    pub(crate) version: Version,
    /// The executions it wrote, as they are now.
    pub(crate) executions: Vec<Arc<Execution>>,
    /// The items that other engines are told.
    pub(crate) items: Vec<Item>,
    /// The flow whose graph it created.
    pub(crate) flow: Option<Key>,
    /// The earliest instant at which something of it is due.
    pub(crate) due: Option<i64>,
    /// Documents that owe something elsewhere.
    pub(crate) marked: Vec<Key>,
    /// Slots that leases gave up without a mark.
    pub(crate) released: Vec<Released>,
    /// The leases that it began, with how long they last, and those that it ended.
    pub(crate) leases: Vec<(Key, Option<i64>)>,
}

/// A commit that may have been applied.
pub(crate) struct PerhapsApplied<'a> {
    pub(crate) partition: Partition,
    pub(crate) items: &'a [Item],
    pub(crate) due: Option<i64>,
    pub(crate) marked: &'a [Key],
    pub(crate) released: &'a [Released],
}

/// A slot that an execution no longer uses, and that no mark speaks of.
#[derive(Debug, Clone)]
pub(crate) struct Released {
    pub(crate) execution: Arc<Execution>,
    pub(crate) slot: SlotId,
}
