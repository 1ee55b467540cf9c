//! Claims, renewals and returns of leases: getting and keeping the right to run an execution.

use std::cmp::Reverse;
use std::sync::{Arc, OnceLock};

use ff_core::execution::{ClaimedAttempt, Execution, ResumedBy};
use ff_core::idempotency::Identity;
use ff_core::lease::ClaimKind;
use ff_core::op::parts::Done;
use ff_core::op::view::Task;
use ff_core::op::{
    Claim, ClaimArgs, ClaimMode, ClaimOutcome, Progress, ProgressArgs, RenewLeases, RenewLeasesArgs, RenewLeasesOutcome,
};
use ff_core::partition::digest16;
use ff_core::{Code, CommandId, Error, LeaseId, Partition, Result, ResumeSignal, SignalId, limits};
use futures_util::future::join_all;
use uuid::Uuid;

use crate::caller::Caller;
use crate::env;
use crate::op::Handle;
use crate::payload::Which;
use crate::scheduler::ready::{Criteria, Skills};
use crate::scheduler::{Ask, Taken};
use crate::services::Services;
use crate::transaction::{Command, Tx};
use crate::view::{some_instant, some_text};

/// Input and signals of a task that was taken must be read within this time; otherwise the task is given back.
const TASK_PATIENCE_MS: i64 = 5_000;
/// A claim that finds nothing waits at least this long among several servers, because what another server has just
/// acknowledged is known here only when its hint arrives.
const HINT_PATIENCE_MS: i64 = 25;

impl Handle<Claim> for Services {
    async fn handle(&self, caller: &Caller, args: ClaimArgs) -> Result<ClaimOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        if args.lease_ids.is_empty()
            && let Some(key) = &caller.idempotency_key
        {
            // Boxed, because few claims take this branch.
            return Box::pin(self.claim_once(caller, namespace, args, key)).await;
        }
        let mut ask = self.ask(caller, namespace.clone(), &args)?;
        if !self.shared.servers.is_alone() {
            ask.wait_ms = ask.wait_ms.max(HINT_PATIENCE_MS);
        }
        if !args.retry {
            let ask = self.within_capacity(ask).await?;
            return self.deliver(ask, None).await;
        }
        Box::pin(self.scheduler.first_call_ended(&ask)).await;
        if let Some(held) = Box::pin(self.held_before(&ask)).await? {
            return Ok(held);
        }
        let ask = self.within_capacity(ask).await?;
        let outcome = self.deliver(ask, None).await?;
        if !outcome.tasks.is_empty() {
            let ask = self.ask(caller, namespace, &args)?;
            return Box::pin(self.keep_one_of_each(&ask, outcome)).await;
        }
        if !outcome.grants.is_empty() {
            return Ok(outcome);
        }
        // The first call may have waited beside this one, and may have been the one that got the work.
        let ask = self.ask(caller, namespace, &args)?;
        Ok(Box::pin(self.held_before(&ask)).await?.unwrap_or(outcome))
    }
}

impl Services {
    /// The work of a claim that is repeated because its answer was lost; `None` if it holds nothing.
    pub(super) async fn held_before(&self, ask: &Ask) -> Result<Option<ClaimOutcome>> {
        let mut held = self.scheduler.find_reachable_leases(ask).await?;
        // A commit whose answer was lost may have taken work in addition to the try that replaced it.
        let surplus = held.split_off(held.len().min(ask.lease_ids.len()));
        if !surplus.is_empty() {
            self.scheduler.give_back(surplus).await;
        }
        let held = self.scheduler.keep_held(held).await?;
        if held.is_empty() {
            return Ok(None);
        }
        let (tasks, unread) = self.tasks(held).await;
        unread.into_iter().next().map_or(Ok(Some(in_order(tasks, ask))), |(_, error)| Err(error))
    }

