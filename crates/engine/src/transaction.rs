//! Optimistic transactions: read documents, apply transitions, commit guarded by versions, run again on conflict.
//!
//! A [`Tx`] collects a [`Batch`]; only the store acts. Index changes are the difference between the entries of a
//! document as it was loaded and as it is saved, so a command cannot forget one.

use std::collections::BTreeMap;
use std::future::Future;

use bytes::Bytes;
use ff_core::event::{Effects, EventType};
use ff_core::execution::Execution;
use ff_core::index::{self, Due};
use ff_core::lease::LeaseFence;
use ff_core::planted::{Bug, planted};
use ff_core::waitpoint::Waitpoint;
use ff_core::{Code, CommandId, Entry, Error, Indexed, Key, LeaseEpoch, LeaseId, Partition, Result, limits};
use ff_store::{
    Append, Batch, BlobChange, Conflict, ConflictReason, EntryChange, Fence, Guard, Hint, LeaseChange, Outcome, Put,
    Query, Scan, ScanPage, StoreError, StoredDocument, Trim, Version,
};

use crate::cache::Cached;
use crate::engine::Engine;
use crate::hint::{Item, Message};
use crate::logs;
use crate::scheduler::ready::{Candidate, QueueId};

/// How often a command runs again before it gives up with `contention`.
const ATTEMPTS_MAX: u32 = 24;
/// How often a commit with an unknown outcome is sent again.
const RESENDS_MAX: u32 = 8;
/// The first wait between two tries; it doubles up to a hundred times this.
const BACKOFF_MS: i64 = 1;

/// One verb of the engine: loads documents, calls transitions, saves. It may run several times, each time on fresh
/// data, so it must not have effects of its own.
pub(crate) trait Command: Send + Sync {
    /// What it answers.
    type Outcome: Send;

    /// Runs on the documents as they are now.
    fn run(&self, tx: &mut Tx<'_>) -> impl Future<Output = Result<Self::Outcome>> + Send;
}

/// A document as it was loaded.
#[derive(Debug, Clone)]
pub(crate) struct Loaded<D> {
    pub(crate) document: D,
    pub(crate) lease_until: i64,
}

#[derive(Debug, Clone)]
struct Known {
    /// `None`: there is no document.
    version: Option<Version>,
    fence: Fence,
    lease_until: i64,
    entries: Vec<Entry>,
    /// Guard the version even if the document is not saved.
    pinned: bool,
}

#[derive(Debug, Clone)]
enum Staged {
    Put { body: Bytes, fence: Fence, lease: Option<Option<i64>>, entries: Vec<Entry>, expires_at: Option<i64> },
    Delete,
}

/// One try of a command.
pub(crate) struct Tx<'e> {
    pub(crate) engine: &'e Engine,
    pub(crate) partition: Partition,
    pub(crate) command: CommandId,
    /// The store's time, as far as this try knows it.
    pub(crate) now: i64,
    known: BTreeMap<Key, Known>,
    staged: BTreeMap<Key, Staged>,
    batch: Batch,
    items: Vec<Item>,
    executions: Vec<Execution>,
    events: Vec<EventType>,
    use_cache: bool,
    used_cache: bool,
    repeat: bool,
}

impl<'e> Tx<'e> {
    fn new(engine: &'e Engine, partition: Partition, command: CommandId, use_cache: bool) -> Self {
        Self {
            engine,
            partition,
            command,
            now: engine.now(),
            known: BTreeMap::new(),
            staged: BTreeMap::new(),
            batch: Batch::new(command),
            items: Vec::new(),
            executions: Vec::new(),
            events: Vec::new(),
            use_cache,
            used_cache: false,
            repeat: false,
        }
    }

    /// Whether an earlier try met a conflict: what was assumed without a read must be read now.
    pub(crate) fn is_repeat(&self) -> bool {
        self.repeat
    }

    /// Thirty-two random bits.
    pub(crate) fn random(&self) -> u32 {
        u32::try_from(self.engine.env().random() >> 32).unwrap_or(0)
    }

    /// Several questions at once. Documents found by it are not known to the transaction until they are loaded.
    pub(crate) async fn read(&mut self, queries: Vec<Query>) -> Result<Vec<ff_store::Answer>> {
        let answers = self.engine.read(self.partition, queries).await?;
        self.now = self.now.max(answers.at);
        Ok(answers.answers)
    }

