//! The deployment behind the protocol: operations that are called with the authority of the caller.

use ff_core::Result;
use ff_core::op::{Operation, OperationInfo};
use ff_engine::{Engine, Serves};

/// A deployment as one caller reaches it: the engine behind a server's own request, or a client of any server or store.
pub trait Deployment: Clone + Send + Sync + 'static {
    /// Calls an operation with the caller's authority, in the caller's namespace.
    fn call<O: Operation>(&self, args: O::Args) -> impl Future<Output = Result<O::Outcome>> + Send
    where
        Engine: Serves<O>;

    /// Whether the caller may hope to call an operation; a deployment that cannot tell says yes, and refuses the call.
    fn offers(&self, operation: &OperationInfo) -> bool;

    /// The same deployment for a call that its caller named: a repeat under the same key is the same call.
    #[must_use]
    fn with_key(&self, key: &str) -> Self;
}
