//! The arguments of one call of `ff_commit`: batches that touch nothing in common become parallel arrays. Its answer is
//! read in `answer`.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use ff_core::{IndexName, Key, Partition};
use ff_store::{Batch, EntryChange, Guard};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::describe::{Columns, Describe};
use crate::locks::{Locks, Protects};
use crate::names;
use crate::touch::is_counted;

/// More locks than this in one transaction are replaced by the lock of the partition: the server's lock table is
/// shared by all its connections, and holds 64 for each by default.
const LOCKS_MAX: usize = 256;

/// How many arguments `ff_commit` takes.
const ARGUMENTS: usize = 63;

/// The statement that runs a call.
pub(crate) fn statement() -> String {
    let arguments: Vec<String> = (1..=ARGUMENTS).map(|number| format!("${number}")).collect();
    format!("SELECT * FROM ff_commit({})", arguments.join(", "))
}

type Bytes<'a> = Cow<'a, [u8]>;

/// The arguments of a call, borrowed from its batches.
#[derive(Default)]
pub(crate) struct Call<'a> {
    pub(crate) batches: &'a [&'a Batch],
    partition: i32,
    floor: i64,
    whole: i64,
    alone: bool,
    lock_id: Vec<i64>,
    lock_shared: Vec<bool>,
    draw_lock: i64,
    pub(crate) guards: Guards<'a>,
    puts: Puts<'a>,
    delete_batch: Vec<i32>,
    delete_key: Vec<&'a [u8]>,
    sets: Sets<'a>,
    remove_batch: Vec<i32>,
    remove_name: Vec<Bytes<'a>>,
    remove_member: Vec<&'a [u8]>,
    long_short: Vec<Bytes<'a>>,
    long_name: Vec<&'a [u8]>,
    lease_batch: Vec<i32>,
    lease_key: Vec<&'a [u8]>,
    lease_ttl: Vec<i64>,
    pub(crate) appends: Appends<'a>,
    trim_batch: Vec<i32>,
    trim_log: Vec<&'a [u8]>,
    trim_before: Vec<i64>,
    blob_batch: Vec<i32>,
    blob_key: Vec<&'a [u8]>,
    blob_bytes: Vec<Option<&'a [u8]>>,
}

#[derive(Default)]
pub(crate) struct Guards<'a> {
    batch: Vec<i32>,
    kind: Vec<i32>,
    key: Vec<Option<&'a [u8]>>,
    version: Vec<Option<Uuid>>,
    epoch: Vec<Option<i64>>,
    lease: Vec<Option<Uuid>>,
    instant: Vec<Option<i64>>,
    /// The guards themselves, to say which one did not hold.
    pub(crate) of: Vec<&'a Guard>,
}

#[derive(Default)]
struct Puts<'a> {
    batch: Vec<i32>,
    key: Vec<&'a [u8]>,
    body: Vec<&'a [u8]>,
    version: Vec<Uuid>,
    epoch: Vec<i64>,
    lease: Vec<Uuid>,
    ttl: Vec<i64>,
    expires: Vec<Option<i64>>,
    namespace: Vec<Option<String>>,
    lane: Vec<Option<String>>,
    kind: Vec<Option<String>>,
    state: Vec<Option<String>>,
    flow: Vec<Option<String>>,
    priority: Vec<Option<i32>>,
    created: Vec<Option<i64>>,
    updated: Vec<Option<i64>>,
    view: Vec<Option<String>>,
}

#[derive(Default)]
struct Sets<'a> {
    batch: Vec<i32>,
    name: Vec<Bytes<'a>>,
    member: Vec<&'a [u8]>,
    score: Vec<i64>,
    relative: Vec<Option<bool>>,
}

