//! Charges to budgets: reports of usage, reservations, and what becomes of them. Charges to budgets under one root that
//! arrive while a commit is under way share the next one: each keeps its own answer and its own evidence, all in the
//! commit that changes the budgets.

mod report;

use std::collections::BTreeMap;
use std::sync::Arc;

use ff_core::budget::{self, Amounts, Budget, Path, Reserve, ReserveRequest, SpendRefusal};
use ff_core::idempotency::CommandRecord;
use ff_core::index::kind;
use ff_core::op::SettledSpend;
use ff_core::reservation::{Reservation, ReservationId, ReservationState, Settlement};
use ff_core::usage::ReportUsageResult;
use ff_core::{Code, CommandId, Error, ExecutionId, Key, Result, index};
use ff_store::Query;

use crate::groups::{self, Groups, Name};
use crate::hint::Item;
use crate::scheduler::Scheduler;
use crate::scheduler::parking::Opened;
use crate::transaction::{Command, Transactor, Tx};

pub(crate) use report::Report;

/// A request to a budget.
#[derive(Debug, Clone)]
pub(crate) enum Charge {
    /// It was spent.
    Report(Report),
    /// It will be spent. With `only_known` a budget that has none of the dimensions holds nothing.
    Reserve { request: ReserveRequest, only_known: bool },
    /// The amounts that were really spent of a reservation.
    Settle(ReservationId, Amounts),
    /// Nothing was spent of a reservation.
    Release(ReservationId),
    /// A reservation that came about is not used, because another budget refused: as if it had never been.
    GiveBack(ReservationId),
}

/// The answer of a budget.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Charged {
    /// The charge names no dimension of the budget and did not insist, or there is no such reservation.
    Nothing,
    /// To a report.
    Reported(ReportUsageResult),
    /// The amounts are held until then; `again` says that they were before.
    Reserved { expires_at: i64, again: bool },
    /// The amounts do not fit. With `ask` a person is asked, and the partition of the execution is known to wait.
    Refused { refusal: SpendRefusal, ask: bool },
    /// To a settlement or a release.
    Settled(SettledSpend),
}

/// A charge to a budget by its name, and the id by which this engine knows this very call: a repeat of the commit must
/// not take its own effect for another call's.
#[derive(Debug)]
pub(crate) struct Call {
    budget: String,
    charge: Charge,
    id: CommandId,
}

/// Charges budgets.
#[derive(Clone)]
pub(crate) struct Charges {
    transactor: Transactor,
    scheduler: Scheduler,
    /// Charges on their way, by the root of their budgets.
    groups: Arc<Groups<Call, Charged>>,
}

/// A budget that a commit changed: its counters for the metrics, and the executions it lets in.
pub(crate) struct BudgetChange {
    name: String,
    spent: Amounts,
    reserved: Amounts,
    refused: u64,
    opened: Opened,
}

impl Charges {
    pub(crate) fn new(scheduler: Scheduler) -> Self {
        Self { transactor: scheduler.transactor().clone(), scheduler, groups: Arc::default() }
    }

    /// Charges a budget.
    pub(crate) async fn charge(&self, namespace: &str, name: &str, charge: Charge) -> Result<Charged> {
        let serve = |root| {
            let charges = self.clone();
            self.transactor.spawn_short(async move { charges.commit_charges(root).await });
        };
        let call = Call { budget: name.to_owned(), charge, id: self.transactor.fresh_command() };
        let root = budget::root_of(name);
        self.groups.ask((namespace.to_owned(), root.to_owned()), call, serve).await
    }

    async fn commit_charges(&self, root: Name) {
        let partition = self.transactor.partitions().budget_partition(&root.0, &root.1);
        loop {
            let waiting = self.groups.take(&root);
            if waiting.is_empty() {
                return;
            }
            let (calls, senders): (Vec<Call>, Vec<_>) = waiting.into_iter().unzip();
            let verb = ChargeAll { namespace: &root.0, calls: &calls };
            let turn = self.transactor.locks().take(partition, Budget::key_of(&root.0, &root.1)).await;
            let outcome = self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await;
            drop(turn);
            let (answers, changed) =
                outcome.map_or_else(|error| (Err(error), Vec::new()), |(all, changed)| (Ok(all), changed));
            groups::answer(senders, answers);
            self.budgets_changed(&root.0, changed).await;
        }
    }

