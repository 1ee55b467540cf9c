//! Charges to budgets: reports of usage, reservations, estimates, and what becomes of them. One commit reads everything
//! that a number of charges to budgets under one root need, answers each by itself, and writes what has changed with the
//! evidence of each.

pub(crate) mod breach;
mod estimate;
pub(crate) mod question;
mod report;

use std::collections::{BTreeMap, BTreeSet};

use ff_core::budget::{self, Amounts, Budget, HardAction, Path, Reserve, ReserveRequest, SpendRefusal};
use ff_core::gate::Gate;
use ff_core::idempotency::CommandRecord;
use ff_core::index::kind;
use ff_core::op::SettledSpend;
use ff_core::reservation::{Reservation, ReservationId, ReservationState, Settlement};
use ff_core::text::Tags;
use ff_core::usage::ReportUsageResult;
use ff_core::{Code, CommandId, Error, ExecutionId, Indexed, Key, Result, SlotId, index, limits};
use ff_store::{Answer, Query, Scan};

use crate::hint::Item;
use crate::transaction::{Command, Tx};

pub(crate) use report::Report;

/// How many reservations on their way are looked at.
const ON_THE_WAY_MAX: usize = 64;

/// A request to a budget.
#[derive(Debug, Clone)]
pub(crate) enum Charge {
    /// It was spent.
    Report(Report),
    /// It will be spent. With `only_known` a budget that has none of the dimensions holds nothing. The estimate of the lease
    /// gives up what it holds of it. `beside` says how it stands to those of other budgets.
    Reserve { request: ReserveRequest, only_known: bool, estimate: Option<ReservationId>, beside: Beside },
    /// A claim may spend it: held for one try of the claim, in the dimensions that the budget has. An execution that is
    /// `resumed` after a person said no to more goes on without.
    Estimate { request: ReserveRequest, slot: SlotId, resumed: bool },
    /// The amounts that were really spent of a reservation.
    Settle(ReservationId, Amounts),
    /// Nothing was spent of a reservation.
    Release(ReservationId),
    /// A reservation that came about is not used, because another budget refused: as if it had never been.
    GiveBack(ReservationId),
}

/// How a reservation stands to others of budgets under other roots.
#[derive(Debug, Clone, Default)]
pub(crate) struct Beside {
    /// The budget that is asked last for the same amounts; empty where none is asked after this one.
    pub(crate) last: String,
    /// Reservations that were on their way when the caller last asked, and are no longer.
    pub(crate) confirmed: BTreeSet<Key>,
}

/// The answer of a budget.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Charged {
    /// The charge names no dimension of the budget and did not insist, or there is no such reservation.
    Nothing,
    /// To a report, and the named budgets that it speaks for.
    Reported(ReportUsageResult, Vec<String>),
    /// The amounts are held until then in the named budgets; `again` says that they were before.
    Reserved { expires_at: i64, again: bool, names: Vec<String> },
    /// The amounts do not fit. With `ask` a person is asked, and the partition of the execution is known to wait.
    Refused { refusal: SpendRefusal, ask: bool },
    /// The amounts fit only if these reservations are given back, which are on their way through several budgets.
    Beside(Vec<Reservation>),
    /// An estimate does not fit, and this is what becomes of the execution.
    Waits { refusal: SpendRefusal, action: HardAction },
    /// To a settlement or a release, and the named budgets that counted the reservation.
    Settled(SettledSpend, Vec<String>),
}

/// A charge to a budget by its name, and the id by which this engine knows this very call: a repeat of the commit must
/// not take its own effect for another call's.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) budget: String,
    /// Other budgets of the same tree that the same charge names. Each budget on the way to any of them counts it once.
    pub(crate) beside: Vec<String>,
    /// The tags of the execution that pays; the budget may have children for one of them.
    pub(crate) tags: Tags,
    pub(crate) charge: Charge,
    pub(crate) id: CommandId,
}

impl Call {
    /// The budgets that the charge names, all under one root.
    fn names(&self) -> impl Iterator<Item = &String> {
        self.beside.iter().chain(std::iter::once(&self.budget))
    }
}

/// A budget that a commit changed: its counters for the metrics.
pub(crate) struct BudgetChange {
    pub(crate) name: String,
    pub(crate) spent: Amounts,
    pub(crate) reserved: Amounts,
    pub(crate) refused: u64,
    /// Events about it are not in the log yet.
    pub(crate) owes_events: bool,
}

