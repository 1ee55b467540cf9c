//! Budgets, and the usage that is reported against them.

use std::collections::BTreeMap;

use ff_core::budget::{self, Budget, BudgetStatus};
use ff_core::execution::Execution;
use ff_core::gate::{Defined, Gate};
use ff_core::lease::{HistoryRecord, LeaseFence};
use ff_core::op::parts::{NamedRemoval, NamespacePage, Removed};
use ff_core::op::{
    CreateBudget, CreateBudgetArgs, CreateBudgetOutcome, DeleteBudget, GetBudget, GetBudgetArgs, GetBudgetTree,
    GetBudgetTreeArgs, GetBudgetTreeOutcome, ListBudgets, ListBudgetsOutcome, ReportBudgetUsage, ReportBudgetUsageArgs,
    ReportUsage, ReportUsageArgs, ReportUsageOutcome, ResetBudget, ResetBudgetArgs, ResetBudgetOutcome,
    SetBudgetLimits, SetBudgetLimitsArgs, UpdateBudget, UpdateBudgetArgs,
};
use ff_core::text::Tags;
use ff_core::usage::ReportUsageResult;
use ff_core::{Code, Error, Family, Indexed as _, Key, Partition, Result, Role, index, limits};
use ff_store::LogStart;

use crate::caller::Caller;
use crate::charges::{Charge, Charged, Report};
use crate::hint::Item;
use crate::named_documents::{RemoveNamed, no_such, page};
use crate::op::Handle;
use crate::op::spend::estimate_of;
use crate::opening::Kept;
use crate::services::Services;
use crate::transaction::{Command, Tx};
use crate::{cursor, logs};

/// Creates a budget. Executions that were parked because there was no such budget are looked at again.
///
/// The meaning of `on_hard` for work that would start while the budget is used up: `block` parks it until a reset or a
/// raised limit; `fail` ends it as failed, category `budget_exhausted`; `suspend` parks it, too, and shows it as
/// `paused_by_policy`. None of them touches work that runs: its reports are refused, and its program decides.
impl Handle<CreateBudget> for Services {
    async fn handle(&self, caller: &Caller, args: CreateBudgetArgs) -> Result<CreateBudgetOutcome> {
        let namespace = caller.namespace_of_limits(args.namespace.as_deref())?;
        let partition = self.transactor.partitions().budget_partition(&namespace, &args.name);
        let verb = DefineBudget { namespace: &namespace, args: &args };
        let identity = self.transactor.callers_identity::<CreateBudget>(caller, &args, None);
        let created = self.transactor.transact_once_by_name(partition, identity, &verb).await?;
        if created.is_none() {
            return Ok(CreateBudgetOutcome::AlreadyExists);
        }
        self.scheduler.look_at_new_gate(&namespace, Gate::Budget(&args.name)).await;
        Ok(CreateBudgetOutcome::Created)
    }
}

struct DefineBudget<'a> {
    namespace: &'a str,
    args: &'a CreateBudgetArgs,
}

impl Command for DefineBudget<'_> {
    type Outcome = Option<u64>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<u64>> {
        let name = (self.namespace, self.args.name.as_str());
        let existing = tx.load::<Budget>(Budget::key_of(name.0, name.1)).await?.map(|loaded| loaded.document);
        match Budget::define(existing.as_ref(), name, self.args.definition(), tx.now)? {
            Defined::AlreadyExists => Ok(None),
            Defined::Created(mut budget) => {
                self.check_tree(tx).await?;
                budget.incarnation = tx.transactor.env().random();
                tx.hint(Item::gate(name.0, Gate::Budget(name.1)));
                tx.save(&budget);
                Ok(Some(budget.release_count()))
            }
        }
    }
}