    /// Acts on a commit that changed budgets.
    pub(crate) async fn budgets_changed(&self, namespace: &str, changed: Vec<BudgetChange>) {
        for BudgetChange { name, spent, reserved, refused, opened } in changed {
            self.transactor.metrics().charged((namespace, &name), &spent, &reserved, refused);
            self.scheduler.release_parked(namespace, &format!("b:{name}"), opened).await;
        }
    }
}

struct ChargeAll<'a> {
    namespace: &'a str,
    calls: &'a [Call],
}

impl Command for ChargeAll<'_> {
    type Outcome = (Vec<Result<Charged>>, Vec<BudgetChange>);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Outcome> {
        let mut desk = Desk::read(tx, self.namespace, self.calls).await?;
        let answers = self.calls.iter().map(|call| desk.serve(tx, call)).collect();
        Ok((answers, desk.save(tx)))
    }
}

/// Everything that a number of charges need, as it was read in one round trip and as it will be written.
struct Desk {
    namespace: String,
    budgets: BTreeMap<String, Budget>,
    before: BTreeMap<String, Budget>,
    reservations: BTreeMap<Key, Reservation>,
    touched: Vec<Key>,
    forgotten: Vec<Key>,
    evidence: BTreeMap<Key, CommandRecord>,
}

impl Desk {
    async fn read(tx: &mut Tx<'_>, namespace: &str, calls: &[Call]) -> Result<Self> {
        let mut keys: Vec<Key> = Vec::new();
        for call in calls {
            keys.extend(budget::names_to(&call.budget).map(|name| Budget::key_of(namespace, name)));
            let named = Budget::key_of(namespace, &call.budget);
            match &call.charge {
                Charge::Report(report) => {
                    keys.extend(report.identity(&named, 0).map(|identity| identity.key()));
                    // The commit may have been applied unseen.
                    keys.extend(tx.is_repeat().then(|| call.own_identity().key()));
                }
                Charge::Reserve { request: ReserveRequest { id, .. }, .. }
                | Charge::Settle(id, _)
                | Charge::Release(id)
                | Charge::GiveBack(id) => keys.push(id.document_key()),
            }
        }
        keys.sort_unstable();
        keys.dedup();
        let mut answers = tx.read(vec![Query::Documents(keys.clone())]).await?;
        let found = answers.pop().and_then(ff_store::Answer::into_documents).unwrap_or_default();
        let mut desk = Self {
            namespace: namespace.to_owned(),
            budgets: BTreeMap::new(),
            before: BTreeMap::new(),
            reservations: BTreeMap::new(),
            touched: Vec::new(),
            forgotten: Vec::new(),
            evidence: BTreeMap::new(),
        };
        for (key, stored) in keys.into_iter().zip(found) {
            match key.kind() {
                kind::BUDGET => {
                    if let Some(loaded) = tx.adopt::<Budget>(key, stored)? {
                        desk.before.insert(loaded.document.name.clone(), loaded.document.clone());
                        desk.budgets.insert(loaded.document.name.clone(), loaded.document);
                    }
                }
                kind::RESERVATION => {
                    let loaded = tx.adopt::<Reservation>(key.clone(), stored)?;
                    desk.reservations.extend(loaded.map(|loaded| (key, loaded.document)));
                }
                _ => {
                    let loaded = tx.adopt::<CommandRecord>(key.clone(), stored)?;
                    desk.evidence.extend(loaded.map(|loaded| (key, loaded.document)));
                }
            }
        }
        Ok(desk)
    }

