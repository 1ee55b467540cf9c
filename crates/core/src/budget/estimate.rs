//! Estimates: amounts that a claim holds before its work starts. Reports and reservations of that lease take from them
//! first, and the rest goes back when the lease ends. A budget without room for an estimate remembers how much is waited
//! for, so that the commit which makes the room lets the execution in.

use super::spend::{add, amount};
use super::{Amounts, Budget, Enforcement, Path, Reserve, ReserveRequest, SpendRefusal};
use crate::error::Result;
use crate::id::SlotId;
use crate::reservation::{CountedIn, Reservation};

impl Path<'_> {
    /// Holds the estimate of one try of a claim in every budget of the path, or says which one has no room for it. `existing`
    /// is what the same try has held before.
    pub fn hold_estimate(
        &mut self,
        existing: Option<&Reservation>,
        request: &ReserveRequest,
        slot: SlotId,
        now: i64,
    ) -> Result<Reserve> {
        if let Some(existing) = existing {
            existing.check_repeat(&request.amounts)?;
            return Ok(Reserve::Again { expires_at: existing.expires_at });
        }
        let now = self.open_windows(now);
        for budget in self.all() {
            if let Some(refusal) = budget.refuses_estimate(&request.amounts)? {
                return Ok(Reserve::Refused(refusal));
            }
        }
        let estimate = Reservation { slot: Some(slot), ..self.hold_all(request, now) };
        Ok(Reserve::Held(Box::new(estimate)))
    }

    /// Takes amounts that are about to be held or counted from what an estimate holds, in each budget as far as it does.
    /// The path is that of the budgets which count the estimate.
    pub fn draw(&mut self, estimate: &mut Reservation, amounts: &Amounts, now: i64) {
        self.open_windows(now);
        let all = &estimate.amounts;
        for budget in self.all() {
            let Some(counted) = estimate.counted_in.get_mut(&budget.name) else { continue };
            let held = counted.held.get_or_insert_with(|| all.clone());
            let drawn = amounts.iter().map(|(name, wanted)| (name.clone(), amount(held, name).min(*wanted)));
            let drawn: Amounts = drawn.filter(|(_, drawn)| *drawn > 0).collect();
            add(held, &drawn, -1);
            budget.shift_reserve(counted, &drawn, -1);
        }
    }

    /// The amounts that were drawn were refused after all: the estimate holds again what it held before.
    pub fn undo_draw(&mut self, estimate: &mut Reservation, before: Reservation) {
        for budget in self.all() {
            let (Some(counted), Some(held)) = (estimate.counted_in.get(&budget.name), before.held_in(&budget.name))
            else {
                continue;
            };
            let mut drawn = held.clone();
            add(&mut drawn, counted.held.as_ref().unwrap_or(&estimate.amounts), -1);
            budget.shift_reserve(counted, &drawn, 1);
        }
        *estimate = before;
    }
}

impl Budget {
    /// The refusal of an estimate that does not fit now. A budget that does not have its dimensions refuses nothing.
    pub fn refuses_estimate(&self, estimate: &Amounts) -> Result<Option<SpendRefusal>> {
        Ok(self.room_for(&self.counted_amounts(estimate))?.err())
    }

    /// An execution waits because its estimate did not fit. Says whether it still does not, and remembers how much it waits
    /// for then.
    pub fn await_room(&mut self, estimate: &Amounts) -> bool {
        let Ok(Some(refusal)) = self.refuses_estimate(estimate) else { return false };
        let least = self.awaited.entry(refusal.dimension).or_insert(refusal.requested);
        *least = (*least).min(refusal.requested);
        true
    }

    /// The room that one execution takes of a dimension, as far as is known.
    pub(super) fn next_share(&self, dimension: &str) -> i64 {
        let awaited = amount(&self.awaited, dimension).max(1);
        if self.fits(dimension, awaited) { awaited } else { 1 }
    }

