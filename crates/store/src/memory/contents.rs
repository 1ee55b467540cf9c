//! The contents of the memory store, and the answers from them. Everything is ordered, so that two runs with the same
//! calls see the same answers.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use bytes::Bytes;
use ff_core::{IndexName, Key, Partition};

use crate::{Answer, Fence, IndexEntry, LogPage, LogRecord, LogStart, Query, Scan, ScanPage, StoredDocument, Version};

/// Everything in a memory store at one instant. A clone of it is a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Contents {
    pub(super) partitions: BTreeMap<Partition, PartitionContents>,
}

/// Everything in one partition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PartitionContents {
    pub(super) documents: BTreeMap<Key, RawDocument>,
    pub(super) indexes: BTreeMap<IndexName, Index>,
    pub(super) logs: BTreeMap<Key, Log>,
    pub(super) blobs: BTreeMap<Key, Bytes>,
}

/// A document with everything the store keeps beside it, whether it has expired or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawDocument {
    /// The encoded document.
    pub body: Bytes,
    /// The command that wrote it.
    pub version: Version,
    /// The fence of its present or last lease.
    pub fence: Fence,
    /// When its lease ends or ended; 0 without one.
    pub lease_until: i64,
    /// From this instant on it reads as absent.
    pub expires_at: Option<i64>,
}

impl RawDocument {
    /// Whether the document is there for readers and guards.
    pub fn present(&self, now: i64) -> bool {
        self.expires_at.is_none_or(|expires_at| now < expires_at)
    }
}

/// An ordered index: by (score, member), and by member.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Index {
    ordered: BTreeSet<(i64, Key)>,
    scores: BTreeMap<Key, i64>,
}

impl Index {
    pub(super) fn set(&mut self, member: &Key, score: i64) {
        self.remove(member);
        self.scores.insert(member.clone(), score);
        self.ordered.insert((score, member.clone()));
    }

    pub(super) fn remove(&mut self, member: &Key) {
        if let Some(score) = self.scores.remove(member) {
            self.ordered.remove(&(score, member.clone()));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.scores.is_empty()
    }

    fn count(&self, min: i64, max: i64, at_most: u64) -> u64 {
        let at_most = usize::try_from(at_most).unwrap_or(usize::MAX);
        self.range(min, max).take(at_most).fold(0, |count, _| count + 1)
    }

    /// The entries of a page, without documents.
    fn scan(&self, scan: &Scan) -> Vec<(i64, Key)> {
        let entries = self.range(scan.min, scan.max);
        match (&scan.after, scan.descending) {
            (None, false) => entries.take(scan.limit).cloned().collect(),
            (None, true) => entries.rev().take(scan.limit).cloned().collect(),
            // A page of a long index begins where the page before it ended, not at the lowest entry.
            (Some(after), false) => {
                let behind = self.ordered.range((Bound::Excluded(after), Bound::Unbounded));
                let behind = behind.skip_while(|entry| entry.0 < scan.min).take_while(|entry| entry.0 <= scan.max);
                behind.take(scan.limit).cloned().collect()
            }
            (Some(after), true) => {
                let behind = self.ordered.range((Bound::Unbounded, Bound::Excluded(after))).rev();
                let behind = behind.skip_while(|entry| entry.0 > scan.max).take_while(|entry| entry.0 >= scan.min);
                behind.take(scan.limit).cloned().collect()
            }
        }
    }

    /// The entries with a score in the range, both ends included.
    fn range(&self, min: i64, max: i64) -> impl DoubleEndedIterator<Item = &(i64, Key)> {
        // No key is shorter than the empty one, so it stands before all members of a score.
        let lowest = Key::from_bytes([]);
        let start = Bound::Included((min, lowest.clone()));
        let end = max.checked_add(1).map_or(Bound::Unbounded, |end| Bound::Excluded((end, lowest)));
        // A range that ends before it begins would be a panic, not an empty one.
        (min <= max).then(|| self.ordered.range((start, end))).into_iter().flatten()
    }
}

/// An append-only log. It stays when its last record is trimmed, because its numbering goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Log {
    records: BTreeMap<u64, (i64, Bytes)>,
    next: u64,
    last_at: i64,
}

impl Default for Log {
    fn default() -> Self {
        Self { records: BTreeMap::new(), next: 1, last_at: i64::MIN }
    }
}

impl Log {
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Adds the records and answers the number of the first.
    pub(super) fn append(&mut self, at: i64, records: &[Bytes], cap: u64) -> u64 {
        let first = self.next;
        self.last_at = self.last_at.max(at);
        for record in records {
            // A copy of its own: the bytes of a batch may be parts of something larger.
            self.records.insert(self.next, (self.last_at, Bytes::copy_from_slice(record)));
            self.next += 1;
        }
        if cap > 0 {
            self.trim(self.next.saturating_sub(cap));
        }
        first
    }

