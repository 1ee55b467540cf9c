//! Questions to a partition, and their answers.

use bytes::Bytes;
use ff_core::{IndexName, Key};

use crate::{Fence, Result, StoreError, Version};

/// A document as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDocument {
    /// Where it lives.
    pub key: Key,
    /// The encoded document.
    pub body: Bytes,
    /// The command that wrote it.
    pub version: Version,
    /// The fence of its present or last lease.
    pub fence: Fence,
    /// When its lease ends or ended; 0 without one.
    pub lease_until: i64,
}

/// A question about one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    /// Documents by key.
    Documents(Vec<Key>),
    /// Blobs by key.
    Blobs(Vec<Key>),
    /// A page of an index.
    Scan(Scan),
    /// How many entries of an index have a score within the range, both ends included.
    Count {
        /// The index.
        index: IndexName,
        /// Lowest score counted.
        min: i64,
        /// Highest score counted.
        max: i64,
        /// The answer is never more than this: a store that has to walk the entries stops there.
        at_most: u64,
    },
    /// Names of non-empty indexes that begin with a prefix, in byte order. Indexes that are not listed
    /// ([`IndexName::is_listed`]) may be missing.
    Indexes {
        /// The prefix.
        prefix: Vec<u8>,
        /// Begin behind this name. It need not exist any more.
        after: Option<IndexName>,
        /// At most this many.
        limit: usize,
    },
    /// A page of a log.
    Log {
        /// The log.
        log: Key,
        /// Where to begin.
        start: LogStart,
        /// At most this many records.
        limit: usize,
    },
}

impl Query {
    /// Counts all entries of an index.
    pub fn count_all(index: IndexName) -> Self {
        Self::count_up_to(index, u64::MAX)
    }

    /// Counts the entries of an index, and stops at a limit.
    pub fn count_up_to(index: IndexName, at_most: u64) -> Self {
        Query::Count { index, min: i64::MIN, max: i64::MAX, at_most }
    }
}

/// A page of an index, ordered by (score, member).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    /// The index.
    pub index: IndexName,
    /// Lowest score, included.
    pub min: i64,
    /// Highest score, included.
    pub max: i64,
    /// Begin behind this entry, in the direction of the scan. It need not exist any more.
    pub after: Option<(i64, Key)>,
    /// From the highest to the lowest.
    pub descending: bool,
    /// At most this many entries.
    pub limit: usize,
    /// Also return the documents whose keys the members are.
    pub documents: bool,
}

impl Scan {
    /// The lowest entries of an index.
    pub fn first(index: IndexName, limit: usize) -> Self {
        Self { index, min: i64::MIN, max: i64::MAX, after: None, descending: false, limit, documents: false }
    }

    /// The highest entries of an index.
    pub fn last(index: IndexName, limit: usize) -> Self {
        Self { descending: true, ..Self::first(index, limit) }
    }

    /// Only entries up to this score.
    #[must_use]
    pub fn up_to(mut self, max: i64) -> Self {
        self.max = max;
        self
    }

    /// With documents.
    #[must_use]
    pub fn with_documents(mut self) -> Self {
        self.documents = true;
        self
    }

    /// Behind an entry.
    #[must_use]
    pub fn after(mut self, score: i64, member: Key) -> Self {
        self.after = Some((score, member));
        self
    }
}

/// Where a log read begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogStart {
    /// Behind this sequence number; 0 is the beginning.
    After(u64),
    /// At the first record appended at or after this instant.
    Since(i64),
    /// The records below this number, newest first; `u64::MAX` begins with the newest.
    Before(u64),
}

/// An index entry, perhaps with its document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexEntry {
    /// The member.
    pub member: Key,
    /// Its score.
    pub score: i64,
    /// Its document, when asked for and present.
    pub document: Option<StoredDocument>,
}

/// A page of an index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScanPage {
    /// The entries, in the order of the scan.
    pub entries: Vec<IndexEntry>,
}

/// A record of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// Its number.
    pub sequence: u64,
    /// When it was appended, by the store's time; never less than the record before it.
    pub at: i64,
    /// The bytes.
    pub record: Bytes,
}

/// A page of a log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogPage {
    /// The records.
    pub records: Vec<LogRecord>,
    /// The number of the oldest record still there; `next` when there is none.
    pub first: u64,
    /// Records up to this number were removed; 0 when none was. Numbers may have gaps, so `first` alone cannot tell
    /// whether a reader has missed a record: a reader that has read up to this number has missed none.
    pub removed_up_to: u64,
    /// The number the next record will get (the next at the least, where numbers may skip); 1 for a new log.
    pub next: u64,
}

/// The answer to one query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// To [`Query::Documents`], in the order of the keys.
    Documents(Vec<Option<StoredDocument>>),
    /// To [`Query::Blobs`], in the order of the keys.
    Blobs(Vec<Option<Bytes>>),
    /// To [`Query::Scan`].
    Scan(ScanPage),
    /// To [`Query::Count`].
    Count(u64),
    /// To [`Query::Indexes`].
    Indexes(Vec<IndexName>),
    /// To [`Query::Log`].
    Log(LogPage),
}

/// The answers to all queries of one read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answers {
    /// The store's time of the read.
    pub at: i64,
    /// One for each query, in order.
    pub answers: Vec<Answer>,
}

macro_rules! unwrap_answer {
    ($name:ident, $variant:ident, $type:ty) => {
        #[doc = concat!("The answer as [`Answer::", stringify!($variant), "`].")]
        pub fn $name(self) -> Option<$type> {
            match self {
                Answer::$variant(answer) => Some(answer),
                _ => None,
            }
        }
    };
}

impl Answer {
    unwrap_answer!(into_documents, Documents, Vec<Option<StoredDocument>>);
    unwrap_answer!(into_blobs, Blobs, Vec<Option<Bytes>>);
    unwrap_answer!(into_scan, Scan, ScanPage);
    unwrap_answer!(into_count, Count, u64);
    unwrap_answer!(into_indexes, Indexes, Vec<IndexName>);
    unwrap_answer!(into_log, Log, LogPage);
}

impl Answers {
    /// The one answer of a read with one query.
    pub fn into_only<T>(self, as_type: impl FnOnce(Answer) -> Option<T>) -> Result<T> {
        self.answers
            .into_iter()
            .next()
            .and_then(as_type)
            .ok_or_else(|| StoreError::Invalid("the store answered another question".into()))
    }
}
