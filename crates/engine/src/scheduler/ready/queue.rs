//! One queue of one partition, as far as this engine knows it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ff_core::execution::Execution;
use ff_core::{CapabilitySet, IndexName, Key, Partition};
use ff_store::{Fence, Version};

use super::SPREAD;

/// An execution that may be claimed, as a read or a commit of this engine found it. The claim's guards decide whether
/// it still may.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) execution: Arc<Execution>,
    pub(crate) version: Version,
    pub(crate) fence: Fence,
    pub(crate) queue: QueueId,
}

impl Candidate {
    /// The document behind it.
    pub(super) fn place(&self) -> (Partition, Key) {
        (self.queue.partition, Execution::key_of(&self.execution.id))
    }
}

/// A queue of one partition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueId {
    pub(crate) partition: Partition,
    pub(crate) index: IndexName,
}

/// The parts of a queue's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueName {
    pub(crate) namespace: String,
    pub(crate) lane: String,
    /// Empty for a queue of an earlier version, which holds work of any kind.
    pub(crate) kind: String,
    pub(crate) route: CapabilitySet,
    pub(crate) gate: String,
    /// The key whose turn its work waits for; empty for work without a key.
    pub(crate) fair_key: String,
}

impl QueueName {
    /// `None` for a name that this version cannot read; such a queue is passed over.
    pub(crate) fn parse(index: &IndexName) -> Option<Self> {
        let parts = index.parts()?;
        let nothing = &[][..];
        let (namespace, lane, kind, route, gate, fair_key) = match parts.as_slice() {
            [namespace, lane, kind, route, gate, fair_key] => (namespace, lane, *kind, route, gate, *fair_key),
            [namespace, lane, kind, route, gate] => (namespace, lane, *kind, route, gate, nothing),
            [namespace, lane, route, gate] => (namespace, lane, nothing, route, gate, nothing),
            _ => return None,
        };
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
        Some(Self {
            namespace: text(namespace)?,
            lane: text(lane)?,
            kind: text(kind)?,
            route: CapabilitySet::from_route(&text(route)?).ok()?,
            gate: text(gate)?,
            fair_key: text(fair_key)?,
        })
    }

    /// Whether it holds work of any kind. Such work is moved to the queue of its kind before it is handed out.
    pub(crate) fn is_of_any_kind(&self) -> bool {
        self.kind.is_empty()
    }
}

/// The part of a queue that the store may hold beside the candidates in the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contents {
    /// Nothing that is known of: every announced entry is in the buffer.
    Known,
    /// Something at this score or behind it, which is yet to be read.
    Unknown(i64),
    /// A claim is reading it. `from` is the score from which it was unknown before, `unread` whether it was to be read
    /// for its name, `missed` the best score announced since, which the read may not have seen.
    Fetching { from: Option<i64>, unread: bool, missed: Option<i64>, since: i64 },
}

/// Where a queue stands in the lists of its lane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Listing {
    /// The score it stands under among the heads of its route.
    pub(super) head: Option<i64>,
    /// The instant it stands under among those that are to be read because their names were found.
    pub(super) unread: Option<i64>,
}

/// A place in one of these lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listed {
    Head(i64),
    Unread(i64),
}

impl Listing {
    /// Its place in each of the lists.
    pub(super) fn places(self) -> [Option<Listed>; 2] {
        [self.head.map(Listed::Head), self.unread.map(Listed::Unread)]
    }

    pub(super) fn is_anywhere(self) -> bool {
        self != Self::default()
    }
}

/// A queue as this engine knows it.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) name: QueueName,
    /// The very head of the queue, ordered by (score, key) like the index itself.
    pub(super) buffer: BTreeMap<(i64, Key), Candidate>,
    pub(super) contents: Contents,
    /// Its name was found, so it may hold unknown work of any score. Candidates that are known can be taken meanwhile.
    pub(super) unread: bool,
    /// When the last read of it began. Of the queues that are to be read, the one that was read longest ago comes
    /// first.
    pub(super) read_at: i64,
    /// The head holds only executions that cannot be taken now, so the next read begins behind it.
    pub(super) read_after: Option<(i64, Key)>,
    /// The last read of it failed, for a reason of its own: the queue is left alone until this instant.
    pub(super) blocked_until: Option<i64>,
    /// The last read of it failed. No claim waits for the next read, which finds out whether it still does.
    pub(super) suspect: bool,
    pub(super) listed: Listing,
    /// The score of its head, and since when it has stood there. It stays as it is while the head is read, which comes
    /// back afterwards.
    head_since: Option<(i64, i64)>,
    /// When a claim last took or read something here.
    pub(super) used_at: i64,
    /// The number of the last announcement, by which a sweep knows whether it came after the sweep began.
    pub(super) stamp: u64,
    /// The number of the last announcement of its name alone, after which everything in it was to be read; 0 if there
    /// was none.
    pub(super) found: u64,
}

impl Queue {
    pub(super) fn new(name: QueueName, now: i64) -> Self {
        Self {
            name,
            buffer: BTreeMap::new(),
            contents: Contents::Known,
            unread: false,
            read_at: i64::MIN,
            read_after: None,
            blocked_until: None,
            suspect: false,
            listed: Listing::default(),
            head_since: None,
            used_at: now,
            stamp: 0,
            found: 0,
        }
    }

