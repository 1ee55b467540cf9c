//! One claim, from the worker's call to its answer: looking for candidates, trying them, reading what is not known, and
//! waiting in line.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use ff_core::{Code, Error, LeaseId, Partition, Result};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;

use super::admission::BudgetsRead;
use super::candidate::TryOutcome;
use super::reads::in_calls;
use super::ready::{Candidate, Pick, READ_PATIENCE_MS, READS_MAX, Read, Wanted};
use super::{Ask, Scheduler, Taken};
use crate::env;

/// The longest time a claim sleeps before it looks for work again.
const SLEEP_MAX_MS: i64 = 30_000;
/// How long a claim that knows of work waits for reads that may find better work.
const ORDER_PATIENCE_MS: i64 = 50;
/// So often at most: two queues whose heads are on their way to other claims can make each other be read again.
const ORDER_READS_MAX: usize = 32;
/// How long a claim waits for a commit if there is something else to hand out or to try. The commit goes on by itself.
const COMMIT_PATIENCE_MS: i64 = 250;
/// The same while some partition is known not to answer, because others may not answer either.
const TROUBLED_PATIENCE_MS: i64 = 50;
/// A slow store is not an unreachable one: a commit may take this many times its usual time.
const USUAL_TIMES: i64 = 8;
/// The upper bound of that wait.
const PATIENCE_MAX_MS: i64 = 8_000;
/// The lanes and the worker's name must be known within this time.
const SYSTEM_PATIENCE_MS: i64 = 1_000;

/// A candidate that was tried.
struct Tried {
    number: usize,
    lease_id: LeaseId,
    outcome: TryOutcome,
}

/// A try that has not ended.
struct Pending {
    number: usize,
    lease_id: LeaseId,
    since: i64,
    /// The partition to blame if it hangs; `None` if it also asks gates in other partitions.
    partition: Option<Partition>,
    /// It has taken too long, and its lease id was given to another try. If both take work, one of them is given back.
    overdue: bool,
}

/// A claim that is being answered.
pub(super) struct Claiming {
    scheduler: Scheduler,
    ask: Arc<Ask>,
    started: i64,
    deadline: i64,
    first_lane: usize,
    /// Lease ids that are not in use yet.
    free: Vec<LeaseId>,
    taken: Vec<Taken>,
    budgets: Arc<Mutex<BudgetsRead>>,
    tries: FuturesUnordered<BoxFuture<'static, Vec<Tried>>>,
    pending: Vec<Pending>,
    next_try: usize,
    reads: FuturesUnordered<BoxFuture<'static, ReadDone>>,
    /// The heads and pages of names that those calls read.
    reading: usize,
    /// Reads that this claim waits for before it takes anything.
    awaited_reads: usize,
    has_read: bool,
    waiting: Option<(u64, Arc<Notify>)>,
    /// The last error.
    failure: Option<Error>,
    /// Work may have been taken that the caller was not told of. It asks again with the same lease ids.
    in_doubt: bool,
    /// The caller gets tasks, so it does not ask again with the same ids.
    answered: bool,
}

/// A call that read something from the store has come back.
struct ReadDone {
    /// The claim takes nothing before it.
    awaited: bool,
    /// The heads and pages of names that it read.
    count: usize,
}

/// The event that ended a wait of a claim.
enum Moved {
    Tried(Vec<Tried>),
    Read(ReadDone),
    /// It was woken, its caller has gone, or its time is up.
    Other,
}

impl Claiming {
    pub(super) fn new(scheduler: &Scheduler, ask: &Arc<Ask>) -> Self {
        let started = scheduler.transactor.env().now_ms();
        let turn = scheduler.memory.turn.fetch_add(1, Ordering::Relaxed);
        Self {
            scheduler: scheduler.part(),
            ask: Arc::clone(ask),
            started,
            deadline: started + ask.wait_ms,
            first_lane: turn,
            free: ask.lease_ids.clone(),
            taken: Vec::new(),
            budgets: Arc::default(),
            tries: FuturesUnordered::new(),
            pending: Vec::new(),
            next_try: 0,
            reads: FuturesUnordered::new(),
            reading: 0,
            awaited_reads: 0,
            has_read: false,
            waiting: None,
            failure: None,
            in_doubt: false,
            answered: false,
        }
    }