    /// Whether the smallest estimate that is waited with fits more often than before: those that were woken for the room
    /// that was there may not have taken it yet.
    pub(super) fn has_room_since(&self, before: &Budget) -> bool {
        before
            .awaited
            .iter()
            .any(|(dimension, wanted)| self.times(dimension, *wanted) > before.times(dimension, *wanted))
    }

    /// Whether something that is waited with fits, or it is not known with how much is waited.
    pub fn is_worth_waking(&self) -> bool {
        self.awaited.is_empty() || self.awaited.iter().any(|(dimension, wanted)| self.fits(dimension, *wanted))
    }

    /// How often an amount fits.
    fn times(&self, dimension: &str, wanted: i64) -> i64 {
        let binds = self.definition.enforcement == Enforcement::Enforce;
        self.left(dimension).filter(|_| binds).map_or(i64::MAX, |left| left / wanted.max(1))
    }

    /// When an estimate that is waited with fits into a rolling window, if nothing more is spent.
    pub(super) fn awaited_fits_at(&self) -> Option<i64> {
        let waiting = self.awaited.iter().filter(|(dimension, wanted)| !self.fits(dimension, **wanted));
        waiting.filter_map(|(dimension, wanted)| self.fits_at(dimension, *wanted)).min()
    }

    fn fits(&self, dimension: &str, wanted: i64) -> bool {
        let binds = self.definition.enforcement == Enforcement::Enforce;
        self.left(dimension).filter(|_| binds).is_none_or(|left| left >= wanted)
    }

    /// Gives back what an estimate holds here.
    pub fn give_back(&mut self, estimate: &Reservation) {
        if let (Some(counted), Some(held)) = (estimate.counted_in.get(&self.name), estimate.held_in(&self.name)) {
            self.shift_reserve(counted, held, -1);
        }
    }

