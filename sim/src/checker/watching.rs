//! The views of watchers against what was committed: frames and events in order, none twice, none left out unsaid;
//! lists that hold everything that was there all the time.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::ExecutionId;
use ff_core::op::list_events;
use ff_core::stream::StreamFrame;

use super::{Checker, Commit};
use crate::invariant::Invariant;
use crate::viewer::stream_of;

/// The log of events of a partition.
const EVENTS: &[u8] = b"E";

impl Checker {
    /// Counts the events that a commit appended.
    pub(super) fn count_events(&mut self, commit: Commit<'_>) {
        for append in commit.batch.appends.iter().filter(|append| append.log.as_bytes() == EVENTS) {
            let count = self.facts.events.entry(commit.partition.number).or_default();
            *count += append.records.len() as u64;
        }
    }

    /// A viewer got frames after the one with number `last`; `ended`: the stream is closed and this was its end.
    pub(crate) fn saw_frames(
        &mut self,
        id: ExecutionId,
        attempt: i64,
        mut last: u64,
        frames: &[StreamFrame],
        ended: bool,
    ) -> u64 {
        for frame in frames {
            let said = String::from_utf8(frame.payload.0.to_vec()).unwrap_or_default();
            self.expect(
                frame.id.sequence == last + 1 && said == (last + 1).to_string(),
                Invariant::FramesInOrder,
                || format!("{id} attempt {attempt}: a viewer got frame {:?} saying {said} after {last}", frame.id),
            );
            last = frame.id.sequence;
        }
        let appended = self.facts.frames.get(&stream_of(id, attempt)).copied().unwrap_or(0);
        let removed = self.is_or_was_gone(id);
        self.expect(last <= appended || removed, Invariant::FramesInOrder, || {
            format!("{id} attempt {attempt}: a viewer got frame {last} of {appended}")
        });
        self.expect(!ended || last == appended || removed, Invariant::FramesInOrder, || {
            format!("{id} attempt {attempt}: its stream ended for a viewer at {last} of {appended}")
        });
        last
    }

    /// A subscriber got a page of events; `read` is the last number it has of each partition.
    pub(crate) fn saw_events(&mut self, read: &mut BTreeMap<u16, u64>, page: &list_events::Outcome) {
        for item in &page.items {
            let parts: Vec<&str> = item.event_id.split('-').collect();
            let (Some(partition), Some(sequence)) = (
                parts.get(1).and_then(|part| u16::from_str_radix(part, 16).ok()),
                parts.get(2).and_then(|part| part.parse::<u64>().ok()),
            ) else {
                self.violate(Invariant::EventsInOrder, format!("{} is no event id", item.event_id));
                return;
            };
            let last = read.entry(partition).or_default();
            let right = sequence == *last + 1 || (page.gap && sequence > *last);
            let before = std::mem::replace(last, sequence);
            self.expect(right, Invariant::EventsInOrder, || {
                format!("a subscriber got {} after number {before} of partition {partition}", item.event_id)
            });
        }
    }

    /// At rest every event has reached the subscriber.
    pub(super) fn check_events_read(&mut self) {
        for (partition, count) in self.facts.events.clone() {
            let read = self.facts.events_read.get(&partition).copied().unwrap_or(0);
            self.expect(read == count, Invariant::EventsInOrder, || {
                format!("the subscriber has {read} of {count} events of partition {partition}")
            });
        }
    }

    /// Whether the subscriber still has something to read.
    pub(super) fn events_unread(&self) -> bool {
        let read = |partition| self.facts.events_read.get(partition).copied().unwrap_or(0);
        self.facts.events.iter().any(|(partition, count)| read(partition) < *count)
    }

    /// A reader paged through a list. `expected` was there when it began; `all`: nothing was filtered out.
    pub(crate) fn saw_list(&mut self, expected: &BTreeSet<ExecutionId>, seen: &[(i64, ExecutionId)], all: bool) {
        let newest_first = seen.windows(2).all(|pair| pair[0].0 >= pair[1].0);
        self.expect(newest_first, Invariant::ListsComplete, || "a list was not in order".into());
        let ids: BTreeSet<ExecutionId> = seen.iter().map(|(_, id)| *id).collect();
        self.expect(ids.len() == seen.len(), Invariant::ListsComplete, || "a list showed an execution twice".into());
        // From the commit on that begins to remove it, an execution reads as gone.
        let there = |id: &&ExecutionId| {
            let place = (id.partition(), ff_core::execution::Execution::key_of(id));
            self.facts.executions.get(&place).is_some_and(|seen| seen.document.removal.is_none())
        };
        let missing = expected.iter().filter(|id| !ids.contains(id)).find(there).copied();
        self.expect(!all || missing.is_none(), Invariant::ListsComplete, || {
            format!("a list left out {missing:?}, which was there all the time")
        });
    }
}