#[derive(Default)]
pub(crate) struct Appends<'a> {
    event_log: Vec<&'a [u8]>,
    counted_batch: Vec<i32>,
    counted_log: Vec<&'a [u8]>,
    counted_expected: Vec<Option<i64>>,
    counted_records: Vec<i32>,
    event_records: i32,
    record_batch: Vec<i32>,
    record_log: Vec<&'a [u8]>,
    record_bytes: Vec<&'a [u8]>,
    record_counted: Vec<i32>,
    record_offset: Vec<i32>,
    /// Where the number of each append comes from, in order.
    pub(crate) numbers: Vec<Number>,
}

/// Where the first number of an append comes from.
#[derive(Clone, Copy)]
pub(crate) enum Number {
    /// Counted from the first number drawn for the call.
    Event(i32),
    /// The next number of a counted log, by its place among them.
    Counted(usize),
}

/// The inputs of a call besides its batches.
pub(crate) struct Context<'a> {
    pub(crate) partition: Partition,
    pub(crate) locks: Locks,
    pub(crate) floor: i64,
    pub(crate) describe: Option<Describe>,
    /// Logs that are known to be counted although nothing is expected of them.
    pub(crate) counted: &'a HashSet<Key>,
    /// Take one lock for all.
    pub(crate) alone: bool,
}