    /// The tasks of a repeated claim, if its first call took work at another server meanwhile: of two executions under one
    /// lease id the lower one is kept, whichever call took it, and the other is given back.
    pub(super) async fn keep_one_of_each(&self, ask: &Ask, mut outcome: ClaimOutcome) -> Result<ClaimOutcome> {
        let mut others = self.scheduler.find_reachable_leases(ask).await?;
        let own = |id: &ff_core::ExecutionId| outcome.tasks.iter().any(|task| task.execution_id == *id);
        others.retain(|one| matches!(one, Taken::Lease { execution, .. } if !own(&execution.id)));
        let (mut kept, mut lost) = (Vec::new(), Vec::new());
        for one in others {
            let Taken::Lease { execution, claimed, .. } = &one else { continue };
            let place = outcome.tasks.iter().position(|task| task.fence.lease_id == claimed.fence.lease_id);
            match place {
                Some(place) if execution.id < outcome.tasks[place].execution_id => {
                    let task = outcome.tasks.remove(place);
                    lost.push((task.execution_id, task.fence));
                    kept.push(one);
                }
                Some(_) => lost.push((execution.id, claimed.fence)),
                None => kept.push(one),
            }
        }
        for (id, fence) in lost {
            self.scheduler.give_lease_back(&id, &fence).await;
        }
        let kept = self.scheduler.keep_held(kept).await?;
        let (held, _) = self.tasks(kept).await;
        outcome.tasks.extend(held.tasks);
        Ok(in_order(outcome, ask))
    }

    /// A claim with a caller's key. Its lease ids derive from the key, and once it has taken work it takes nothing
    /// else: a repeat gets the part of it that is still held. A claim that found nothing may be repeated until it finds
    /// something.
    async fn claim_once(
        &self,
        caller: &Caller,
        namespace: String,
        mut args: ClaimArgs,
        key: &str,
    ) -> Result<ClaimOutcome> {
        let partition = self.transactor.partitions().key_partition(&namespace, key);
        // The wait time and the repeat flag do not belong to the identity of the request.
        let asked = ClaimArgs { wait_ms: None, retry: false, ..args.clone() };
        let Some(identity) = self.transactor.callers_identity::<Claim>(caller, &asked, None) else {
            return Err(Error::of(Code::Internal));
        };
        args.lease_ids = (0..args.max_tasks()).map(|place| derived_lease(&identity, place)).collect();
        let ask = self.ask(caller, namespace, &args)?;
        let once = ClaimOnce { partition, identity, own: self.transactor.fresh_command() };
        let taken = self.transactor.rehearse(partition, &FindClaim { once: &once }).await?;
        let mut held = self.scheduler.find_leases(&ask).await?;
        held.truncate(ask.lease_ids.len());
        let held = self.scheduler.keep_held(held).await?;
        if taken || !held.is_empty() {
            let (tasks, unread) = self.tasks(held).await;
            return unread.into_iter().next().map_or(Ok(in_order(tasks, &ask)), |(_, error)| Err(error));
        }
        let ask = self.within_capacity(ask).await?;
        self.deliver(ask, Some(once)).await
    }

    /// Records a claim under its key before it is answered. Of two calls with one key that both found work, the first
    /// keeps its work; the other gives its own back and gets that of the first.
    async fn keep_claim(&self, ask: &Ask, once: &ClaimOnce, taken: Vec<Taken>) -> Result<KeptClaim> {
        match self.transactor.transact(once.partition, self.transactor.fresh_command(), &KeepClaim { once }).await {
            Ok(true) => Ok(KeptClaim::Ours(taken)),
            Ok(false) => {
                self.scheduler.give_back(taken).await;
                let held = self.scheduler.find_leases(ask).await?;
                self.scheduler.keep_held(held).await.map(KeptClaim::Earlier)
            }
            Err(error) => {
                self.scheduler.give_back(taken).await;
                Err(error)
            }
        }
    }

    async fn forget_claim(&self, once: &ClaimOnce) {
        if let Err(error) =
            self.transactor.transact(once.partition, self.transactor.fresh_command(), &ForgetClaim { once }).await
        {
            tracing::warn!(%error, "the key of a claim that nobody received stays used");
        }
    }

