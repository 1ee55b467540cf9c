//! Bulk jobs at work. The timer of a job lets one engine take its turns: each is one bounded commit in the flow partition
//! that the job is in, which changes some executions and moves the job's part there on, and one in the system partition
//! that says so in the job. An engine that dies in between is followed by another one, which finds the part moved on.
//!
//! The turns run beside the timers: a partition that does not answer holds up the jobs that are in it, and no timer.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use ff_core::bulk::{BulkAction, BulkJob, BulkPart, BulkReport, BulkState};
use ff_core::event::Effects;
use ff_core::execution::{CancelSource, Cancelled, Execution, Hold};
use ff_core::index::Due;
use ff_core::op::BulkFilter;
use ff_core::{Class, Code, Error, ExecutionId, Indexed, Key, Partition, Result, limits};
use ff_store::{IndexEntry, Query, Scan};
use futures_util::StreamExt;

use crate::cancellation::release_hold;
use crate::replay::replay;
use crate::search::{Filter, Position};
use crate::servers::Servers;
use crate::transaction::{Command, Transactor, Tx};
use crate::transition::save_changed;

/// After trouble with the store, a job goes on this much later.
const RETRY_MS: i64 = 500;
/// Partitions from which a job is removed at once.
const REMOVED_AT_ONCE: usize = 16;
/// Entries that are read at once, from all indexes together.
const READ_CHUNK: usize = 240;
/// With a rate, a turn changes what may be changed in this part of a second.
const RATE_TURNS_PER_SECOND: u32 = 5;

/// Takes the turns of bulk jobs.
#[derive(Clone)]
pub(crate) struct Bulk {
    transactor: Transactor,
    servers: Servers,
    /// The jobs that this engine takes the turns of.
    turns: Arc<Mutex<BTreeSet<Key>>>,
}

/// The turns of one job. Dropping it lets others begin.
struct Turns {
    bulk: Bulk,
    key: Key,
}

impl Turns {
    /// `None`: they are being taken already.
    fn begin(bulk: &Bulk, key: &Key) -> Option<Self> {
        let begun = bulk.jobs().insert(key.clone());
        begun.then(|| Self { bulk: bulk.clone(), key: key.clone() })
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.bulk.jobs().remove(&self.key);
    }
}

impl Bulk {
    pub(crate) fn new(servers: Servers) -> Self {
        Self { transactor: servers.transactor().clone(), servers, turns: Arc::default() }
    }

