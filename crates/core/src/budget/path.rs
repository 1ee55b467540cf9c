//! The budgets that count one charge: the one that was named and those it stands under; where several of a tree are named,
//! all of theirs. A charge counts once in all of them or in none, and a limit of any of them refuses it.

use std::collections::BTreeMap;

use super::{Amounts, Budget, Enforcement, SpendRefusal};
use crate::error::Result;
use crate::reservation::{Reservation, ReservationId, Settlement};
use crate::usage::ReportUsageResult;

/// The budgets that count a charge, the root first and the named one last.
#[derive(Debug)]
pub struct Path<'b> {
    above: Vec<&'b mut Budget>,
    named: &'b mut Budget,
}

/// A request of a lease holder to reserve amounts.
#[derive(Debug, Clone)]
pub struct ReserveRequest {
    /// The identity by which a repeated request is recognised.
    pub id: ReservationId,
    /// How much, by dimension.
    pub amounts: Amounts,
    /// How long it is held unless its holder says what became of it.
    pub ttl_ms: i64,
}

/// The outcome of a request to reserve.
#[derive(Debug, Clone, PartialEq)]
pub enum Reserve {
    /// The amounts are held; this document is to be written.
    Held(Box<Reservation>),
    /// They were held before; there is nothing to write.
    Again {
        /// When the reservation settles by itself.
        expires_at: i64,
    },
    /// They do not fit.
    Refused(SpendRefusal),
}

/// A reservation that was settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// The effect on the counters.
    pub settlement: Settlement,
    /// The amounts spent beyond the reservation, by dimension.
    pub overrun: Amounts,
}

/// The first name on the way to a budget; it decides where all of them live.
pub fn root_of(name: &str) -> &str {
    name.split('/').next().unwrap_or(name)
}

/// The name of the budget above a budget.
pub fn parent_of(name: &str) -> Option<&str> {
    name.rsplit_once('/').map(|(parent, _)| parent)
}

/// The names on the way to a budget, the root first and its own name last: `team/a` stands under `team`.
pub fn names_to(name: &str) -> impl Iterator<Item = &str> {
    let ends = name.match_indices('/').map(|(end, _)| end).chain(std::iter::once(name.len()));
    ends.map(|end| &name[..end]).filter(|part| !part.is_empty())
}

/// The names by their root, each group in order. Those of a group are charged together, so that a budget on the way to
/// several of them counts a charge once; the last one stands for the group.
pub fn charged_together<'n>(names: impl IntoIterator<Item = &'n String>) -> Vec<Vec<&'n String>> {
    let mut groups: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
    for name in names {
        groups.entry(root_of(name)).or_default().push(name);
    }
    groups.values_mut().for_each(|group| group.sort_unstable());
    groups.into_values().collect()
}

impl<'b> Path<'b> {
    /// A path from the root down; `None` where it names nothing.
    pub fn new(mut budgets: Vec<&'b mut Budget>) -> Option<Self> {
        let named = budgets.pop()?;
        Some(Self { above: budgets, named })
    }

    /// The budget that was named.
    pub fn named(&self) -> &Budget {
        self.named
    }

    /// The amounts that some budget of the path counts.
    pub fn counted_amounts(&self, amounts: &Amounts) -> Amounts {
        let mut counted = self.named.counted_amounts(amounts);
        self.above.iter().for_each(|budget| counted.extend(budget.counted_amounts(amounts)));
        counted
    }

    /// Refuses dimensions that no budget of the path has.
    pub fn check_dimensions(&self, field: &str, amounts: &Amounts) -> Result<()> {
        let counted = self.counted_amounts(amounts);
        let unknown = amounts.iter().filter(|(name, _)| !counted.contains_key(*name));
        self.named.check_dimensions(field, &unknown.map(|(name, amount)| (name.clone(), *amount)).collect())
    }

    /// Counts usage in every budget of the path, or says which limit is in the way and counts it in none. Says also
    /// whether it was counted.
    pub fn report(&mut self, usage: &Amounts, now: i64) -> Result<(ReportUsageResult, bool)> {
        if self.above.is_empty() {
            let answer = self.named.report(usage, now)?;
            let counted = self.named.counted(&answer);
            return Ok((answer, counted));
        }
        self.check_dimensions("usage", usage)?;
        let own = self.named.counted_amounts(usage);
        if !own.is_empty() || usage.is_empty() {
            self.named.check_usage(&own, now)?;
        }
        let now = self.open_windows(now);
        for budget in &self.above {
            budget.check_actual(&budget.counted_amounts(usage))?;
        }
        if let Some(budget) = self.all().find(|budget| budget.would_refuse(usage)) {
            let counted = budget.counted_amounts(usage);
            return Ok((budget.report(&counted, now)?, false));
        }
        let mut worst = ReportUsageResult::Ok;
        for budget in self.all() {
            let counted = budget.counted_amounts(usage);
            if counted.is_empty() {
                continue;
            }
            let answer = budget.report(&counted, now)?;
            worst = match (&worst, &answer) {
                (ReportUsageResult::HardBreach { .. }, _) => worst,
                (_, ReportUsageResult::HardBreach { .. }) | (ReportUsageResult::Ok, _) => answer,
                _ => worst,
            };
        }
        Ok((worst, true))
    }