    pub(super) fn ask(&self, caller: &Caller, namespace: String, args: &ClaimArgs) -> Result<Ask> {
        let limits = self.transactor.limits();
        limits.capabilities(&args.capabilities)?;
        args.lanes
            .iter()
            .try_for_each(|lane| caller.check_lane(lane).and_then(|()| self.shared.system.check_lane(lane)))?;
        let mut lease_ids = args.lease_ids.clone();
        lease_ids
            .resize_with(args.max_tasks(), || LeaseId::mint(&env::mint(self.transactor.env(), self.transactor.now())));
        let grant_ttl_ms = match args.mode {
            Some(ClaimMode::Grant) => Some(args.grant_ttl_ms.unwrap_or(limits.grant_ttl_default_ms)),
            _ => None,
        };
        Ok(Ask {
            criteria: Arc::new(Criteria {
                namespace,
                lanes: args.lanes.iter().cloned().collect(),
                skills: Arc::new(Skills { capabilities: args.capabilities.clone(), kinds: args.kinds.clone() }),
            }),
            worker_id: OnceLock::new(),
            instance_id: args.instance_id.clone(),
            lease_ids,
            chosen_ids: args.lease_ids.len(),
            ttl_ms: limits.lease_ttl(args.lease_ttl_ms)?,
            wait_ms: limits.claim_wait(args.wait_ms)?,
            grant_ttl_ms,
            gone: Default::default(),
            tries_more: Default::default(),
        })
    }

    /// Claims for the engine itself, from a lane that no worker claims from.
    pub(crate) async fn claim_own(&self, ask: Ask) -> Result<Vec<Task>> {
        self.deliver(ask, None).await.map(|outcome| outcome.tasks)
    }

    /// Claims. If the caller is gone when the work has been taken, it is given back at once instead of waiting for its
    /// lease to run out.
    async fn deliver(&self, ask: Ask, once: Option<ClaimOnce>) -> Result<ClaimOutcome> {
        let (services, gone) = (self.clone(), Arc::clone(&ask.gone));
        let work = Box::pin(async move { services.claim_tasks(Arc::new(ask), once).await });
        self.transactor.see_through_telling(gone, work).await
    }

    async fn claim_tasks(&self, ask: Arc<Ask>, once: Option<ClaimOnce>) -> Result<ClaimOutcome> {
        let taken = self.scheduler.take_work(&ask).await?;
        let mut taken = Box::pin(self.keep_within_capacity(&ask, taken)).await?;
        if let Some(once) = once.as_ref().filter(|_| !taken.is_empty() && !ask.gone.is_said()) {
            match Box::pin(self.keep_claim(&ask, once, taken)).await? {
                KeptClaim::Ours(kept) => taken = kept,
                KeptClaim::Earlier(held) => {
                    let (outcome, unread) = self.tasks(held).await;
                    let outcome = in_order(outcome, &ask);
                    return unread.into_iter().next().map_or(Ok(outcome), |(_, error)| Err(error));
                }
            }
        }
        let (outcome, unread) = self.tasks(taken.clone()).await;
        let (unread, mut errors): (Vec<Taken>, Vec<Error>) = unread.into_iter().unzip();
        let empty = outcome.tasks.is_empty() && outcome.grants.is_empty();
        if ask.gone.is_said() {
            self.undo_claim(taken, once).await;
        } else if !unread.is_empty() {
            let (services, once) = (self.clone(), once.filter(|_| empty));
            self.transactor.spawn_short(async move { services.undo_claim(unread, once).await });
        }
        errors.pop().filter(|_| empty).map_or(Ok(in_order(outcome, &ask)), Err)
    }

    /// Gives back work that no worker has received, and removes the record of the claim, unless a repeat has answered
    /// with it.
    async fn undo_claim(&self, taken: Vec<Taken>, once: Option<ClaimOnce>) {
        if taken.is_empty() {
            return;
        }
        // Boxed, because few claims take this branch, and it would make the future three times as large.
        let returned = Box::pin(self.scheduler.give_back(taken)).await;
        if let Some(once) = once.as_ref().filter(|_| returned) {
            Box::pin(self.forget_claim(once)).await;
        }
    }

