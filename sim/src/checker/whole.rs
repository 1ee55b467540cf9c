//! Checks of everything: in the middle of a run, and when it has come to rest.

use std::collections::BTreeSet;

use ff_core::{Partition, documents, index};
use ff_store::memory::Contents;

use super::Checker;
use crate::invariant::Invariant;

impl Checker {
    /// Every document is legal, every index holds exactly what the documents justify, and nothing acknowledged is gone.
    pub(crate) fn check_everything(&mut self, contents: &Contents, now: impl Fn(Partition) -> i64) {
        for (partition, contents) in contents.partitions() {
            let now = now(partition);
            let mut expected = BTreeSet::new();
            for (key, raw) in contents.documents().filter(|(_, raw)| raw.present(now)) {
                if let Err(error) = documents::check(key, &raw.body) {
                    self.violate(Invariant::LegalStates, format!("{partition} {key:?}: {error}"));
                }
                let entries = documents::index_entries(key, &raw.body, raw.lease_until);
                for entry in entries.ok().flatten().unwrap_or_default() {
                    expected.insert((entry.index, entry.member, entry.score));
                }
            }
            let found: BTreeSet<_> =
                contents.entries().map(|(index, score, member)| (index.clone(), member.clone(), score)).collect();
            let missing = expected.difference(&found).next();
            let surplus = found.difference(&expected).next();
            self.expect(missing.is_none() && surplus.is_none(), Invariant::IndexesAgree, || {
                format!("{partition}: missing {missing:?}, surplus {surplus:?}")
            });
        }
        let stored = Self::executions_of(contents);
        let same = stored.keys().eq(self.facts.executions.keys());
        self.expect(same, Invariant::NothingLost, || "executions appeared or vanished without a commit".into());
        for id in self.facts.submitted.clone() {
            self.acknowledged_create(id);
        }
    }

    /// How many executions have not ended, and how many documents still owe something.
    pub(crate) fn unfinished(&self, contents: &Contents) -> (usize, usize) {
        let open = self.facts.executions.values().filter(|seen| !seen.document.is_terminal()).count();
        let marks = contents.partitions().flat_map(|(_, contents)| contents.entries());
        (open, marks.filter(|(name, _, _)| **name == index::marks()).count())
    }

    /// Whether everything has ended, nothing is owed, and every watcher has seen it.
    pub(crate) fn is_at_rest(&self, contents: &Contents) -> bool {
        let unfinished = self.unfinished(contents) != (0, 0) || self.bulk_under_way(contents);
        !unfinished && !self.events_unread() && !self.slots_out(contents)
    }

    /// Nothing hinders anything any more, so everything must have ended.
    pub(crate) fn check_rest(&mut self, contents: &Contents) {
        let stuck = self.facts.executions.values().find(|seen| !seen.document.is_terminal());
        let stuck = stuck.map(|seen| {
            let document = &seen.document;
            format!("{} is stuck: {:?}, holds {:?}", document.id, document.state, document.holds)
        });
        if let Some(detail) = stuck {
            self.violate(Invariant::NothingLost, detail);
        }
        let under_way = self.bulk_under_way(contents);
        self.expect(!under_way, Invariant::NothingLost, || "a bulk job does not end".to_owned());
        self.check_flows_at_rest();
        self.check_events_read();
        self.check_slots_at_rest(contents);
        let (_, marks) = self.unfinished(contents);
        self.expect(marks == 0, Invariant::NothingLost, || format!("{marks} marks were never resolved"));
    }
}
