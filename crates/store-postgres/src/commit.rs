//! The arguments of one call of `ff_commit_2`: batches that touch nothing in common become rows, an array for each kind
//! of change. Its answer is read in `answer`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ff_core::{IndexName, Key, Partition};
use ff_store::{Batch, EntryChange, Guard};
use tokio_postgres::types::ToSql;

use crate::describe::{Describe, View, storable_view};
use crate::locks::{Locks, Protects};
use crate::names;
use crate::rows::{
    BlobRow, CountedRow, EntryRow, GuardRow, KeyRow, LeaseRow, LockRow, LongNameRow, LowestRow, PutRow, RecordRow,
    TrimRow,
};
use crate::touch::{Touches, is_counted};

/// More locks than this in one transaction are replaced by the lock of the partition: the server's lock table is
/// shared by all its connections, and holds 64 for each by default.
const LOCKS_MAX: usize = 256;

/// The end of the year 9999.
const TIME_MAX_MS: u64 = 253_402_300_799_999;

/// How many arguments `ff_commit_2` takes.
const ARGUMENTS: usize = 21;

/// The statement that runs a call.
pub(crate) fn statement() -> String {
    let arguments: Vec<String> = (1..=ARGUMENTS).map(|number| format!("${number}")).collect();
    format!("SELECT * FROM ff_commit_2({})", arguments.join(", "))
}

/// The arguments of a call, borrowed from its batches.
#[derive(Default)]
pub(crate) struct Call<'a> {
    pub(crate) batches: &'a [&'a Batch],
    partition: i32,
    floor: i64,
    whole: i64,
    alone: bool,
    locks: Vec<LockRow>,
    draw_lock: i64,
    guards: Vec<GuardRow<'a>>,
    /// Which of the rows has each guard of each batch: those on one document share a row.
    pub(crate) guard_rows: Vec<usize>,
    creations: Vec<PutRow<'a>>,
    changes: Vec<PutRow<'a>>,
    deletes: Vec<KeyRow<'a>>,
    removes: Vec<EntryRow<'a>>,
    sets: Vec<EntryRow<'a>>,
    lowest: Vec<LowestRow<'a>>,
    long_names: Vec<LongNameRow<'a>>,
    leases: Vec<LeaseRow>,
    event_logs: Vec<&'a [u8]>,
    event_records: i32,
    pub(crate) counted: Vec<CountedRow<'a>>,
    records: Vec<RecordRow<'a>>,
    trims: Vec<TrimRow<'a>>,
    blobs: Vec<BlobRow<'a>>,
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
    pub(crate) view: Option<View>,
    /// Logs that are known to be counted although nothing is expected of them.
    pub(crate) counted: &'a HashSet<Key>,
    /// Take one lock for all.
    pub(crate) alone: bool,
}