    fn jobs(&self) -> std::sync::MutexGuard<'_, BTreeSet<Key>> {
        self.turns.lock().expect("no holder of this lock panics")
    }

    /// The timer of a bulk job. Turns move its entry all the time, so an engine that is not the first in rank looks at
    /// how long the entry has stood: another engine may be busy with the job.
    pub(crate) async fn fire_bulk(&self, key: Key, score: i64) -> Result<()> {
        if !self
            .transactor
            .transact(Partition::SYSTEM, self.transactor.fresh_command(), &LookAt { key: &key, score })
            .await?
        {
            return Ok(());
        }
        let patience =
            self.transactor.due().delay(Partition::SYSTEM, self.servers.rank(Partition::SYSTEM), self.transactor.now());
        if score.saturating_add(patience) > self.transactor.now() {
            self.transactor.due().note(Partition::SYSTEM, score.saturating_add(patience));
            return Ok(());
        }
        if let Some(turns) = Turns::begin(self, &key) {
            self.transactor.spawn_short(async move { turns.bulk.take_turns(&turns.key).await });
        }
        Ok(())
    }

    /// Takes the turns of a job until it has to wait, has ended, or meets trouble.
    async fn take_turns(&self, key: &Key) {
        while self.transactor.refuse_if_closing().is_ok() {
            match self.take_turn(key).await {
                Ok(Turn::Next) => {}
                Ok(Turn::At(at)) => return self.transactor.due().note(Partition::SYSTEM, at),
                Ok(Turn::Gone) => return,
                Err(error) => {
                    if let Some(suppressed) = self.transactor.may_log("a bulk job met trouble") {
                        tracing::warn!(?key, %error, suppressed, "a bulk job met trouble; it goes on soon");
                    }
                    return self.transactor.due().note(Partition::SYSTEM, self.transactor.now() + RETRY_MS);
                }
            }
        }
    }

    /// Takes the next turn of a job.
    pub(crate) async fn take_turn(&self, key: &Key) -> Result<Turn> {
        let Some(job) = self.transactor.find::<BulkJob>(Partition::SYSTEM, key.clone()).await? else {
            return Ok(Turn::Gone);
        };
        if job.has_ended() && job.next_at > self.transactor.now() {
            return Ok(Turn::At(job.next_at));
        }
        if job.has_ended() {
            self.remove_bulk(&job).await?;
            return Ok(Turn::Gone);
        }
        let report = match u16::try_from(job.partition) {
            Ok(number) if job.partition < job.end_partition => self.advance(&job, Partition::flow(number)).await?,
            // It has no partition to go through: what it is about does not exist here.
            _ => BulkReport {
                partition: job.partition,
                known_turn: job.turn,
                part: BulkPart { finished: true, ..BulkPart::begin(&job, 0, 0) },
                wait_ms: 0,
            },
        };
        let kept_ms = self.transactor.options().retention_ms;
        self.transactor
            .transact(Partition::SYSTEM, self.transactor.fresh_command(), &TakeReport { key, report, kept_ms })
            .await
    }

    /// Lets the part of a partition have a turn, as large as one commit takes.
    async fn advance(&self, job: &BulkJob, partition: Partition) -> Result<BulkReport> {
        self.transactor.learn_clock(partition).await?;
        let began = self.transactor.instant_in(job.created_at, Partition::SYSTEM, partition);
        // One server has one idea of each clock.
        let slack_ms = if self.servers.known().len() > 1 { limits::BULK_CLOCK_SLACK_MS } else { 0 };
        let before = began.saturating_add(slack_ms);
        let mut list = BulkFilter::decode(&job.filter)?.as_list();
        // Executions that were created after the job began are none of its business.
        list.created_to = list.created_to.into_iter().chain([before.saturating_add(1)]).min();
        let mut filter = self.transactor.filter(job.namespace.clone(), &list).await?;
        filter.keep_states(|state| job.change.action.applies_to(state));
        let mut turn = PartTurn {
            job,
            filter: &filter,
            before,
            not_after: self.transactor.now_in(partition) + limits::BULK_TURN_MAX_MS,
            most: self.transactor.chunk(limits::BULK_CHUNK),
            too_large: false,
        };
        loop {
            let taken = self.transactor.transact(partition, self.transactor.fresh_command(), &turn).await;
            match taken.as_ref().map_err(|error| error.code) {
                // A smaller turn collides with fewer callers that change the same executions at this moment.
                Err(Code::CommitTooLarge | Code::Contention) if turn.most > 1 => turn.most = (turn.most / 4).max(1),
                Err(Code::CommitTooLarge) if !turn.too_large => turn.too_large = true,
                _ => return taken,
            }
        }
    }

    /// The timer of a part: once in a while it looks whether the job is still there.
    pub(crate) async fn fire_bulk_part(&self, partition: Partition, key: Key, score: i64) -> Result<()> {
        self.transactor.transact(partition, self.transactor.fresh_command(), &LookForJob { key: &key, score }).await
    }

    /// Removes a job whose time is up, and its parts before it.
    async fn remove_bulk(&self, job: &BulkJob) -> Result<()> {
        let removals = self.transactor.flow_partitions().map(|partition| async move {
            self.transactor
                .transact(
                    partition,
                    self.transactor.fresh_command(),
                    &Remove::<BulkPart>::new(BulkPart::key_of(&job.id)),
                )
                .await
        });
        let mut removals = futures_util::stream::iter(removals).buffer_unordered(REMOVED_AT_ONCE);
        while let Some(removed) = removals.next().await {
            removed?;
        }
        self.transactor
            .transact(Partition::SYSTEM, self.transactor.fresh_command(), &Remove::<BulkJob>::new(job.key()))
            .await
    }
}

