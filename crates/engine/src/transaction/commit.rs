//! The way of a transaction to the store: its batch (`batch`) is sent, a lost reply is resolved, and the consequences of
//! an applied commit are told to the listener.

use std::collections::BTreeMap;
use std::sync::Arc;

use ff_core::execution::Execution;
use ff_core::flow::Flow;
use ff_core::planted::{Bug, planted};
use ff_core::{Code, CommandId, Edge, Error, Indexed, Key, Partition, Result};
use ff_store::{Answer, Batch, Conflict, ConflictReason, Fence, Outcome, Query, StoreError, Version};

use super::{AppliedCommit, Command, PerhapsApplied, Prepared, Transactor, Tx};
use crate::cache::{AdmissionCache, Cached, Downstreams};
use crate::env;

/// How often a command runs again before it gives up with `contention`.
const ATTEMPTS_MAX: u32 = 24;
/// How often a commit with an unknown outcome is sent again. An unreachable store may refuse at once, so the number is
/// large enough to fill the whole of [`RESEND_MAX_MS`].
const RESENDS_MAX: u32 = 100;
/// For how long a commit with an unknown outcome is sent again. After that the caller is told, so that it does not wait
/// for ever.
const RESEND_MAX_MS: i64 = 8_000;
/// The first wait between two tries; it doubles up to a hundred times this.
const BACKOFF_MS: i64 = 1;

/// Why a batch counts as not applied.
#[derive(Debug)]
pub(crate) struct NotApplied {
    pub(crate) conflict: Conflict,
    /// The reply to an earlier try of the batch was lost. That try may have been applied all the same, if other commits
    /// have since changed every document that it wrote.
    pub(crate) in_doubt: bool,
}

/// The tries of one command. The one that runs is kept here, because a future that hands it on would hold it twice.
struct Tries<'t> {
    transactor: &'t Transactor,
    partition: Partition,
    command: CommandId,
    number: u32,
    use_cache: bool,
    lease_was_over: bool,
    tx: Option<Tx<'t>>,
}

/// Why there is a transaction to commit.
const BEGUN: &str = "a try is begun before it is judged, and judged once";

impl<'t> Tries<'t> {
    fn new(transactor: &'t Transactor, partition: Partition, command: CommandId) -> Self {
        Self { transactor, partition, command, number: 0, use_cache: true, lease_was_over: false, tx: None }
    }

    /// Begins another try.
    fn begin(&mut self) -> &mut Tx<'t> {
        // A version names one content. An earlier try may have been applied without this engine knowing it, and
        // overwritten or forgotten since. This try writes another content, so it needs another version.
        if self.number > 0 {
            self.command = self.transactor.fresh_command();
        }
        let tx = self.tx.insert(Tx::new(self.transactor, self.partition, self.command, self.use_cache));
        tx.repeat = self.number > 0;
        self.number += 1;
        tx
    }

    /// Commits the batch of a try. Returns whether the answer of the try is final; otherwise the command runs again.
    async fn stands(&mut self, refusal: Option<&Error>) -> Result<bool> {
        let (transactor, attempt) = (self.transactor, self.number - 1);
        let tx = self.tx.as_ref().expect(BEGUN);
        let empty = tx.is_empty();
        // A decision from a cached copy that no commit confirms is made again from the store.
        if tx.used_cache && (refusal.is_some() || empty) {
            self.use_cache = false;
            return Ok(false);
        }
        // So is a decision from documents that were read at different moments: a journal may have gone on under another
        // lease in between.
        let doubtful = |error: &Error| matches!(error.code, Code::Internal | Code::JournalConflict);
        if refusal.is_some_and(doubtful) && transactor.is_torn(tx).await? {
            transactor.back_off(attempt).await;
            return Ok(false);
        }
        if refusal.is_some() || empty {
            transactor.confirm_decision(self.partition, refusal).await?;
            return Ok(true);
        }
        let sending = transactor.send_all(self.partition, vec![self.tx.take().expect(BEGUN).into_batch()]);
        let Some(conflict) = sending.await?.into_iter().next().flatten() else { return Ok(true) };
        if matches!(conflict.why, ConflictReason::LeaseOver(_)) {
            // The lease ran out, or this very command ended it and its reply was lost. The next try reads the document,
            // which tells.
            if self.lease_was_over {
                return Err(Error::of(Code::LeaseExpired));
            }
            self.lease_was_over = true;
        }
        if self.use_cache {
            self.use_cache = false;
        } else {
            transactor.back_off(attempt).await;
        }
        Ok(false)
    }
}