impl<'a> Call<'a> {
    /// `touches` are those of the batches, in order.
    pub(crate) fn new(
        batches: &'a [&'a Batch],
        touches: impl IntoIterator<Item = &'a Touches>,
        context: &Context<'_>,
    ) -> Self {
        let mut call = Self {
            batches,
            partition: i32::try_from(context.partition.ordinal()).expect("ordinals stay below four times 65,536"),
            floor: context.floor,
            whole: context.locks.partition(context.partition),
            draw_lock: context.locks.single(Protects::Numbers),
            ..Self::default()
        };
        let (mut guarded, mut lowest) = (HashMap::new(), BTreeMap::new());
        for (number, batch) in (0..).zip(batches) {
            guarded.clear();
            call.add_guards(number, batch, &mut guarded);
            call.add_documents(number, batch, &guarded, context);
            call.add_entries(number, batch);
            note_lowest(batch, &mut lowest);
            call.add_appends(number, batch, context.counted);
            call.add_rest(number, batch);
        }
        // In the order of the names, like all that is locked.
        call.lowest =
            lowest.into_iter().map(|(index, score)| LowestRow { score, name: names::stored(index) }).collect();
        let mut locks = BTreeMap::new();
        for (id, shared) in touches.into_iter().flat_map(Touches::locks) {
            locks.entry(id).and_modify(|both| *both &= shared).or_insert(shared);
        }
        call.alone = context.alone || locks.len() > LOCKS_MAX;
        if !call.alone {
            call.locks = locks.into_iter().map(|(id, shared)| LockRow { id, shared }).collect();
        }
        call
    }

    /// `guarded` learns the row of each document that is guarded.
    fn add_guards(&mut self, number: i32, batch: &'a Batch, guarded: &mut HashMap<&'a Key, usize>) {
        for guard in &batch.guards {
            let key = guard.key().map(Key::as_bytes);
            let last = self.guards.last_mut().filter(|row| row.batch == number && row.key == key);
            if !last.is_some_and(|row| widen(row, guard)) {
                let absent = matches!(guard, Guard::Absent(_));
                let mut row = GuardRow { batch: number, key, absent, ..GuardRow::default() };
                widen(&mut row, guard);
                self.guards.push(row);
            }
            let place = self.guards.len() - 1;
            self.guard_rows.push(place);
            if let Some(key) = guard.key() {
                guarded.entry(key).or_insert(place);
            }
        }
    }

    fn add_documents(&mut self, number: i32, batch: &'a Batch, guarded: &HashMap<&Key, usize>, context: &Context<'_>) {
        let guard_of = |key| *guarded.get(key).expect("batches that write a document without a guard were refused");
        let mut ttls: HashMap<&Key, i64> =
            batch.leases.iter().map(|lease| (&lease.key, lease.ttl_ms.unwrap_or(0))).collect();
        for put in &batch.puts {
            let columns = context.describe.and_then(|describe| describe(&put.key, &put.body));
            let columns = columns.unwrap_or_default().storable();
            let view = context.view.and_then(|view| view(&put.key, &put.body)).and_then(storable_view);
            let guard = guard_of(&put.key);
            let row = PutRow {
                batch: number,
                guard: count(guard + 1),
                priority: columns.priority,
                // Epochs are compared for equality only, so the sign does not matter.
                epoch: put.fence.epoch.0.cast_signed(),
                ttl: ttls.remove(&put.key).unwrap_or(-1),
                expires_at: put.expires_at,
                version: batch.command.0,
                lease_id: put.fence.lease.0,
                created_at: columns.created_at.and_then(time),
                updated_at: columns.updated_at.and_then(time),
                key: put.key.as_bytes(),
                body: &put.body,
                namespace: columns.namespace,
                lane: columns.lane,
                kind: columns.kind,
                state: columns.state,
                flow: columns.flow,
                view,
            };
            if self.guards[guard].absent { self.creations.push(row) } else { self.changes.push(row) }
        }
        for lease in batch.leases.iter().filter(|lease| ttls.contains_key(&lease.key)) {
            let guard = count(guard_of(&lease.key) + 1);
            self.leases.push(LeaseRow { batch: number, guard, ttl: lease.ttl_ms.unwrap_or(0) });
        }
        self.deletes.extend(batch.deletes.iter().map(|key| KeyRow { batch: number, key: key.as_bytes() }));
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
                EntryChange::Set { score, .. } => self.set(number, (index, member), *score, Some(false)),
                EntryChange::Remove { .. } => self.remove(number, (index, member)),
            }
        }
        let put: HashSet<&Key> = batch.puts.iter().map(|put| &put.key).collect();
        for lease in &batch.leases {
            let entry = (&lease.index, &lease.member);
            match lease.ttl_ms {
                Some(ttl) => self.set(number, entry, ttl, put.contains(&lease.key).then_some(true)),
                None => self.remove(number, entry),
            }
        }
    }

    fn set(&mut self, batch: i32, (index, member): (&'a IndexName, &'a Key), score: i64, relative: Option<bool>) {
        let name = names::stored(index);
        if names::is_long(&name) {
            self.long_names.push(LongNameRow { short: name.clone(), name: index.as_bytes() });
        }
        self.sets.push(EntryRow { batch, relative, score: Some(score), name, member: member.as_bytes() });
    }

    fn remove(&mut self, batch: i32, (index, member): (&'a IndexName, &'a Key)) {
        let (name, member) = (names::stored(index), member.as_bytes());
        self.removes.push(EntryRow { batch, relative: None, score: None, name, member });
    }

    fn add_appends(&mut self, number: i32, batch: &'a Batch, counted: &HashSet<Key>) {
        for append in &batch.appends {
            let (log, records) = (append.log.as_bytes(), count(append.records.len()));
            let (counted, first) = if is_counted(append, counted) {
                let expected = append.expected.map(|expected| i64::try_from(expected).unwrap_or(i64::MAX));
                self.numbers.push(Number::Counted(self.counted.len()));
                self.counted.push(CountedRow { batch: number, records, expected, log });
                (count(self.counted.len()), 0)
            } else {
                let first = self.event_records;
                self.event_records += records;
                self.numbers.push(Number::Event(first));
                // Nearly all events of a partition go to one log.
                if self.event_logs.last() != Some(&log) {
                    self.event_logs.push(log);
                }
                (0, first)
            };
            self.records.extend((first..).zip(&append.records).map(|(place, record)| RecordRow {
                batch: number,
                counted,
                place,
                log,
                record,
            }));
        }
    }

    fn add_rest(&mut self, number: i32, batch: &'a Batch) {
        self.trims.extend(batch.trims.iter().map(|trim| TrimRow {
            batch: number,
            before: i64::try_from(trim.before).unwrap_or(i64::MAX),
            log: trim.log.as_bytes(),
        }));
        self.blobs.extend(batch.blobs.iter().map(|blob| BlobRow {
            batch: number,
            key: blob.key.as_bytes(),
            bytes: blob.bytes.as_deref(),
        }));
    }

    /// The arguments in the order of the function's.
    pub(crate) fn arguments(&self) -> [&(dyn ToSql + Sync); ARGUMENTS] {
        [
            &self.partition,
            &self.floor,
            &self.whole,
            &self.alone,
            &self.locks,
            &self.draw_lock,
            &self.guards,
            &self.creations,
            &self.changes,
            &self.deletes,
            &self.removes,
            &self.sets,
            &self.lowest,
            &self.long_names,
            &self.leases,
            &self.event_logs,
            &self.event_records,
            &self.counted,
            &self.records,
            &self.trims,
            &self.blobs,
        ]
    }
}

