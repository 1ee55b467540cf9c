//! Optimistic transactions: read documents, apply transitions, commit guarded by versions, run again on conflict.
//!
//! A [`Tx`] collects a [`Batch`]; only the store changes anything. Index changes are the difference between the entries
//! of a document as it was loaded and as it is saved, so a command cannot forget one. Modules: `transactor` is the
//! handle that everything else uses, `documents` keeps what a try has loaded and changed, `load` reads documents for a
//! transaction, `batch` puts together what it writes, `commit` sends batches, `once` makes commands safe to repeat, `gather` lets the
//! parts of one call share commits.

mod batch;
mod commit;
mod documents;
mod gather;
mod listener;
mod load;
mod once;
mod readable;
mod transactor;
mod under_way;

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use ff_core::encoding::Encoded;
use ff_core::event::{Effects, EventType};
use ff_core::execution::Execution;
use ff_core::index::{self, Due};
use ff_core::lease::LeaseFence;
use ff_core::planted::{Bug, planted};
use ff_core::waitpoint::Waitpoint;
use ff_core::{Code, CommandId, Edge, Entry, Indexed, Key, LeaseEpoch, LeaseId, Partition, Result, limits};
use ff_store::{
    Append, Batch, BlobChange, EntryChange, Fence, Guard, LeaseChange, Scan, StoredDocument, Trim, Version,
};

use crate::due::RETRY_MS;
use crate::hint::Item;
use crate::logs;

pub(crate) use batch::Prepared;
pub(crate) use commit::NotApplied;
pub(crate) use listener::{AppliedCommit, Listener, PerhapsApplied, Released};
pub(crate) use transactor::Transactor;
pub(crate) use under_way::CallerGone;

use self::batch::push_one;
use self::documents::{Documents, Known, Staged};
use self::gather::Gathering;

/// One verb of the engine: loads documents, calls transitions, saves. It may run several times, each time on fresh
/// data, so it must not have effects of its own.
pub(crate) trait Command: Send + Sync {
    /// Its answer.
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

/// One try of a command.
pub(crate) struct Tx<'e> {
    pub(crate) transactor: &'e Transactor,
    pub(crate) partition: Partition,
    pub(crate) command: CommandId,
    /// The store's time, as far as this try knows it.
    pub(crate) now: i64,
    /// The latest time that the store itself has said in this try.
    told: Option<i64>,
    documents: Documents,
    /// The bytes of what is saved and told.
    encoded: Encoded,
    batch: Batch,
    items: Vec<Item>,
    executions: Vec<Arc<Execution>>,
    released: Vec<Released>,
    following: Vec<(Key, Vec<Edge>)>,
    events: Vec<EventType>,
    repairs: u64,
    use_cache: bool,
    used_cache: bool,
    repeat: bool,
}

impl<'e> Tx<'e> {
    fn new(transactor: &'e Transactor, partition: Partition, command: CommandId, use_cache: bool) -> Self {
        Self {
            transactor,
            partition,
            command,
            now: transactor.now_in(partition),
            told: None,
            documents: Documents::default(),
            encoded: Encoded::default(),
            batch: Batch::new(command),
            items: Vec::new(),
            executions: Vec::new(),
            released: Vec::new(),
            following: Vec::new(),
            events: Vec::new(),
            repairs: 0,
            use_cache,
            used_cache: false,
            repeat: false,
        }
    }

    /// Whether an earlier try met a conflict, so that documents that were assumed without a read must be read now.
    pub(crate) fn is_repeat(&self) -> bool {
        self.repeat
    }

    /// Thirty-two random bits.
    pub(crate) fn random(&self) -> u32 {
        u32::try_from(self.transactor.env().random() >> 32).unwrap_or(0)
    }

    /// The instant up to which timers are certainly due. After a clock was set back, the engine's estimate is ahead of
    /// it for a while, and a timer that is due by the estimate alone would fire too early.
    pub(crate) fn due_until(&self) -> i64 {
        self.told.map_or(self.now, |told| told.min(self.now))
    }