    /// A page of an index.
    pub(crate) async fn scan(&mut self, scan: Scan) -> Result<ScanPage> {
        let mut answers = self.read(vec![Query::Scan(scan)]).await?;
        let page = answers.pop().and_then(ff_store::Answer::into_scan);
        Ok(page.unwrap_or_default())
    }

    /// How many entries an index has.
    pub(crate) async fn count(&mut self, index: ff_core::IndexName) -> Result<u64> {
        let mut answers = self.read(vec![Query::Count { index, min: i64::MIN, max: i64::MAX }]).await?;
        Ok(answers.pop().and_then(ff_store::Answer::into_count).unwrap_or(0))
    }

    /// The documents under these keys, in order, in one round trip.
    pub(crate) async fn load_many<D: Indexed>(&mut self, keys: Vec<Key>) -> Result<Vec<Option<Loaded<D>>>> {
        let unknown: Vec<Key> = keys
            .iter()
            .filter(|key| !self.known.contains_key(*key) && !self.staged.contains_key(*key))
            .cloned()
            .collect();
        let mut fresh = BTreeMap::new();
        if !unknown.is_empty() {
            let mut answers = self.read(vec![Query::Documents(unknown.clone())]).await?;
            let documents = answers.pop().and_then(ff_store::Answer::into_documents).unwrap_or_default();
            for (key, document) in unknown.into_iter().zip(documents) {
                fresh.insert(key, document);
            }
        }
        let mut loaded = Vec::with_capacity(keys.len());
        for key in keys {
            loaded.push(match fresh.remove(&key) {
                Some(stored) => self.adopt::<D>(key, stored)?,
                None => self.load(key).await?,
            });
        }
        Ok(loaded)
    }

    /// The document under a key.
    pub(crate) async fn load<D: Indexed>(&mut self, key: Key) -> Result<Option<Loaded<D>>> {
        match self.staged.get(&key) {
            Some(Staged::Delete) => return Ok(None),
            Some(Staged::Put { body, .. }) => {
                let lease_until = self.known.get(&key).map_or(0, |known| known.lease_until);
                return D::decode(body).map(|document| Some(Loaded { document, lease_until }));
            }
            None => {}
        }
        let mut answers = self.read(vec![Query::Documents(vec![key.clone()])]).await?;
        let stored = answers.pop().and_then(ff_store::Answer::into_documents).and_then(|mut found| found.pop());
        self.adopt(key, stored.flatten())
    }

    /// An execution, from the cache where that may save a round trip: a decision made from a cached copy counts only
    /// once the store has confirmed its version.
    pub(crate) async fn execution(&mut self, id: &ff_core::ExecutionId) -> Result<Execution> {
        self.find_execution(id).await?.ok_or_else(|| Error::of(Code::ExecutionNotFound).with("execution_id", id))
    }

    /// Like [`Tx::execution`], for callers to whom an absent one is no error.
    pub(crate) async fn find_execution(&mut self, id: &ff_core::ExecutionId) -> Result<Option<Execution>> {
        let key = Execution::key_of(id);
        if self.use_cache
            && !self.known.contains_key(&key)
            && let Some(cached) = self.engine.cache().get(&key)
        {
            self.used_cache = true;
            let entries = cached.execution.index_entries(cached.lease_until);
            let known = Known {
                version: Some(cached.version),
                fence: cached.fence,
                lease_until: cached.lease_until,
                entries,
                pinned: false,
            };
            self.known.insert(key, known);
            return Ok(Some(cached.execution));
        }
        Ok(self.load::<Execution>(key).await?.map(|loaded| loaded.document))
    }

    /// Makes a document that some read brought along known to the transaction.
    pub(crate) fn adopt<D: Indexed>(&mut self, key: Key, stored: Option<StoredDocument>) -> Result<Option<Loaded<D>>> {
        let Some(stored) = stored else {
            let known =
                Known { version: None, fence: Fence::default(), lease_until: 0, entries: Vec::new(), pinned: false };
            self.known.entry(key).or_insert(known);
            return Ok(None);
        };
        let document = D::decode(&stored.body)?;
        let known = Known {
            version: Some(stored.version),
            fence: stored.fence,
            lease_until: stored.lease_until,
            entries: document.index_entries(stored.lease_until),
            pinned: false,
        };
        self.known.entry(key).or_insert(known);
        Ok(Some(Loaded { document, lease_until: stored.lease_until }))
    }