impl DefineBudget<'_> {
    /// A budget stands under one that is there, and not too many under one root.
    async fn check_tree(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(parent) = budget::parent_of(&self.args.name) else { return Ok(()) };
        let key = Budget::key_of(self.namespace, parent);
        if tx.load::<Budget>(key.clone()).await?.is_none() {
            return Err(no_such(Code::BudgetNotFound, parent));
        }
        tx.pin(&key);
        let root = budget::root_of(&self.args.name);
        if tx.count(index::budgets_under(self.namespace, root)).await? >= limits::BUDGET_CHILDREN_MAX {
            return Err(Error::of(Code::BudgetTreeFull).with("root", root));
        }
        Ok(())
    }
}

impl Handle<GetBudgetTree> for Services {
    async fn handle(&self, caller: &Caller, args: GetBudgetTreeArgs) -> Result<GetBudgetTreeOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let limit = self.transactor.limits().page(args.limit)?;
        let partition = self.transactor.partitions().budget_partition(&namespace, &args.name);
        let top = self.transactor.find::<Budget>(partition, Budget::key_of(&namespace, &args.name)).await?;
        let top = top.ok_or_else(|| no_such(Code::BudgetNotFound, &args.name))?;
        let cursor = cursor::decode::<String>(args.cursor.as_deref())?;
        let under = format!("{}/", args.name);
        let index = index::budgets_under(&namespace, budget::root_of(&args.name));
        let mut all = self.transactor.named_in::<Budget>(partition, index, None).await?;
        all.retain(|budget| budget.name.starts_with(&under));
        all.push(top);
        all.retain(|budget| cursor.as_ref().is_none_or(|cursor| budget.name > *cursor));
        all.sort_by(|a, b| a.name.cmp(&b.name));
        let (budgets, next_cursor) = page(all, limit, |budget| &budget.name);
        let now = self.transactor.now_in(partition);
        Ok(GetBudgetTreeOutcome { items: budgets.iter().map(|budget| budget.status(now)).collect(), next_cursor })
    }
}

impl Handle<GetBudget> for Services {
    async fn handle(&self, caller: &Caller, args: GetBudgetArgs) -> Result<BudgetStatus> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let partition = self.transactor.partitions().budget_partition(&namespace, &args.name);
        let budget = self.transactor.find::<Budget>(partition, Budget::key_of(&namespace, &args.name)).await?;
        let now = self.transactor.now_in(partition);
        budget.map(|budget| budget.status(now)).ok_or_else(|| no_such(Code::BudgetNotFound, &args.name))
    }
}

impl Handle<ListBudgets> for Services {
    async fn handle(&self, caller: &Caller, args: NamespacePage) -> Result<ListBudgetsOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let partitions =
            self.transactor.partitions().all().filter(|partition| partition.family == Family::Budget).collect();
        let limit = self.transactor.limits().page(args.limit)?;
        let cursor = cursor::decode::<String>(args.cursor.as_deref())?;
        let cursor = cursor.as_deref();
        let all = self.transactor.named_after::<Budget>(partitions, &namespace, cursor, |budget| &budget.name).await?;
        let (budgets, next_cursor) = page(all, limit, |budget| &budget.name);
        let status = |budget: &Budget| {
            budget.status(
                self.transactor.now_in(self.transactor.partitions().budget_partition(&budget.namespace, &budget.name)),
            )
        };
        Ok(ListBudgetsOutcome { items: budgets.iter().map(status).collect(), next_cursor })
    }
}

impl Handle<SetBudgetLimits> for Services {
    async fn handle(&self, caller: &Caller, args: SetBudgetLimitsArgs) -> Result<BudgetStatus> {
        let change = |budget: &mut Budget, now: i64| budget.set_limits(&args.dimensions, now);
        self.change_budget(caller, args.namespace.as_deref(), &args.name, &change).await
    }
}

impl Handle<UpdateBudget> for Services {
    async fn handle(&self, caller: &Caller, args: UpdateBudgetArgs) -> Result<BudgetStatus> {
        let change = |budget: &mut Budget, now: i64| budget.update(&args.change(), now);
        let status = self.change_budget(caller, args.namespace.as_deref(), &args.name, &change).await?;
        if args.template.is_some() {
            self.children_follow(caller, &status).await?;
        }
        Ok(status)
    }
}