    /// Leases and grants as their taker receives them, and those whose input or signals cannot be read in time.
    pub(crate) async fn tasks(&self, taken: Vec<Taken>) -> (ClaimOutcome, Vec<(Taken, Error)>) {
        let mut outcome = ClaimOutcome { tasks: Vec::new(), grants: Vec::new() };
        let mut unread = Vec::new();
        let reading = taken.into_iter().map(|one| async move {
            let Taken::Lease { execution, claimed, lease_until, found } = &one else { return (one, None) };
            let task = self.task(execution, claimed, *lease_until, *found);
            let task = env::within(self.transactor.env_handle(), TASK_PATIENCE_MS, task).await;
            let late = || Err(Error::new(Code::Unavailable, "the task cannot be read").retry_after(1_000));
            let task = task.unwrap_or_else(late);
            (one, Some(task))
        });
        for (one, task) in join_all(reading).await {
            match (one, task) {
                (Taken::Grant(grant), _) => outcome.grants.push(grant),
                (_, Some(Ok(task))) => outcome.tasks.push(task),
                (one, Some(Err(error))) => unread.push((one, error)),
                (Taken::Lease { .. }, None) => {}
            }
        }
        bound_journals(&mut outcome.tasks);
        (outcome, unread)
    }

    /// One claimed task with everything its worker needs. Small bytes came with the document; large ones are read. A
    /// first lease has no journal and no frames, unless it is handed out again, because its holder may have written
    /// meanwhile.
    pub(crate) async fn task(
        &self,
        execution: &Execution,
        claimed: &ClaimedAttempt,
        lease_until: i64,
        found: bool,
    ) -> Result<Task> {
        let input = self.transactor.optional_content(Which::Input, &execution.id, &execution.input).await?;
        let continuation = match &execution.continuation {
            Some(continuation) => {
                self.transactor.optional_content(Which::Continuation, &execution.id, continuation).await?
            }
            None => None,
        };
        let resume_signals = self.resume_signals(execution).await?;
        let next_frame_sequence = self.next_frame_sequence(execution, found).await?;
        let journal = self.transactor.claimed_journal(execution, found).await?;
        let lease = execution.lease.as_ref();
        Ok(Task {
            execution_id: execution.id,
            namespace: execution.namespace.clone(),
            lane: execution.lane.clone(),
            kind: execution.kind.clone(),
            priority: execution.priority,
            tags: execution.tags.clone(),
            input,
            claim_kind: claimed.kind,
            fence: claimed.fence,
            lease_expires_at: lease_until,
            lease_ttl_ms: lease.map_or(0, |lease| lease.ttl_ms),
            attempt_timeout_left_ms: execution
                .attempt_times_out_at()
                .zip(lease)
                .map(|(at, lease)| (at - lease.acquired_at).max(0)),
            deadline_at: some_instant(execution.deadline_at),
            retry_count: execution.retries,
            resumed_by: execution.resume_cause().filter(|_| claimed.kind == ClaimKind::Resumed),
            resume_signals,
            continuation,
            next_frame_sequence,
            generation: execution.generation,
            journal,
            fallback_tier: execution.policy.fallback_tier(execution.retries).cloned(),
            flow_id: execution.flow,
            node: some_text(&execution.node),
            trace_context: some_text(&execution.trace_context),
        })
    }

    /// The signals that resumed the present attempt; exactly one of its own after a timeout.
    pub(crate) async fn resume_signals(&self, execution: &Execution) -> Result<Vec<ResumeSignal>> {
        match execution.resumed_by {
            ResumedBy::Signals => self.read_signals(execution, &execution.resume_signals).await,
            ResumedBy::Timeout => Ok(vec![ResumeSignal::timeout(SignalId::default(), execution.updated_at)]),
            ResumedBy::Nothing | ResumedBy::Operator | ResumedBy::Child | ResumedBy::Time | ResumedBy::Decision => {
                Ok(Vec::new())
            }
        }
    }
}