    /// Makes an execution known as somebody else read it; the commit's guards decide whether it still is so.
    pub(crate) fn know(&mut self, execution: &Execution, version: Version, fence: Fence) {
        let entries = execution.index_entries(0);
        let known = Known { version: Some(version), fence, lease_until: 0, entries, pinned: false };
        self.known.insert(execution.key(), known);
    }

    /// The commit counts only while this document has this version.
    pub(crate) fn require_version(&mut self, key: &Key, version: Version) {
        self.batch.guards.push(Guard::Version(key.clone(), version));
    }

    /// Guards a loaded document's version although it is not saved: the decision rests on it.
    pub(crate) fn pin(&mut self, key: &Key) {
        if let Some(known) = self.known.get_mut(key) {
            known.pinned = true;
        }
    }

    /// The commit counts only while this fence holds a lease that has not run out.
    pub(crate) fn require_holder(&mut self, key: &Key, fence: &LeaseFence) {
        if !planted(Bug::FenceNotChecked) && !planted(Bug::EpochNotChecked) {
            self.batch.guards.push(Guard::Fence(key.clone(), Fence { epoch: fence.epoch, lease: fence.lease_id }));
        }
        if !planted(Bug::LateHolderAccepted) {
            self.batch.guards.push(Guard::Live(key.clone()));
        }
    }

    /// The commit counts only if the document's lease has run out.
    pub(crate) fn require_expired(&mut self, key: &Key) {
        self.batch.guards.push(Guard::Expired(key.clone()));
    }

    /// The commit counts only up to this instant.
    pub(crate) fn require_not_after(&mut self, at: i64) {
        self.batch.guards.push(Guard::NotAfter(at));
    }

    /// Saves a document that was loaded, or creates one whose absence was loaded.
    pub(crate) fn save<D: Indexed>(&mut self, document: &D) {
        self.stage(document, None);
    }

    /// Creates a document that must not exist; no read is needed.
    pub(crate) fn create<D: Indexed>(&mut self, document: &D) {
        let key = document.key();
        let known =
            Known { version: None, fence: Fence::default(), lease_until: 0, entries: Vec::new(), pinned: false };
        self.known.entry(key).or_insert(known);
        self.stage(document, None);
    }

    /// Creates a document that must not exist and that reads as absent from an instant on.
    pub(crate) fn create_until<D: Indexed>(&mut self, document: &D, expires_at: i64) {
        self.create(document);
        self.stage(document, Some(expires_at));
    }

    /// Creates an execution; whoever waits for work learns of it.
    pub(crate) fn create_execution(&mut self, execution: &Execution) {
        debug_assert!(execution.check().is_ok(), "{:?}", execution.check());
        self.create(execution);
        self.executions.push(execution.clone());
    }

    /// Removes a waitpoint or signal of an execution, with its blob and its entries.
    pub(crate) async fn delete_belonging(&mut self, key: Key) -> Result<()> {
        match key.kind() {
            index::kind::WAITPOINT => drop(self.load::<Waitpoint>(key.clone()).await?),
            _ => drop(self.load::<ff_core::Signal>(key.clone()).await?),
        }
        self.blob(key.clone(), None);
        self.delete(&key);
        Ok(())
    }

    /// Removes a document that has no index entries, whether it is there or not.
    pub(crate) fn delete_unindexed(&mut self, key: Key) {
        self.batch.deletes.push(key);
    }

    /// Removes an entry that its document, as it was loaded, does not justify.
    pub(crate) fn remove_stray(&mut self, key: &Key, entry: Entry) {
        self.pin(key);
        self.engine.metrics().repaired();
        self.batch.entries.push(EntryChange::Remove { index: entry.index, member: entry.member });
    }

    /// Changes one entry under the version of its document, or under its absence.
    pub(crate) fn repair_entry(&mut self, key: &Key, version: Option<Version>, change: EntryChange) {
        self.batch.guards.push(match version {
            Some(version) => Guard::Version(key.clone(), version),
            None => Guard::Absent(key.clone()),
        });
        self.batch.entries.push(change);
    }