    /// Waits for work and takes it. An empty answer means that nothing was claimable for the whole wait.
    pub(super) async fn run(mut self) -> Result<Vec<Taken>> {
        self.scheduler.transactor.refuse_if_closing()?;
        let partitions = || self.scheduler.transactor.flow_partitions().collect();
        self.scheduler.ready().begin(&self.ask.criteria, partitions, self.started);
        while !self.is_over() {
            // The claim waits in line again before it looks, so that work that comes during the look wakes it once
            // more.
            self.wait_again();
            if let Err(error) = self.look().await {
                self.failure = Some(error);
                self.pass_on_if_told();
                break;
            }
            if self.has_fresh_tries() {
                self.wait_for_tries().await;
            } else if !self.taken.is_empty() || !self.wait_for_work().await {
                break;
            }
        }
        self.answer()
    }

    /// Whether nothing more is to be tried: as much as was wanted was taken, the caller has gone, or the scheduler
    /// closes.
    fn is_over(&self) -> bool {
        let complete = self.free.is_empty() && !self.has_fresh_tries();
        complete || self.ask.gone.is_said() || self.scheduler.transactor.refuse_if_closing().is_err()
    }

    /// Begins to try the candidates, and to do the reads, that the scheduler's memory has now.
    async fn look(&mut self) -> Result<()> {
        let patient_until = self.scheduler.transactor.env().now_ms() + ORDER_PATIENCE_MS;
        // Whether this claim was told of work while it looked. If it takes other work, another claim must be told.
        let mut told = false;
        let mut rounds = 0;
        while !self.free.is_empty() && self.scheduler.ready().may_have_work(&self.ask.criteria) {
            let known = async {
                self.scheduler.worker_id(&self.ask).await?;
                self.scheduler.open_lanes(&self.ask.criteria).await
            };
            let Some(criteria) = env::within(self.scheduler.transactor.env_handle(), SYSTEM_PATIENCE_MS, known).await
            else {
                return Err(unavailable("the lanes cannot be read"));
            };
            let criteria = criteria?;
            let now = self.scheduler.transactor.env().now_ms();
            let wanted = self.wanted(now < patient_until && rounds < ORDER_READS_MAX);
            rounds += 1;
            let pick = self.scheduler.ready().pick(&criteria, wanted, now);
            let Pick { candidates, reads, suspects } = pick;
            drop(criteria);
            if candidates.is_empty() && reads.is_empty() && suspects.is_empty() {
                return Ok(());
            }
            // A claim whose time is up leaves unread queues to other claims.
            let late = now >= self.deadline.max(self.started + READ_PATIENCE_MS);
            suspects.into_iter().for_each(|read| self.read(vec![read], false));
            in_calls(reads).into_iter().for_each(|reads| self.read(reads, !late));
            self.try_all(candidates);
            self.pass_on_if_busy(told);
            if late {
                return Ok(());
            }
            if self.awaited_reads > 0 {
                if !self.wait_for_order().await {
                    return Ok(());
                }
                // A wake-up during that wait is consumed here, and the next look is for its work. Otherwise this claim
                // would sleep as one that was told already, and nothing would wake it.
                told |= self.wait_again();
            }
        }
        Ok(())
    }

    fn wanted(&self, patient: bool) -> Wanted {
        let reads = READS_MAX.saturating_sub(self.reading);
        Wanted { first_lane: self.first_lane, count: self.free.len(), reads, patient }
    }

    /// Lets this claim be told of work again, if it can take more. Returns whether it had been told of some.
    fn wait_again(&self) -> bool {
        let waiting = self.waiting.as_ref().filter(|_| !self.free.is_empty());
        waiting.is_some_and(|(number, _)| self.scheduler.ready().wait_again(*number))
    }

