//! The checkers. They see every batch that is applied, with the documents before and after it, and everything that was
//! acknowledged to a caller. Their facts are put beside a snapshot of the store, so that after a forgetful failover
//! they forget exactly as much as the store did.

mod bulk;
mod calm;
mod dating;
mod drain;
mod execution;
mod flows;
mod forget;
mod gates;
mod identity;
mod indexes;
mod journal;
mod schedules;
mod signals;
mod streams;
mod subscriptions;
mod watching;
mod whole;

pub(crate) use calm::{LAST_GUSTS_MS, Waiter};
pub(crate) use dating::Stamp;
pub(crate) use execution::{KEY_TAG, result_of};
pub(crate) use gates::TOKENS;
pub(crate) use journal::RecordedStep;
pub(crate) use signals::FORGED;
pub(crate) use streams::frames_log;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use ff_core::encoding::Document;
use ff_core::execution::Execution;
use ff_core::index::kind;
use ff_core::lease::{LeaseEnd, LeaseFence};
use ff_core::{
    Edge, ExecutionId, Flow, FlowId, Key, LeaseId, Partition, QuotaDefinition, ScheduleId, SignalId, Subscription,
    SubscriptionId, WaitpointId, documents,
};
use ff_store::memory::{Contents, PartitionContents, RawDocument};
use ff_store::{Batch, Version};

use crate::executor::Owner;
use crate::invariant::{Invariant, Violation};
use crate::newer;

/// A document's place in the whole store.
pub(crate) type Place = (Partition, Key);
/// A fence, in an order.
pub(crate) type FenceKey = (u32, u64, LeaseId);

/// The fence as a key of maps.
pub(crate) fn fence_key(fence: &LeaseFence) -> FenceKey {
    (fence.attempt.0, fence.epoch.0, fence.lease_id)
}

/// An execution as it was last written.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// The document.
    pub document: Execution,
    /// When its lease ends.
    pub lease_until: i64,
}

/// Facts about the store's contents and about what was promised.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// Every execution there is.
    pub executions: BTreeMap<Place, Seen>,
    /// The executions whose retention was over.
    pub removed: BTreeSet<Place>,
    /// How each lease ended.
    pub endings: BTreeMap<(ExecutionId, FenceKey), LeaseEnd>,
    /// Suspensions that have ended.
    pub ended_suspensions: BTreeSet<(ExecutionId, ff_core::SuspensionId)>,
    /// Executions that a worker has had, as far as it was not handed back.
    pub started: BTreeSet<ExecutionId>,
    /// The signals that resumed each execution, since it last parted from a worker.
    pub resumptions: BTreeMap<ExecutionId, Vec<SignalId>>,
    /// How many leases of each execution operators took away.
    pub revocations: BTreeMap<ExecutionId, usize>,
    /// How often each budget was reset by a caller.
    pub resets: BTreeMap<String, usize>,
    /// When the latest execution of each partition was created that a caller was told of.
    pub created: BTreeMap<Partition, i64>,
    /// Submissions that were acknowledged.
    pub submitted: BTreeSet<ExecutionId>,
    /// Until when a holder was told that its lease holds.
    pub promised: BTreeMap<(ExecutionId, FenceKey), i64>,
    /// Every flow there is.
    pub flows: BTreeMap<FlowId, Flow>,
    /// Every edge there is.
    pub edges: BTreeMap<Place, Edge>,
    /// The signal accepted for a waitpoint and a key.
    pub signals: BTreeMap<(WaitpointId, String), (SignalId, Partition)>,
    /// Every signal that was accepted, and where.
    pub accepted: BTreeMap<SignalId, Partition>,
    /// How many frames each log has got.
    pub frames: BTreeMap<Place, u64>,
    /// The entries that commits wrote to each journal.
    pub journals: BTreeMap<Place, journal::Written>,
    /// The completed steps of each journal that their holders were told of.
    pub steps: BTreeMap<journal::JournalOf, Vec<RecordedStep>>,
    /// How many events each partition has got.
    pub events: BTreeMap<u16, u64>,
    /// Up to which event of each partition the subscriber has read.
    pub events_read: BTreeMap<u16, u64>,
    /// The execution submitted under a key.
    pub keys: BTreeMap<String, ExecutionId>,
    /// Grants that were issued.
    pub grants: BTreeSet<(ExecutionId, LeaseId)>,
    /// Reports that were counted, and where.
    pub charged: BTreeMap<Key, Partition>,
    /// Since when each budget is used up.
    pub exhausted: BTreeMap<String, i64>,
    /// The quotas there are.
    pub quotas: BTreeMap<String, QuotaDefinition>,
    /// Runs that each schedule has made, and where.
    pub runs: BTreeSet<(ScheduleId, Partition, Key)>,
    /// Executions that each bulk job has changed.
    pub bulk_matches: BTreeSet<bulk::Match>,
    /// The subscriptions there were.
    pub subscriptions: BTreeMap<SubscriptionId, Subscription>,
    /// The deliveries for each of them, and where they are.
    pub deliveries: BTreeMap<(SubscriptionId, String), Partition>,
    /// The admissions of each quota.
    pub admitted: BTreeMap<String, gates::Admitted>,
}

