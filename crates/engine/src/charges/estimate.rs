//! Estimates in the ledger of a budget: a claim holds one, and what its lease spends is taken from it first.

use ff_core::budget::{Amounts, Budget, HardAction, Reserve, ReserveRequest};
use ff_core::reservation::{Reservation, ReservationId, ReservationState};
use ff_core::{Key, Result, SlotId};

use super::{Beside, Charged, Ledger, path_counting, path_to};

/// An estimate that gave something up, as it was before.
pub(super) struct Drawn {
    key: Key,
    before: Reservation,
}

impl Ledger {
    /// Holds an estimate for one try of a claim. A budget that has no room is not said to have refused anything: the
    /// execution waits, as it does for a budget that is used up.
    pub(super) fn hold_estimate(
        &mut self,
        lowest: &[String],
        request: &ReserveRequest,
        slot: SlotId,
        now: i64,
    ) -> Result<Charged> {
        let key = request.id.document_key();
        let mut path = path_to(&mut self.budgets, lowest)?;
        if path.counted_amounts(&request.amounts).is_empty() {
            return Ok(Charged::Nothing);
        }
        Ok(match path.hold_estimate(self.reservations.get(&key), request, slot, now)? {
            Reserve::Held(estimate) => {
                let expires_at = estimate.expires_at;
                self.reservations.insert(key.clone(), *estimate);
                self.forgotten.retain(|other| *other != key);
                self.touched.push(key);
                Charged::Reserved { expires_at, again: false, names: Vec::new() }
            }
            Reserve::Again { expires_at } => Charged::Reserved { expires_at, again: true, names: Vec::new() },
            Reserve::Refused(refusal) => {
                let action = self.budgets.get(&refusal.budget).map_or(HardAction::Block, Budget::hard_action);
                Charged::Waits { refusal, action }
            }
        })
    }

    /// An execution that waited for the answer of a person goes on after a no, too: its program learns what it may not
    /// spend.
    pub(super) fn without_if_declined(&self, held: Charged) -> Charged {
        let declined = |name: &str| self.budgets.get(name).is_some_and(|budget| budget.declined);
        match held {
            Charged::Waits { refusal, .. } if declined(&refusal.budget) => Charged::Nothing,
            held => held,
        }
    }

    /// Reserves amounts, and takes what the estimate of the lease holds of them from it. A repeat takes nothing.
    pub(super) fn reserve_of(
        &mut self,
        estimate: Option<&ReservationId>,
        lowest: &[String],
        (request, only_known, beside): (&ReserveRequest, bool, &Beside),
        now: i64,
    ) -> Result<Charged> {
        let again = self.reservations.contains_key(&request.id.document_key());
        let drawn = self.draw(estimate.filter(|_| !again), &request.amounts, now)?;
        let answer = self.reserve(lowest, (request, only_known, beside), now);
        if !matches!(answer, Ok(Charged::Reserved { .. })) {
            self.undo_draw(drawn)?;
        }
        answer
    }

    /// Takes amounts from what the estimate of a lease holds, as far as it does.
    pub(super) fn draw(
        &mut self,
        estimate: Option<&ReservationId>,
        amounts: &Amounts,
        now: i64,
    ) -> Result<Option<Drawn>> {
        let Some(key) = estimate.map(ReservationId::document_key) else { return Ok(None) };
        let held = self.reservations.get_mut(&key).filter(|held| held.state == ReservationState::Held);
        let Some(held) = held else { return Ok(None) };
        let before = held.clone();
        path_counting(&mut self.budgets, held)?.draw(held, amounts, now);
        self.touched.push(key.clone());
        Ok(Some(Drawn { key, before }))
    }

    /// The amounts were not spent after all.
    pub(super) fn undo_draw(&mut self, drawn: Option<Drawn>) -> Result<()> {
        let Some(Drawn { key, before }) = drawn else { return Ok(()) };
        if let Some(held) = self.reservations.get_mut(&key) {
            path_counting(&mut self.budgets, held)?.undo_draw(held, before);
        }
        Ok(())
    }
}
