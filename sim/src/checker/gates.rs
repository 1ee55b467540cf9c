//! `usage_once` and `admission_holds`: what is charged was reported and not charged before, and nothing starts on a
//! budget that has long been used up, over the cap of a quota or of a concurrency key, or more often than its window allows.

use ff_core::encoding::Document;
use ff_core::execution::Execution;
use ff_core::index::{self, kind};
use ff_core::lease::ClaimKind;
use ff_core::partition::digest16;
use ff_core::reservation::{Reservation, ReservationState};
use ff_core::{Budget, ConcurrencyKey, Key, LifecyclePhase, QuotaPolicy};
use ff_store::memory::RawDocument;

use super::{Checker, Commit};
use crate::invariant::Invariant;

/// The admissions of a quota and their instants, by the digest of execution and attempt that it keeps.
pub(crate) type Admitted = std::collections::BTreeMap<[u8; 16], i64>;

impl Checker {
    /// A budget was written: it grew by exactly what the records written with it were reported for.
    pub(super) fn budget_changed(&mut self, commit: Commit<'_>, key: &Key, after: Option<&RawDocument>) {
        let Some(budget) = after.and_then(|raw| Budget::decode(&raw.body).ok()) else { return };
        let name = budget.name.clone();
        let before = commit.before.get(key).and_then(|raw| Budget::decode(&raw.body).ok()).unwrap_or_default();
        let before = before.rolled_like(&budget);
        self.check_parts(&budget);
        let records = commit.batch.puts.iter().filter(|put| put.key.kind() == kind::RECORD);
        let fresh: Vec<Key> =
            records.filter(|put| !commit.before.contains_key(&put.key)).map(|put| put.key.clone()).collect();
        let reported: i64 = fresh.iter().filter_map(|record| self.reports.get(record)).sum();
        // A budget that was reset in this commit counts from zero.
        let reset = before.window() != budget.window();
        let base = if reset { 0 } else { before.used(TOKENS) };
        let settled = self.settled_in(commit, &before, &budget, reset);
        let grown = budget.used(TOKENS) - base - settled;
        let unnamed = grown - reported;
        let counted = unnamed == 0 || (reset && grown == 0) || self.asked.charge(&name, unnamed);
        self.expect(counted, Invariant::UsageOnce, || {
            format!("budget {name} grew by {grown} where {reported} was reported")
        });
        if before.used(TOKENS) > 0 && reset && before.next_reset_at == budget.next_reset_at {
            self.check_resets(&name);
        }
        for record in fresh {
            let first = self.facts.charged.insert(record.clone(), commit.partition).is_none();
            self.expect(first, Invariant::UsageOnce, || format!("budget {name} was charged twice for {record:?}"));
        }
        let closed = budget.admit().is_err() && !budget.declined;
        let since = self.facts.exhausted.entry(name).or_insert(i64::MAX);
        *since = if closed { (*since).min(commit.at) } else { i64::MAX };
    }