impl<'a> Call<'a> {
    pub(crate) fn new(batches: &'a [&'a Batch], context: &Context<'_>) -> Self {
        let mut call = Self {
            batches,
            partition: i32::try_from(context.partition.ordinal()).expect("ordinals stay below four times 65,536"),
            floor: context.floor,
            whole: context.locks.partition(context.partition),
            draw_lock: context.locks.single(Protects::Numbers),
            ..Self::default()
        };
        let mut locks = BTreeMap::new();
        for (number, batch) in (0..).zip(batches) {
            call.add_guards(number, batch);
            call.add_documents(number, batch, context);
            call.add_entries(number, batch);
            call.add_appends(number, batch, context);
            call.add_rest(number, batch);
            lock(batch, context, &mut locks);
        }
        call.alone = context.alone || locks.len() > LOCKS_MAX;
        if !call.alone {
            (call.lock_id, call.lock_shared) = locks.into_iter().unzip();
        }
        call
    }

    fn add_guards(&mut self, number: i32, batch: &'a Batch) {
        for guard in &batch.guards {
            let (mut version, mut fence, mut instant) = (None, None, None);
            let kind = match guard {
                Guard::Absent(_) => 1,
                Guard::Version(_, wanted) => {
                    version = Some(wanted.0);
                    2
                }
                Guard::Fence(_, wanted) => {
                    fence = Some(*wanted);
                    3
                }
                Guard::Live(_) => 4,
                Guard::Expired(_) => 5,
                Guard::NotAfter(limit) => {
                    instant = Some(*limit);
                    6
                }
            };
            let guards = &mut self.guards;
            guards.batch.push(number);
            guards.kind.push(kind);
            guards.key.push(guard.key().map(Key::as_bytes));
            guards.version.push(version);
            guards.epoch.push(fence.map(|fence| fence.epoch.0.cast_signed()));
            guards.lease.push(fence.map(|fence| fence.lease.0));
            guards.instant.push(instant);
            guards.of.push(guard);
        }
    }

    fn add_documents(&mut self, number: i32, batch: &'a Batch, context: &Context<'_>) {
        let mut ttls: HashMap<&Key, i64> =
            batch.leases.iter().map(|lease| (&lease.key, lease.ttl_ms.unwrap_or(0))).collect();
        let absent: HashSet<&Key> = batch
            .guards
            .iter()
            .filter_map(|guard| if let Guard::Absent(key) = guard { Some(key) } else { None })
            .collect();
        for put in &batch.puts {
            // A document that was absent has no lease; any other keeps its own unless the batch changes it.
            let unchanged = if absent.contains(&put.key) { 0 } else { -1 };
            let columns = context.describe.and_then(|describe| describe(&put.key, &put.body));
            let puts = &mut self.puts;
            puts.batch.push(number);
            puts.key.push(put.key.as_bytes());
            puts.body.push(&put.body);
            puts.version.push(batch.command.0);
            // Epochs are compared for equality only, so the sign does not matter.
            puts.epoch.push(put.fence.epoch.0.cast_signed());
            puts.lease.push(put.fence.lease.0);
            puts.ttl.push(ttls.remove(&put.key).unwrap_or(unchanged));
            puts.expires.push(put.expires_at);
            if context.describe.is_some() {
                puts.describe(columns.unwrap_or_default().storable());
            }
        }
        for lease in batch.leases.iter().filter(|lease| ttls.contains_key(&lease.key)) {
            self.lease_batch.push(number);
            self.lease_key.push(lease.key.as_bytes());
            self.lease_ttl.push(lease.ttl_ms.unwrap_or(0));
        }
    }

    /// Entries and the entries of leases. Leases come later: theirs is the last word.
    fn add_entries(&mut self, number: i32, batch: &'a Batch) {
        let leased: HashSet<(&IndexName, &Key)> =
            batch.leases.iter().map(|lease| (&lease.index, &lease.member)).collect();
        for entry in &batch.entries {
            let (EntryChange::Set { index, member, .. } | EntryChange::Remove { index, member }) = entry;
            if leased.contains(&(index, member)) {
                continue;
            }
            match entry {
                EntryChange::Set { score, .. } => self.set(number, index, member, *score, Some(false)),
                EntryChange::Remove { .. } => self.remove(number, index, member),
            }
        }
        let put: HashSet<&Key> = batch.puts.iter().map(|put| &put.key).collect();
        for lease in &batch.leases {
            match lease.ttl_ms {
                Some(ttl) => {
                    let relative = put.contains(&lease.key).then_some(true);
                    self.set(number, &lease.index, &lease.member, ttl, relative);
                }
                None => self.remove(number, &lease.index, &lease.member),
            }
        }
    }

    fn set(&mut self, number: i32, index: &'a IndexName, member: &'a Key, score: i64, relative: Option<bool>) {
        let name = names::stored(index);
        if names::is_long(&name) {
            self.long_short.push(name.clone());
            self.long_name.push(index.as_bytes());
        }
        self.sets.batch.push(number);
        self.sets.name.push(name);
        self.sets.member.push(member.as_bytes());
        self.sets.score.push(score);
        self.sets.relative.push(relative);
    }

    fn remove(&mut self, number: i32, index: &'a IndexName, member: &'a Key) {
        self.remove_batch.push(number);
        self.remove_name.push(names::stored(index));
        self.remove_member.push(member.as_bytes());
    }

    fn add_appends(&mut self, number: i32, batch: &'a Batch, context: &Context<'_>) {
        for append in &batch.appends {
            let appends = &mut self.appends;
            let count = i32::try_from(append.records.len()).expect("a batch has at most 5,000 operations");
            let (counted, first) = if is_counted(append, context.counted) {
                // No log gets as far as the largest number, so it stands for everything past it.
                let expected = append.expected.map(|expected| i64::try_from(expected).unwrap_or(i64::MAX));
                appends.counted_batch.push(number);
                appends.counted_log.push(append.log.as_bytes());
                appends.counted_expected.push(expected);
                appends.counted_records.push(count);
                appends.numbers.push(Number::Counted(appends.counted_log.len() - 1));
                (i32::try_from(appends.counted_log.len()).expect("a call has far fewer appends than 2^31"), 0)
            } else {
                let first = appends.event_records;
                appends.event_log.push(append.log.as_bytes());
                appends.event_records += count;
                appends.numbers.push(Number::Event(first));
                (0, first)
            };
            for (offset, record) in (first..).zip(&append.records) {
                appends.record_batch.push(number);
                appends.record_log.push(append.log.as_bytes());
                appends.record_bytes.push(record);
                appends.record_counted.push(counted);
                appends.record_offset.push(offset);
            }
        }
    }

    fn add_rest(&mut self, number: i32, batch: &'a Batch) {
        for key in &batch.deletes {
            self.delete_batch.push(number);
            self.delete_key.push(key.as_bytes());
        }
        for trim in &batch.trims {
            self.trim_batch.push(number);
            self.trim_log.push(trim.log.as_bytes());
            self.trim_before.push(i64::try_from(trim.before).unwrap_or(i64::MAX));
        }
        for blob in &batch.blobs {
            self.blob_batch.push(number);
            self.blob_key.push(blob.key.as_bytes());
            self.blob_bytes.push(blob.bytes.as_deref());
        }
    }

    /// The arguments in the order of the function's.
    pub(crate) fn arguments(&self) -> [&(dyn ToSql + Sync); ARGUMENTS] {
        let (guards, puts, sets, appends) = (&self.guards, &self.puts, &self.sets, &self.appends);
        [
            &self.partition,
            &self.floor,
            &self.whole,
            &self.alone,
            &self.lock_id,
            &self.lock_shared,
            &self.draw_lock,
            &guards.batch,
            &guards.kind,
            &guards.key,
            &guards.version,
            &guards.epoch,
            &guards.lease,
            &guards.instant,
            &puts.batch,
            &puts.key,
            &puts.body,
            &puts.version,
            &puts.epoch,
            &puts.lease,
            &puts.ttl,
            &puts.expires,
            &puts.namespace,
            &puts.lane,
            &puts.kind,
            &puts.state,
            &puts.flow,
            &puts.priority,
            &puts.created,
            &puts.updated,
            &puts.view,
            &self.delete_batch,
            &self.delete_key,
            &sets.batch,
            &sets.name,
            &sets.member,
            &sets.score,
            &sets.relative,
            &self.remove_batch,
            &self.remove_name,
            &self.remove_member,
            &self.long_short,
            &self.long_name,
            &self.lease_batch,
            &self.lease_key,
            &self.lease_ttl,
            &appends.event_log,
            &appends.counted_batch,
            &appends.counted_log,
            &appends.counted_expected,
            &appends.counted_records,
            &appends.event_records,
            &appends.record_batch,
            &appends.record_log,
            &appends.record_bytes,
            &appends.record_counted,
            &appends.record_offset,
            &self.trim_batch,
            &self.trim_log,
            &self.trim_before,
            &self.blob_batch,
            &self.blob_key,
            &self.blob_bytes,
        ]
    }
}