/// Notes the lowest score that a batch sets in each index that may be drained.
fn note_lowest<'a>(batch: &'a Batch, lowest: &mut BTreeMap<&'a IndexName, i64>) {
    let entries = batch.entries.iter().filter_map(|entry| match entry {
        EntryChange::Set { index, score, .. } => Some((index, *score)),
        EntryChange::Remove { .. } => None,
    });
    // The score of a lease is an instant, and so at least 0.
    let leases = batch.leases.iter().filter(|lease| lease.ttl_ms.is_some()).map(|lease| (&lease.index, 0));
    for (index, score) in entries.chain(leases).filter(|(index, _)| index.is_listed()) {
        lowest.entry(index).and_modify(|lowest| *lowest = score.min(*lowest)).or_insert(score);
    }
}

/// Makes a row say what a guard wants besides what it says already; false where one row cannot say both.
fn widen(row: &mut GuardRow<'_>, guard: &Guard) -> bool {
    fn say<T: PartialEq + Copy>(said: &mut Option<T>, wanted: T) -> bool {
        *said.get_or_insert(wanted) == wanted
    }
    match guard {
        Guard::Absent(_) => row.absent,
        _ if row.absent => false,
        Guard::Version(_, wanted) => say(&mut row.version, wanted.0),
        Guard::Fence(_, wanted) => {
            let fence = (wanted.epoch.0.cast_signed(), wanted.lease.0);
            say(&mut row.epoch, fence.0) & say(&mut row.lease_id, fence.1)
        }
        Guard::Live(_) => say(&mut row.live, true),
        Guard::Expired(_) => say(&mut row.live, false),
        Guard::NotAfter(limit) => say(&mut row.not_after, *limit),
    }
}

/// An instant that PostgreSQL can hold.
fn time(milliseconds: i64) -> Option<SystemTime> {
    let milliseconds = u64::try_from(milliseconds).ok().filter(|milliseconds| *milliseconds <= TIME_MAX_MS)?;
    Some(UNIX_EPOCH + Duration::from_millis(milliseconds))
}

fn count(number: usize) -> i32 {
    i32::try_from(number).expect("a call has far fewer operations than 2^31")
}