    /// The amount that the reservations written with a budget add to the usage of its window. Their effect on the held
    /// amounts and the overrun is checked here, and so is the ceiling itself.
    fn settled_in(&mut self, commit: Commit<'_>, before: &Budget, budget: &Budget, reset: bool) -> i64 {
        let (mut used, mut held, mut overrun) = (0, 0, 0);
        for put in commit.batch.puts.iter().filter(|put| put.key.kind() == kind::RESERVATION) {
            let Ok(after) = Reservation::decode(&put.body) else { continue };
            let earlier = commit.before.get(&put.key).and_then(|raw| Reservation::decode(&raw.body).ok());
            let legal = earlier.as_ref().is_none_or(|earlier| may_become(earlier.state, after.state));
            self.expect(legal, Invariant::CeilingHolds, || {
                let was = earlier.as_ref().map(|earlier| earlier.state);
                format!("the reservation {:?} was {was:?} and is {:?}", after.key, after.state)
            });
            let counted = after.counted_in.get(&budget.name).filter(|counted| budget.counts(counted));
            let Some(counted) = counted else { continue };
            // An amount that has left a rolling window is not corrected any more.
            let corrected = earlier.as_ref().is_some_and(|earlier| earlier.state == ReservationState::Orphaned);
            if corrected && budget.is_rolling() && budget.parts.iter().all(|part| part.ends_at != counted.part) {
                continue;
            }
            for (reservation, sign) in earlier.iter().map(|earlier| (earlier, -1)).chain([(&after, 1)]) {
                let amount = reservation.held_in(&budget.name).and_then(|held| held.get(TOKENS)).copied().unwrap_or(0);
                let actual = reservation.actual.get(TOKENS).copied().unwrap_or(0);
                match reservation.state {
                    ReservationState::Held => held += sign * amount,
                    ReservationState::Released | ReservationState::Unknown(_) => {}
                    ReservationState::Settled | ReservationState::Orphaned => {
                        used += sign * actual;
                        overrun += sign * (actual - amount).max(0);
                    }
                }
            }
        }
        // A reservation that its holder never got, because another budget refused, is deleted, and so is an estimate that is
        // given back.
        for key in commit.batch.deletes.iter().filter(|key| key.kind() == kind::RESERVATION) {
            let Some(gone) = commit.before.get(key).and_then(|raw| Reservation::decode(&raw.body).ok()) else {
                continue;
            };
            if gone.counted_in.get(&budget.name).is_some_and(|counted| budget.counts(counted)) {
                held -= gone.held_in(&budget.name).and_then(|held| held.get(TOKENS)).copied().unwrap_or(0);
            }
        }
        let base = |amount: i64| if reset { 0 } else { amount };
        let (was_held, was_over) = (base(before.reserved(TOKENS)), base(before.overrun(TOKENS)));
        let agrees = budget.reserved(TOKENS) == was_held + held && budget.overrun(TOKENS) == was_over + overrun;
        self.expect(agrees, Invariant::CeilingHolds, || {
            format!(
                "budget {} holds {} with an overrun of {}; it held {was_held} and {was_over}, and {held} and {overrun} came",
                budget.name,
                budget.reserved(TOKENS),
                budget.overrun(TOKENS)
            )
        });
        let bound = |of: &Budget| of.used(TOKENS) - of.overrun(TOKENS) + of.reserved(TOKENS);
        let granted = budget.granted.get(TOKENS).copied().unwrap_or(0);
        let hard = budget.definition.dimensions.get(TOKENS).map_or(0, |limits| limits.hard) + granted;
        // A limit that was lowered binds what comes, not what is there.
        let most = hard.max(if reset { 0 } else { bound(before) });
        self.expect(hard == 0 || bound(budget) <= most, Invariant::CeilingHolds, || {
            format!("budget {}: {} is taken of {hard}", budget.name, bound(budget))
        });
        used
    }

    /// The parts of a rolling window are together what is used.
    fn check_parts(&mut self, budget: &Budget) {
        let sum: i64 = budget.parts.iter().filter_map(|part| part.usage.get(TOKENS)).sum();
        self.expect(!budget.is_rolling() || sum == budget.used(TOKENS), Invariant::UsageOnce, || {
            format!(
                "budget {}: {} is used, and the parts of its window sum up to {sum}",
                budget.name,
                budget.used(TOKENS)
            )
        });
    }

    /// A quota was written: what it admitted now and within its window before is no more than it may.
    pub(super) fn quota_changed(&mut self, commit: Commit<'_>, after: Option<&RawDocument>) {
        let Some(quota) = after.and_then(|raw| QuotaPolicy::decode(&raw.body).ok()) else { return };
        self.facts.quotas.insert(quota.name.clone(), quota.definition.clone());
        let slots = index::slots(&quota.namespace, &quota.name);
        let taken = commit.contents.entries().filter(|(index, _, _)| **index == slots).count();
        let counted = usize::try_from(quota.in_use).unwrap_or(usize::MAX);
        self.expect(taken == counted, Invariant::AdmissionHolds, || {
            format!("quota {} counts {counted} slots, {taken} are taken", quota.name)
        });
        if quota.definition.max_requests == 0 {
            return;
        }
        let admitted = self.facts.admitted.entry(quota.name.clone()).or_default();
        for digest in quota.recent.chunks_exact(16) {
            // The document dates an admission by the latest time it knows.
            let digest: [u8; 16] = digest.try_into().unwrap_or_default();
            admitted.entry(digest).or_insert(quota.updated_at.min(commit.at));
        }
        let window = i64::from(quota.definition.window_seconds) * 1_000;
        let recent = admitted.values().filter(|at| **at > quota.updated_at - window).count();
        let may = usize::try_from(quota.definition.max_requests).unwrap_or(usize::MAX);
        self.expect(recent <= may, Invariant::AdmissionHolds, || {
            format!("quota {} admitted {recent} within its window at {}, {may} may", quota.name, quota.updated_at)
        });
    }

    /// A concurrency key was written: it counts the slots that are taken.
    pub(super) fn key_changed(&mut self, commit: Commit<'_>, after: Option<&RawDocument>) {
        let Some(key) = after.and_then(|raw| ConcurrencyKey::decode(&raw.body).ok()) else { return };
        let slots = index::key_slots(&key.namespace, &key.key);
        let taken = commit.contents.entries().filter(|(index, _, _)| **index == slots).count();
        let counted = usize::try_from(key.in_use).unwrap_or(usize::MAX);
        self.expect(taken == counted, Invariant::AdmissionHolds, || {
            format!("key {} counts {counted} slots, {taken} are taken", key.key)
        });
    }