/// Charges to budgets under one root, in one commit.
pub(crate) struct ChargeAll<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) calls: &'a [Call],
}

impl Command for ChargeAll<'_> {
    type Outcome = (Vec<Result<Charged>>, Vec<BudgetChange>);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Outcome> {
        let mut ledger = Ledger::read(tx, self.namespace, self.calls).await?;
        let answers = self.calls.iter().map(|call| ledger.serve(tx, call)).collect();
        Ok((answers, ledger.save(tx)))
    }
}

/// Everything that a number of charges need, as it was read and as it will be written. One round trip reads it; children
/// by tag take a second one.
struct Ledger {
    namespace: String,
    budgets: BTreeMap<String, Budget>,
    before: BTreeMap<String, Budget>,
    /// How many budgets more may be made under the root.
    room_for_children: u64,
    /// The budgets that these charges made.
    made: BTreeSet<String>,
    reservations: BTreeMap<Key, Reservation>,
    /// Reservations under the root that may be on their way through several budgets.
    on_the_way: Vec<Reservation>,
    touched: Vec<Key>,
    forgotten: Vec<Key>,
    evidence: BTreeMap<Key, CommandRecord>,
}

impl Ledger {
    async fn read(tx: &mut Tx<'_>, namespace: &str, calls: &[Call]) -> Result<Self> {
        let mut keys: Vec<Key> = Vec::new();
        for call in calls {
            let on_the_way = call.names().flat_map(|name| budget::names_to(name));
            keys.extend(on_the_way.map(|name| Budget::key_of(namespace, name)));
            match &call.charge {
                Charge::Report(report) => {
                    keys.extend(report.estimate.iter().map(ReservationId::document_key));
                    let named = call.names().map(|name| Budget::key_of(namespace, name));
                    keys.extend(named.filter_map(|named| report.identity(&named, 0)).map(|identity| identity.key()));
                    // The commit may have been applied unseen.
                    keys.extend(tx.is_repeat().then(|| call.own_identity().key()));
                }
                Charge::Reserve { request, estimate, .. } => {
                    keys.push(request.id.document_key());
                    keys.extend(estimate.iter().map(ReservationId::document_key));
                }
                Charge::Estimate { request: ReserveRequest { id, .. }, .. }
                | Charge::Settle(id, _)
                | Charge::Release(id)
                | Charge::GiveBack(id) => keys.push(id.document_key()),
            }
        }
        let mut ledger = Self {
            namespace: namespace.to_owned(),
            budgets: BTreeMap::new(),
            before: BTreeMap::new(),
            room_for_children: 0,
            made: BTreeSet::new(),
            reservations: BTreeMap::new(),
            on_the_way: Vec::new(),
            touched: Vec::new(),
            forgotten: Vec::new(),
            evidence: BTreeMap::new(),
        };
        let reserves = |call: &&Call| matches!(call.charge, Charge::Reserve { .. });
        let root = calls.iter().find(reserves).map(|call| budget::root_of(&call.budget));
        ledger.adopt(tx, keys, root.map(|root| scan_on_the_way(namespace, root, tx.now))).await?;
        let children = ledger.children_of(calls);
        if !children.is_empty() {
            let keys = children.iter().map(|name| Budget::key_of(namespace, name)).collect();
            ledger.adopt(tx, keys, None).await?;
            if let Some(new) = children.iter().find(|name| !ledger.budgets.contains_key(*name)) {
                let under = index::budgets_under(namespace, budget::root_of(new));
                ledger.room_for_children = limits::BUDGET_CHILDREN_MAX.saturating_sub(tx.count(under).await?);
            }
        }
        Ok(ledger)
    }

    async fn adopt(&mut self, tx: &mut Tx<'_>, mut keys: Vec<Key>, on_the_way: Option<Scan>) -> Result<()> {
        keys.sort_unstable();
        keys.dedup();
        let documents = std::iter::once(Query::Documents(keys.clone()));
        let mut answers = tx.read(documents.chain(on_the_way.map(Query::Scan)).collect()).await?.into_iter();
        let found = answers.next().and_then(Answer::into_documents).unwrap_or_default();
        let others = answers.next().and_then(Answer::into_scan).unwrap_or_default().entries.into_iter();
        let others = others.filter_map(|entry| tx.transactor.readable::<Reservation>(&entry.document?));
        self.on_the_way.extend(others.filter(|one| one.state == ReservationState::Held));
        for (key, stored) in keys.into_iter().zip(found) {
            match key.kind() {
                kind::BUDGET => {
                    if let Some(loaded) = tx.adopt::<Budget>(key, stored)? {
                        self.before.insert(loaded.document.name.clone(), loaded.document.clone());
                        self.budgets.insert(loaded.document.name.clone(), loaded.document);
                    }
                }
                kind::RESERVATION => {
                    let loaded = tx.adopt::<Reservation>(key.clone(), stored)?;
                    self.reservations.extend(loaded.map(|loaded| (key, loaded.document)));
                }
                _ => {
                    let loaded = tx.adopt::<CommandRecord>(key.clone(), stored)?;
                    self.evidence.extend(loaded.map(|loaded| (key, loaded.document)));
                }
            }
        }
        Ok(())
    }