    /// Moves an entry to where its document, as it was loaded, wants it.
    pub(crate) fn set_stray(&mut self, key: &Key, entry: Entry) {
        self.pin(key);
        self.engine.metrics().repaired();
        self.batch.entries.push(EntryChange::Set { index: entry.index, member: entry.member, score: entry.score });
    }

    /// Saves an execution together with what its transition wants done beside it.
    pub(crate) fn save_execution(&mut self, execution: &Execution, effects: Effects) {
        debug_assert!(execution.check().is_ok(), "{:?}", execution.check());
        self.save(execution);
        self.apply(&execution.id, effects);
        self.executions.retain(|kept| kept.id != execution.id);
        self.executions.push(execution.clone());
        // The end of an attempt closes its stream, and every tail of it wakes; viewers also learn of a pause.
        let paused = execution.state.attempt_state == ff_core::AttemptState::AttemptInterrupted;
        if let Some(attempt) = &execution.attempt
            && (paused || (attempt.ended_at != 0 && attempt.ended_at == execution.updated_at))
        {
            self.items.push(Item::Log(logs::frames(&execution.id, attempt.index)));
        }
        if execution.is_terminal() {
            self.items.push(Item::Changed(execution.key()));
        }
    }

    /// Writes events and history.
    pub(crate) fn apply(&mut self, execution: &ff_core::ExecutionId, effects: Effects) {
        if !effects.history.is_empty() {
            let records = effects.history.iter().map(logs::encode).collect();
            self.append(Append { log: logs::history(execution), records, expected: None, cap: limits::HISTORY_MAX });
        }
        if !effects.events.is_empty() {
            self.events.extend(effects.events.iter().map(|event| event.event_type));
            let records = effects.events.iter().map(logs::encode).collect();
            let cap = self.engine.events_cap();
            self.append(Append { log: logs::events(), records, expected: None, cap });
        }
    }

    fn stage<D: Indexed>(&mut self, document: &D, expires_at: Option<i64>) {
        let key = document.key();
        let held = document.held();
        let fence = Fence { epoch: held.epoch, lease: held.lease_id };
        let known = self.known.get(&key);
        let (lease_until, known_fence) = known.map_or((0, Fence::default()), |known| (known.lease_until, known.fence));
        // A lease begins with a new fence and ends with its holder's state; in between only renewals move it.
        let lease = match held.ttl_ms {
            Some(ttl_ms) if fence != known_fence || lease_until == 0 => Some(Some(ttl_ms)),
            Some(_) => None,
            None if lease_until != 0 => Some(None),
            None => None,
        };
        let entries = document.index_entries(lease_until);
        self.staged.insert(key, Staged::Put { body: document.encode().into(), fence, lease, entries, expires_at });
    }

    /// The lease of a document that was just saved begins anew, although its holder is the same.
    pub(crate) fn renew<D: Indexed>(&mut self, document: &D) {
        if let (Some(Staged::Put { lease, .. }), Some(ttl_ms)) =
            (self.staged.get_mut(&document.key()), document.held().ttl_ms)
        {
            *lease = Some(Some(ttl_ms));
        }
    }

    /// Renews a lease without reading its document: only the instant beside it moves, for its holder, while it lives.
    pub(crate) fn renew_unread(&mut self, key: &Key, fence: Fence, ttl_ms: i64) {
        self.batch.guards.push(Guard::Fence(key.clone(), fence));
        self.batch.guards.push(Guard::Live(key.clone()));
        let member = Due::Lease.member(key);
        self.batch.leases.push(LeaseChange { key: key.clone(), ttl_ms: Some(ttl_ms), index: index::due(), member });
        // It may end before anything that is known of: this engine may never have seen the lease.
        if self.engine.announce_due(self.partition, self.now + ttl_ms) {
            self.items.push(Item::Due(self.now + ttl_ms));
        }
    }

    /// Removes a loaded document.
    pub(crate) fn delete(&mut self, key: &Key) {
        self.staged.insert(key.clone(), Staged::Delete);
    }

    /// Appends records to a log, and tells those who wait for it.
    pub(crate) fn append(&mut self, append: Append) {
        self.items.push(Item::Log(append.log.clone()));
        match self.batch.appends.iter_mut().find(|other| other.log == append.log && append.expected.is_none()) {
            Some(other) => other.records.extend(append.records),
            None => self.batch.appends.push(append),
        }
    }