/// The way on after a turn of a job.
pub(crate) enum Turn {
    /// Another one, at once.
    Next,
    /// At this instant another one, or its removal.
    At(i64),
    /// The job is there no more.
    Gone,
}

/// Whether a job is due; an entry that the job does not justify is put right.
struct LookAt<'a> {
    key: &'a Key,
    score: i64,
}

impl Command for LookAt<'_> {
    type Outcome = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool> {
        let Some(loaded) = tx.load::<BulkJob>(self.key.clone()).await? else {
            tx.remove_stray(self.key, Due::Timer.entry(self.key, self.score)).await?;
            return Ok(false);
        };
        let next_at = loaded.document.next_at;
        if next_at > tx.now {
            tx.repair_due(self.key, Some(next_at), self.score).await?;
            return Ok(false);
        }
        Ok(true)
    }
}

/// Removes a part whose job is gone.
struct LookForJob<'a> {
    key: &'a Key,
    score: i64,
}

impl Command for LookForJob<'_> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(loaded) = tx.load::<BulkPart>(self.key.clone()).await? else {
            return tx.remove_stray(self.key, Due::Timer.entry(self.key, self.score)).await;
        };
        let mut part = loaded.document;
        if part.look_at > tx.now {
            return tx.repair_due(self.key, Some(part.look_at), self.score).await;
        }
        match tx.transactor.find::<BulkJob>(Partition::SYSTEM, BulkJob::key_of(&part.job)).await? {
            Some(_) => {
                part.job_is_there(tx.now);
                tx.save(&part);
            }
            None => tx.delete(self.key),
        }
        Ok(())
    }
}

/// Tells a job what a turn of a part came to.
struct TakeReport<'a> {
    key: &'a Key,
    report: BulkReport,
    kept_ms: i64,
}

impl Command for TakeReport<'_> {
    type Outcome = Turn;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Turn> {
        let Some(loaded) = tx.load::<BulkJob>(self.key.clone()).await? else { return Ok(Turn::Gone) };
        let mut job = loaded.document;
        let before = job.clone();
        job.take_turn(&self.report, self.kept_ms, tx.now);
        if job == before {
            // Another engine is ahead of this one, or the partition forgot turns that the job knows of.
            return Ok(Turn::At(job.next_at.max(tx.now + RETRY_MS)));
        }
        tx.save(&job);
        Ok(if job.next_at > tx.now { Turn::At(job.next_at) } else { Turn::Next })
    }
}

/// Removes a document without asking whether it is there.
struct Remove<D> {
    key: Key,
    document: std::marker::PhantomData<fn() -> D>,
}

impl<D> Remove<D> {
    fn new(key: Key) -> Self {
        Self { key, document: std::marker::PhantomData }
    }
}

impl<D: Indexed> Command for Remove<D> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        if tx.load::<D>(self.key.clone()).await?.is_some() {
            tx.relief();
            tx.delete(&self.key);
        }
        Ok(())
    }
}

/// One turn of a job in one partition.
struct PartTurn<'a> {
    job: &'a BulkJob,
    filter: &'a Filter<'a>,
    /// When the job began, by the partition's clock.
    before: i64,
    /// A part is begun up to this instant. Later the job may be over and forgotten.
    not_after: i64,
    /// At most so many executions are changed.
    most: usize,
    /// Not even one change fits a commit: the next match is refused.
    too_large: bool,
}

