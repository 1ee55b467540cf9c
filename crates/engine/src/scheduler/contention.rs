//! Room that claims hold while they are on their way. A claim takes slots and holds its estimate before its commit, so a
//! gate may refuse because of a claim that fails in the end, or because another server claims the same execution. Such a
//! refusal means nothing yet: to park the execution would defeat the other server's claim, and to fail it or to ask
//! people about it could not be undone. The candidate is left alone for a moment instead. A reservation in several budgets
//! is on its way until the last of them holds it, and claims and other reservations are put off for it likewise.

use std::collections::BTreeSet;

use ff_core::budget::{self, Budget};
use ff_core::execution::Execution;
use ff_core::gate::Gate;
use ff_core::index::{self, Due, kind};
use ff_core::reservation::{Reservation, ReservationState};
use ff_core::slot::{Slot, SlotUse};
use ff_core::{Document, IndexName, Indexed, Key, Partition, Result, limits};
use ff_store::{Answer, Query, Scan, StoredDocument, Version};
use futures_util::future::join_all;

use super::Scheduler;
use super::admission::{Limit, Refusal, budget_refusal};
use super::candidate::UNREADABLE_MS;
use crate::charges::scan_on_the_way;
use crate::opening::place_of;

/// How many of the newest slots or estimates of a gate are looked at.
const TRIES_MAX: usize = 64;
/// A candidate is left alone for at least this long.
const PAUSE_MIN_MS: i64 = 5;
/// The first pauses are about this long.
const PAUSE_USUAL_MS: i64 = 15;
/// A candidate is left alone for at most this long.
const PAUSE_MAX_MS: i64 = 1_000;
/// Timers of estimates are looked for this much beyond the latest that is possible, because the engine only estimates
/// the time of a partition.
const CLOCK_MARGIN_MS: i64 = 2_000;

/// How often a budget and its estimates are read until nothing was held in between.
const READS_MAX: usize = 5;

/// A budget and the estimates that claims on their way may hold in it.
struct BudgetNow {
    /// `None` if claims come so fast that no read has both.
    budget: Option<Budget>,
    held: Vec<Reservation>,
    at: i64,
    /// The documents of the budget and of its parent, and their versions.
    documents: Vec<Key>,
    versions: Vec<Option<Version>>,
}

/// The tries that may hold the room which an execution lacks.
struct Tries {
    /// When the oldest of them began.
    since: i64,
    /// The time of the partition.
    at: i64,
}

impl Scheduler {
    /// For how long a refused execution is to be left alone, because the room that it lacks may be held by a claim on its
    /// way; `None` if the refusal stands.
    pub(super) async fn pause_for_tries(&self, execution: &Execution, refusal: &Refusal) -> Option<i64> {
        let tries = match (refusal.gate(), &refusal.limit) {
            (Gate::Budget(name), _) => self.tries_in_budget(execution, refusal, name).await,
            (Gate::Key { key, .. }, _) => {
                self.own_slot(execution, refusal, index::key_slots(&execution.namespace, key)).await
            }
            (Gate::Quota(name), Limit::Quota("concurrency")) => {
                self.own_slot(execution, refusal, index::slots(&execution.namespace, name)).await
            }
            (Gate::Quota(_), _) => Ok(None),
        };
        match tries {
            Ok(tries) => tries.map(|tries| self.pause(&tries)),
            Err(error) => {
                if let Some(suppressed) = self.transactor.may_log("a refusal cannot be checked") {
                    tracing::warn!(%error, suppressed, "a refusal cannot be checked; its work is passed over");
                }
                Some(UNREADABLE_MS)
            }
        }
    }

    /// The longer the room has been held, the longer the pause: a claim whose server died holds it until its timer.
    fn pause(&self, tries: &Tries) -> i64 {
        let span = (2 * (tries.at - tries.since)).clamp(2 * PAUSE_USUAL_MS, PAUSE_MAX_MS);
        let random = i64::try_from(self.transactor.env().random() >> 1).unwrap_or(0);
        PAUSE_MIN_MS + random % span
    }

