//! A look at the events of a partition.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use ff_core::Result;
use ff_store::{Answer, LogPage, LogRecord, LogStart, Query};

use crate::logs;
use crate::transaction::Tx;

/// An event up to which a log was looked through. A store that forgets gives out its number again, to another event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Seen {
    pub(super) sequence: u64,
    /// A digest of the record; none if it was not there.
    pub(super) record: Option<u64>,
}

/// Events of a partition, and the records at the places from where they are looked at.
pub(super) struct Look {
    pub(super) page: LogPage,
    pub(super) places: BTreeMap<u64, u64>,
}

impl Look {
    /// The page begins with the first of the places, so that most often one query is enough.
    pub(super) fn queries(places: impl Iterator<Item = u64>, limit: usize) -> Vec<Query> {
        let places: BTreeSet<u64> = places.collect();
        let mut limits = std::iter::once(limit + 1).chain(std::iter::repeat(1));
        let query = |place: u64| {
            let start = LogStart::After(place.saturating_sub(1));
            Query::Log { log: logs::events(), start, limit: limits.next().unwrap_or(1) }
        };
        places.into_iter().map(query).collect()
    }

    pub(super) fn new(answers: Vec<Answer>, from: u64) -> Self {
        let mut pages = answers.into_iter().filter_map(Answer::into_log);
        let mut page = pages.next().unwrap_or_default();
        let mut places: BTreeMap<u64, u64> = pages
            .filter_map(|page| page.records.into_iter().next())
            .map(|record| (record.sequence, digest(&record)))
            .collect();
        places.extend(page.records.iter().map(|record| (record.sequence, digest(record))));
        page.records.retain(|record| record.sequence > from);
        Self { page, places }
    }

    /// Whether the log still has the event that was seen there, or has given it up in the order of events.
    pub(super) fn confirms(&self, seen: &Seen) -> bool {
        let there = self.places.get(&seen.sequence);
        self.page.next > seen.sequence && there.is_none_or(|record| seen.record == Some(*record))
    }

    pub(super) fn seen(&self, sequence: u64) -> Seen {
        Seen { sequence, record: self.places.get(&sequence).copied() }
    }
}

fn digest(record: &LogRecord) -> u64 {
    let mut hasher = DefaultHasher::new();
    (record.at, &record.record).hash(&mut hasher);
    hasher.finish()
}

pub(super) async fn events(tx: &mut Tx<'_>, start: LogStart, limit: usize) -> Result<LogPage> {
    let mut answers = tx.read(vec![Query::Log { log: logs::events(), start, limit }]).await?;
    Ok(answers.pop().and_then(Answer::into_log).unwrap_or_default())
}