    /// The children by tag that are charged beside the named budgets, and those that count reservations which end.
    fn children_of(&self, calls: &[Call]) -> BTreeSet<String> {
        let named = calls.iter().flat_map(|call| call.names().map(|name| (name, &call.tags)));
        let charged = named.filter_map(|(name, tags)| self.budgets.get(name)?.child_for(tags));
        let counting = self.reservations.values().flat_map(|held| held.counted_in.keys().cloned());
        charged.chain(counting).filter(|name| !self.budgets.contains_key(name)).collect()
    }

    /// The lowest budgets that a charge to these names counts in.
    fn lowest<'n>(&mut self, tx: &Tx<'_>, call: &Call, names: impl Iterator<Item = &'n String>) -> Result<Vec<String>> {
        names.map(|name| self.lowest_under(tx, call, name)).collect()
    }

    /// The named budget, or its child by tag, which the first charge makes.
    fn lowest_under(&mut self, tx: &Tx<'_>, call: &Call, named: &str) -> Result<String> {
        let child = self.budgets.get(named).and_then(|named| Some((named, named.child_for(&call.tags)?)));
        let Some((named, name)) = child else { return Ok(named.to_owned()) };
        if self.budgets.contains_key(&name) {
            let named = named.clone();
            self.budgets.entry(name.clone()).and_modify(|child| child.follow(&named, tx.now));
            return Ok(name);
        }
        if self.room_for_children == 0 {
            return Err(Error::of(Code::BudgetTreeFull).with("root", budget::root_of(&name)));
        }
        let Some(mut made) = named.make_child(&call.tags, tx.now) else { return Ok(named.name.clone()) };
        made.incarnation = tx.transactor.env().random();
        self.room_for_children -= 1;
        self.made.insert(name.clone());
        self.before.insert(name.clone(), made.clone());
        self.budgets.insert(name.clone(), made);
        Ok(name)
    }

    fn serve(&mut self, tx: &mut Tx<'_>, call: &Call) -> Result<Charged> {
        match &call.charge {
            Charge::Report(report) => self.report(tx, call, report),
            Charge::Reserve { request, only_known, estimate, beside } => {
                let lowest = self.lowest(tx, call, call.names())?;
                let reserved = self.reserve_of(estimate.as_ref(), &lowest, (request, *only_known, beside), tx.now)?;
                Ok(self.with_names(call, reserved))
            }
            Charge::Estimate { request, slot, resumed } => {
                let lowest = self.lowest(tx, call, call.names())?;
                let held = self.hold_estimate(&lowest, request, *slot, tx.now)?;
                Ok(if *resumed { self.without_if_declined(held) } else { held })
            }
            Charge::Settle(id, actual) => {
                let settled = self.end(id, |path, held| path.settle(held, actual, tx.now))?;
                Ok(self.with_counting(call, id, settled))
            }
            Charge::Release(id) => {
                let released = self.end(id, |path, held| path.release(held, tx.now))?;
                Ok(self.with_counting(call, id, released))
            }
            Charge::GiveBack(id) => {
                let key = id.document_key();
                if self.reservations.get(&key).is_none_or(|held| held.state != ReservationState::Held) {
                    return Ok(Charged::Nothing);
                }
                let given_back = match self.end(id, |path, held| path.release(held, tx.now)) {
                    // The budgets were removed: nothing counts it any more.
                    Err(error) if error.code == Code::BudgetNotFound => Charged::Nothing,
                    given_back => given_back?,
                };
                self.reservations.remove(&key);
                self.forgotten.push(key);
                Ok(given_back)
            }
        }
    }

    /// The answer, with those of the named budgets that are there.
    fn with_names(&self, call: &Call, answer: Charged) -> Charged {
        let names = || call.names().filter(|name| self.budgets.contains_key(*name)).cloned().collect();
        match answer {
            Charged::Reserved { expires_at, again, .. } => Charged::Reserved { expires_at, again, names: names() },
            answer => answer,
        }
    }

    /// The answer to an end, with those of the named budgets that counted the reservation, also if they are gone.
    fn with_counting(&self, call: &Call, id: &ReservationId, answer: Charged) -> Charged {
        let Charged::Settled(settled, _) = answer else { return answer };
        let counted_in = self.reservations.get(&id.document_key()).map(|ended| &ended.counted_in);
        let counts = |name: &&String| **name == id.budget || counted_in.is_some_and(|all| all.contains_key(*name));
        Charged::Settled(settled, call.names().filter(counts).cloned().collect())
    }

    fn reserve(
        &mut self,
        lowest: &[String],
        (request, only_known, beside): (&ReserveRequest, bool, &Beside),
        now: i64,
    ) -> Result<Charged> {
        let key = request.id.document_key();
        self.forget_if_made_anew(lowest, request, now)?;
        let path = path_to(&mut self.budgets, lowest)?;
        if !only_known {
            path.check_dimensions("amounts", &request.amounts)?;
        } else if path.counted_amounts(&request.amounts).is_empty() {
            return Ok(Charged::Nothing);
        }
        // Where something is on its way, a refusal may have to be taken back.
        let before = (!self.on_the_way.is_empty()).then(|| self.budgets.clone());
        let mut path = path_to(&mut self.budgets, lowest)?;
        Ok(match path.reserve(self.reservations.get(&key), request, now)? {
            Reserve::Held(mut reservation) => {
                let expires_at = reservation.expires_at;
                if !beside.last.is_empty() {
                    reservation.last.clone_from(&beside.last);
                    self.on_the_way.push((*reservation).clone());
                }
                self.reservations.insert(key.clone(), *reservation);
                self.forgotten.retain(|other| *other != key);
                self.touched.push(key);
                Charged::Reserved { expires_at, again: false, names: Vec::new() }
            }
            Reserve::Again { expires_at } => Charged::Reserved { expires_at, again: true, names: Vec::new() },
            Reserve::Refused(refusal) => {
                if let Some(before) = before
                    && let Some(others) = self.in_the_way(&before, lowest, (request, beside), now)?
                {
                    self.budgets = before;
                    return Ok(Charged::Beside(others));
                }
                let ask = self.ask(&refusal, &request.id.execution, now);
                Charged::Refused { refusal, ask }
            }
        })
    }

    /// The reservations on their way without which amounts would fit; `None` if they do not fit in any case.
    fn in_the_way(
        &self,
        budgets: &BTreeMap<String, Budget>,
        lowest: &[String],
        (request, beside): (&ReserveRequest, &Beside),
        now: i64,
    ) -> Result<Option<Vec<Reservation>>> {
        let own = request.id.document_key();
        let is_other = |key: Key| key != own && !beside.confirmed.contains(&key);
        let others: Vec<Reservation> = self.on_the_way.iter().filter(|one| is_other(one.key())).cloned().collect();
        let mut without = budgets.clone();
        for budget in without.values_mut() {
            others.iter().for_each(|one| budget.give_back(one));
        }
        let fits = matches!(path_to(&mut without, lowest)?.reserve(None, request, now)?, Reserve::Held(_));
        Ok((fits && !others.is_empty()).then_some(others))
    }

    /// A reservation in a budget that was removed and made anew under its name holds nothing there: the same key reserves
    /// once more. The budgets above, which have stayed, get back what it held.
    fn forget_if_made_anew(&mut self, lowest: &[String], request: &ReserveRequest, now: i64) -> Result<()> {
        let key = request.id.document_key();
        let Some(held) = self.reservations.get(&key) else { return Ok(()) };
        if lowest.iter().filter_map(|name| self.budgets.get(name)).all(|budget| budget.counts_reservation(held)) {
            return Ok(());
        }
        if held.state == ReservationState::Held {
            self.end(&request.id, |path, held| path.release(held, now))?;
        }
        self.reservations.remove(&key);
        Ok(())
    }

    /// Asks people in the commit that refuses, and remembers where the answer is waited for.
    fn ask(&mut self, refusal: &SpendRefusal, execution: &ExecutionId, now: i64) -> bool {
        let Some(budget) = self.budgets.get_mut(&refusal.budget).filter(|budget| budget.asks_people()) else {
            return false;
        };
        budget.ask(&refusal.dimension, refusal.requested, *execution, now);
        budget.parked_in.add(execution.partition().number);
        true
    }

    fn end(
        &mut self,
        id: &ReservationId,
        act: impl FnOnce(&mut Path<'_>, &mut Reservation) -> Result<budget::Settled>,
    ) -> Result<Charged> {
        let key = id.document_key();
        let Some(reservation) = self.reservations.get_mut(&key) else { return Ok(Charged::Nothing) };
        let settled = act(&mut path_counting(&mut self.budgets, reservation)?, reservation)?;
        if settled.settlement != Settlement::Nothing {
            self.touched.push(key);
        }
        Ok(Charged::Settled(SettledSpend { overrun: settled.overrun }, Vec::new()))
    }

    /// Writes what has changed, and says what follows from it.
    fn save(mut self, tx: &mut Tx<'_>) -> Vec<BudgetChange> {
        self.touched.sort_unstable();
        self.touched.dedup();
        for key in &self.touched {
            match self.reservations.get(key) {
                Some(held) if held.state == ReservationState::Held => tx.save(held),
                Some(ended) => tx.save_until(ended, ended.remembered_until()),
                None => {}
            }
        }
        for key in &self.forgotten {
            tx.delete(key);
        }
        let mut changed = Vec::new();
        // A child that came to nothing was not used.
        self.budgets.retain(|name, budget| !self.made.contains(name) || !budget.is_empty());
        for (name, budget) in &mut self.budgets {
            let Some(before) = self.before.get(name) else { continue };
            if let Some(change) = save_budget(tx, &self.namespace, before, budget) {
                changed.push(change);
            }
        }
        changed
    }
}