    /// The slot that another try for the same execution has in a quota or a key.
    async fn own_slot(&self, execution: &Execution, refusal: &Refusal, index: IndexName) -> Result<Option<Tries>> {
        let (home, _) = place_of(&self.transactor, &execution.namespace, refusal.gate());
        let newest = Query::Scan(Scan::last(index, TRIES_MAX).with_documents());
        let answers = self.transactor.read(home, vec![newest]).await?;
        let at = answers.at;
        let found = answers.into_only(Answer::into_scan)?.entries.into_iter().filter_map(|entry| entry.document);
        let slots = found.filter_map(|stored| self.transactor.readable::<Slot>(&stored));
        let own = slots.filter(|slot| slot.execution == execution.id).map(|slot| slot.taken_at);
        Ok(own.min().map(|since| Tries { since, at }))
    }

    /// The tries whose estimates are in the way of an execution. Another try for the same execution always is. Those for
    /// others are if the execution would start without them and its refusal would do more than let it wait: one that
    /// waits is woken when they give back what they hold.
    async fn tries_in_budget(&self, execution: &Execution, refusal: &Refusal, name: &str) -> Result<Option<Tries>> {
        let (home, _) = place_of(&self.transactor, &execution.namespace, refusal.gate());
        let Some(BudgetNow { budget, held, at, documents, versions }) = self.budget_now(execution, name, home).await?
        else {
            return Ok(None);
        };
        let waits = refusal.only_waits();
        let Some(mut budget) = budget else {
            return Ok((!waits).then_some(Tries { since: at, at }));
        };
        let own = held.iter().filter(|one| one.execution == execution.id && one.slot.is_some());
        if let Some(since) = own.map(|estimate| estimate.reserved_at).min() {
            return Ok(Some(Tries { since, at }));
        }
        if waits {
            return Ok(None);
        }
        let mut since = at;
        for estimate in self.unused(held).await? {
            since = since.min(estimate.reserved_at);
            budget.give_back(&estimate);
        }
        let has_room = budget_refusal(name, Some(&budget), execution.estimate()).is_none();
        let may_have_room = has_room || self.versions_of(home, documents).await? != versions;
        Ok(may_have_room.then_some(Tries { since, at }))
    }

    /// A budget with the estimates that it holds and whose timers have not seen their claims yet, as they were at one
    /// moment. `None` if there is no such budget.
    async fn budget_now(&self, execution: &Execution, name: &str, home: Partition) -> Result<Option<BudgetNow>> {
        let now = self.transactor.now_in(home);
        let latest = now + limits::SLOT_ORPHAN_AGE_MS + CLOCK_MARGIN_MS;
        let timers = Scan { min: now - CLOCK_MARGIN_MS, ..Scan::last(index::due(), TRIES_MAX).up_to(latest) };
        let names = std::iter::once(name).chain(budget::parent_of(name));
        let budgets: Vec<Key> = names.map(|name| Budget::key_of(&execution.namespace, name)).collect();
        let beside = scan_on_the_way(&execution.namespace, budget::root_of(name), now);
        // The timers say which estimates there are, and the next read has these together with the budget. A store may answer
        // the queries of one read at different moments, so the budget must be the same as in the read before.
        let (mut known, mut before, mut at) = (Vec::new(), None, now);
        for _ in 0..READS_MAX {
            let queries = vec![
                Query::Documents(budgets.clone()),
                Query::Documents(known.clone()),
                Query::Scan(timers.clone()),
                Query::Scan(beside.clone()),
            ];
            let answers = self.transactor.read(home, queries).await?;
            at = answers.at;
            let mut answers = answers.answers.into_iter();
            let mut documents = || answers.next().and_then(Answer::into_documents).unwrap_or_default();
            let (stored, estimates) = (documents(), documents());
            let entries = answers.next().and_then(Answer::into_scan).unwrap_or_default().entries;
            let timers: Vec<Key> = entries.iter().filter_map(|entry| timer_of_reservation(&entry.member)).collect();
            let versions = versions(&stored);
            if before.as_ref() != Some(&versions) || timers.iter().any(|timer| !known.contains(timer)) {
                (known, before) = (timers, Some(versions));
                continue;
            }
            let Some(budget) = decode_budget(stored, at)? else { return Ok(None) };
            let beside = answers.next().and_then(Answer::into_scan).unwrap_or_default().entries.into_iter();
            let beside = beside.filter_map(|entry| entry.document);
            let held = estimates.into_iter().flatten().chain(beside);
            let held = held.filter_map(|stored| self.transactor.readable::<Reservation>(&stored));
            let may_go = |one: &Reservation| one.slot.is_some() || !one.last.is_empty();
            let is_held = |one: &Reservation| one.state == ReservationState::Held && may_go(one);
            let held = held.filter(|estimate| is_held(estimate) && budget.counts_reservation(estimate)).collect();
            return Ok(Some(BudgetNow { budget: Some(budget), held, at, documents: budgets, versions }));
        }
        Ok(Some(BudgetNow { budget: None, held: Vec::new(), at, documents: budgets, versions: Vec::new() }))
    }

