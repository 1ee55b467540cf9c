//! The handles of the engine's services, in one struct that the verbs in `op` are given. It has no behaviour of its
//! own, and nothing below the verbs knows it.

use std::sync::Arc;

use crate::board::Board;
use crate::bulk::Bulk;
use crate::counts::Counts;
use crate::dispatch::Dispatch;
use crate::providers::Providers;
use crate::reconcile::Reconciler;
use crate::registry::Registry;
use crate::scheduler::Scheduler;
use crate::secrets::Secrets;
use crate::servers::Servers;
use crate::shared::Shared;
use crate::submission::Submissions;
use crate::subscription::Subscriptions;
use crate::system::SystemDocuments;
use crate::timers::Timers;
use crate::transaction::Transactor;

/// The services that verbs work with. The transactor and the scheduler belong to one call: those of a call with several
/// parts gather its commits, and those of a clone do not.
#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) transactor: Transactor,
    pub(crate) scheduler: Scheduler,
    pub(crate) shared: Arc<SharedServices>,
}

/// The services that are the same for every call.
pub(crate) struct SharedServices {
    pub(crate) board: Board,
    pub(crate) system: SystemDocuments,
    pub(crate) secrets: Secrets,
    pub(crate) servers: Servers,
    pub(crate) submissions: Submissions,
    pub(crate) providers: Providers,
    pub(crate) registry: Registry,
    pub(crate) bulk: Bulk,
    pub(crate) subscriptions: Subscriptions,
    pub(crate) timers: Timers,
    pub(crate) reconciler: Reconciler,
    /// Acts on commits; it lives as long as the engine.
    pub(crate) dispatch: Arc<Dispatch>,
    /// The counts of namespaces, which callers that ask at about the same time share.
    pub(crate) counts: Counts,
    /// Namespaces that were seen to be in use.
    pub(crate) namespaces_seen: Shared<Vec<String>>,
}