/// Everything the checkers remember.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    /// Forgotten with the store.
    pub facts: Facts,
    /// Executions that were created, those that are gone again included.
    pub created: usize,
    /// Counts forgetful failovers: what was acknowledged across one may be gone.
    pub generation: u64,
    /// The latest commit, by the store's clock, and the latest before the last such failover.
    latest_at: i64,
    forgot_at: Option<i64>,
    /// Every lease that ever was, with its holder. Never forgotten: a fence must not come back.
    fences: BTreeMap<(ExecutionId, u64, LeaseId), String>,
    /// A digest of each version of a document. Never forgotten: a version names one content.
    versions: BTreeMap<(Partition, Key, Version), u64>,
    /// A claim may land this much later than its budgets were read.
    admission_lag_ms: i64,
    /// The usage that callers reported, by the record it is to leave.
    reports: BTreeMap<Key, i64>,
    /// The requests of callers, with and without an identity.
    asked: identity::Asked,
    /// The executions and the workers that wait for each other.
    meeting: calm::Meeting,
    /// What each server knows of the clocks that it dates by. Never forgotten: no server forgets with its store.
    dating: dating::Dating,
    /// Edges that the commit at hand resolved.
    resolved: Vec<Edge>,
    except: Vec<Invariant>,
    violation: Option<Violation>,
}

/// The documents that a batch touches, as they were.
pub(crate) type Before = BTreeMap<Key, RawDocument>;

/// A batch that was applied.
#[derive(Clone, Copy)]
pub(crate) struct Commit<'a> {
    /// The server that sent it.
    pub owner: Owner,
    /// Where.
    pub partition: Partition,
    /// The batch.
    pub batch: &'a Batch,
    /// When, by the store's clock.
    pub at: i64,
    /// When, by the time that no clock disturbs.
    pub elapsed_ms: i64,
    /// The documents before it.
    pub before: &'a Before,
    /// The contents after it.
    pub contents: &'a PartitionContents,
}

/// The documents that a batch changes.
pub(crate) fn touched(batch: &Batch) -> BTreeSet<Key> {
    let puts = batch.puts.iter().map(|put| &put.key);
    let leases = batch.leases.iter().map(|lease| &lease.key);
    puts.chain(&batch.deletes).chain(leases).cloned().collect()
}

impl Checker {
    /// Checkers of an empty store, where a claim may land this much later than its budgets were read.
    pub(crate) fn new(admission_lag_ms: i64) -> Self {
        Self { admission_lag_ms, ..Self::default() }
    }

    /// The first violation.
    pub(crate) fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Something does not hold. The first is the one that counts: what follows may be its consequence.
    pub(crate) fn violate(&mut self, invariant: Invariant, detail: String) {
        if !self.except.contains(&invariant) {
            self.violation.get_or_insert(Violation { invariant, detail });
        }
    }

    /// These invariants are not looked at.
    pub(crate) fn except(&mut self, invariants: &[Invariant]) {
        self.except = invariants.to_vec();
    }

    /// Refuses what does not hold.
    pub(crate) fn expect(&mut self, holds: bool, invariant: Invariant, detail: impl FnOnce() -> String) {
        if !holds {
            self.violate(invariant, detail());
        }
    }