    /// Begins one call that reads this.
    fn read(&mut self, reads: Vec<Read>, awaited: bool) {
        let (scheduler, count) = (self.scheduler.clone(), reads.len());
        self.awaited_reads += usize::from(awaited);
        self.reading += count;
        self.has_read = true;
        self.reads.push(Box::pin(async move {
            scheduler.read_patiently(reads).await;
            ReadDone { awaited, count }
        }));
    }

    /// Tries each candidate by itself, so that one whose partition does not answer holds up no other. Candidates with
    /// budgets wait for one common read of these.
    fn try_all(&mut self, candidates: Vec<Candidate>) {
        let since = self.scheduler.transactor.env().now_ms();
        let mut budgeted = Vec::new();
        for candidate in candidates {
            let Some(lease_id) = self.free.pop() else { break };
            let number = self.next_try;
            self.next_try += 1;
            let gated = !candidate.execution.budgets.is_empty() || candidate.execution.quota.is_some();
            let partition = (!gated).then_some(candidate.queue.partition);
            self.pending.push(Pending { number, lease_id, since, partition, overdue: false });
            if candidate.execution.budgets.is_empty() {
                let (scheduler, ask, budgets) = (self.scheduler.part(), self.ask.clone(), self.budgets.clone());
                self.tries.push(Box::pin(async move {
                    let outcome = scheduler.try_and_settle(&ask, &candidate, lease_id, &budgets, None).await;
                    vec![Tried { number, lease_id, outcome }]
                }));
            } else {
                budgeted.push((number, lease_id, candidate));
            }
        }
        if budgeted.is_empty() {
            return;
        }
        let (scheduler, ask, budgets) = (self.scheduler.part(), self.ask.clone(), self.budgets.clone());
        self.tries.push(Box::pin(async move {
            let (scheduler, ask, budgets) = (&scheduler, &ask, &budgets);
            let reading = scheduler.read_budgets(budgets, budgeted.iter().map(|(_, _, candidate)| candidate));
            // Candidates whose budgets are not read by then are skipped.
            let reading = env::within(scheduler.transactor.env_handle(), READ_PATIENCE_MS, reading).map(drop).shared();
            let tries = budgeted.iter().map(|(number, lease_id, candidate)| {
                let reading = reading.clone();
                async move {
                    let (early, ()) = join(scheduler.ask_early(&candidate.execution, *lease_id), reading).await;
                    let outcome = scheduler.try_and_settle(ask, candidate, *lease_id, budgets, early).await;
                    Tried { number: *number, lease_id: *lease_id, outcome }
                }
            });
            join_all(tries).await
        }));
    }

    /// A claim that tries as much as it may take is not told of more work, which it could not take.
    fn pass_on_if_busy(&self, told: bool) {
        if let Some((number, _)) = self.waiting.as_ref().filter(|_| self.free.is_empty()) {
            self.scheduler.ready().busy(*number, told);
        }
    }

    /// A waiting claim that cannot look now may have been told of work; then another claim must look for it.
    fn pass_on_if_told(&self) {
        if self.waiting.is_some() {
            self.scheduler.ready().wake_lanes(&self.ask.criteria);
        }
    }

    /// Waits a moment for reads that may find better work than is known. Returns whether to look again.
    async fn wait_for_order(&mut self) -> bool {
        let until = self.scheduler.transactor.env().now_ms() + ORDER_PATIENCE_MS;
        while self.awaited_reads > 0 {
            let left = until - self.scheduler.transactor.env().now_ms();
            if left <= 0 || self.ask.gone.is_said() {
                break;
            }
            let moved = self.until_something_moves(left).await;
            self.note(moved);
        }
        // Reads that are still under way are no longer waited for.
        self.awaited_reads = 0;
        !self.is_over()
    }

    /// Whether a try is under way that has not taken too long.
    fn has_fresh_tries(&self) -> bool {
        self.pending.iter().any(|pending| !pending.overdue)
    }

    fn patience(&self, now: i64) -> i64 {
        let scheduler = &self.scheduler;
        let least = if scheduler.ready().is_troubled(now) { TROUBLED_PATIENCE_MS } else { COMMIT_PATIENCE_MS };
        least.max(scheduler.memory.usual_commit_ms().saturating_mul(USUAL_TIMES)).min(PATIENCE_MAX_MS)
    }