/// Sorts the answer: the best work first, and always in the same order for the same leases.
pub(super) fn in_order(mut claimed: ClaimOutcome, ask: &Ask) -> ClaimOutcome {
    let place = |id: &LeaseId| Reverse(ask.lease_ids.iter().position(|asked| asked == id));
    claimed.tasks.sort_by_key(|task| place(&task.fence.lease_id));
    claimed.grants.sort_by_key(|grant| place(&grant.grant_id));
    claimed
}

/// The identity of a claim, and the partition of its record; the work that it takes may be in any other.
struct ClaimOnce {
    partition: Partition,
    identity: Identity,
    /// The id of this very call.
    own: CommandId,
}

/// The work that a claim with a key may answer with.
enum KeptClaim {
    Ours(Vec<Taken>),
    /// The work that an earlier call with the same key holds.
    Earlier(Vec<Taken>),
}

fn derived_lease(identity: &Identity, place: usize) -> LeaseId {
    LeaseId(Uuid::from_bytes(digest16(&[b"lease", identity.digest(), &place.to_be_bytes()])))
}

/// Whether a claim with this identity has taken something.
struct FindClaim<'a> {
    once: &'a ClaimOnce,
}

impl Command for FindClaim<'_> {
    type Outcome = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool> {
        Ok(tx.kept_answer::<CommandId>(&self.once.identity).await?.is_some())
    }
}

/// Records a claim, and returns whether it is the first call with its identity that took work.
struct KeepClaim<'a> {
    once: &'a ClaimOnce,
}

impl Command for KeepClaim<'_> {
    type Outcome = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool> {
        if let Some(first) = tx.kept_answer::<CommandId>(&self.once.identity).await? {
            return Ok(first == self.once.own);
        }
        tx.keep_answer(&self.once.identity, &self.once.own);
        Ok(true)
    }
}

/// Frees the key of a claim whose tasks were given back.
struct ForgetClaim<'a> {
    once: &'a ClaimOnce,
}

impl Command for ForgetClaim<'_> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        if tx.kept_answer::<CommandId>(&self.once.identity).await? == Some(self.once.own) {
            tx.delete(&self.once.identity.key());
        }
        Ok(())
    }
}

impl Handle<RenewLeases> for Services {
    async fn handle(&self, caller: &Caller, args: RenewLeasesArgs) -> Result<RenewLeasesOutcome> {
        self.transactor.limits().renewals("leases", &args.leases)?;
        Ok(RenewLeasesOutcome { results: self.transactor.renew_all(caller, &args.leases).await })
    }
}

impl Handle<Progress> for Services {
    async fn handle(&self, caller: &Caller, args: ProgressArgs) -> Result<Done> {
        let identity = self.transactor.callers_identity::<Progress>(caller, &args, None);
        self.transactor
            .change_once(identity, caller, &args.execution_id, Some(&args.fence), |execution, context| {
                let (pct, message) = match &execution.progress {
                    Some(before) => (before.pct, before.message.clone()),
                    None => (0, String::new()),
                };
                let message = args.message.clone().unwrap_or(message);
                execution.report_progress(&args.fence, args.pct.unwrap_or(pct), &message, context.now)?;
                Ok(Done {})
            })
            .await
    }
}

/// Leaves the journals of one answer as many entries as it may have bytes of them; holders read the rest themselves.
fn bound_journals(tasks: &mut [Task]) {
    let mut left = limits::JOURNAL_PER_ANSWER_MAX_BYTES;
    for journal in tasks.iter_mut().filter_map(|task| task.journal.as_mut()) {
        let fitting = journal.entries.iter().position(|entry| {
            let size = entry.name.len() + entry.result.as_ref().map_or(0, |result| result.bytes.len());
            left.checked_sub(size).map(|rest| left = rest).is_none()
        });
        if let Some(fitting) = fitting {
            journal.entries.truncate(fitting);
            journal.complete = false;
            left = 0;
        }
    }
}
