//! Spending in two steps. Each budget of the execution lives in a partition of its own: they are asked one after another,
//! those without room first and then in the order of their names, and those that agreed give back what they hold if a later
//! one refuses. Until the last one has agreed, what the others hold is on its way and refuses no other call: such a call is
//! put off.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::budget::{self, Budget, BudgetStatus, ReserveRequest, SpendRefusal};
use ff_core::execution::{AskBudget, Execution};
use ff_core::gate::Gate;
use ff_core::lease::{LeaseEnd, LeaseFence};
use ff_core::op::{
    DecideBudget, DecideBudgetArgs, HeldSpend, ListReservations, ListReservationsArgs, ListReservationsOutcome,
    ReleaseSpend, ReleaseSpendArgs, ReleaseSpendOutcome, ReserveSpend, ReserveSpendArgs, ReserveSpendOutcome,
    SettleSpend, SettleSpendArgs, SettleSpendOutcome, SettledSpend,
};
use ff_core::reservation::{Reservation, ReservationId};
use ff_core::{Code, Error, Indexed, Key, LeaseId, Result, SuspensionId, index, limits};
use ff_store::{Answer, Query, Scan};

use crate::caller::Caller;
use crate::charges::{Beside, Charge, Charged};
use crate::flow::{cursor_of, parse_cursor};
use crate::hint::Item;
use crate::named_documents::no_such;
use crate::op::Handle;
use crate::opening::Kept;
use crate::scheduler::parking::Note;
use crate::services::Services;
use crate::transaction::{Command, Tx};

impl Handle<ReserveSpend> for Services {
    async fn handle(&self, caller: &Caller, args: ReserveSpendArgs) -> Result<ReserveSpendOutcome> {
        let (execution, lease_until) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        caller.check_lane(&execution.lane)?;
        let partition = execution.id.partition();
        if let Some(budget) = asked_before(&execution, &args) {
            return self.transactor.confirm(partition, Ok(ReserveSpendOutcome::Asked { budget })).await;
        }
        let holds =
            execution.check_fence(&args.fence).and_then(|()| match lease_until > self.transactor.now_in(partition) {
                true => Ok(()),
                false => Err(Error::of(Code::LeaseExpired)),
            });
        if let Err(error) = holds {
            return self.transactor.confirm(partition, Err(error)).await;
        }
        if let Some(budget) = args.budget.as_ref().filter(|budget| !execution.budgets.contains(budget)) {
            return Err(no_such(Code::BudgetNotFound, budget));
        }
        let groups = self.groups_to_reserve(&execution, &args).await;
        let give_up_at = self.transactor.env().now_ms() + PATIENCE_MS;
        let mut confirmed = BTreeSet::new();
        loop {
            match self.try_to_reserve(&execution, &groups, &args, &confirmed).await? {
                Tried::Reserved(budgets) => return Ok(ReserveSpendOutcome::Reserved { budgets }),
                Tried::Refused { refusal, ask: false } => return Ok(ReserveSpendOutcome::Refused(refusal)),
                Tried::Refused { refusal, ask: true } => {
                    return self.ask_for_more(caller, &execution, &args, refusal).await;
                }
                Tried::Beside(others) if self.transactor.env().now_ms() >= give_up_at => {
                    confirmed.extend(others.iter().map(Indexed::key));
                }
                Tried::Beside(others) => {
                    if let Some(ms) = self.scheduler.pause_for_reservations(others, &mut confirmed).await? {
                        self.transactor.env().sleep(ms).await;
                    }
                }
            }
        }
    }
}

/// How long a call waits for others that hold amounts on their way through several budgets.
const PATIENCE_MS: i64 = 2_000;

/// The outcome of one try to reserve amounts in all budgets.
enum Tried {
    Reserved(BTreeMap<String, HeldSpend>),
    /// One budget refused, and no other holds anything.
    Refused {
        refusal: SpendRefusal,
        ask: bool,
    },
    /// The room that is lacking is held by others that are on their way, and no budget holds anything.
    Beside(Vec<Reservation>),
}

