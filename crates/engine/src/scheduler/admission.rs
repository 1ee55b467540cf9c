//! Whether a candidate may start now: its budgets, then its quota. Fail-closed: what cannot be read admits nothing.

use ff_core::execution::Execution;
use ff_core::{LeaseId, Result};

use crate::engine::Engine;

/// What the gates say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It may start; with a concurrency slot the claim must land before this instant.
    Admitted { slot: bool, not_after: Option<i64> },
    /// One of its gates is closed.
    Refused(Refusal),
}

/// Why a gate is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// `b:name` or `q:name`.
    pub(crate) gate: String,
    /// For people.
    pub(crate) detail: String,
    /// When it may open by itself.
    pub(crate) until: Option<i64>,
}

impl Engine {
    /// Asks every gate of an execution.
    pub(crate) async fn admit(&self, _execution: &Execution, _lease_id: LeaseId) -> Result<Admission> {
        Ok(Admission::Admitted { slot: false, not_after: None })
    }

    /// Takes a refused execution out of its queue and closes its gate for a while.
    pub(crate) async fn park(&self, _execution: &Execution, _refusal: Refusal) -> Result<()> {
        Ok(())
    }

    /// A claim that took a slot did not come about: the slot of this very lease goes back.
    pub(crate) fn release_unused_slot(&self, _execution: &Execution, _lease_id: LeaseId, _slot: bool) {}
}