    /// Removes records of a log.
    pub(crate) fn trim(&mut self, log: Key, before: u64) {
        self.batch.trims.push(Trim { log, before });
    }

    /// Writes or removes a blob.
    pub(crate) fn blob(&mut self, key: Key, bytes: Option<Bytes>) {
        self.batch.blobs.push(BlobChange { key, bytes });
    }

    /// Tells other engines something.
    pub(crate) fn hint(&mut self, item: Item) {
        self.items.push(item);
    }

    /// The commit frees memory; a full store takes it all the same.
    pub(crate) fn relief(&mut self) {
        self.batch.relief = true;
    }

    fn is_empty(&self) -> bool {
        self.staged.is_empty() && self.batch.effects().next().is_none()
    }

    /// Puts the batch together: guards, puts, index differences, leases, hints.
    fn into_batch(mut self) -> Prepared {
        let mut marked = Vec::new();
        for (key, known) in &self.known {
            let staged = self.staged.get(key);
            if staged.is_none() && !known.pinned {
                continue;
            }
            self.batch.guards.push(match known.version {
                Some(version) => Guard::Version(key.clone(), version),
                None => Guard::Absent(key.clone()),
            });
        }
        for (key, staged) in std::mem::take(&mut self.staged) {
            let before = self.known.remove(&key);
            let (lease_until, before) = before.map_or((0, Vec::new()), |known| (known.lease_until, known.entries));
            let member = Due::Lease.member(&key);
            let (after, lease) = match staged {
                Staged::Put { body, fence, lease, entries, expires_at } => {
                    self.batch.puts.push(Put { key: key.clone(), body, fence, expires_at });
                    (entries, lease)
                }
                Staged::Delete => {
                    self.batch.deletes.push(key.clone());
                    // The lease goes with the document; only its entry is left to remove.
                    (Vec::new(), None)
                }
            };
            let deleted = self.batch.deletes.last() == Some(&key);
            let (set, removed) = index::difference(&before, &after);
            let is_lease = |entry: &Entry| entry.member == member && entry.index == index::due();
            for entry in set.into_iter().filter(|entry| !is_lease(entry)) {
                self.note_entry(&key, &entry, &mut marked);
                self.batch.entries.push(EntryChange::Set {
                    index: entry.index,
                    member: entry.member,
                    score: entry.score,
                });
            }
            let kept = |entry: &Entry| planted(Bug::IndexNotUpdated) && entry.index != index::due();
            for entry in removed.into_iter().filter(|entry| deleted || !(is_lease(entry) || kept(entry))) {
                self.batch.entries.push(EntryChange::Remove { index: entry.index, member: entry.member });
            }
            if let Some(ttl_ms) = lease {
                if let Some(ttl_ms) = ttl_ms
                    && self.engine.announce_due(self.partition, self.now + ttl_ms)
                {
                    self.items.push(Item::Due(self.now + ttl_ms));
                }
                self.batch.leases.push(LeaseChange { key: key.clone(), ttl_ms, index: index::due(), member });
            }
            if self.partition == Partition::SYSTEM {
                self.items.push(Item::System(key));
            }
            let _ = lease_until;
        }
        let message = Message { origin: self.engine.origin(), items: std::mem::take(&mut self.items) };
        if !message.items.is_empty() {
            self.batch.hints.push(Hint { partition: self.partition, payload: message.encode() });
        }
        Prepared {
            partition: self.partition,
            command: self.command,
            batch: self.batch,
            items: message.items,
            executions: self.executions,
            marked,
            events: self.events,
        }
    }

    /// An entry that somebody waits for is worth a hint.
    fn note_entry(&mut self, key: &Key, entry: &Entry, marked: &mut Vec<Key>) {
        if entry.index.as_bytes().first() == Some(&index::QUEUE_PREFIX) {
            self.items.push(Item::Ready(entry.index.clone(), entry.score));
        } else if entry.index == index::due() {
            if self.engine.announce_due(self.partition, entry.score) {
                self.items.push(Item::Due(entry.score));
            }
        } else if entry.index == index::marks() {
            if !self.engine.options().services {
                self.items.push(Item::Mark(key.clone()));
            }
            marked.push(key.clone());
        }
    }
}