impl Services {
    /// The budgets that a reservation asks, by their roots. Those that have no room now come first, so that none holds
    /// anything while another refuses; those that count nothing of it are left out.
    async fn groups_to_reserve<'e>(&self, execution: &'e Execution, args: &ReserveSpendArgs) -> Vec<Vec<&'e String>> {
        let named = execution.budgets.iter().filter(|name| args.budget.as_ref().is_none_or(|only| only == *name));
        let groups = budget::charged_together(named);
        if groups.len() < 2 {
            return groups;
        }
        let looks = groups.iter().map(|together| {
            let reserve = reserve_in(execution, together, args, Beside::default());
            async move { self.scheduler.rehearse_charge(execution, together, reserve).await }
        });
        let looks = futures_util::future::join_all(looks).await;
        let (mut first, mut rest) = (Vec::new(), Vec::new());
        for (together, look) in groups.into_iter().zip(looks) {
            match look {
                Ok(Charged::Refused { .. } | Charged::Beside(_)) => first.push(together),
                Ok(Charged::Nothing) => {}
                Err(error) if error.code == Code::BudgetNotFound => {}
                _ => rest.push(together),
            }
        }
        first.append(&mut rest);
        first
    }

    async fn try_to_reserve(
        &self,
        execution: &Execution,
        groups: &[Vec<&String>],
        args: &ReserveSpendArgs,
        confirmed: &BTreeSet<Key>,
    ) -> Result<Tried> {
        let last = groups.last().and_then(|together| together.last());
        let (mut held, mut new) = (BTreeMap::new(), Vec::new());
        for together in groups {
            let Some(name) = together.last() else { continue };
            let last = last.filter(|last| *last != name).map(|last| (*last).clone()).unwrap_or_default();
            let reserve = reserve_in(execution, together, args, Beside { last, confirmed: confirmed.clone() });
            match self.scheduler.charge_for(execution, together, reserve).await {
                Ok(Charged::Reserved { expires_at, again, names }) => {
                    new.extend((!again).then_some(*name));
                    held.extend(names.into_iter().map(|name| (name, HeldSpend { expires_at })));
                }
                Ok(Charged::Refused { refusal, ask }) => {
                    self.give_back_held(execution, new, args).await;
                    return Ok(Tried::Refused { refusal, ask });
                }
                Ok(Charged::Beside(others)) => {
                    self.give_back_held(execution, new, args).await;
                    return Ok(Tried::Beside(others));
                }
                Ok(_) => {}
                // A budget that was never created counts nothing.
                Err(error) if error.code == Code::BudgetNotFound && args.budget.is_none() => {}
                // An amount that is held already is found again under the same key, or counts as spent when its time is
                // up.
                Err(error) => return Err(error),
            }
        }
        Ok(Tried::Reserved(held))
    }
}

/// The charge of a reservation to budgets under one root.
fn reserve_in(execution: &Execution, together: &[&String], args: &ReserveSpendArgs, beside: Beside) -> Charge {
    let name = together.last().map_or("", |name| name.as_str());
    let id = id_of(execution, name, args.fence.lease_id, &args.key);
    let ttl_ms = args.ttl_ms.unwrap_or(limits::RESERVATION_TTL_DEFAULT_MS);
    let request = ReserveRequest { id, amounts: args.amounts.clone(), ttl_ms };
    let estimate = estimate_of(execution, name, &args.fence);
    Charge::Reserve { request, only_known: args.budget.is_none(), estimate, beside }
}

/// The lease need not hold any more: what was spent was spent.
impl Handle<SettleSpend> for Services {
    async fn handle(&self, caller: &Caller, args: SettleSpendArgs) -> Result<SettleSpendOutcome> {
        let (execution, _) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        self.check_reporter(caller, &execution, &args.fence).await?;
        let settle = |id| Charge::Settle(id, args.actual.clone());
        let budgets = self.end_everywhere(&execution, args.fence.lease_id, &args.key, settle).await?;
        Ok(SettleSpendOutcome { budgets })
    }
}