    /// Makes a document without a lease known as another task read it; the commit's guards check that it has not
    /// changed.
    pub(crate) fn know<D: Indexed>(&mut self, document: &D, version: Version, fence: Fence) {
        let entries = document.index_entries(0);
        let known = Known { version: Some(version), fence, entries, ..Known::default() };
        self.documents.know(document.key(), known);
    }

    /// Notes the edges that lead from an execution to others, all created by this commit; see
    /// [`Downstreams`](crate::cache::Downstreams).
    pub(crate) fn followed_by(&mut self, upstream: Key, edges: Vec<Edge>) {
        self.following.push((upstream, edges));
    }

    /// The commit counts only while this document has this version.
    pub(crate) fn require_version(&mut self, key: &Key, version: Version) {
        self.batch.guards.push(Guard::Version(key.clone(), version));
    }

    /// The version of a document as it was loaded; none if it is not there.
    pub(crate) fn version_of(&self, key: &Key) -> Option<Version> {
        self.documents.known(key).and_then(|known| known.version)
    }

    /// Guards a loaded document's version although it is not saved: the decision rests on it.
    pub(crate) fn pin(&mut self, key: &Key) {
        if let Some(known) = self.documents.known_mut(key) {
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

    /// Saves a document that was loaded, and that reads as absent from an instant on.
    pub(crate) fn save_until<D: Indexed>(&mut self, document: &D, expires_at: i64) {
        self.stage(document, Some(expires_at));
    }

    /// Creates a document that must not exist; no read is needed.
    pub(crate) fn create<D: Indexed>(&mut self, document: &D) {
        self.documents.know_first(document.key(), Known::default);
        self.stage(document, None);
    }

    /// Creates a document that must not exist and that reads as absent from an instant on.
    pub(crate) fn create_until<D: Indexed>(&mut self, document: &D, expires_at: i64) {
        self.create(document);
        self.stage(document, Some(expires_at));
    }

    /// Creates an execution; claims that wait for work learn of it.
    pub(crate) fn create_execution(&mut self, execution: Arc<Execution>) {
        debug_assert!(execution.check().is_ok(), "{:?}", execution.check());
        self.create(&*execution);
        push_one(&mut self.executions, execution);
    }

    /// Removes a waitpoint or signal of an execution that some read brought along, with its blob and its entries.
    pub(crate) fn delete_belonging(
        &mut self,
        execution: &ff_core::ExecutionId,
        key: Key,
        stored: Option<StoredDocument>,
    ) -> Result<()> {
        let loaded = match key.kind() {
            index::kind::WAITPOINT => self.adopt::<Waitpoint>(key.clone(), stored).map(drop),
            _ => self.adopt::<ff_core::AcceptedSignal>(key.clone(), stored).map(drop),
        };
        self.blob(key.clone(), None);
        match loaded {
            Ok(()) => self.delete(&key),
            // A document that cannot be decoded is removed with its execution all the same, together with the entries
            // that lead to it.
            Err(error) if error.code == Code::CorruptDocument => {
                self.transactor.pass_over(&key, &error);
                for index in [index::execution_parts(execution.uuid), index::pending_waitpoints(execution.uuid)] {
                    self.batch.entries.push(EntryChange::Remove { index, member: key.clone() });
                }
                self.delete_unindexed(key);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Removes a document that has no index entries, whether it is there or not.
    pub(crate) fn delete_unindexed(&mut self, key: Key) {
        self.batch.deletes.push(key);
    }

    /// Removes an entry that its document, as it was loaded, does not justify. If the entry is gone, another engine was
    /// faster, and there is nothing to repair.
    pub(crate) async fn remove_stray(&mut self, key: &Key, entry: Entry) -> Result<()> {
        if self.is_present(&entry).await? {
            self.pin(key);
            self.repairs += 1;
            self.batch.entries.push(EntryChange::Remove { index: entry.index, member: entry.member });
        }
        Ok(())
    }

    /// Whether an entry still has the score that was seen.
    async fn is_present(&mut self, entry: &Entry) -> Result<bool> {
        let page = self.scan(exactly(entry)).await?;
        Ok(page.entries.iter().any(|found| found.member == entry.member))
    }

    /// Changes one entry under the version of its document, or under its absence.
    pub(crate) fn repair_entry(&mut self, key: &Key, version: Option<Version>, change: EntryChange) {
        self.batch.guards.push(match version {
            Some(version) => Guard::Version(key.clone(), version),
            None => Guard::Absent(key.clone()),
        });
        self.batch.entries.push(change);
    }

    /// Moves an entry from where it was seen to the score that its document, as it was loaded, wants; see
    /// [`Tx::remove_stray`].
    pub(crate) async fn move_stray(&mut self, key: &Key, entry: Entry, score: i64) -> Result<()> {
        if self.is_present(&entry).await? {
            self.pin(key);
            self.repairs += 1;
            self.batch.entries.push(EntryChange::Set { index: entry.index, member: entry.member, score });
        }
        Ok(())
    }

    /// Moves or removes an entry of the `due` index that its document does not justify. An entry that the document does
    /// justify came too early, for example after a failover to a server whose clock is behind; it is checked again at
    /// its time.
    pub(crate) async fn repair_due(&mut self, key: &Key, next: Option<i64>, score: i64) -> Result<()> {
        let due = self.transactor.due();
        match next {
            Some(at) if at == score => {
                let again = if at > self.now { at } else { self.now + RETRY_MS };
                due.note(self.partition, again);
                Ok(())
            }
            Some(at) => {
                // Even if another engine was faster, this one must know when to look next.
                due.note(self.partition, at.max(self.now));
                self.move_stray(key, Due::Timer.entry(key, score), at).await
            }
            None => self.remove_stray(key, Due::Timer.entry(key, score)).await,
        }
    }

    /// Saves an execution together with the effects of its transition: events, history and released slots.
    pub(crate) fn save_execution(&mut self, execution: &Execution, effects: Effects) {
        self.save_shared(Arc::new(execution.clone()), effects);
    }

    /// Saves an execution for callers that need no copy of their own.
    pub(crate) fn save_shared(&mut self, execution: Arc<Execution>, effects: Effects) {
        debug_assert!(execution.check().is_ok(), "{:?}", execution.check());
        self.save(&*execution);
        let released =
            effects.released.iter().map(|one| Released { execution: Arc::clone(&execution), slot: one.slot });
        self.released.extend(released);
        self.apply(&execution.id, effects);
        // The end of an attempt closes its stream and wakes every tail of it; viewers also learn of a pause.
        let paused = execution.state.attempt_state == ff_core::AttemptState::AttemptInterrupted;
        if let Some(attempt) = &execution.attempt
            && (paused || (attempt.ended_at != 0 && attempt.ended_at == execution.updated_at))
        {
            self.items.push(Item::Log(logs::frames(&execution.id, attempt.index)));
        }
        if paused || execution.is_terminal() {
            self.items.push(Item::Changed(execution.key()));
        }
        self.executions.retain(|kept| kept.id != execution.id);
        push_one(&mut self.executions, execution);
    }

    /// Writes events and history.
    pub(crate) fn apply(&mut self, execution: &ff_core::ExecutionId, effects: Effects) {
        effects.removed.into_iter().for_each(|key| self.delete_unindexed(key));
        effects.released.iter().for_each(|one| self.require_not_after(one.until));
        if !effects.history.is_empty() {
            let records = effects.history.iter().map(|record| self.encoded.record(record)).collect();
            self.append(Append {
                log: logs::history(execution),
                records,
                expected: None,
                cap: limits::HISTORY_MAX,
                in_turn: true,
            });
        }
        if !effects.events.is_empty() {
            self.events.extend(effects.events.iter().map(|event| event.event_type));
            let records = effects.events.iter().map(|event| self.encoded.record(event)).collect();
            let cap = self.transactor.events_cap();
            self.append(Append { log: logs::events(), records, expected: None, cap, in_turn: false });
        }
    }

    fn stage<D: Indexed>(&mut self, document: &D, expires_at: Option<i64>) {
        let key = document.key();
        let held = document.document_lease();
        let fence = Fence { epoch: held.epoch, lease: held.lease_id };
        let known = self.documents.known(&key);
        let (lease_until, known_fence) = known.map_or((0, Fence::default()), |known| (known.lease_until, known.fence));
        // A lease begins when the fence is new, and ends when the document has no lease any more; in between only
        // renewals move it.
        let lease = match held.ttl_ms {
            Some(ttl_ms) if fence != known_fence || lease_until == 0 => Some(Some(ttl_ms)),
            Some(_) => None,
            None if lease_until != 0 => Some(None),
            None => None,
        };
        let entries = document.index_entries(lease_until);
        let body = self.encoded.document(document);
        self.documents.stage(key, Staged::Put { body, fence, lease, entries, expires_at });
    }

    /// Begins the lease of a document that was just saved anew, although its holder is the same.
    pub(crate) fn renew<D: Indexed>(&mut self, document: &D) {
        if let (Some(Staged::Put { lease, .. }), Some(ttl_ms)) =
            (self.documents.staged_mut(&document.key()), document.document_lease().ttl_ms)
        {
            *lease = Some(Some(ttl_ms));
        }
    }

    /// Renews a lease without reading its document: only the instant beside it moves, for its holder, while it lives.
    pub(crate) fn renew_unread(&mut self, key: &Key, fence: Fence, ttl_ms: i64) {
        self.batch.guards.push(Guard::Fence(key.clone(), fence));
        self.batch.guards.push(Guard::Live(key.clone()));
        let member = Due::Lease.member(key);
        let renewed = LeaseChange { key: key.clone(), ttl_ms: Some(ttl_ms), index: index::due(), member };
        push_one(&mut self.batch.leases, renewed);
        // The lease may end earlier than any timer that this engine knows of, because it may never have seen the lease.
        if is_timed(key) {
            self.announce_due(self.now + ttl_ms);
        }
    }

    /// Removes a loaded document.
    pub(crate) fn delete(&mut self, key: &Key) {
        self.documents.stage(key.clone(), Staged::Delete);
    }

    /// Appends records to a log, and tells its listeners.
    pub(crate) fn append(&mut self, append: Append) {
        self.items.push(Item::Log(append.log.clone()));
        match self.batch.appends.iter_mut().find(|other| other.log == append.log && append.expected.is_none()) {
            Some(other) => other.records.extend(append.records),
            None => push_one(&mut self.batch.appends, append),
        }
    }

    /// Whether the commit appends to some log so far.
    pub(crate) fn appends_something(&self) -> bool {
        !self.batch.appends.is_empty()
    }

    /// Removes records of a log.
    pub(crate) fn trim(&mut self, log: Key, before: u64) {
        self.batch.trims.push(Trim { log, before });
    }

    /// Writes or removes a blob.
    pub(crate) fn blob(&mut self, key: Key, bytes: Option<Bytes>) {
        self.batch.blobs.push(BlobChange { key, bytes });
    }

    /// Adds a hint to other engines.
    pub(crate) fn hint(&mut self, item: Item) {
        self.items.push(item);
    }

    /// The commit frees memory; a full store takes it all the same.
    pub(crate) fn relief(&mut self) {
        self.batch.relief = true;
    }

    /// Drops all collected writes; documents that were read stay known.
    pub(crate) fn discard(&mut self) {
        self.documents.unstage();
        self.batch = Batch::new(self.command);
        self.items.clear();
        self.executions.clear();
        self.released.clear();
        self.following.clear();
        self.events.clear();
    }

    fn is_empty(&self) -> bool {
        !self.documents.any_staged() && self.batch.effects().next().is_none()
    }
}

/// A scan that finds this entry if it is there, and few others.
pub(crate) fn exactly(entry: &Entry) -> Scan {
    let mut scan = Scan::first(entry.index.clone(), 16);
    scan.min = entry.score;
    scan.max = entry.score;
    let (_, shorter) = entry.member.as_bytes().split_last().unwrap_or((&0, &[]));
    if !shorter.is_empty() {
        scan.after = Some((entry.score, Key::from_bytes(shorter)));
    }
    scan
}

/// Whether timers fire at the end of a document's lease. Servers watch each other's registrations themselves.
fn is_timed(key: &Key) -> bool {
    key.kind() != index::kind::SERVER
}

/// The fence as guards compare it.
pub(crate) fn fence_of(epoch: LeaseEpoch, lease: LeaseId) -> Fence {
    Fence { epoch, lease }
}