    async fn versions_of(&self, partition: Partition, documents: Vec<Key>) -> Result<Vec<Option<Version>>> {
        let answers = self.transactor.read(partition, vec![Query::Documents(documents)]).await?;
        Ok(versions(&answers.into_only(Answer::into_documents)?))
    }

    /// How long a reservation is put off for the sake of others that are on their way through several budgets. Those that
    /// have arrived are noted, and if all have, there is nothing to wait for.
    pub(crate) async fn pause_for_reservations(
        &self,
        others: Vec<Reservation>,
        confirmed: &mut BTreeSet<Key>,
    ) -> Result<Option<i64>> {
        confirmed.extend(others.iter().map(Indexed::key));
        let Some(home) =
            others.first().map(|one| self.transactor.partitions().budget_partition(&one.namespace, &one.budget))
        else {
            return Ok(None);
        };
        let open = self.unconfirmed(others).await?;
        confirmed.retain(|key| open.iter().all(|one| one.key() != *key));
        let since = open.iter().map(|one| one.reserved_at).min();
        Ok(since.map(|since| self.pause(&Tries { since, at: self.transactor.now_in(home) })))
    }

    /// Those of some reservations that the last of their budgets does not hold: they are on their way, or have failed.
    async fn unconfirmed(&self, held: Vec<Reservation>) -> Result<Vec<Reservation>> {
        let looks = held.into_iter().map(|one| async move {
            let Some(last) = one.confirmed_by() else { return Ok(None) };
            let home = self.transactor.partitions().budget_partition(&last.namespace, &last.budget);
            let found = self.transactor.find::<Reservation>(home, last.document_key()).await?;
            Ok(found.is_none().then_some(one))
        });
        let open: Result<Vec<Option<Reservation>>> = join_all(looks).await.into_iter().collect();
        Ok(open?.into_iter().flatten().collect())
    }

    /// Those of some reservations that may go again: reservations on their way through several budgets, and estimates that
    /// no lease or grant uses, whose claims are on their way or have ended.
    async fn unused(&self, held: Vec<Reservation>) -> Result<Vec<Reservation>> {
        let (held, beside): (Vec<_>, Vec<_>) = held.into_iter().partition(|one| one.slot.is_some());
        let looks = held.iter().map(|estimate| {
            let id = estimate.execution;
            self.transactor.find::<Execution>(id.partition(), Execution::key_of(&id))
        });
        let found = join_all(looks).await;
        let mut unused = self.unconfirmed(beside).await?;
        for (estimate, execution) in held.into_iter().zip(found) {
            let execution = execution?;
            let used = |slot| SlotUse::of(execution.as_ref(), slot) == SlotUse::InUse;
            if !estimate.slot.as_ref().is_some_and(used) {
                unused.push(estimate);
            }
        }
        Ok(unused)
    }
}

fn versions(stored: &[Option<StoredDocument>]) -> Vec<Option<Version>> {
    stored.iter().map(|stored| stored.as_ref().map(|stored| stored.version)).collect()
}

/// The reservation of a timer.
fn timer_of_reservation(member: &Key) -> Option<Key> {
    let (key, due) = Due::parse(member)?;
    (due == Due::Timer && key.kind() == kind::RESERVATION).then_some(key)
}

/// A budget, which comes first, with the limits that its parent says if it is a child by tag.
fn decode_budget(stored: Vec<Option<StoredDocument>>, now: i64) -> Result<Option<Budget>> {
    let mut budgets = stored.into_iter().map(|stored| stored.map(|stored| Budget::decode(&stored.body)).transpose());
    let (budget, parent) = (budgets.next().transpose()?.flatten(), budgets.next().transpose()?.flatten());
    Ok(budget.map(|mut budget| {
        parent.iter().for_each(|parent| budget.follow(parent, now));
        budget
    }))
}