    fn shift_reserve(&mut self, counted: &CountedIn, amounts: &Amounts, sign: i64) {
        if let Some((_, reserved, _)) = self.counters(counted) {
            add(reserved, amounts, sign);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::budget::{BudgetDefinition, Limits};
    use crate::id::{ExecutionId, Mint};
    use crate::reservation::{ReservationId, Settlement};

    fn budget(name: &str, dimensions: &[(&str, i64)], rolling_ms: i64) -> Budget {
        let limits = |hard: &i64| Limits { hard: *hard, ..Default::default() };
        let dimensions = dimensions.iter().map(|(name, hard)| ((*name).to_owned(), limits(hard))).collect();
        let definition = BudgetDefinition { dimensions, rolling_ms, ..Default::default() };
        Budget::define(None, ("team", name), definition, 1_000).unwrap().created()
    }

    fn amounts(of: &[(&str, i64)]) -> Amounts {
        of.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
    }

    fn tokens(amount: i64) -> Amounts {
        amounts(&[("tokens", amount)])
    }

    fn slot() -> SlotId {
        SlotId::mint(&Mint { now_ms: 1, random: [7; 10] })
    }

    fn request(estimate: &Amounts) -> ReserveRequest {
        let id = ReservationId::of_estimate("team", "a", ExecutionId::default(), slot());
        ReserveRequest { id, amounts: estimate.clone(), ttl_ms: 10_000 }
    }

    fn hold(budgets: &mut [Budget], estimate: &Amounts) -> Reserve {
        let mut path = Path::new(budgets.iter_mut().collect()).unwrap();
        path.hold_estimate(None, &request(estimate), slot(), 2_000).unwrap()
    }

    #[test]
    fn an_estimate_is_held_everywhere_or_nowhere() {
        let mut tree = [budget("a", &[("tokens", 100)], 0), budget("a/b", &[("tokens", 50), ("calls", 9)], 0)];
        let before = tree.clone();
        let Reserve::Refused(refusal) = hold(&mut tree, &amounts(&[("tokens", 51), ("calls", 1)])) else {
            panic!("51 do not fit into a/b");
        };
        assert_eq!((refusal.budget.as_str(), refusal.requested, refusal.left), ("a/b", 51, 50));
        assert_eq!(tree.each_ref().map(|budget| (budget.reserved("tokens"), budget.refused_count)), [(0, 0); 2]);
        let Reserve::Held(held) = hold(&mut tree, &amounts(&[("tokens", 50), ("calls", 1)])) else {
            panic!("they fit")
        };
        assert_eq!((held.slot, tree[0].reserved("tokens"), tree[1].reserved("calls")), (Some(slot()), 50, 1));
        let mut path = Path::new(tree.iter_mut().collect()).unwrap();
        let again = path.hold_estimate(Some(&held), &request(&held.amounts), slot(), 2_001).unwrap();
        assert_eq!(again, Reserve::Again { expires_at: held.expires_at });
        assert!(path.release(&mut held.clone(), 2_002).is_ok_and(|settled| settled.settlement == Settlement::Settle));
        assert_eq!(tree.each_ref().map(|budget| &budget.reserved), before.each_ref().map(|budget| &budget.reserved));
    }

    #[test]
    fn a_draw_takes_what_is_held_and_its_undoing_restores_it() {
        let mut tree = [budget("a", &[("tokens", 100)], 0), budget("a/b", &[("tokens", 50), ("calls", 9)], 0)];
        let Reserve::Held(mut held) = hold(&mut tree, &amounts(&[("tokens", 40), ("calls", 2)])) else {
            panic!("they fit")
        };
        // A dimension that came later holds nothing of the estimate.
        let calls = Limits { hard: 5, ..Default::default() };
        tree[0].set_limits(&BTreeMap::from([("calls".to_owned(), calls)]), 2_001).unwrap();
        let before = (*held).clone();
        let mut path = Path::new(tree.iter_mut().collect()).unwrap();
        path.draw(&mut held, &amounts(&[("tokens", 30), ("calls", 3)]), 2_002);
        assert_eq!(
            tree.each_ref().map(|budget| (budget.reserved("tokens"), budget.reserved("calls"))),
            [(10, 0), (10, 0)]
        );
        let mut path = Path::new(tree.iter_mut().collect()).unwrap();
        path.undo_draw(&mut held, before.clone());
        assert_eq!(*held, before);
        assert_eq!(
            tree.each_ref().map(|budget| (budget.reserved("tokens"), budget.reserved("calls"))),
            [(40, 0), (40, 2)]
        );
        let mut path = Path::new(tree.iter_mut().collect()).unwrap();
        path.draw(&mut held, &tokens(100), 2_003);
        path.release(&mut held, 2_004).unwrap();
        assert!(tree.iter().all(|budget| budget.reserved.is_empty()), "the rest goes back, and no more");
    }

    #[test]
    fn a_budget_opens_for_the_smallest_estimate_that_is_waited_with() {
        let mut budget = budget("a", &[("tokens", 100), ("calls", 10)], 0);
        budget.report(&tokens(60), 2_000).unwrap();
        assert!(budget.await_room(&tokens(50)) && budget.await_room(&tokens(80)) && !budget.await_room(&tokens(40)));
        assert_eq!(budget.awaited, tokens(50));
        assert_eq!(budget.release_count(), 10, "what has no estimate may start");
        let mut more = budget.clone();
        more.usage = tokens(51);
        assert!(!more.opened_since(&budget), "49 are left");
        more.usage = tokens(50);
        assert!(more.opened_since(&budget) && more.release_count() == 1);
        more.usage = Amounts::new();
        assert_eq!((more.opened_since(&budget), more.release_count()), (true, 2));
    }

    #[test]
    fn a_rolling_window_looks_when_the_estimate_fits() {
        let mut budget = budget("a", &[("tokens", 100)], 64_000);
        budget.report(&tokens(60), 1_500).unwrap();
        assert_eq!(budget.due_at(), None);
        assert!(budget.await_room(&tokens(50)));
        assert_eq!(budget.due_at(), Some(66_000));
        let before = budget.clone();
        assert!(budget.come_due(66_000) && budget.opened_since(&before) && budget.due_at().is_none());
    }
}