impl Handle<ReleaseSpend> for Services {
    async fn handle(&self, caller: &Caller, args: ReleaseSpendArgs) -> Result<ReleaseSpendOutcome> {
        let (execution, _) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        self.check_reporter(caller, &execution, &args.fence).await?;
        let budgets = self.end_everywhere(&execution, args.fence.lease_id, &args.key, Charge::Release).await?;
        Ok(ReleaseSpendOutcome { budgets: budgets.into_keys().collect() })
    }
}

impl Services {
    /// Ends a reservation in every budget that holds it.
    async fn end_everywhere(
        &self,
        execution: &Execution,
        lease: LeaseId,
        key: &str,
        charge: impl Fn(ReservationId) -> Charge,
    ) -> Result<BTreeMap<String, SettledSpend>> {
        // A reservation that named one budget stands under its name, one that named none under the last of each tree.
        let groups = budget::charged_together(&execution.budgets);
        let places = groups.iter().flat_map(|together| (1..=together.len()).map(move |end| &together[..end]));
        let ends = places.map(|together| {
            let name = together.last().map_or("", |name| name.as_str());
            let charge = charge(id_of(execution, name, lease, key));
            async move { self.scheduler.charge_for(execution, together, charge).await }
        });
        let mut budgets = BTreeMap::new();
        for answer in futures_util::future::join_all(ends).await {
            match answer {
                Ok(Charged::Settled(settled, names)) => {
                    budgets.extend(names.into_iter().map(|name| (name, settled.clone())));
                }
                Ok(_) => {}
                Err(error) if error.code == Code::BudgetNotFound => {}
                Err(error) => return Err(error),
            }
        }
        if budgets.is_empty() {
            return Err(Error::of(Code::ReservationNotFound).with("key", key));
        }
        Ok(budgets)
    }

    /// Another budget refused. An amount that cannot be given back now counts as spent when its time is up.
    async fn give_back_held(&self, execution: &Execution, names: Vec<&String>, args: &ReserveSpendArgs) {
        for name in names {
            let charge = Charge::GiveBack(id_of(execution, name, args.fence.lease_id, &args.key));
            if let Err(error) = self.scheduler.charge_for(execution, &[name], charge).await
                && let Some(suppressed) = self.transactor.may_log("a reservation could not be given back")
            {
                tracing::warn!(budget = name, %error, suppressed, "a reservation could not be given back");
            }
        }
    }
}

impl Services {
    /// The budget asks a person: the execution lets go of its lease until the answer comes. It may have come meanwhile, so
    /// the budget is looked at once more.
    async fn ask_for_more(
        &self,
        caller: &Caller,
        execution: &Execution,
        args: &ReserveSpendArgs,
        refusal: SpendRefusal,
    ) -> Result<ReserveSpendOutcome> {
        let gate = Gate::Budget(&refusal.budget);
        let detail = format!(
            "budget {}: {} of {} {} left, {} asked for",
            refusal.budget, refusal.left, refusal.limit, refusal.dimension, refusal.requested
        );
        let suspension = question_of(execution, args, &refusal.budget);
        let asked = AskBudget { suspension, gate: &gate.to_string(), detail: &detail };
        self.transactor
            .change(caller, &execution.id, Some(&args.fence), |execution, moment| {
                execution.ask_budget(&args.fence, &asked, moment.now, moment.effects)
            })
            .await?;
        let note = Note::of(vec![execution.id.partition()]);
        self.scheduler.note_parked(&execution.namespace, gate, note).await?;
        Ok(ReserveSpendOutcome::Asked { budget: refusal.budget })
    }
}

/// The suspension that a reservation leads to; a repeat of the call finds it again by its id.
fn question_of(execution: &Execution, args: &ReserveSpendArgs, budget: &str) -> SuspensionId {
    AskBudget::suspension_of(execution, args.fence.lease_id, budget, &args.key)
}

/// The budget that this very call made the execution wait for, if its answer was lost.
fn asked_before(execution: &Execution, args: &ReserveSpendArgs) -> Option<String> {
    let ending = execution.ending_of(&args.fence).filter(|ending| ending.end == LeaseEnd::Suspended)?;
    let names = execution.budgets.iter().flat_map(|name| budget::names_to(name)).map(str::to_owned);
    // The budget that asks may be a child for any of its tags.
    let children = execution
        .budgets
        .iter()
        .flat_map(|name| execution.tags.values().map(move |value| format!("{name}/{}", budget::segment_of(value))));
    names.chain(children).find(|name| question_of(execution, args, name) == ending.suspension_id)
}

