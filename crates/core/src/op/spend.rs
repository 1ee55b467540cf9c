//! Spending in two steps: reserve, then settle or release.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::budget::{Amounts, BudgetAnswer, BudgetStatus, SpendRefusal};
use crate::error::{Error, Result};
use crate::id::{CommandId, ExecutionId};
use crate::lease::LeaseFence;
use crate::limits;
use crate::op::{Minting, operation, parts};
use crate::reservation::ReservationView;
use crate::text;

operation! {
    /// Holds amounts in the budgets of an execution before its holder spends them. All of its budgets that count one of the
    /// dimensions hold them, or none does and the answer says what is left and when it resets.
    ReserveSpend(ReserveSpendArgs) -> ReserveSpendOutcome,
    "reserve_spend" Post "/v1/executions/{execution_id}/spend/reserve" Worker validated
}

/// The arguments of `reserve_spend`: amounts that the holder of a lease is about to spend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReserveSpendArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease under which it will be spent.
    pub fence: LeaseFence,
    /// How much, by dimension.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub amounts: Amounts,
    /// The holder's name for it. The same key under the same lease is the same reservation; another lease reserves anew.
    pub key: String,
    /// How long the amounts are held; after that they count as spent. Ten minutes when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<i64>,
    /// Only this one of its budgets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<String>,
}

/// Whether the amounts are held.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum ReserveSpendOutcome {
    /// They are held.
    Reserved {
        /// The budgets that hold them, by name. With none there is nothing to settle.
        budgets: BTreeMap<String, HeldSpend>,
    },
    /// One of the budgets has no room for them, and nothing is held in any.
    Refused(SpendRefusal),
    /// A budget has no room and asks a person. The lease is released; the execution runs again when the question is
    /// answered, and reserves anew.
    Asked {
        /// The budget that asks.
        budget: String,
    },
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(ReserveSpendOutcome);

/// How long one budget holds a reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HeldSpend {
    /// When it counts as spent, by the budget's clock.
    pub expires_at: i64,
}

impl ReserveSpendArgs {
    /// Refuses empty requests and amounts that are out of range.
    pub fn validate(&self) -> Result<()> {
        text::label("key", &self.key)?;
        parts::optional(self.budget.as_deref(), "budget", text::budget_name)?;
        if let Some(ttl_ms) = self.ttl_ms {
            text::within("ttl_ms", ttl_ms, limits::RESERVATION_TTL_MIN_MS..=limits::RESERVATION_TTL_MAX_MS)?;
        }
        parts::amounts("amounts", &self.amounts)
    }
}

operation! {
    /// Says what was really spent of a reservation. The unspent part of the reserve goes back; the part beyond it
    /// counts as overrun. A reservation that settled by itself is corrected, for a day.
    SettleSpend(SettleSpendArgs) -> SettleSpendOutcome,
    "settle_spend" Post "/v1/executions/{execution_id}/spend/settle" Worker validated
}

/// The arguments of `settle_spend`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SettleSpendArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease that reserved; it need not hold any more.
    pub fence: LeaseFence,
    /// The key of the reservation.
    pub key: String,
    /// The amounts that were really spent, by dimension; a dimension that is not named counts as nothing spent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub actual: Amounts,
}

/// How the settlement counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SettleSpendOutcome {
    /// The amounts spent beyond the reserve in each budget that held it, by dimension.
    pub budgets: BTreeMap<String, SettledSpend>,
}

/// How one budget counted a settlement.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SettledSpend {
    /// The amounts spent beyond the reservation, by dimension.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub overrun: Amounts,
}

impl SettleSpendArgs {
    /// Refuses amounts that are out of range.
    pub fn validate(&self) -> Result<()> {
        text::label("key", &self.key)?;
        if self.actual.is_empty() { Ok(()) } else { parts::amounts("actual", &self.actual) }
    }
}

operation! {
    /// Gives a reservation back, because nothing was spent.
    ReleaseSpend(ReleaseSpendArgs) -> ReleaseSpendOutcome,
    "release_spend" Post "/v1/executions/{execution_id}/spend/release" Worker validated
}

/// Which reservation is given back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReleaseSpendArgs {
    /// The execution.
    pub execution_id: ExecutionId,
    /// The lease that reserved; it need not hold any more.
    pub fence: LeaseFence,
    /// The key of the reservation.
    pub key: String,
}

/// Where the reservation was given back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReleaseSpendOutcome {
    /// The budgets that held it.
    pub budgets: Vec<String>,
}

impl ReleaseSpendArgs {
    /// Refuses bad keys.
    pub fn validate(&self) -> Result<()> {
        text::label("key", &self.key)
    }
}

operation! {
    /// Lists the reservations that a budget holds, oldest first.
    ListReservations(ListReservationsArgs) -> ListReservationsOutcome,
    "list_reservations" Get "/v1/budgets/{name}/reservations" Reader validated filtered namespaced
}

/// Which reservations are listed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListReservationsArgs {
    /// The budget.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Most to show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Where to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A page of reservations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListReservationsOutcome {
    /// The reservations.
    pub items: Vec<ReservationView>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl ListReservationsArgs {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        text::budget_name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)
    }
}

operation! {
    /// Answers the question of a budget whose hard limit was met: `grant` more in this window, `raise` the hard limits for
    /// good, or `no`. Everything that waits for the answer goes on.
    DecideBudget(DecideBudgetArgs) -> BudgetStatus,
    "decide_budget" Post "/v1/budgets/{name}/decide" Approver administrative validated namespaced identified("command_id")
}

/// The answer to a budget's question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DecideBudgetArgs {
    /// The budget.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// `grant`, `raise` or `no`.
    pub answer: BudgetAnswer,
    /// With `grant` what may be used on top of the hard limits, with `raise` the new hard limits, by dimension.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub amounts: Amounts,
    /// The same id means the same answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
}

impl DecideBudgetArgs {
    /// Refuses amounts that do not belong to the answer.
    pub fn validate(&self) -> Result<()> {
        text::budget_name("name", &self.name)?;
        parts::optional(self.namespace.as_deref(), "namespace", text::name)?;
        match self.answer {
            BudgetAnswer::No if self.amounts.is_empty() => Ok(()),
            BudgetAnswer::No => Err(Error::invalid("amounts", "belong to the answers grant and raise only")),
            BudgetAnswer::Grant | BudgetAnswer::Raise => parts::amounts("amounts", &self.amounts),
        }
    }

    /// Mints the id of the command.
    pub fn identify(&mut self, minting: &Minting<'_>) {
        self.command_id.get_or_insert_with(|| CommandId::mint(&minting.fresh()));
    }
}