type Change<'a> = &'a (dyn Fn(&mut Budget, i64) -> Result<()> + Sync);

impl Services {
    /// Children that something waits for follow a changed template at once, the others with their next charge.
    async fn children_follow(&self, caller: &Caller, status: &BudgetStatus) -> Result<()> {
        let (namespace, name) = (&status.namespace, &status.name);
        let partition = self.transactor.partitions().budget_partition(namespace, name);
        let Some(parent) = self.transactor.find::<Budget>(partition, Budget::key_of(namespace, name)).await? else {
            return Ok(());
        };
        let index = index::budgets_under(namespace, budget::root_of(name));
        let children = self.transactor.named_in::<Budget>(partition, index, None).await?;
        let awaited = |child: &&Budget| !child.parked_in.is_empty() || child.question.is_open();
        let of_template = |child: &&Budget| child.from_template && budget::parent_of(&child.name) == Some(name);
        for child in children.iter().filter(of_template).filter(awaited) {
            let change = |child: &mut Budget, now: i64| {
                child.follow(&parent, now);
                Ok(())
            };
            match self.change_budget(caller, Some(namespace), &child.name, &change).await {
                Err(error) if error.code != Code::BudgetNotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Changes the definition of a budget, and lets in what waits for it if it admits now.
    async fn change_budget(
        &self,
        caller: &Caller,
        namespace: Option<&str>,
        name: &str,
        change: Change<'_>,
    ) -> Result<BudgetStatus> {
        let namespace = caller.namespace_of_limits(namespace)?;
        let partition = self.transactor.partitions().budget_partition(&namespace, name);
        let key = Budget::key_of(&namespace, name);
        let verb = ChangeBudget { namespace: &namespace, name, change };
        let status = self.transactor.transact_in_turn(partition, key, &verb).await?;
        self.scheduler.look_at_gate(&namespace, Gate::Budget(name)).await;
        Ok(status)
    }
}

struct ChangeBudget<'a> {
    namespace: &'a str,
    name: &'a str,
    change: Change<'a>,
}

impl Command for ChangeBudget<'_> {
    type Outcome = BudgetStatus;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<BudgetStatus> {
        let (namespace, name) = (self.namespace, self.name);
        let loaded = tx.load::<Budget>(Budget::key_of(namespace, name)).await?;
        let mut budget = loaded.ok_or_else(|| no_such(Code::BudgetNotFound, name))?.document;
        let before = budget.clone();
        (self.change)(&mut budget, tx.now)?;
        if budget.opened_since(&before) {
            tx.hint(Item::gate(namespace, Gate::Budget(name)));
        }
        if budget != before {
            tx.save(&budget);
        }
        Ok(budget.status(tx.now))
    }
}

impl Handle<DeleteBudget> for Services {
    async fn handle(&self, caller: &Caller, args: NamedRemoval) -> Result<Removed> {
        let namespace = caller.namespace_of_limits(args.namespace.as_deref())?;
        let partition = self.transactor.partitions().budget_partition(&namespace, &args.name);
        let key = Budget::key_of(&namespace, &args.name);
        if !args.force && self.transactor.find::<Budget>(partition, key.clone()).await?.is_some() {
            let what = format!("the budget {}", args.name);
            let under = format!("{}/", args.name);
            let index = index::budgets_under(&namespace, budget::root_of(&args.name));
            let others = self.transactor.named_in::<Budget>(partition, index, None).await?;
            // Children by tag that nothing is counted in leave by themselves.
            let stays = |budget: &&Budget| !(budget.from_template && budget.is_empty());
            if let Some(child) = others.iter().filter(stays).find(|budget| budget.name.starts_with(&under)) {
                let detail = format!("{what} has others under it, such as {}", child.name);
                return Err(Error::new(Code::InUse, detail).with("budget", &child.name));
            }
            let charged = |execution: &Execution| execution.budgets.contains(&args.name);
            self.transactor.refuse_in_use(&namespace, &what, charged).await?;
        }
        let identity = self.transactor.identity::<DeleteBudget>(caller, &args, None);
        let verb = RemoveNamed::<Budget>::new(key, &args.name, Code::BudgetNotFound);
        let removed = self.transactor.transact_once(partition, identity, &verb).await?;
        self.remove_children_by_tag(partition, &namespace, &args.name).await?;
        Ok(removed)
    }
}

/// Children by tag that are removed in one commit.
const CHILDREN_AT_ONCE: usize = 200;

impl Services {
    /// Removes what the template of a removed budget has made. Children that a crash leaves behind count nothing for a later
    /// budget of the name.
    async fn remove_children_by_tag(&self, partition: Partition, namespace: &str, name: &str) -> Result<()> {
        let index = index::budgets_under(namespace, budget::root_of(name));
        let others = self.transactor.named_in::<Budget>(partition, index, None).await?;
        let made = others.iter().filter(|one| one.from_template && budget::parent_of(&one.name) == Some(name));
        let children: Vec<Key> = made.map(Budget::key).collect();
        for keys in children.chunks(CHILDREN_AT_ONCE) {
            let verb = RemoveOrphans { parent: Budget::key_of(namespace, name), keys };
            self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await?;
        }
        Ok(())
    }
}

/// Deletes children by tag, unless there is a budget that they stand under again.
struct RemoveOrphans<'a> {
    parent: Key,
    keys: &'a [Key],
}