    /// A batch was applied.
    pub(crate) fn applied(&mut self, commit: Commit<'_>) {
        self.latest_at = self.latest_at.max(commit.at);
        self.count_events(commit);
        for key in touched(commit.batch) {
            let after = commit.contents.document(&key);
            match key.kind() {
                kind::EXECUTION => self.execution_changed(commit, &key, after),
                kind::EDGE => self.edge_changed(commit, &key, after),
                kind::FLOW => self.flow_changed(commit.partition, &key, after),
                kind::SIGNAL => self.signal_changed(commit.partition, &key, after),
                kind::LANE => self.lane_changed(commit, after),
                kind::BUDGET => self.budget_changed(commit, &key, after),
                kind::QUOTA => self.quota_changed(commit, after),
                kind::BULK_PART => self.bulk_part_changed(commit, &key, after),
                kind::CONCURRENCY_KEY => self.key_changed(commit, after),
                kind::SCHEDULE => self.schedule_changed(commit, &key, after),
                kind::SUBSCRIPTION => self.subscription_changed(after),
                kind::CURSOR => self.cursor_changed(commit, &key, after),
                _ => {}
            }
            // A particular violation says more than a general one, so it is looked for first.
            self.check_version(commit.partition, &key, after);
            self.check_unknown(commit, &key, after);
            self.check_entries(commit, &key);
            if let Some(after) = after
                && let Err(error) = documents::check(&key, &after.body)
            {
                self.violate(Invariant::LegalStates, format!("{key:?}: {error}"));
            }
        }
        self.check_set_entries(commit);
        self.check_resolutions(commit.partition);
        self.check_joins(commit);
        self.check_appends(commit);
        self.check_journal_appends(commit);
    }

    /// A version is the name of one content. If it named two, a cached version would let an old document overwrite a
    /// newer one.
    fn check_version(&mut self, partition: Partition, key: &Key, after: Option<&RawDocument>) {
        let Some(after) = after else { return };
        let mut hasher = std::hash::DefaultHasher::new();
        after.body.hash(&mut hasher);
        let content = hasher.finish();
        let known = *self.versions.entry((partition, key.clone(), after.version)).or_insert(content);
        self.expect(known == content, Invariant::VersionsNameOne, || {
            format!("version {} of {key:?} names two contents", after.version)
        });
    }

    /// A document that a newer version wrote keeps what this version does not know.
    fn check_unknown(&mut self, commit: Commit<'_>, key: &Key, after: Option<&RawDocument>) {
        let (Some(before), Some(after)) = (commit.before.get(key), after) else { return };
        let lost = before.present(commit.at) && newer::has_unknown(&before.body) && !newer::has_unknown(&after.body);
        self.expect(!lost, Invariant::UnknownKept, || format!("{key:?} lost what a newer version wrote into it"));
    }

    /// A caller was told that a lease ended this way.
    pub(crate) fn acknowledged_end(&mut self, id: ExecutionId, fence: &LeaseFence, end: LeaseEnd) {
        match self.facts.endings.get(&(id, fence_key(fence))) {
            Some(found) if *found == end => {}
            Some(found) => {
                let detail = format!("{id} {fence:?} ended as {found:?}, its holder was told {end:?}");
                self.violate(Invariant::OneLiveLease, detail);
            }
            None => {
                let detail = format!("{id} {fence:?}: its holder was told {end:?}, but nothing of it is stored");
                self.violate(Invariant::AcknowledgedSurvives, detail);
            }
        }
    }

    /// A caller was told that an execution was created.
    pub(crate) fn acknowledged_create(&mut self, id: ExecutionId) {
        self.facts.submitted.insert(id);
        let place = (id.partition(), Execution::key_of(&id));
        if let Some(seen) = self.facts.executions.get(&place) {
            let execution = seen.document.clone();
            self.note_created(&execution);
        }
        let there = self.facts.executions.contains_key(&place) || self.facts.removed.contains(&place);
        self.expect(there, Invariant::AcknowledgedSurvives, || format!("{id} was acknowledged and is not there"));
    }

    /// A caller was told that it holds a lease.
    pub(crate) fn acknowledged_lease(&mut self, id: ExecutionId, fence: &LeaseFence, until: i64) {
        let known = self.fences.contains_key(&(id, fence.epoch.0, fence.lease_id));
        self.expect(known, Invariant::AcknowledgedSurvives, || {
            format!("{id} {fence:?} was handed out and was never stored")
        });
        let promised = self.facts.promised.entry((id, fence_key(fence))).or_insert(until);
        *promised = (*promised).max(until);
    }

    /// Reads everything anew, as after a restart of the checkers.
    pub(crate) fn executions_of(contents: &Contents) -> BTreeMap<Place, Seen> {
        let mut executions = BTreeMap::new();
        for (partition, contents) in contents.partitions() {
            for (key, raw) in contents.documents().filter(|(key, _)| key.kind() == kind::EXECUTION) {
                if let Ok(document) = Execution::decode(&raw.body) {
                    executions.insert((partition, key.clone()), Seen { document, lease_until: raw.lease_until });
                }
            }
        }
        executions
    }
}