/// A batch ready to be sent, and what to do once it was applied.
pub(crate) struct Prepared {
    partition: Partition,
    command: CommandId,
    batch: Batch,
    items: Vec<Item>,
    executions: Vec<Execution>,
    marked: Vec<Key>,
    events: Vec<EventType>,
}

impl Prepared {
    /// Operations and bytes, which a commit call has limits for.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.batch.operations(), self.batch.bytes())
    }
}

impl Engine {
    /// Runs a command until it commits, is refused, or has fought for too long.
    pub(crate) async fn transact<C: Command>(
        &self,
        partition: Partition,
        command: CommandId,
        verb: &C,
    ) -> Result<C::Outcome> {
        let mut use_cache = true;
        let mut lease_was_over = false;
        let mut command = command;
        for attempt in 0..ATTEMPTS_MAX {
            // A version names one content. An earlier try may have been applied without our knowing, and was then
            // overwritten or forgotten; this one writes something else, so it writes under another name.
            if attempt > 0 {
                command = self.fresh_command();
            }
            let mut tx = Tx::new(self, partition, command, use_cache);
            tx.repeat = attempt > 0;
            let outcome = verb.run(&mut tx).await;
            // What was decided from a cached copy and not confirmed by a commit is decided again from the store.
            if tx.used_cache && (outcome.is_err() || tx.is_empty()) {
                use_cache = false;
                continue;
            }
            let outcome = outcome?;
            if tx.is_empty() {
                return Ok(outcome);
            }
            let prepared = tx.into_batch();
            match self.send(prepared).await? {
                None => return Ok(outcome),
                Some(conflict) => {
                    if matches!(conflict.why, ConflictReason::LeaseOver(_)) {
                        // It ran out, or this very command ended it and its reply was lost: then the document says so.
                        if lease_was_over {
                            return Err(Error::of(Code::LeaseExpired));
                        }
                        lease_was_over = true;
                    }
                    if use_cache {
                        use_cache = false;
                    } else {
                        self.back_off(attempt).await;
                    }
                }
            }
        }
        Err(Error::of(Code::Contention).retry_after(100))
    }

    /// Sends prepared batches of one partition in one call, and does what follows from each that was applied.
    /// A lost reply is resolved by sending again: a batch that was applied meets its own command id.
    pub(crate) async fn send_all(
        &self,
        partition: Partition,
        prepared: Vec<Prepared>,
    ) -> Result<Vec<Option<Conflict>>> {
        let results = self.send_all_timed(partition, prepared).await?;
        Ok(results.into_iter().map(std::result::Result::err).collect())
    }