impl Command for PartTurn<'_> {
    type Outcome = BulkReport;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<BulkReport> {
        let found = tx.load::<BulkPart>(BulkPart::key_of(&self.job.id)).await?;
        let is_new = found.is_none();
        let mut part = found.map_or_else(|| BulkPart::begin(self.job, self.before, tx.now), |loaded| loaded.document);
        if self.job.state == BulkState::Cancelling && !part.finished {
            // From here on no engine changes anything in this partition, and the job comes to no other.
            part.finished = true;
            self.save(tx, &part, is_new);
            return Ok(self.report(tx, part, 0));
        }
        let wait_ms = part.wait_ms(tx.now);
        if part.finished || wait_ms > 0 {
            return Ok(self.report(tx, part, wait_ms));
        }
        let matched = part.counts.matched;
        self.go_through(tx, &mut part).await?;
        let matched = part.counts.matched - matched;
        if self.job.dry_run {
            tx.discard();
        }
        let wait_ms = part.end_turn(matched, self.job.rate_per_second, tx.now);
        // A partition in which nothing matches costs no write, and so no guard sees that another engine changed the matches
        // between our two reads: its part, which it wrote with them, says so.
        if is_new && part.finished && matched == 0 {
            let taken = tx.transactor.find::<BulkPart>(tx.partition, BulkPart::key_of(&self.job.id)).await?;
            let wait_ms = taken.as_ref().map_or(wait_ms, |part| part.wait_ms(tx.now));
            return Ok(self.report(tx, taken.unwrap_or(part), wait_ms));
        }
        self.save(tx, &part, is_new);
        Ok(self.report(tx, part, wait_ms))
    }
}

impl PartTurn<'_> {
    fn save(&self, tx: &mut Tx<'_>, part: &BulkPart, is_new: bool) {
        if is_new {
            tx.require_not_after(self.not_after);
        }
        tx.save(part);
    }

    fn report(&self, tx: &Tx<'_>, part: BulkPart, wait_ms: i64) -> BulkReport {
        BulkReport { partition: u32::from(tx.partition.number), known_turn: self.job.turn, part, wait_ms }
    }

    /// Changes the next matches, as many as a turn takes. Where few match, a turn looks at many.
    async fn go_through(&self, tx: &mut Tx<'_>, part: &mut BulkPart) -> Result<()> {
        let most = match self.job.rate_per_second {
            0 => self.most,
            rate => self.most.min(usize::try_from(rate.div_ceil(RATE_TURNS_PER_SECOND)).unwrap_or(usize::MAX)),
        };
        let mut left = most;
        let examined = part.counts.examined;
        while left > 0 && !part.finished && part.counts.examined - examined < limits::BULK_EXAMINED_CHUNK {
            self.go_through_page(tx, part, &mut left).await?;
        }
        Ok(())
    }

    async fn go_through_page(&self, tx: &mut Tx<'_>, part: &mut BulkPart, left: &mut usize) -> Result<()> {
        let mut next = Next::read(tx, self.filter, part).await?;
        while let Some(entry) = next.peek() {
            let execution = entry.document.as_ref().and_then(|stored| tx.transactor.readable::<Execution>(stored));
            let matching = execution.filter(|execution| self.filter.matches(execution));
            let is_match = matching.as_ref().is_some_and(|execution| execution.updated_at <= part.before);
            if is_match && part.room() == 0 {
                (part.finished, part.reached_max) = (true, true);
                return Ok(());
            }
            if is_match && *left == 0 {
                return Ok(());
            }
            let Some((at, id, entry)) = next.take(tx.partition) else { break };
            part.pass(at, id);
            let Some(stored) = entry.document.filter(|_| matching.is_some()) else { continue };
            // An earlier change of this very commit may have reached it.
            let current = tx.adopt_current::<Execution>(&entry.member, stored)?;
            let Some(execution) = current.filter(|execution| execution.updated_at <= part.before) else {
                part.counts.changed_since += 1;
                continue;
            };
            *left -= 1;
            match self.change(tx, execution).await {
                Err(error) if matches!(error.code.class(), Class::Unavailable | Class::Internal) => return Err(error),
                outcome => part.settle(id, outcome.as_ref().copied()),
            }
        }
        part.finished = next.is_all;
        Ok(())
    }

    /// Changes one execution, as the operation for one does; says whether it was otherwise before.
    async fn change(&self, tx: &mut Tx<'_>, before: Execution) -> Result<bool> {
        if self.too_large {
            return Err(Error::of(Code::CommitTooLarge));
        }
        let change = &self.job.change;
        let mut execution = before.clone();
        let mut effects = Effects::default();
        match change.action {
            BulkAction::Replay => return replay(tx, &mut execution, None).await.map(|()| true),
            BulkAction::Cancel => {
                let cancelled = execution.cancel(CancelSource::Operator, &change.reason, tx.now, &mut effects)?;
                if cancelled == Cancelled::AlreadyEnded {
                    return Ok(false);
                }
            }
            BulkAction::Hold if execution.holds.has(Hold::Operator) => return Ok(false),
            BulkAction::Hold => execution.hold(&change.reason, tx.now)?,
            BulkAction::Release => {
                if !release_hold(tx, &mut execution).await? {
                    return Ok(false);
                }
            }
            BulkAction::SetPriority => {
                execution.change_priority(change.priority, tx.now)?;
                if execution.priority == before.priority {
                    return Ok(false);
                }
            }
            BulkAction::SetTags if execution.tags == change.tags => return Ok(false),
            BulkAction::SetTags => execution.set_tags(change.tags.clone(), tx.now)?,
            BulkAction::Remove => execution.begin_removal(tx.now)?,
            BulkAction::Unknown(_) => return Ok(false),
        }
        save_changed(tx, &before, Arc::new(execution), effects).await?;
        Ok(true)
    }
}

