//! Estimates: the amounts that a claim holds in the budgets of its execution before it starts. They are held under the id
//! of the try, like a concurrency slot, and go back when the lease ends.

use ff_core::budget::{self, HardAction, ReserveRequest, SpendRefusal};
use ff_core::execution::Execution;
use ff_core::gate::Gate;
use ff_core::lease::ClaimKind;
use ff_core::reservation::ReservationId;
use ff_core::text::Tags;
use ff_core::{Code, ExecutionId, LeaseId, Result, SlotId, limits};

use super::Scheduler;
use super::admission::{Admission, Limit, Refusal};
use super::candidate::is_outage;
use crate::charges::{Charge, Charged};

impl Scheduler {
    /// Holds the estimate of an execution, then asks its quota.
    pub(super) async fn admit_by_estimate(&self, execution: &Execution, lease: LeaseId, slot: SlotId) -> Admission {
        match self.hold_estimate(execution, slot).await {
            Ok(None) => {}
            Ok(Some(refusal)) => return Admission::Refused(refusal),
            Err(error) => {
                // If the amount is held all the same, its timer gives it back.
                if let Some(suppressed) = self.transactor.may_log("a budget cannot be asked") {
                    tracing::warn!(%error, suppressed, "a budget cannot be asked; its work is passed over");
                }
                return Admission::Unreadable;
            }
        }
        match self.ask_quota_of(execution, lease, slot).await {
            Admission::Admitted { .. } => Admission::Admitted { slot: Some(slot) },
            refused => {
                self.give_back_estimates(execution, slot).await;
                refused
            }
        }
    }

    /// Holds the estimate of an execution in each of its budgets, in the order of their names. If one has no room, it
    /// returns the refusal and holds the estimate in none.
    async fn hold_estimate(&self, execution: &Execution, slot: SlotId) -> Result<Option<Refusal>> {
        let Some(estimate) = execution.estimate() else { return Ok(None) };
        let groups = budget::charged_together(&execution.budgets);
        for (place, together) in groups.iter().enumerate() {
            let Some(name) = together.last() else { continue };
            let id = ReservationId::of_estimate(&execution.namespace, name, execution.id, slot);
            let request = ReserveRequest { id, amounts: estimate.clone(), ttl_ms: limits::SLOT_ORPHAN_AGE_MS };
            let charge = Charge::Estimate { request, slot, resumed: execution.claim_kind() == ClaimKind::Resumed };
            let refused = match self.charge_for(execution, together, charge).await {
                Ok(Charged::Waits { refusal, action }) => {
                    let alone =
                        !together.iter().any(|name| budget::names_to(name).any(|above| above == refusal.budget));
                    Ok(Refusal { alone, ..estimate_refusal(&refusal, action) })
                }
                Ok(_) => continue,
                // A budget that does not exist keeps the execution out by itself.
                Err(error) if error.code == Code::BudgetNotFound => continue,
                // A repeat would fail, too, so the execution is parked, and `explain` shows why it waits.
                Err(error) if !is_outage(&error) => {
                    let detail = format!("budget {name}: {error}");
                    Ok(Refusal::waits(
                        Gate::Budget(name).to_string(),
                        Limit::Dimension("estimate".into()),
                        detail,
                        None,
                    ))
                }
                Err(error) => Err(error),
            };
            for held in groups[..place].iter().filter_map(|together| together.last()) {
                self.give_back_estimate(&execution.namespace, held, execution.id, slot).await?;
            }
            return refused.map(Some);
        }
        Ok(None)
    }

    /// Gives back the estimate of one try in one budget. An estimate that is not held was given back before.
    pub(crate) async fn give_back_estimate(
        &self,
        namespace: &str,
        name: &String,
        execution: ExecutionId,
        slot: SlotId,
    ) -> Result<()> {
        let id = ReservationId::of_estimate(namespace, name, execution, slot);
        match self.charge(namespace, &[name], Tags::new(), Charge::GiveBack(id)).await {
            Err(error) if error.code != Code::BudgetNotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Gives back the estimates of claims that have ended.
    pub(crate) async fn free_estimates(
        &self,
        namespace: &str,
        budgets: &[String],
        execution: ExecutionId,
        slots: &[SlotId],
    ) -> Result<()> {
        let pairs = budgets.iter().flat_map(|name| slots.iter().map(move |slot| (name, *slot)));
        let ends = pairs.map(|(name, slot)| self.give_back_estimate(namespace, name, execution, slot));
        futures_util::future::join_all(ends).await.into_iter().collect()
    }

    /// Gives back the estimate of a try whose claim was not applied.
    pub(super) async fn give_back_estimates(&self, execution: &Execution, slot: SlotId) {
        for name in execution.budgets.iter().filter(|_| execution.estimate().is_some()) {
            if let Err(error) = self.give_back_estimate(&execution.namespace, name, execution.id, slot).await
                && let Some(suppressed) = self.transactor.may_log("an unused estimate could not be given back")
            {
                tracing::warn!(%error, suppressed, "an unused estimate could not be given back; its timer does that");
            }
        }
    }
}

/// The refusal of a start because a budget has no room for its estimate.
pub(super) fn estimate_refusal(refusal: &SpendRefusal, action: HardAction) -> Refusal {
    let SpendRefusal { budget, dimension, requested, left, limit, .. } = refusal;
    Refusal {
        gate: Gate::Budget(budget).to_string(),
        limit: Limit::Dimension(dimension.clone()),
        detail: format!("budget {budget}: {left} of {limit} {dimension} left, an estimate of {requested}"),
        // Other executions may give amounts back and make room before the next reset.
        until: None,
        action,
        alone: false,
        requested: *requested,
    }
}
