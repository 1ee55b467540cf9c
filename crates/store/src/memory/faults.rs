//! The ways a memory store can be made to fail, chosen call by call by its owner.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use ff_core::{CommandId, Partition};

use crate::{Batch, Query};

/// A wait that the owner of the store provides, in whatever time it keeps.
pub type Pause = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A call that is about to happen.
#[derive(Debug, Clone, Copy)]
pub enum Call<'a> {
    /// A read.
    Read {
        /// Of which partition.
        partition: Partition,
        /// The questions.
        queries: &'a [Query],
    },
    /// A commit.
    Commit {
        /// Of which partition.
        partition: Partition,
        /// The batches of the commit.
        batches: &'a [Batch],
    },
}

/// A fault in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call does not reach the store: [`crate::StoreError::Unavailable`], nothing is applied.
    Unavailable,
    /// The call is applied, but its answer is lost: [`crate::StoreError::Unknown`].
    LostReply,
    /// The request is lost on its way: [`crate::StoreError::Unknown`] all the same, and nothing is applied.
    LostRequest,
    /// There is no room: [`crate::StoreError::Full`], unless every batch of the commit gives memory back.
    Full,
    /// Another writer comes first: each document that the commit guards by its present version is rewritten, with
    /// the same body, under this command id. The conflict is then a real one, and a re-read agrees with it.
    Overtaken(CommandId),
}

/// The course of one call. The default is nothing unusual.
#[derive(Default)]
pub struct Plan {
    /// Awaited before anything is looked at or applied.
    pub before: Option<Pause>,
    /// The fault, if there is one.
    pub fault: Option<Fault>,
    /// The hints of the commit are lost; watchers are told to resync instead.
    pub lose_hints: bool,
    /// Awaited after applying, before the answer.
    pub after: Option<Pause>,
}

impl From<Fault> for Plan {
    fn from(fault: Fault) -> Self {
        Self { fault: Some(fault), ..Self::default() }
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan")
            .field("before", &self.before.is_some())
            .field("fault", &self.fault)
            .field("lose_hints", &self.lose_hints)
            .field("after", &self.after.is_some())
            .finish()
    }
}

/// Decides what goes wrong. Asked once at the beginning of each call, in the order of the calls.
pub trait Faults: Send + Sync {
    /// The plan for this call.
    fn plan(&self, call: Call<'_>) -> Plan;
}