impl Command for RemoveOrphans<'_> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        if tx.load::<Budget>(self.parent.clone()).await?.is_some() {
            return Ok(());
        }
        tx.pin(&self.parent);
        let found = tx.load_readable::<Budget>(self.keys.to_vec()).await?;
        tx.relief();
        for child in found.into_iter().flatten().filter(|child| child.document.from_template) {
            tx.delete(&child.document.key());
        }
        Ok(())
    }
}

impl Handle<ReportBudgetUsage> for Services {
    async fn handle(&self, caller: &Caller, args: ReportBudgetUsageArgs) -> Result<ReportUsageResult> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let (mut tags, mut estimate) = (Tags::new(), None);
        match (&args.execution_id, &args.fence) {
            (Some(id), Some(fence)) => {
                let (execution, _) = self.transactor.visible_execution(caller, id).await?;
                self.check_reporter(caller, &execution, fence).await?;
                let charged = execution.namespace == namespace && execution.budgets.contains(&args.name);
                if !charged && !caller.role.allows(Role::Operator) {
                    return Err(Error::new(Code::Forbidden, "the execution is not charged to this budget"));
                }
                if !charged {
                    caller.check_every_lane()?;
                }
                tags.clone_from(&execution.tags);
                estimate = estimate_of(&execution, &args.name, fence);
            }
            _ if caller.role.allows(Role::Operator) => caller.check_every_lane()?,
            _ => return Err(Error::of(Code::Forbidden)),
        }
        let dedup_key = args.dedup_key.clone().unwrap_or_default();
        let execution = args.execution_id.filter(|_| args.fence.is_some());
        let report = Report { usage: args.usage.clone(), dedup_key, execution, estimate, only_known: false };
        match self.scheduler.charge(&namespace, &[&args.name], tags, Charge::Report(report)).await? {
            Charged::Reported(answer, _) => Ok(answer),
            _ => Ok(ReportUsageResult::Ok),
        }
    }
}

