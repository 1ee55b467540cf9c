//! `indexes_agree`: after every commit the touched documents have exactly the entries they justify.

use ff_core::index::{self, Due};
use ff_core::{Entry, Key, documents};
use ff_store::EntryChange;
use ff_store::memory::RawDocument;

use super::{Checker, Commit};
use crate::invariant::Invariant;

impl Checker {
    /// The entries of one touched document.
    pub(super) fn check_entries(&mut self, commit: Commit<'_>, key: &Key) {
        let after = self.entries_of(key, commit.contents.document(key));
        let before = self.entries_of(key, commit.before.get(key));
        for entry in &after {
            let found = commit.contents.score(&entry.index, &entry.member);
            self.expect(found == Some(entry.score), Invariant::IndexesAgree, || {
                format!("{key:?} wants {entry:?}, the index has {found:?}")
            });
        }
        for entry in &before {
            let gone = !after.iter().any(|kept| kept.index == entry.index && kept.member == entry.member);
            let found = commit.contents.score(&entry.index, &entry.member);
            self.expect(!gone || found.is_none(), Invariant::IndexesAgree, || format!("{key:?} left {entry:?} behind"));
        }
    }

    /// No commit sets an entry that no document justifies.
    pub(super) fn check_set_entries(&mut self, commit: Commit<'_>) {
        for change in &commit.batch.entries {
            let EntryChange::Set { index, member, score } = change else { continue };
            let key = if *index == index::due() {
                Due::parse(member).map_or_else(|| member.clone(), |(key, _)| key)
            } else {
                member.clone()
            };
            let entry = Entry { index: index.clone(), member: member.clone(), score: *score };
            let justified = self.entries_of(&key, commit.contents.document(&key)).contains(&entry);
            self.expect(justified, Invariant::IndexesAgree, || format!("nothing justifies {entry:?}"));
        }
    }

    fn entries_of(&mut self, key: &Key, document: Option<&RawDocument>) -> Vec<Entry> {
        let Some(raw) = document else { return Vec::new() };
        match documents::index_entries(key, &raw.body, raw.lease_until) {
            Ok(Some(entries)) => entries,
            Ok(None) => {
                self.violate(Invariant::LegalStates, format!("{key:?} is of no known kind"));
                Vec::new()
            }
            Err(error) => {
                self.violate(Invariant::LegalStates, format!("{key:?}: {error}"));
                Vec::new()
            }
        }
    }
}