    fn serve(&mut self, tx: &mut Tx<'_>, call: &Call) -> Result<Charged> {
        match &call.charge {
            Charge::Report(report) => self.report(tx, call, report),
            Charge::Reserve { request, only_known } => self.reserve(&call.budget, request, *only_known, tx.now),
            Charge::Settle(id, actual) => self.end(&call.budget, id, |path, held| path.settle(held, actual, tx.now)),
            Charge::Release(id) => self.end(&call.budget, id, |path, held| path.release(held, tx.now)),
            Charge::GiveBack(id) => {
                let key = id.document_key();
                if self.reservations.get(&key).is_none_or(|held| held.state != ReservationState::Held) {
                    return Ok(Charged::Nothing);
                }
                let given_back = self.end(&call.budget, id, |path, held| path.release(held, tx.now))?;
                self.reservations.remove(&key);
                self.forgotten.push(key);
                Ok(given_back)
            }
        }
    }

    fn reserve(&mut self, name: &str, request: &ReserveRequest, only_known: bool, now: i64) -> Result<Charged> {
        let key = request.id.document_key();
        let mut path = path_to(&mut self.budgets, name)?;
        if !only_known {
            path.check_dimensions("amounts", &request.amounts)?;
        } else if path.counted_amounts(&request.amounts).is_empty() {
            return Ok(Charged::Nothing);
        }
        Ok(match path.reserve(self.reservations.get(&key), request, now)? {
            Reserve::Held(reservation) => {
                let expires_at = reservation.expires_at;
                self.reservations.insert(key.clone(), *reservation);
                self.forgotten.retain(|other| *other != key);
                self.touched.push(key);
                Charged::Reserved { expires_at, again: false }
            }
            Reserve::Again { expires_at } => Charged::Reserved { expires_at, again: true },
            Reserve::Refused(refusal) => {
                let ask = self.ask(&refusal, &request.id.execution, now);
                Charged::Refused { refusal, ask }
            }
        })
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
        name: &str,
        id: &ReservationId,
        act: impl FnOnce(&mut Path<'_>, &mut Reservation) -> Result<budget::Settled>,
    ) -> Result<Charged> {
        let key = id.document_key();
        let Some(reservation) = self.reservations.get_mut(&key) else { return Ok(Charged::Nothing) };
        let settled = act(&mut path_to(&mut self.budgets, name)?, reservation)?;
        if settled.settlement != Settlement::Nothing {
            self.touched.push(key);
        }
        Ok(Charged::Settled(SettledSpend { overrun: settled.overrun }))
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
        for (name, budget) in &mut self.budgets {
            let Some(before) = self.before.get(name) else { continue };
            if let Some(change) = save_budget(tx, &self.namespace, before, budget) {
                changed.push(change);
            }
        }
        changed
    }
}

/// The budgets on the way to the one of this name.
pub(crate) fn path_to<'d>(budgets: &'d mut BTreeMap<String, Budget>, name: &str) -> Result<Path<'d>> {
    let missing = || Error::of(Code::BudgetNotFound).with("budget", name);
    if !budgets.contains_key(name) {
        return Err(missing());
    }
    let on_the_way = |other: &String| budget::names_to(name).any(|part| part == other);
    let path = budgets.iter_mut().filter(|(other, _)| on_the_way(other)).map(|(_, budget)| budget).collect();
    Path::new(path).ok_or_else(missing)
}

/// Writes a budget if it has changed, and lets in what waits for it if that opened it.
pub(crate) fn save_budget(
    tx: &mut Tx<'_>,
    namespace: &str,
    before: &Budget,
    budget: &mut Budget,
) -> Option<BudgetChange> {
    let mut opened = Opened::default();
    budget.answer_if_room();
    if budget.opened_since(before) {
        let count = budget.release_count();
        opened = Opened::take(budget, count, tx.transactor.partitions());
        tx.hint(Item::Gate(index::blocked(namespace, &format!("b:{}", budget.name))));
    }
    if budget == before {
        return None;
    }
    tx.save(budget);
    let same_window = budget.window() == before.window();
    let spent = budget.usage.iter().map(|(dimension, used)| {
        let earlier = if same_window { before.used(dimension) } else { 0 };
        (dimension.clone(), (used - earlier).max(0))
    });
    Some(BudgetChange {
        name: budget.name.clone(),
        spent: spent.filter(|(_, spent)| *spent > 0).collect(),
        reserved: budget.definition.dimensions.keys().map(|name| (name.clone(), budget.reserved(name))).collect(),
        refused: budget.refused_count - before.refused_count.min(budget.refused_count),
        opened,
    })
}