    /// Holds amounts in every budget of the path, or says which one has no room for them. `existing` is what an earlier
    /// request under the same key left.
    pub fn reserve(&mut self, existing: Option<&Reservation>, request: &ReserveRequest, now: i64) -> Result<Reserve> {
        if let Some(existing) = existing {
            existing.check_repeat(&request.amounts)?;
            return Ok(Reserve::Again { expires_at: existing.expires_at });
        }
        let now = self.open_windows(now);
        let mut refusal = None;
        for budget in self.all() {
            let counted = budget.counted_amounts(&request.amounts);
            if let Err(refused) = budget.room_for(&counted)?
                && refusal.is_none()
            {
                budget.refused(&refused.dimension, now);
                refusal = Some(refused);
            }
        }
        if let Some(refusal) = refusal {
            return Ok(Reserve::Refused(refusal));
        }
        Ok(Reserve::Held(Box::new(self.hold_all(request, now))))
    }

    /// Holds amounts that fit in every budget of the path.
    pub(super) fn hold_all(&mut self, request: &ReserveRequest, now: i64) -> Reservation {
        let ReservationId { namespace, budget, execution, lease, key } = request.id.clone();
        let mut counted_in = BTreeMap::new();
        self.each(|budget| drop(counted_in.insert(budget.name.clone(), budget.hold(&request.amounts, now))));
        let reserved_at = self.named.updated_at;
        Reservation {
            namespace,
            budget,
            execution,
            lease,
            key,
            amounts: request.amounts.clone(),
            counted_in,
            reserved_at,
            expires_at: reserved_at.saturating_add(request.ttl_ms),
            ..Default::default()
        }
    }

    /// The holder of a reservation says what was spent.
    pub fn settle(&mut self, reservation: &mut Reservation, actual: &Amounts, now: i64) -> Result<Settled> {
        let others = actual.iter().filter(|(name, _)| !reservation.amounts.contains_key(*name));
        self.check_dimensions("actual", &others.map(|(name, amount)| (name.clone(), *amount)).collect())?;
        let now = self.open_windows(now);
        for budget in self.all() {
            budget.check_actual(&budget.counted_amounts(actual))?;
        }
        let settlement = reservation.settle(actual, now)?;
        Ok(self.count(reservation, settlement, actual, now))
    }

    /// The holder of a reservation says that nothing was spent.
    pub fn release(&mut self, reservation: &mut Reservation, now: i64) -> Result<Settled> {
        let now = self.open_windows(now);
        let settlement = reservation.release(now)?;
        Ok(self.count(reservation, settlement, &Amounts::new(), now))
    }

    /// The time of a reservation has run out: it counts as spent. Says whether it had.
    pub fn orphan(&mut self, reservation: &mut Reservation, now: i64) -> bool {
        let now = self.open_windows(now);
        if !reservation.orphan(now) {
            return false;
        }
        let amounts = reservation.amounts.clone();
        self.count(reservation, Settlement::Settle, &amounts, now);
        self.each(|budget| {
            let counted = reservation.counted_in.get_mut(&budget.name);
            if let (Some(counted), Some(part)) = (counted, budget.parts.last()) {
                counted.part = part.ends_at;
            }
        });
        true
    }

    fn count(&mut self, reservation: &Reservation, settlement: Settlement, actual: &Amounts, now: i64) -> Settled {
        self.above.iter_mut().for_each(|budget| drop(budget.settle(reservation, settlement, actual, now)));
        let overrun = self.named.settle(reservation, settlement, actual, now);
        Settled { settlement, overrun }
    }

    /// What is due happens in every budget. Answers with an instant that is not before any of them.
    pub(super) fn open_windows(&mut self, now: i64) -> i64 {
        let now = self.all().map(|budget| budget.updated_at).fold(now, i64::max);
        self.each(|budget| budget.open_window(now));
        now
    }

    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Budget> {
        self.above.iter_mut().map(|budget| &mut **budget).chain(std::iter::once(&mut *self.named))
    }

    fn each(&mut self, act: impl FnMut(&mut Budget)) {
        self.all().for_each(act);
    }
}

impl Budget {
    /// Whether a report of this usage would pass a hard limit that binds.
    fn would_refuse(&self, usage: &Amounts) -> bool {
        let passes =
            |(dimension, delta): (&String, &i64)| *delta > 0 && self.left(dimension).is_some_and(|left| *delta > left);
        self.definition.enforcement == Enforcement::Enforce && self.counted_amounts(usage).iter().any(passes)
    }
}