    /// Waits until a try has ended or taken too long.
    async fn wait_for_tries(&mut self) {
        let now = self.scheduler.transactor.env().now_ms();
        let fresh = self.pending.iter().filter(|pending| !pending.overdue);
        let patience = self.patience(now);
        let limit = fresh.map(|pending| pending.since + patience).min().unwrap_or(now);
        if now < limit {
            let moved = self.until_something_moves(limit - now).await;
            self.note(moved);
            return;
        }
        let mut ready = self.scheduler.ready();
        for pending in &mut self.pending {
            if !pending.overdue && pending.since + patience <= now {
                // Its partition does not answer: other claims avoid the partition, and this claim tries something else.
                pending.overdue = true;
                self.ask.tries_more.store(true, Ordering::Relaxed);
                self.free.push(pending.lease_id);
                if let Some(partition) = pending.partition {
                    ready.partition_failed(partition, now);
                }
            }
        }
    }

    /// Waits in line until there may be work. Returns whether to look again.
    async fn wait_for_work(&mut self) -> bool {
        let now = self.scheduler.transactor.env().now_ms();
        if self.waiting.is_none() && now < self.deadline {
            // While there is work, no claim needs to be woken for it: a claim joins the line only when it found none,
            // and looks again.
            let waiting = self.scheduler.ready().wait(Arc::clone(&self.ask.criteria));
            self.waiting = Some(waiting);
            return true;
        }
        // A claim that does not wait for work still waits for the results of its own reads and tries.
        let grace = if self.pending.is_empty() { 0 } else { READ_PATIENCE_MS };
        let patience = if self.reads.is_empty() { 0 } else { READ_PATIENCE_MS };
        let left = (self.deadline + grace).max(self.started + patience) - now;
        if left <= 0 {
            return false;
        }
        let moved = self.until_something_moves(left.min(SLEEP_MAX_MS)).await;
        self.note(moved);
        true
    }

