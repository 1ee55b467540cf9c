//! Messages of the actors of a run to each other outside of the system: ids and tokens, as people pass them on.

use std::collections::BTreeMap;

use ff_core::{ExecutionId, FlowId, WaitpointId};
use serde_json::Value;

/// A waitpoint that a signaller may signal.
#[derive(Debug, Clone)]
pub(crate) struct OpenWaitpoint {
    pub(crate) execution: ExecutionId,
    pub(crate) waitpoint: WaitpointId,
    pub(crate) token: String,
}

/// The most recent of everything.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    pub(crate) executions: Vec<ExecutionId>,
    pub(crate) flows: Vec<FlowId>,
    pub(crate) waitpoints: Vec<OpenWaitpoint>,
    /// The latest child of each execution that spawned one, and the request for it.
    pub(crate) children: BTreeMap<ExecutionId, (ExecutionId, Value)>,
}

/// How far back the actors remember: what is hot gets into more trouble.
const KEPT: usize = 40;

/// Puts something on top and forgets what is at the bottom.
pub(crate) fn put<T>(pile: &mut Vec<T>, thing: T) {
    pile.push(thing);
    if pile.len() > KEPT {
        pile.remove(0);
    }
}