/// The youngest reservations under a root whose amounts other budgets may still refuse.
pub(crate) fn scan_on_the_way(namespace: &str, root: &str, now: i64) -> Scan {
    let youngest = Scan::last(index::reservations_beside(namespace, root), ON_THE_WAY_MAX).with_documents();
    Scan { min: now - limits::RESERVING_MAX_MS, ..youngest }
}

/// The budgets on the way to those of these names that are there, each once.
pub(crate) fn path_to<'d>(budgets: &'d mut BTreeMap<String, Budget>, names: &[String]) -> Result<Path<'d>> {
    let there: BTreeSet<&str> =
        names.iter().filter(|name| budgets.contains_key(*name)).flat_map(|name| budget::names_to(name)).collect();
    let path = budgets.iter_mut().filter(|(name, _)| there.contains(name.as_str())).map(|(_, budget)| budget).collect();
    Path::new(path).ok_or_else(|| Error::of(Code::BudgetNotFound).with("budget", names.last()))
}

/// The budgets that count a reservation, as far as they are still there.
pub(crate) fn path_counting<'d>(
    budgets: &'d mut BTreeMap<String, Budget>,
    reservation: &Reservation,
) -> Result<Path<'d>> {
    let counting = budgets.iter_mut().filter(|(name, _)| reservation.counted_in.contains_key(*name));
    let path = Path::new(counting.map(|(_, budget)| budget).collect());
    path.ok_or_else(|| Error::of(Code::BudgetNotFound).with("budget", &reservation.budget))
}

/// Writes a budget if it has changed, and hints that it opened if it did.
pub(crate) fn save_budget(
    tx: &mut Tx<'_>,
    namespace: &str,
    before: &Budget,
    budget: &mut Budget,
) -> Option<BudgetChange> {
    budget.answer_if_room();
    if budget.opened_since(before) && !budget.parked_in.is_empty() {
        tx.hint(Item::gate(namespace, Gate::Budget(&budget.name)));
    }
    if budget == before {
        return None;
    }
    tx.save(budget);
    let same_window = budget.window() == before.window();
    // Usage that left a rolling window in this commit was spent before it.
    let rolled = before.rolled_like(budget);
    let spent = budget.usage.iter().map(|(dimension, used)| {
        let earlier = if same_window { rolled.used(dimension) } else { 0 };
        (dimension.clone(), (used - earlier).max(0))
    });
    Some(BudgetChange {
        name: budget.name.clone(),
        spent: spent.filter(|(_, spent)| *spent > 0).collect(),
        reserved: budget.definition.dimensions.keys().map(|name| (name.clone(), budget.reserved(name))).collect(),
        refused: budget.refused_count - before.refused_count.min(budget.refused_count),
        owes_events: budget.breaches.owed.len() > before.breaches.owed.len(),
    })
}