impl Puts<'_> {
    fn describe(&mut self, columns: Columns) {
        self.namespace.push(columns.namespace);
        self.lane.push(columns.lane);
        self.kind.push(columns.kind);
        self.state.push(columns.state);
        self.flow.push(columns.flow);
        self.priority.push(columns.priority);
        self.created.push(columns.created_at);
        self.updated.push(columns.updated_at);
        self.view.push(columns.view);
    }
}

/// The locks of a batch, each with whether it may be shared: what is only looked at need not be alone.
fn lock(batch: &Batch, context: &Context<'_>, locks: &mut BTreeMap<i64, bool>) {
    let mut take = |protects, key: &Key, shared: bool| {
        let id = context.locks.named(context.partition, protects, &[key.as_bytes()]);
        locks.entry(id).and_modify(|both| *both &= shared).or_insert(shared);
    };
    for key in batch.guards.iter().filter_map(Guard::key) {
        take(Protects::Document, key, true);
    }
    let leased = batch.leases.iter().map(|lease| &lease.key);
    for key in batch.puts.iter().map(|put| &put.key).chain(&batch.deletes).chain(leased) {
        take(Protects::Document, key, false);
    }
    for append in &batch.appends {
        take(Protects::Log, &append.log, !is_counted(append, context.counted));
    }
    for trim in &batch.trims {
        take(Protects::Log, &trim.log, false);
    }
}