    pub(super) fn trim(&mut self, before: u64) {
        self.records = self.records.split_off(&before);
    }

    fn page(&self, start: LogStart, limit: usize) -> LogPage {
        let record = |(sequence, (at, record)): (&u64, &(i64, Bytes))| LogRecord {
            sequence: *sequence,
            at: *at,
            record: record.clone(),
        };
        let records = match start {
            LogStart::After(after) => {
                self.records.range((Bound::Excluded(after), Bound::Unbounded)).take(limit).map(record).collect()
            }
            LogStart::Since(since) => {
                self.records.iter().skip_while(|(_, (at, _))| *at < since).take(limit).map(record).collect()
            }
            LogStart::Before(before) => self.records.range(..before).rev().take(limit).map(record).collect(),
        };
        let first = self.records.first_key_value().map_or(self.next, |(first, _)| *first);
        LogPage { records, first, removed_up_to: first.saturating_sub(1), next: self.next }
    }
}

impl Contents {
    /// The partitions that were ever written to, in order.
    pub fn partitions(&self) -> impl Iterator<Item = (Partition, &PartitionContents)> {
        self.partitions.iter().map(|(partition, contents)| (*partition, contents))
    }

    /// One partition; `None` if it was never written to.
    pub fn partition(&self, partition: Partition) -> Option<&PartitionContents> {
        self.partitions.get(&partition)
    }
}

impl PartitionContents {
    /// All documents, expired ones included, in the order of their keys.
    pub fn documents(&self) -> impl Iterator<Item = (&Key, &RawDocument)> {
        self.documents.iter()
    }

    /// One document, whether it has expired or not.
    pub fn document(&self, key: &Key) -> Option<&RawDocument> {
        self.documents.get(key)
    }

    /// All index entries as (index, score, member), ordered so.
    pub fn entries(&self) -> impl Iterator<Item = (&IndexName, i64, &Key)> {
        self.indexes
            .iter()
            .flat_map(|(name, index)| index.ordered.iter().map(move |(score, member)| (name, *score, member)))
    }

    /// The score of a member of an index.
    pub fn score(&self, index: &IndexName, member: &Key) -> Option<i64> {
        self.indexes.get(index)?.scores.get(member).copied()
    }

    /// All logs by name, each with everything it still holds.
    pub fn logs(&self) -> impl Iterator<Item = (&Key, LogPage)> {
        self.logs.iter().map(|(name, log)| (name, log.page(LogStart::After(0), usize::MAX)))
    }

    /// All blobs, in the order of their keys.
    pub fn blobs(&self) -> impl Iterator<Item = (&Key, &Bytes)> {
        self.blobs.iter()
    }

    /// The document under a key unless it has expired.
    pub(super) fn present(&self, key: &Key, now: i64) -> Option<&RawDocument> {
        self.documents.get(key).filter(|document| document.present(now))
    }

    fn stored(&self, key: &Key, now: i64) -> Option<StoredDocument> {
        self.present(key, now).map(|document| StoredDocument {
            key: key.clone(),
            body: document.body.clone(),
            version: document.version,
            fence: document.fence,
            lease_until: document.lease_until,
        })
    }

    /// Answers one question.
    pub(super) fn answer(&self, query: &Query, now: i64) -> Answer {
        match query {
            Query::Documents(keys) => Answer::Documents(keys.iter().map(|key| self.stored(key, now)).collect()),
            Query::Blobs(keys) => Answer::Blobs(keys.iter().map(|key| self.blobs.get(key).cloned()).collect()),
            Query::Scan(scan) => {
                let found = self.indexes.get(&scan.index).map(|index| index.scan(scan)).unwrap_or_default();
                let entries = found.into_iter().map(|(score, member)| {
                    let document = if scan.documents { self.stored(&member, now) } else { None };
                    IndexEntry { member, score, document }
                });
                Answer::Scan(ScanPage { entries: entries.collect() })
            }
            Query::Count { index, min, max, at_most } => {
                Answer::Count(self.indexes.get(index).map_or(0, |index| index.count(*min, *max, *at_most)))
            }
            Query::Indexes { prefix, after, limit } => {
                let first = IndexName::from_bytes(prefix.as_slice());
                let from = match after {
                    Some(after) if *after >= first => Bound::Excluded(after.clone()),
                    _ => Bound::Included(first),
                };
                let names = self.indexes.range((from, Bound::Unbounded)).map(|(name, _)| name);
                let names = names.take_while(|name| name.as_bytes().starts_with(prefix));
                Answer::Indexes(names.take(*limit).cloned().collect())
            }
            Query::Log { log, start, limit } => {
                Answer::Log(self.logs.get(log).unwrap_or(&Log::default()).page(*start, *limit))
            }
        }
    }
}
