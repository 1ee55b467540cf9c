//! Index entries against documents, in both directions: an entry that no document justifies, and a document without
//! an entry that it justifies.

use std::collections::BTreeSet;

use ff_core::index::{self, Due};
use ff_core::{Code, Entry, Error, IndexName, Key, Partition, Result, documents};
use ff_store::{Answer, EntryChange, IndexEntry, Query, Scan, StoredDocument};

use super::{PAGE, Position, ROUND_MAX, Reconciled};
use crate::engine::Engine;
use crate::transaction::{Command, Tx};

/// Names of indexes read at once.
const NAMES_MAX: usize = 10_000;

impl Engine {
    pub(super) async fn reconcile_entries(&self, partition: Partition, position: &mut Position) -> Reconciled {
        let mut found = Reconciled::default();
        let names = match self.index_names(partition).await {
            Ok(names) => names,
            Err(error) => {
                tracing::warn!(%partition, %error, "a partition cannot be reconciled now");
                *position = Position::default();
                return found;
            }
        };
        let begin = position.index.take();
        let mut after = position.after.take();
        let mut budget = ROUND_MAX;
        for name in names {
            if begin.as_ref().is_some_and(|begin| name < *begin) {
                continue;
            }
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
                let Ok(page) = self.store().scan(partition, scan).await else { break };
                budget -= page.entries.len().min(budget);
                after = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
                let full = page.entries.len() == limit;
                found.add(self.check_page(partition, &name, page.entries).await);
                if !full {
                    after = None;
                    break;
                }
            }
        }
        found
    }

    /// The indexes of a partition that hold something. Those that a store need not list are asked for; what workers hold
    /// is left out, since a lease says so itself.
    async fn index_names(&self, partition: Partition) -> Result<BTreeSet<IndexName>> {
        let unlisted = [index::due(), index::marks()];
        let count = |index: &IndexName| Query::Count { index: index.clone(), min: i64::MIN, max: i64::MAX };
        let mut queries = vec![Query::Indexes { prefix: Vec::new(), limit: NAMES_MAX }];
        queries.extend(unlisted.iter().map(count));
        let mut answers = self.read(partition, queries).await?.answers.into_iter();
        let listed = answers.next().and_then(Answer::into_indexes).unwrap_or_default();
        let mut names: BTreeSet<IndexName> = listed.into_iter().collect();
        for (name, answer) in unlisted.into_iter().zip(answers) {
            if answer.into_count().unwrap_or(0) > 0 {
                names.insert(name);
            }
        }
        Ok(names)
    }

    async fn check_page(&self, partition: Partition, name: &IndexName, entries: Vec<IndexEntry>) -> Reconciled {
        let mut found = Reconciled::default();
        let keys: Vec<Key> = entries.iter().map(|entry| document_key(name, &entry.member)).collect();
        let Ok(stored) = self.store().documents(partition, keys.clone()).await else { return found };
        let mut expected = Vec::new();
        for ((entry, key), stored) in entries.into_iter().zip(keys).zip(stored) {
            found.checked += 1;
            let here = Entry { index: name.clone(), member: entry.member, score: entry.score };
            match justified(&key, stored.as_ref()) {
                Ok(entries) => {
                    if !entries.contains(&here) {
                        found.repaired += self.repair(partition, &key, here).await;
                    }
                    // Every document has one entry that leads to it and to nothing else of its kind; only from there are
                    // its other entries looked for, or they would be looked for once for each of them.
                    if is_home(name, &key) {
                        expected.extend(entries.into_iter().map(|entry| (key.clone(), entry)));
                    }
                }
                Err(error) => {
                    found.unreadable += 1;
                    self.pass_over(&key, &error);
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
            let Ok(answers) = self.read(partition, queries).await else { return repaired };
            for ((key, entry), answer) in chunk.iter().zip(answers.answers) {
                let Answer::Scan(page) = answer else { continue };
                if !page.entries.iter().any(|found| found.member == entry.member) {
                    repaired += self.repair(partition, key, entry.clone()).await;
                }
            }
        }
        repaired
    }

    /// Puts one entry right, as its document says at the moment of the repair. Says how many entries were repaired.
    async fn repair(&self, partition: Partition, key: &Key, entry: Entry) -> u64 {
        match self.transact(partition, self.fresh_command(), &Repair { key, entry: &entry }).await {
            Ok(repaired) => u64::from(repaired),
            Err(error) => {
                tracing::warn!(%partition, ?key, %error, "an index entry could not be repaired");
                0
            }
        }
    }
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
        _ => first == b'n',
    }
}

/// A scan that finds this entry if it is there, and next to nothing else.
fn exactly(entry: &Entry) -> Scan {
    let mut scan = Scan::first(entry.index.clone(), 16);
    scan.min = entry.score;
    scan.max = entry.score;
    let (_, shorter) = entry.member.as_bytes().split_last().unwrap_or((&0, &[]));
    if !shorter.is_empty() {
        scan.after = Some((entry.score, Key::from_bytes(shorter)));
    }
    scan
}

fn justified(key: &Key, stored: Option<&StoredDocument>) -> Result<Vec<Entry>> {
    let Some(stored) = stored else { return Ok(Vec::new()) };
    documents::index_entries(key, &stored.body, stored.lease_until)?
        .ok_or_else(|| Error::new(Code::CorruptDocument, format!("{key:?} is of a kind this version does not know")))
}

/// Makes one index agree with one document, under its version.
struct Repair<'a> {
    key: &'a Key,
    entry: &'a Entry,
}

impl Command for Repair<'_> {
    type Outcome = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool> {
        let answers = tx.read(vec![Query::Documents(vec![self.key.clone()]), Query::Scan(exactly(self.entry))]).await?;
        let mut answers = answers.into_iter();
        let stored = answers.next().and_then(Answer::into_documents).and_then(|mut found| found.pop()).flatten();
        let page = answers.next().and_then(Answer::into_scan).unwrap_or_default();
        let present = page.entries.iter().any(|found| found.member == self.entry.member);
        let wanted = justified(self.key, stored.as_ref())?
            .into_iter()
            .find(|entry| entry.index == self.entry.index && entry.member == self.entry.member);
        let change = match wanted {
            Some(wanted) if present && wanted.score == self.entry.score => return Ok(false),
            Some(Entry { index, member, score }) => EntryChange::Set { index, member, score },
            None if present => {
                EntryChange::Remove { index: self.entry.index.clone(), member: self.entry.member.clone() }
            }
            None => return Ok(false),
        };
        tx.repair_entry(self.key, stored.map(|stored| stored.version), change);
        Ok(true)
    }
}