    async fn until_something_moves(&mut self, ms: i64) -> Moved {
        let env = self.scheduler.transactor.env();
        // A timer is only made when there is something to wait for.
        let mut time = None;
        let mut gone = pin!(self.ask.gone.heard());
        let mut woken = pin!(async {
            match &self.waiting {
                Some((_, wake)) => wake.notified().await,
                None => std::future::pending().await,
            }
        });
        let (tries, reads) = (&mut self.tries, &mut self.reads);
        poll_fn(|cx| {
            let mut tried = Vec::new();
            // Tries whose commits shared a call end together.
            while let Poll::Ready(Some(mut more)) = tries.poll_next_unpin(cx) {
                more.append(&mut tried);
                tried = more;
            }
            if !tried.is_empty() {
                return Poll::Ready(Moved::Tried(tried));
            }
            if let Poll::Ready(Some(done)) = reads.poll_next_unpin(cx) {
                return Poll::Ready(Moved::Read(done));
            }
            if woken.as_mut().poll(cx).is_ready() || gone.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Moved::Other);
            }
            time.get_or_insert_with(|| env.sleep(ms)).as_mut().poll(cx).map(|()| Moved::Other)
        })
        .await
    }

    fn note(&mut self, moved: Moved) {
        match moved {
            Moved::Tried(tried) => tried.into_iter().for_each(|tried| self.note_try(tried)),
            Moved::Read(done) => {
                self.awaited_reads = self.awaited_reads.saturating_sub(usize::from(done.awaited));
                self.reading -= done.count;
            }
            Moved::Other => {}
        }
    }

    fn note_try(&mut self, Tried { number, lease_id, outcome }: Tried) {
        let at = self.pending.iter().position(|pending| pending.number == number);
        let overdue = at.is_some_and(|at| self.pending.swap_remove(at).overdue);
        match outcome {
            TryOutcome::Taken(taken) => {
                let surplus = self.taken.len() >= self.ask.lease_ids.len()
                    || self.taken.iter().any(|other| other.lease_id() == taken.lease_id());
                if surplus {
                    let scheduler = self.scheduler.clone();
                    self.scheduler.transactor.spawn_short(async move {
                        scheduler.give_back(vec![taken]).await;
                    });
                    return;
                }
                // The lease id is in use and must not name another lease.
                self.free.retain(|free| *free != lease_id);
                self.taken.push(taken);
                return;
            }
            TryOutcome::Parked { namespace, gate } | TryOutcome::Contended { namespace, gate, .. } => {
                // The gate is closed now, or will be asked again soon. If this claim goes on by then, its budget is read
                // anew, because the old reading would refuse the same work over and over.
                self.budgets.lock().expect("no holder of this lock panics").forget(&namespace, &gate);
            }
            TryOutcome::Aside | TryOutcome::Lost => {}
            TryOutcome::Failed(error) => self.failure = Some(error),
            TryOutcome::Doubtful(error) => {
                // The caller repeats the claim with the same ids and finds out.
                self.in_doubt = true;
                self.failure = Some(error);
                return;
            }
        }
        // The claim was certainly not applied, so its id may name another lease, unless the try that took too long has
        // used it meanwhile.
        let in_use = self.taken.iter().any(|taken| taken.lease_id() == lease_id);
        if !overdue && !in_use {
            self.free.push(lease_id);
        }
    }

    fn answer(mut self) -> Result<Vec<Taken>> {
        if !self.taken.is_empty() {
            if let Some(error) = self.failure.take().filter(|_| self.in_doubt)
                && let Some(suppressed) =
                    self.scheduler.transactor.may_log("the outcome of one of several claims is unknown")
            {
                tracing::warn!(%error, suppressed, "the outcome of one of several claims is unknown");
            }
            self.answered = true;
            return Ok(std::mem::take(&mut self.taken));
        }
        if self.ask.gone.is_said() {
            return Ok(Vec::new());
        }
        self.scheduler.transactor.refuse_if_closing()?;
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let now = self.scheduler.transactor.env().now_ms();
        if !self.pending.is_empty() {
            return Err(unavailable("what was found could not be taken in time, and may be taken yet"));
        }
        if self.scheduler.ready().is_unreadable(&self.ask.criteria, self.started, now) {
            return Err(unavailable("the queues of these lanes cannot be read"));
        }
        Ok(Vec::new())
    }
}

fn unavailable(detail: &str) -> Error {
    Error::new(Code::Unavailable, detail).retry_after(READ_PATIENCE_MS)
}

/// However the claim ends, it leaves the line, and its reads and tries go on: an unfinished read would keep its queue
/// out of sight. Work that is taken after all is given back if the caller already has an answer without it, or does not
/// know the id of the lease; otherwise the caller asks again with the same ids.
impl Drop for Claiming {
    fn drop(&mut self) {
        if let Some((number, _)) = self.waiting.take() {
            let now = self.scheduler.transactor.env().now_ms();
            self.scheduler.ready().stop_waiting(number, now);
        }
        if self.has_read {
            // Candidates that the claim had picked went back to their queues, so other claims must look.
            self.scheduler.ready().wake_lanes(&self.ask.criteria);
        }
        if self.reads.is_empty() && self.tries.is_empty() {
            return;
        }
        let (scheduler, ask) = (self.scheduler.clone(), Arc::clone(&self.ask));
        let (mut reads, mut tries) = (std::mem::take(&mut self.reads), std::mem::take(&mut self.tries));
        let answered = self.answered || ask.gone.is_said();
        self.scheduler.transactor.spawn_short(async move {
            let reading = async { while reads.next().await.is_some() {} };
            let trying = async {
                while let Some(tried) = tries.next().await {
                    let mut taken: Vec<Taken> = tried.into_iter().filter_map(Tried::into_taken).collect();
                    if !answered && !ask.gone.is_said() {
                        taken.retain(|one| !ask.is_chosen(&one.lease_id()));
                    }
                    scheduler.give_back(taken).await;
                }
            };
            futures_util::future::join(reading, trying).await;
        });
    }
}

impl Tried {
    fn into_taken(self) -> Option<Taken> {
        match self.outcome {
            TryOutcome::Taken(taken) => Some(taken),
            _ => None,
        }
    }
}