    /// The same, with the store's time of each batch that was applied.
    pub(crate) async fn send_all_timed(
        &self,
        partition: Partition,
        prepared: Vec<Prepared>,
    ) -> Result<Vec<std::result::Result<i64, Conflict>>> {
        let batches: Vec<Batch> = prepared.iter().map(|one| one.batch.clone()).collect();
        let mut sent_before = false;
        for resend in 0..=RESENDS_MAX {
            let started = self.env().now_us();
            match self.store().commit(partition, batches.clone()).await {
                Ok(outcomes) => {
                    self.metrics().commit(self.env().now_us() - started);
                    let mut conflicts = Vec::with_capacity(outcomes.len());
                    for (one, outcome) in prepared.into_iter().zip(outcomes) {
                        conflicts.push(self.settle_outcome(one, outcome, sent_before));
                    }
                    return Ok(conflicts);
                }
                Err(error) if error.outcome_unknown() && resend < RESENDS_MAX => {
                    tracing::warn!(%partition, %error, "a commit's reply was lost; sending it again");
                    sent_before = true;
                    self.back_off(resend + 4).await;
                }
                // A store that says no before it starts changes nothing, but an earlier try may have been applied.
                Err(error) if sent_before && error.retryable() && resend < RESENDS_MAX => {
                    self.back_off(resend + 4).await;
                }
                Err(error) if sent_before => {
                    prepared.iter().for_each(|one| self.perhaps_applied(one));
                    return Err(StoreError::Unknown(error.to_string()).into());
                }
                Err(_) if planted(Bug::AnswerBeforeCommit) => {
                    return Ok(prepared.iter().map(|_| Ok(self.now())).collect());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::of(Code::Unavailable).retry_after(1_000))
    }

    async fn send(&self, prepared: Prepared) -> Result<Option<Conflict>> {
        let partition = prepared.partition;
        let conflicts = self.send_all(partition, vec![prepared]).await?;
        Ok(conflicts.into_iter().next().flatten())
    }

    fn settle_outcome(&self, one: Prepared, outcome: Outcome, sent_before: bool) -> std::result::Result<i64, Conflict> {
        match outcome {
            Outcome::Applied(applied) => {
                self.observe(applied.at);
                self.applied(one, applied.at);
                Ok(applied.at)
            }
            Outcome::Conflict(conflict) => {
                let own = match conflict.why {
                    ConflictReason::Exists(version) | ConflictReason::Version(version) => version == one.command,
                    _ => false,
                };
                if sent_before && own {
                    let now = self.now();
                    self.applied(one, now);
                    return Ok(now);
                }
                if sent_before {
                    self.perhaps_applied(&one);
                }
                self.metrics().conflict();
                for execution in &one.executions {
                    self.cache().remove(&execution.key());
                }
                if let Some(key) = &conflict.key {
                    self.cache().remove(key);
                }
                Err(conflict)
            }
        }
    }

    /// What follows from a commit: the cache, local wake-ups, and the marks it left.
    fn applied(&self, one: Prepared, at: i64) {
        self.metrics().happened(&one.events);
        for execution in one.executions {
            let key = execution.key();
            if execution.is_eligible() {
                self.offer(one.partition, &execution, one.command);
            }
            let lease = one.batch.leases.iter().find(|lease| lease.key == key);
            match (&execution.held().ttl_ms, lease.map(|lease| lease.ttl_ms)) {
                (Some(_), Some(Some(ttl_ms))) => {
                    let fence = Fence { epoch: execution.epoch, lease: execution.held().lease_id };
                    self.cache().put(key, Cached { execution, version: one.command, fence, lease_until: at + ttl_ms });
                }
                (Some(_), None) => self.cache().update(&key, execution, one.command),
                _ => self.cache().remove(&key),
            }
        }
        // What became claimable was offered above, document and all; it need not be announced and read again.
        let others = one.items.into_iter().filter(|item| !matches!(item, Item::Ready(..)));
        self.act_on(one.partition, &others.collect::<Vec<_>>());
        for key in one.marked {
            self.resolve_soon(one.partition, key);
        }
    }

    /// A commit whose reply was lost may have been applied without showing it: the lease it gave up, for one, no longer
    /// guards its repeat. A hint that proves wrong costs a look; a missing one leaves work lying until the next sweep.
    fn perhaps_applied(&self, one: &Prepared) {
        self.act_on(one.partition, &one.items);
        for key in &one.marked {
            self.resolve_soon(one.partition, key.clone());
        }
    }

    fn offer(&self, partition: Partition, execution: &Execution, version: Version) {
        let index =
            index::queue(&execution.namespace, &execution.lane, &execution.capabilities.route(), &execution.gate());
        let held = execution.held();
        self.scheduler().ready().offer(Candidate {
            execution: execution.clone(),
            version,
            fence: fence_of(held.epoch, held.lease_id),
            queue: QueueId { partition, index },
        });
    }

    /// Waits a little before the next try, longer each time, and never in step with others.
    pub(crate) async fn back_off(&self, attempt: u32) {
        let ceiling = BACKOFF_MS << attempt.min(7);
        let random = i64::try_from(self.env().random() >> 33).unwrap_or(0);
        self.env().sleep(ceiling / 2 + random % (ceiling / 2 + 1)).await;
    }

    /// Builds one try of a command without sending it, for callers that send several at once.
    pub(crate) async fn prepare<C: Command>(
        &self,
        partition: Partition,
        command: CommandId,
        verb: &C,
    ) -> Result<(C::Outcome, Prepared)> {
        let mut tx = Tx::new(self, partition, command, false);
        let outcome = verb.run(&mut tx).await?;
        Ok((outcome, tx.into_batch()))
    }
}

/// The fence as guards compare it.
pub(crate) fn fence_of(epoch: LeaseEpoch, lease: LeaseId) -> Fence {
    Fence { epoch, lease }
}