    /// The head that could be picked now, and whether it is yet to be read.
    pub(super) fn head(&self) -> Option<(i64, bool)> {
        if self.blocked_until.is_some() {
            return None;
        }
        let buffered = self.buffer.keys().next().map(|(score, _)| *score);
        match (buffered, self.contents) {
            (Some(buffered), Contents::Unknown(unknown)) if unknown < buffered => Some((unknown, true)),
            (Some(buffered), _) => Some((buffered, false)),
            (None, Contents::Unknown(unknown)) => Some((unknown, true)),
            (None, _) => None,
        }
    }

    /// Notes the head that it has now, so that it is known how long the head has stood there.
    pub(super) fn note_head(&mut self, now: i64) {
        let Some((score, _)) = self.head().filter(|_| self.is_at_rest()) else { return };
        if self.head_since.is_none_or(|(known, _)| known != score) {
            self.head_since = Some((score, now));
        }
    }

    /// For how long its head is known to have stood there.
    pub(super) fn head_stood_ms(&self, now: i64) -> i64 {
        let head = self.head().map(|(score, _)| score);
        self.head_since.filter(|(known, _)| head == Some(*known)).map_or(0, |(_, since)| now - since)
    }

    /// Its place in the lists of its lane.
    pub(super) fn listing(&self) -> Listing {
        let to_read = self.unread && self.is_at_rest() && self.blocked_until.is_none();
        Listing { head: self.head().map(|(score, _)| score), unread: to_read.then_some(self.read_at) }
    }

    /// Its place in the lists while it cannot be read: by its known candidates only.
    pub(super) fn listing_unreadable(&self) -> Listing {
        let known = self.buffer.keys().next().filter(|_| self.blocked_until.is_none());
        Listing { head: known.map(|(score, _)| *score), unread: None }
    }

    /// Notes that its name is in the store, so that it may hold unknown work.
    pub(super) fn note_name(&mut self) {
        self.found = self.stamp;
        self.unread = true;
        self.read_after = None;
    }

    /// Notes that the store holds work of this score.
    pub(super) fn note(&mut self, score: i64) {
        // It may stand before the place where the next read was to begin.
        self.read_after.take_if(|(after, _)| score <= *after);
        match &mut self.contents {
            Contents::Known => self.contents = Contents::Unknown(score),
            Contents::Unknown(known) => *known = score.min(*known),
            Contents::Fetching { missed, .. } => *missed = Some(missed.map_or(score, |known| known.min(score))),
        }
    }

    /// Takes a candidate: the head, or one of those at the head that are as urgent, by the given number.
    pub(super) fn take(&mut self, number: u64) -> Option<Candidate> {
        let urgency = self.buffer.values().next()?.execution.priority;
        let urgent = self.buffer.values().take(SPREAD).take_while(|one| one.execution.priority == urgency).count();
        let at = usize::try_from(number % u64::try_from(urgent).ok()?).ok()?;
        let place = self.buffer.keys().nth(at)?.clone();
        self.buffer.remove(&place)
    }

    /// Whether nothing is here and no read of it is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.buffer.is_empty() && self.contents == Contents::Known && !self.unread
    }

    /// Whether no read of it is under way.
    pub(super) fn is_at_rest(&self) -> bool {
        !matches!(self.contents, Contents::Fetching { .. })
    }

    /// Whether work of this score comes behind work that is yet to be read. If nothing but the name is known, all work
    /// does.
    pub(super) fn is_behind(&self, score: i64) -> bool {
        match self.contents {
            Contents::Known => self.unread && self.buffer.is_empty(),
            Contents::Unknown(unknown) => unknown <= score,
            Contents::Fetching { .. } => true,
        }
    }

    /// Drops the candidates, which the store still has. Returns how many there were.
    pub(super) fn drop_buffer(&mut self) -> usize {
        let count = self.buffer.len();
        if let Some(score) = self.buffer.keys().next().map(|(score, _)| *score) {
            self.note(score);
        }
        self.buffer.clear();
        count
    }

    pub(super) fn begin_fetch(&mut self, now: i64) {
        let from = match self.contents {
            Contents::Known => None,
            Contents::Unknown(from) => Some(from),
            Contents::Fetching { .. } => return,
        };
        let unread = std::mem::take(&mut self.unread);
        self.contents = Contents::Fetching { from, unread, missed: None, since: now };
        (self.used_at, self.read_at) = (now, now);
    }

    /// The best score that was announced during the read that ends here.
    pub(super) fn end_fetch(&mut self) -> Option<i64> {
        match std::mem::replace(&mut self.contents, Contents::Known) {
            Contents::Fetching { missed, .. } => missed,
            Contents::Unknown(score) => Some(score),
            Contents::Known => None,
        }
    }

    /// The read failed: the queue is as unknown as before.
    pub(super) fn fetch_failed(&mut self) {
        if let Contents::Fetching { from, unread, missed, .. } = self.contents {
            self.contents = from.into_iter().chain(missed).min().map_or(Contents::Known, Contents::Unknown);
            self.unread |= unread;
        }
    }

    /// Whether a read of it may show that its partition works again.
    pub(super) fn can_be_probed(&self) -> bool {
        self.is_at_rest() && !self.is_empty() && self.blocked_until.is_none()
    }

    /// Whether a read of what it holds has been under way for long.
    pub(super) fn hangs(&self, now: i64, patience_ms: i64) -> bool {
        matches!(self.contents, Contents::Fetching { since, .. } if now - since >= patience_ms)
    }
}