/// When a question went to the store and when its answer came, by the process's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundTrip {
    pub(super) asked_us: i64,
    pub(super) answered_us: i64,
}

impl Transactor {
    /// Runs a command until it commits, is refused, or has met too many conflicts.
    ///
    /// This function is compiled for every command, so everything that does not depend on the command is in [`Tries`].
    pub(crate) async fn transact<C: Command>(
        &self,
        partition: Partition,
        command: CommandId,
        verb: &C,
    ) -> Result<C::Outcome> {
        self.learn_clock(partition).await?;
        let mut tries = Tries::new(self, partition, command);
        while tries.number < ATTEMPTS_MAX {
            let outcome = verb.run(tries.begin()).await;
            if tries.stands(outcome.as_ref().err()).await? {
                return outcome;
            }
        }
        Err(Error::of(Code::Contention).retry_after(100))
    }

    /// Runs a command on a hot document when no other task of this engine works on that document, so that commits of
    /// one engine do not conflict with each other there.
    pub(crate) async fn transact_in_turn<C: Command>(
        &self,
        partition: Partition,
        hot_document: Key,
        verb: &C,
    ) -> Result<C::Outcome> {
        let _turn = self.locks().take(partition, hot_document).await;
        self.transact(partition, self.fresh_command(), verb).await
    }

    /// Whether documents changed while a command read them one after the other. They may then contradict each other
    /// although each is sound. The guards of a commit would find that, but a refusal has no commit.
    async fn is_torn(&self, tx: &Tx<'_>) -> Result<bool> {
        let keys = tx.documents.all_known().map(|(key, _)| key.clone()).collect();
        let answers = self.read(tx.partition, vec![Query::Documents(keys)]).await?;
        let found = answers.into_only(Answer::into_documents).map_err(Error::from)?;
        let mut versions = found.into_iter().map(|stored| stored.map(|stored| stored.version));
        Ok(tx.documents.all_known().any(|(_, known)| versions.next().flatten() != known.version))
    }

    /// Holds back an answer that was decided by reading ("done before", or a refusal) until the commits that it speaks
    /// of, which other engines may have made, last as long as this engine's own.
    pub(crate) async fn confirm<T>(&self, partition: Partition, decided: Result<T>) -> Result<T> {
        self.confirm_decision(partition, decided.as_ref().err()).await?;
        decided
    }

    /// The same as [`Transactor::confirm`] for a caller that keeps its answer and passes only the refusal.
    async fn confirm_decision(&self, partition: Partition, refusal: Option<&Error>) -> Result<()> {
        if refusal.is_some_and(|error| error.code == Code::Unavailable) {
            return Ok(());
        }
        Ok(self.store().barrier(partition).await?)
    }

    /// Sends prepared batches of one partition in one call, and acts on each that was applied. A lost reply is resolved
    /// by sending again: a batch that was applied meets its own command id.
    pub(crate) async fn send_all(
        &self,
        partition: Partition,
        prepared: Vec<Prepared>,
    ) -> Result<Vec<Option<Conflict>>> {
        let results = self.send_all_timed(partition, prepared).await?;
        Ok(results.into_iter().map(|result| result.err().map(|refused| refused.conflict)).collect())
    }

    /// Sends batches, and returns the store's time of each that was applied. Sending goes on if its caller goes away.
    pub(crate) async fn send_all_timed(
        &self,
        partition: Partition,
        prepared: Vec<Prepared>,
    ) -> Result<Vec<std::result::Result<i64, NotApplied>>> {
        let transactor = self.part();
        let work = Box::pin(async move { transactor.commit_all(partition, prepared).await });
        self.see_through(work).await
    }