    /// An execution was claimed.
    pub(super) fn check_admission(&mut self, document: &Execution, at: i64) {
        let id = document.id;
        // An estimate takes its room before the claim, and may take the last of it.
        for budget in document.budgets.iter().filter(|_| document.estimate().is_none()) {
            let since = self.facts.exhausted.get(budget).copied().unwrap_or(i64::MAX);
            let late = since.saturating_add(self.admission_lag_ms) < at;
            self.expect(!late, Invariant::AdmissionHolds, || {
                format!("{id} started at {at} on budget {budget}, which was used up at {since}")
            });
        }
        self.check_keys(document);
        let Some(quota) = document.quota.clone() else { return };
        let Some(definition) = self.facts.quotas.get(&quota).cloned() else { return };
        self.check_cap(&quota, usize::try_from(definition.max_concurrent).unwrap_or(usize::MAX), document);
        let resumed = document.lease.as_ref().is_some_and(|lease| lease.kind == ClaimKind::Resumed);
        if definition.max_requests == 0 || resumed || self.generation > 0 {
            return;
        }
        let attempt = document.attempt.as_ref().map_or(0, |attempt| attempt.index.0);
        let digest = digest16(&[id.uuid.as_bytes(), &attempt.to_be_bytes()]);
        let admitted = self.facts.admitted.get(&quota).is_some_and(|admitted| admitted.contains_key(&digest));
        self.expect(admitted, Invariant::AdmissionHolds, || {
            format!("{id} attempt {attempt} started without the admission of quota {quota}")
        });
    }

    /// A slot and its execution live in two partitions; a failover between the two commits may forget one of them, so
    /// the cap is exact only in a deployment that never forgot.
    fn check_cap(&mut self, quota: &str, cap: usize, claimed: &Execution) {
        if cap == 0 || self.generation > 0 {
            return;
        }
        let others = self.facts.executions.values().filter(|seen| {
            let document = &seen.document;
            let active = document.state.lifecycle_phase == LifecyclePhase::Active;
            active && document.quota.as_deref() == Some(quota) && document.id != claimed.id
        });
        let others: Vec<_> = others.map(|seen| (seen.document.id, seen.lease_until)).collect();
        let running = others.len() + 1;
        self.expect(running <= cap, Invariant::AdmissionHolds, || {
            format!("quota {quota}: {running} run at once, {cap} may: {} beside {others:?}", claimed.id)
        });
    }

    /// Never more hold a key than the one that is claimed allows; exact only in a deployment that never forgot.
    fn check_keys(&mut self, claimed: &Execution) {
        if self.generation > 0 {
            return;
        }
        for limit in claimed.concurrency() {
            let holds = |document: &Execution| {
                document.state.lifecycle_phase == LifecyclePhase::Active
                    && document.namespace == claimed.namespace
                    && document.id != claimed.id
                    && document.concurrency().iter().any(|other| other.key == limit.key)
            };
            let others: Vec<_> = self.facts.executions.values().filter(|seen| holds(&seen.document)).collect();
            // Slots are taken before executions are claimed: one with a larger limit may have come second and be claimed first.
            let limits = others.iter().flat_map(|seen| seen.document.concurrency()).chain([limit]);
            let most = limits.filter(|other| other.key == limit.key).map(|other| other.limit).max().unwrap_or(0);
            let others: Vec<_> = others.iter().map(|seen| (seen.document.id, seen.lease_until)).collect();
            let (running, may) = (others.len() + 1, usize::try_from(most).unwrap_or(usize::MAX));
            self.expect(running <= may, Invariant::AdmissionHolds, || {
                format!("key {}: {running} run at once, {may} may: {} beside {others:?}", limit.key, claimed.id)
            });
        }
    }

    /// A caller is about to report usage under this record.
    pub(crate) fn will_report(&mut self, record: Key, amount: i64) {
        self.reports.insert(record, amount);
    }

    /// A caller was told that its report was counted.
    pub(crate) fn acknowledged_report(&mut self, record: &Key) {
        let known = self.facts.charged.contains_key(record);
        self.expect(known, Invariant::UsageOnce, || format!("{record:?} was acknowledged and never counted"));
    }
}

fn may_become(before: ReservationState, after: ReservationState) -> bool {
    use ReservationState::{Held, Orphaned, Released, Settled};
    matches!((before, after), (Held, Held | Settled | Released | Orphaned) | (Orphaned, Settled | Released))
}

/// The one dimension that simulated budgets have.
pub(crate) const TOKENS: &str = "tokens";
