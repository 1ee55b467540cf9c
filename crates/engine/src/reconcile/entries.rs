//! Index entries against documents, in both directions: an entry that no document justifies, and a document without
//! an entry that it justifies.

use std::collections::BTreeSet;

use ff_core::index::{self, Due};
use ff_core::{Entry, IndexName, Key, Partition, Result};
use ff_store::{Answer, IndexEntry, Query, Scan};

use super::{PAGE, Position, ROUND_MAX, Reconciled, Reconciler};
use crate::repair::justified;
use crate::transaction::exactly;

/// Names of indexes read at once.
const NAMES_PAGE: usize = 1_000;

impl Reconciler {
    pub(super) async fn reconcile_entries(&self, partition: Partition, position: &mut Position) -> Reconciled {
        let mut found = Reconciled::default();
        let mut begin = position.index.take();
        let mut after = position.after.take();
        let mut budget = ROUND_MAX;
        // The index at which the last round stopped is looked at again.
        let mut stopped_at = begin.clone();
        loop {
            let page = match self.index_names(partition, begin.as_ref()).await {
                Ok(page) => page,
                Err(error) => {
                    if let Some(suppressed) = self.transactor.may_log("a partition cannot be reconciled now") {
                        tracing::warn!(%partition, %error, suppressed, "a partition cannot be reconciled now");
                    }
                    *position = Position::default();
                    return found;
                }
            };
            let names = stopped_at.take().into_iter().chain(page.names);
            for name in names {
                if begin.as_ref() != Some(&name) {
                    after = None;
                }
                loop {
                    if budget == 0 {
                        *position = Position { index: Some(name), after };
                        return found;
                    }
                    let limit = PAGE.min(budget);
                    let mut scan = Scan::first(name.clone(), limit);
                    scan.after = after.clone();
                    let Ok(page) = self.transactor.store().scan(partition, scan).await else { break };
                    budget -= page.entries.len().min(budget);
                    after = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
                    let full = page.entries.len() == limit;
                    found.add(self.check_page(partition, &name, page.entries).await);
                    if !full {
                        after = None;
                        break;
                    }
                }
                begin = Some(name);
            }
            if !page.full {
                return found;
            }
        }
    }

    /// Indexes of a partition that hold something, behind this one. Indexes that a store need not list are asked for;
    /// the index of what workers hold is left out, since a lease says so itself.
    async fn index_names(&self, partition: Partition, begin: Option<&IndexName>) -> Result<NamesPage> {
        let unlisted = [index::due(), index::marks()];
        let count = |index: &IndexName| Query::count_all(index.clone());
        let mut queries = vec![Query::Indexes { prefix: Vec::new(), after: begin.cloned(), limit: NAMES_PAGE }];
        queries.extend(unlisted.iter().map(count));
        let mut answers = self.transactor.read(partition, queries).await?.answers.into_iter();
        let listed = answers.next().and_then(Answer::into_indexes).unwrap_or_default();
        let full = listed.len() == NAMES_PAGE;
        let last = listed.last().filter(|_| full).cloned();
        let mut names: BTreeSet<IndexName> = listed.into_iter().collect();
        // An index that is not listed belongs to the page that reaches over it.
        for (name, answer) in unlisted.into_iter().zip(answers) {
            let here = begin.is_none_or(|begin| name > *begin) && last.as_ref().is_none_or(|last| name <= *last);
            if here && answer.into_count().unwrap_or(0) > 0 {
                names.insert(name);
            }
        }
        Ok(NamesPage { names, full })
    }

    async fn check_page(&self, partition: Partition, name: &IndexName, entries: Vec<IndexEntry>) -> Reconciled {
        let mut found = Reconciled::default();
        let keys: Vec<Key> = entries.iter().map(|entry| document_key(name, &entry.member)).collect();
        let Ok(stored) = self.transactor.store().documents(partition, keys.clone()).await else { return found };
        let mut expected = Vec::new();
        for ((entry, key), stored) in entries.into_iter().zip(keys).zip(stored) {
            found.checked += 1;
            let here = Entry { index: name.clone(), member: entry.member, score: entry.score };
            match justified(&key, stored.as_ref()) {
                Ok(entries) => {
                    if !entries.contains(&here) {
                        found.repaired += self.transactor.repair(partition, &key, here).await;
                    }
                    // Every document has one entry that leads to it and to nothing else of its kind; only from there are
                    // its other entries looked for, or they would be looked for once for each of them.
                    if is_home(name, &key) {
                        expected.extend(entries.into_iter().map(|entry| (key.clone(), entry)));
                    }
                }
                Err(error) => {
                    found.unreadable += 1;
                    self.transactor.pass_over(&key, &error);
                }
            }
        }
        found.repaired += self.check_present(partition, expected).await;
        found
    }

    /// Looks for entries that documents justify; sets those that are missing or stand elsewhere.
    async fn check_present(&self, partition: Partition, expected: Vec<(Key, Entry)>) -> u64 {
        let mut repaired = 0;
        for chunk in expected.chunks(PAGE) {
            let queries = chunk.iter().map(|(_, entry)| Query::Scan(exactly(entry))).collect();
            let Ok(answers) = self.transactor.read(partition, queries).await else { return repaired };
            for ((key, entry), answer) in chunk.iter().zip(answers.answers) {
                let Answer::Scan(page) = answer else { continue };
                if !page.entries.iter().any(|found| found.member == entry.member) {
                    repaired += self.transactor.repair(partition, key, entry.clone()).await;
                }
            }
        }
        repaired
    }
}

/// Names of indexes, and whether there may be more.
struct NamesPage {
    names: BTreeSet<IndexName>,
    full: bool,
}

/// The document an entry is about: its member, or what a `due` member leads to.
fn document_key(name: &IndexName, member: &Key) -> Key {
    if *name == index::due() {
        Due::parse(member).map_or_else(|| member.clone(), |(key, _)| key)
    } else {
        member.clone()
    }
}

/// Whether this is the index every document of the kind is in exactly once.
fn is_home(name: &IndexName, key: &Key) -> bool {
    use ff_core::index::kind;
    let first = name.as_bytes().first().copied().unwrap_or(0);
    match key.kind() {
        kind::EXECUTION => first == b's',
        kind::EDGE => first == b'f',
        kind::WAITPOINT | kind::SIGNAL => first == b'h',
        kind::SLOT => first == b'o',
        kind::RESERVATION => first == b'r',
        _ => first == b'n',
    }
}