/// The executions of a partition behind a part's place, by creation, as far as they were read.
struct Next {
    sources: Vec<VecDeque<IndexEntry>>,
    /// Everything there is was read.
    is_all: bool,
    /// Whether each source was read to its end.
    exhausted: Vec<bool>,
}

impl Next {
    async fn read(tx: &mut Tx<'_>, filter: &Filter<'_>, part: &BulkPart) -> Result<Self> {
        let partition = tx.partition;
        let after = part.cursor.map(|id| -> Position { (part.cursor_at, partition.number, id.uuid.into_bytes()) });
        let indexes = tx.transactor.searched_indexes(filter, &[partition]).await?;
        let limit = tx.transactor.chunk(READ_CHUNK / indexes.len().max(1));
        let scans = indexes.into_iter().filter_map(|index| filter.scan(partition, index, after));
        let queries: Vec<Query> = scans.map(|scan| Query::Scan(Scan { limit, ..scan })).collect();
        if queries.is_empty() {
            return Ok(Self { sources: Vec::new(), is_all: true, exhausted: Vec::new() });
        }
        let answers = tx.read(queries).await?;
        let pages = answers.into_iter().map(|answer| answer.into_scan().unwrap_or_default().entries);
        let sources: Vec<VecDeque<IndexEntry>> = pages.map(VecDeque::from).collect();
        let exhausted: Vec<bool> = sources.iter().map(|entries| entries.len() < limit).collect();
        Ok(Self { sources, is_all: exhausted.iter().all(|exhausted| *exhausted), exhausted })
    }

    /// The source that the next entry is in. Where one is used up that goes on in the store, nothing is next: what comes
    /// in it may stand before what the others have.
    fn source(&self) -> Option<usize> {
        if self.sources.iter().zip(&self.exhausted).any(|(entries, exhausted)| entries.is_empty() && !exhausted) {
            return None;
        }
        let heads = self.sources.iter().enumerate().filter_map(|(place, entries)| Some((place, entries.front()?)));
        heads.min_by_key(|(_, entry)| (entry.score, entry.member.clone())).map(|(place, _)| place)
    }

    fn peek(&self) -> Option<&IndexEntry> {
        self.sources.get(self.source()?)?.front()
    }

    /// Takes the next entry. One that moved from one index to another while they were read may stand in both, and is
    /// taken once.
    fn take(&mut self, partition: Partition) -> Option<(i64, ExecutionId, IndexEntry)> {
        let place = self.source()?;
        let entry = self.sources.get_mut(place)?.pop_front()?;
        for entries in &mut self.sources {
            if entries.front().is_some_and(|other| other.score == entry.score && other.member == entry.member) {
                entries.pop_front();
            }
        }
        let uuid = entry.member.uuid().unwrap_or_default();
        Some((entry.score, ExecutionId { partition: partition.number, uuid }, entry))
    }
}