/// Charges what an attempt has spent to the budgets of its execution. The lease need not hold any more: what was spent
/// was spent.
impl Handle<ReportUsage> for Services {
    async fn handle(&self, caller: &Caller, args: ReportUsageArgs) -> Result<ReportUsageOutcome> {
        let (execution, _) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        self.check_reporter(caller, &execution, &args.fence).await?;
        if let Some(budget) = args.budget.as_ref().filter(|budget| !execution.budgets.contains(budget)) {
            return Err(no_such(Code::BudgetNotFound, budget));
        }
        let named = |name: &&String| args.budget.as_ref().is_none_or(|only| only == *name);
        let groups = budget::charged_together(execution.budgets.iter().filter(named));
        let reports = groups.iter().map(|together| {
            let name = together.last().map_or("", |name| name.as_str());
            let report = Report {
                usage: args.usage.clone(),
                dedup_key: args.dedup_key.clone().unwrap_or_default(),
                execution: Some(execution.id),
                estimate: estimate_of(&execution, name, &args.fence),
                only_known: args.budget.is_none(),
            };
            let execution = &execution;
            async move { self.scheduler.charge_for(execution, together, Charge::Report(report)).await }
        });
        let mut budgets = BTreeMap::new();
        for answer in futures_util::future::join_all(reports).await {
            match answer {
                Ok(Charged::Reported(answer, names)) => {
                    budgets.extend(names.into_iter().map(|name| (name, answer.clone())));
                }
                Ok(_) => {}
                // A budget that was never created counts nothing.
                Err(error) if error.code == Code::BudgetNotFound && args.budget.is_none() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ReportUsageOutcome { budgets })
    }
}

impl Services {
    /// Refuses a report by a caller that neither holds or held a lease of the execution nor is an operator.
    pub(crate) async fn check_reporter(
        &self,
        caller: &Caller,
        execution: &Execution,
        fence: &LeaseFence,
    ) -> Result<()> {
        caller.check_lane(&execution.lane)?;
        if execution.knows_fence(fence) {
            return Ok(());
        }
        let log = logs::history(&execution.id);
        let kept = usize::try_from(limits::HISTORY_MAX).unwrap_or(usize::MAX);
        let page = self.transactor.store().log(execution.id.partition(), log, LogStart::Before(u64::MAX), kept).await?;
        let held =
            page.records.iter().filter_map(|record| logs::decode::<HistoryRecord>(&record.record)).any(|record| {
                record.lease.is_some_and(|lease| {
                    lease.id == fence.lease_id && lease.epoch == fence.epoch && lease.attempt == fence.attempt
                })
            });
        if held || caller.role.allows(Role::Operator) {
            return Ok(());
        }
        Err(Error::of(Code::StaleLease).with("epoch", execution.epoch))
    }
}

impl Handle<ResetBudget> for Services {
    async fn handle(&self, caller: &Caller, args: ResetBudgetArgs) -> Result<ResetBudgetOutcome> {
        let namespace = caller.namespace_of_limits(args.namespace.as_deref())?;
        let partition = self.transactor.partitions().budget_partition(&namespace, &args.name);
        let turn = self.transactor.locks().take(partition, Budget::key_of(&namespace, &args.name)).await;
        let verb = Reset { namespace: &namespace, args: &args };
        let identity = self.transactor.identity::<ResetBudget>(caller, &args, args.command_id);
        let outcome = self.transactor.transact_once(partition, identity, &verb).await?;
        drop(turn);
        self.scheduler.look_at_gate(&namespace, Gate::Budget(&args.name)).await;
        Ok(outcome.0)
    }
}

struct Reset<'a> {
    namespace: &'a str,
    args: &'a ResetBudgetArgs,
}

impl Command for Reset<'_> {
    type Outcome = Kept<ResetBudgetOutcome>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Outcome> {
        let (namespace, name) = (self.namespace, &self.args.name);
        let loaded = tx.load::<Budget>(Budget::key_of(namespace, name)).await?;
        let mut budget = loaded.ok_or_else(|| no_such(Code::BudgetNotFound, name))?.document;
        let next_reset_at = budget.reset(tx.now);
        let reset_at = budget.updated_at;
        tx.hint(Item::gate(namespace, Gate::Budget(name)));
        tx.save(&budget);
        Ok(Kept::of(ResetBudgetOutcome { reset_at, next_reset_at }))
    }
}