    async fn commit_all(
        &self,
        partition: Partition,
        mut prepared: Vec<Prepared>,
    ) -> Result<Vec<std::result::Result<i64, NotApplied>>> {
        let batches = batches_of(&mut prepared);
        let mut asked_us = self.env().now_us();
        // The instant of the first try: a batch whose reply was lost was applied no earlier.
        let first_sent_at = self.now_in_at(partition, asked_us);
        let give_up_us = asked_us + RESEND_MAX_MS * 1_000;
        let mut sent_before = false;
        for resend in 0..=RESENDS_MAX {
            let committing = self.commit_batches(partition, Arc::clone(&batches));
            let committed = match sent_before {
                // The outcome of an earlier try is unknown anyway, so a further one is not waited for beyond the limit.
                true => {
                    asked_us = self.env().now_us();
                    let left_ms = ((give_up_us - asked_us) / 1_000).max(1);
                    let late = || Err(StoreError::Unknown("the store does not answer".into()));
                    env::within(self.env_handle(), left_ms, committing).await.unwrap_or_else(late)
                }
                false => committing.await,
            };
            let trip = RoundTrip { asked_us, answered_us: self.env().now_us() };
            let resend = if trip.answered_us < give_up_us { resend } else { RESENDS_MAX };
            match committed {
                Ok(outcomes) => {
                    self.metrics().commit(trip.answered_us - trip.asked_us);
                    return Ok(match sent_before {
                        false => self.settle_all(partition, prepared, outcomes, trip),
                        // Boxed, because it is rare, and would make the future of every commit five times as large.
                        true => Box::pin(self.settle_doubtful(prepared, outcomes, trip, first_sent_at)).await,
                    });
                }
                Err(error) if error.outcome_unknown() && resend < RESENDS_MAX => {
                    if let Some(suppressed) = self.may_log("a commit's reply was lost") {
                        tracing::warn!(%partition, %error, suppressed, "a commit's reply was lost; sending it again");
                    }
                    sent_before = true;
                    self.back_off(resend + 4).await;
                }
                // A store that refuses the call changes nothing, but an earlier try may have been applied.
                Err(error) if sent_before && error.retryable() && resend < RESENDS_MAX => {
                    self.back_off(resend + 4).await;
                }
                Err(error) if sent_before => {
                    prepared.iter().for_each(|one| self.perhaps_applied(one));
                    return Err(StoreError::Unknown(error.to_string()).into());
                }
                Err(_) if planted(Bug::AnswerBeforeCommit) => {
                    return Ok(prepared.iter().map(|_| Ok(self.now_in(partition))).collect());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::of(Code::Unavailable).retry_after(1_000))
    }

    /// The outcomes of batches that were sent once.
    fn settle_all(
        &self,
        partition: Partition,
        prepared: Vec<Prepared>,
        outcomes: Vec<Outcome>,
        trip: RoundTrip,
    ) -> Vec<std::result::Result<i64, NotApplied>> {
        self.observe_outcomes(partition, &outcomes, trip);
        prepared.into_iter().zip(outcomes).map(|(one, outcome)| self.settle_outcome(one, outcome, None)).collect()
    }

    /// The outcomes of batches of which an earlier try may have been applied, no earlier than at `first_sent_at`.
    async fn settle_doubtful(
        &self,
        prepared: Vec<Prepared>,
        outcomes: Vec<Outcome>,
        trip: RoundTrip,
        first_sent_at: i64,
    ) -> Vec<std::result::Result<i64, NotApplied>> {
        let mut settled = Vec::with_capacity(outcomes.len());
        for (one, outcome) in prepared.into_iter().zip(outcomes) {
            self.observe_outcomes(one.partition, std::slice::from_ref(&outcome), trip);
            let applied_at = match is_own(&one, &outcome) {
                true => self.applied_unseen_at(&one, first_sent_at).await,
                false => first_sent_at,
            };
            settled.push(self.settle_outcome(one, outcome, Some(applied_at)));
        }
        settled
    }

    /// Takes the store's times out of the outcomes of a call.
    fn observe_outcomes(&self, partition: Partition, outcomes: &[Outcome], trip: RoundTrip) {
        for outcome in outcomes {
            if let Outcome::Applied(applied) = outcome {
                self.observe(partition, trip, applied.at);
            }
        }
    }

    /// Sends prepared batches of one partition in one call, once. For callers to which a conflict is an answer like any
    /// other, so it is not counted as one.
    pub(crate) async fn ask_all(&self, partition: Partition, mut prepared: Vec<Prepared>) -> Result<Vec<Outcome>> {
        let batches = batches_of(&mut prepared);
        let asked_us = self.env().now_us();
        let outcomes = self.store().commit(partition, batches).await?;
        let trip = RoundTrip { asked_us, answered_us: self.env().now_us() };
        self.metrics().commit(trip.answered_us - trip.asked_us);
        self.observe_outcomes(partition, &outcomes, trip);
        for (one, outcome) in prepared.into_iter().zip(&outcomes) {
            if let Outcome::Applied(applied) = outcome {
                self.applied(one, applied.at);
            }
        }
        Ok(outcomes)
    }

    /// The store's time of a batch that was applied without an answer. A lease that the batch began tells it exactly: a
    /// worker must not be promised more than the store keeps, and the estimate of the store's clock may run ahead of it
    /// after that clock was set back. Otherwise it is the earliest instant that it can have been.
    async fn applied_unseen_at(&self, one: &Prepared, first_sent_at: i64) -> i64 {
        let Some((key, ttl_ms)) = one.leases.iter().find_map(|(key, ttl_ms)| Some((key, (*ttl_ms)?))) else {
            return first_sent_at;
        };
        let read = self.read(one.partition, vec![Query::Documents(vec![key.clone()])]).await;
        let stored = read.ok().and_then(|mut answers| answers.answers.pop()).and_then(Answer::into_documents);
        match stored.and_then(|mut found| found.pop()).flatten() {
            Some(stored) if stored.version == one.command && stored.lease_until != 0 => stored.lease_until - ttl_ms,
            _ => first_sent_at,
        }
    }

    /// The outcome of a batch. With `earlier_try` the same batch may have been applied before, at that instant.
    fn settle_outcome(
        &self,
        one: Prepared,
        outcome: Outcome,
        earlier_try: Option<i64>,
    ) -> std::result::Result<i64, NotApplied> {
        let own = is_own(&one, &outcome);
        match outcome {
            Outcome::Applied(applied) => {
                self.applied(one, applied.at);
                Ok(applied.at)
            }
            Outcome::Conflict(conflict) => {
                if let Some(at) = earlier_try.filter(|_| own) {
                    self.applied(one, at);
                    return Ok(at);
                }
                if earlier_try.is_some() {
                    self.perhaps_applied(&one);
                }
                self.metrics().conflict();
                for execution in &one.executions {
                    self.cache().remove(&execution.key());
                }
                if let Some(key) = &conflict.key {
                    self.cache().remove(key);
                    if AdmissionCache::keeps(key) {
                        self.admission().contended(key, self.env().now_ms());
                    }
                }
                Err(NotApplied { conflict, in_doubt: earlier_try.is_some() })
            }
        }
    }

    /// Acts on an applied commit: caches what it wrote, and tells the listener.
    fn applied(&self, one: Prepared, at: i64) {
        self.metrics().happened(&one.events);
        self.metrics().repaired(one.repairs);
        for (key, body) in one.admission {
            self.admission().written(key, body, one.command);
        }
        let flow = one.following.first().and_then(|(_, edges)| edges.first()).map(|edge| Flow::key_of(&edge.flow));
        self.remember_downstreams(&one.executions, one.following, one.command);
        for execution in &one.executions {
            let key = execution.key();
            let lease = one.leases.iter().find(|(leased, _)| *leased == key).map(|(_, ttl_ms)| *ttl_ms);
            let held = execution.document_lease();
            let fence = Fence { epoch: held.epoch, lease: held.lease_id };
            match (held.ttl_ms, lease) {
                (Some(_), Some(Some(ttl_ms))) => {
                    let (execution, version) = (Arc::clone(execution), one.command);
                    self.cache().put(key, Cached { execution, version, fence, lease_until: at + ttl_ms });
                }
                (Some(_), None) => self.cache().update(&key, fence, Arc::clone(execution), one.command),
                _ => self.cache().remove(&key),
            }
        }
        if let Some(listener) = self.listener() {
            listener.applied(AppliedCommit {
                partition: one.partition,
                version: one.command,
                executions: one.executions,
                items: one.items,
                flow,
                due: one.due,
                marked: one.marked,
                released: one.released,
                leases: one.leases,
            });
        }
    }

    /// Remembers the downstreams of the executions that a commit created.
    fn remember_downstreams(&self, created: &[Arc<Execution>], following: Vec<(Key, Vec<Edge>)>, version: Version) {
        if following.is_empty() {
            return;
        }
        let created: BTreeMap<Key, &Arc<Execution>> = created.iter().map(|one| (one.key(), one)).collect();
        for (upstream, edges) in following {
            let child = |edge: &Edge| created.get(&Execution::key_of(&edge.downstream)).map(|child| Arc::clone(child));
            let all: Option<Vec<_>> = edges.into_iter().map(|edge| child(&edge).map(|child| (edge, child))).collect();
            if let Some(all) = all {
                self.downstreams().put(upstream, Downstreams { version, all });
            }
        }
    }

    /// Tells the listener of a commit whose reply was lost. It may have been applied although its repeat met a
    /// conflict: for example, the lease that it ended no longer satisfies the repeat's guard.
    fn perhaps_applied(&self, one: &Prepared) {
        if let Some(listener) = self.listener() {
            let (items, marked, released) = (&one.items, &one.marked, &one.released);
            let partition = one.partition;
            listener.perhaps_applied(PerhapsApplied { partition, items, due: one.due, marked, released });
        }
    }

    /// Waits before the next try, longer each time, and with jitter so that competitors do not stay in step.
    async fn back_off(&self, attempt: u32) {
        let ceiling = BACKOFF_MS << attempt.min(7);
        let random = i64::try_from(self.env().random() >> 33).unwrap_or(0);
        self.env().sleep(ceiling / 2 + random % (ceiling / 2 + 1)).await;
    }

    /// The answer that a command would give now. No commit is sent.
    pub(crate) async fn rehearse<C: Command>(&self, partition: Partition, verb: &C) -> Result<C::Outcome> {
        verb.run(&mut Tx::new(self, partition, self.fresh_command(), false)).await
    }

    /// Builds one try of a command without sending it, for callers that send several at once.
    pub(crate) async fn prepare<C: Command>(
        &self,
        partition: Partition,
        command: CommandId,
        verb: &C,
    ) -> Result<(C::Outcome, Prepared)> {
        self.learn_clock(partition).await?;
        let mut tx = Tx::new(self, partition, command, false);
        match verb.run(&mut tx).await {
            Ok(outcome) => Ok((outcome, tx.into_batch())),
            refused => self.confirm(partition, refused).await.map(|outcome| (outcome, tx.into_batch())),
        }
    }
}

/// The batches of a call, which are shared with the store until the call has its answer.
fn batches_of(prepared: &mut [Prepared]) -> Arc<[Batch]> {
    prepared.iter_mut().map(|one| std::mem::take(&mut one.batch)).collect()
}

/// Whether a batch was refused because it met the document that it wrote itself: an earlier try of it was applied.
fn is_own(one: &Prepared, outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Conflict(Conflict { why: ConflictReason::Exists(version) | ConflictReason::Version(version), .. })
            if *version == one.command
    )
}