/// The estimate that the present lease holds in a budget. It stands under the name that all of a tree are charged under.
pub(crate) fn estimate_of(execution: &Execution, budget: &str, fence: &LeaseFence) -> Option<ReservationId> {
    let slot = execution.slot.filter(|_| execution.estimate().is_some() && execution.check_fence(fence).is_ok())?;
    let of_tree = |name: &&String| budget::root_of(name) == budget::root_of(budget);
    let name = execution.budgets.iter().filter(of_tree).max().map_or(budget, String::as_str);
    Some(ReservationId::of_estimate(&execution.namespace, name, execution.id, slot))
}

fn id_of(execution: &Execution, budget: &str, lease: LeaseId, key: &str) -> ReservationId {
    let (namespace, budget) = (execution.namespace.clone(), budget.to_owned());
    ReservationId { namespace, budget, execution: execution.id, lease, key: key.to_owned() }
}

impl Handle<ListReservations> for Services {
    async fn handle(&self, caller: &Caller, args: ListReservationsArgs) -> Result<ListReservationsOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let partition = self.transactor.partitions().budget_partition(&namespace, &args.name);
        let limit = self.transactor.limits().page(args.limit)?;
        let budget = self.transactor.find::<Budget>(partition, Budget::key_of(&namespace, &args.name)).await?;
        let budget = budget.ok_or_else(|| no_such(Code::BudgetNotFound, &args.name))?;
        let mut scan = Scan::first(index::reservations(&namespace, &args.name), limit).with_documents();
        scan.after = parse_cursor(args.cursor.as_deref())?;
        let answers = self.transactor.read(partition, vec![Query::Scan(scan)]).await?;
        let page = answers.into_only(Answer::into_scan).map_err(Error::from)?;
        let full = page.entries.len() == limit;
        let last = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
        let found =
            page.entries.into_iter().filter_map(|entry| self.transactor.readable::<Reservation>(&entry.document?));
        // One that was made in a removed budget of this name is not this one's.
        let items = found.filter(|one| budget.counts_reservation(one)).map(|reservation| reservation.view()).collect();
        Ok(ListReservationsOutcome { items, next_cursor: last.filter(|_| full).as_ref().map(cursor_of) })
    }
}

/// A person answers for everything that waits: it is all let go, and what still does not fit asks or is refused anew.
impl Handle<DecideBudget> for Services {
    async fn handle(&self, caller: &Caller, args: DecideBudgetArgs) -> Result<BudgetStatus> {
        let namespace = caller.namespace_of_limits(args.namespace.as_deref())?;
        let partition = self.transactor.partitions().budget_partition(&namespace, &args.name);
        let turn = self.transactor.locks().take(partition, Budget::key_of(&namespace, &args.name)).await;
        let identity = self.transactor.identity::<DecideBudget>(caller, &args, args.command_id);
        let verb = Decide { namespace: &namespace, args: &args };
        let outcome = self.transactor.transact_once(partition, identity, &verb).await?;
        drop(turn);
        self.scheduler.look_at_gate(&namespace, Gate::Budget(&args.name)).await;
        Ok(outcome.0)
    }
}

struct Decide<'a> {
    namespace: &'a str,
    args: &'a DecideBudgetArgs,
}

impl Command for Decide<'_> {
    type Outcome = Kept<BudgetStatus>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Outcome> {
        let (namespace, name) = (self.namespace, &self.args.name);
        let loaded = tx.load::<Budget>(Budget::key_of(namespace, name)).await?;
        let mut budget = loaded.ok_or_else(|| no_such(Code::BudgetNotFound, name))?.document;
        budget.decide(self.args.answer, &self.args.amounts, tx.now)?;
        tx.hint(Item::gate(namespace, Gate::Budget(name)));
        tx.save(&budget);
        Ok(Kept::of(budget.status(tx.now)))
    }
}
