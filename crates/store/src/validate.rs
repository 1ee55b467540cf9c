//! The rules that hold for every batch on every store. A batch that breaks one is a defect of the caller, or too large.

use std::collections::HashSet;
use std::hash::Hash;

use ff_core::{IndexName, Key, limits};

use crate::{Append, Batch, BlobChange, Effect, EntryChange, Guard, LeaseChange, Result, StoreError};

impl Batch {
    /// Checks the rules that hold for every batch on every store. Each store calls it, for all batches of a commit,
    /// before it does anything.
    pub fn validate(&self) -> Result<()> {
        // Size first: it bounds the work of all other checks.
        self.check_size()?;
        let guards = Guards::of(self);
        for guard in &self.guards {
            if let Some(key) = guard.key() {
                check_name("guarded key", key)?;
            }
        }
        for effect in self.effects() {
            match effect {
                Effect::Put(put) => {
                    check_name("key", &put.key)?;
                    if !guards.own(&put.key) {
                        return invalid(format!("{:?} is put without a version or absent guard of its own", put.key));
                    }
                }
                Effect::Delete(key) => {
                    check_name("key", key)?;
                    guards.some_own(key)?;
                }
                Effect::Blob(BlobChange { key, bytes }) => {
                    check_name("key", key)?;
                    // The bytes of a numbered record are written together with it, and so need no more than the fence
                    // that the record needs.
                    if bytes.is_none() || !self.appends_under_fence(&guards) {
                        guards.some_own(key)?;
                    }
                }
                Effect::Entry(entry) => check_entry(entry, &guards)?,
                Effect::Lease(lease) => check_lease(lease, &guards)?,
                Effect::Append(append) => check_append(append, &guards)?,
                Effect::Trim(trim) => check_name("log", &trim.log)?,
            }
        }
        self.check_named_once()?;
        self.check_leased_documents()
    }

    /// Whether a lease holder appends records whose numbers it knows.
    fn appends_under_fence(&self, guards: &Guards<'_>) -> bool {
        let fenced = guards.guards.iter().any(|guard| fenced_key(guard).is_some());
        fenced && self.appends.iter().any(|append| append.expected.is_some())
    }

    fn check_size(&self) -> Result<()> {
        let (operations, bytes) = (self.operations(), self.bytes());
        if operations > limits::COMMIT_OPERATIONS_MAX {
            let max = limits::COMMIT_OPERATIONS_MAX;
            return Err(StoreError::TooLarge(format!("{operations} operations, the limit is {max}")));
        }
        if bytes > limits::COMMIT_MAX_BYTES {
            return Err(StoreError::TooLarge(format!("{bytes} bytes, the limit is {}", limits::COMMIT_MAX_BYTES)));
        }
        Ok(())
    }

    fn check_named_once(&self) -> Result<()> {
        once("put", self.puts.iter().map(|put| &put.key))?;
        once("delete", self.deletes.iter())?;
        once(
            "index entry",
            self.entries.iter().map(|entry| match entry {
                EntryChange::Set { index, member, .. } | EntryChange::Remove { index, member } => (index, member),
            }),
        )?;
        once("lease", self.leases.iter().map(|lease| &lease.key))?;
        once("lease entry", self.leases.iter().map(|lease| (&lease.index, &lease.member)))?;
        once("append", self.appends.iter().map(|append| &append.log))?;
        once("trim", self.trims.iter().map(|trim| &trim.log))?;
        once("blob", self.blobs.iter().map(|blob| &blob.key))
    }

    /// A lease stands beside a document, so there must be one: a fence or version guard proves it, a put makes it.
    fn check_leased_documents(&self) -> Result<()> {
        for lease in self.leases.iter().filter(|lease| lease.ttl_ms.is_some()) {
            let absent = self.guards.iter().any(|guard| matches!(guard, Guard::Absent(key) if *key == lease.key));
            if absent && !self.puts.iter().any(|put| put.key == lease.key) {
                return invalid(format!("a lease is set on {:?}, which is not there", lease.key));
            }
            if self.deletes.contains(&lease.key) {
                return invalid(format!("a lease is set on {:?}, which is deleted", lease.key));
            }
        }
        Ok(())
    }
}

/// Up to this many names, comparing them one by one is cheaper than hashing them.
const FEW: usize = 16;

/// The documents that a batch guards, collected once so that a large batch is checked in one pass.
struct Guards<'a> {
    guards: &'a [Guard],
    /// The documents that guards name; kept only where there are many guards.
    owned: HashSet<&'a Key>,
    fenced: HashSet<&'a Key>,
}

impl<'a> Guards<'a> {
    fn of(batch: &'a Batch) -> Self {
        let mut guards = Self { guards: &batch.guards, owned: HashSet::new(), fenced: HashSet::new() };
        if batch.guards.len() > FEW {
            guards.owned = batch.guards.iter().filter_map(owned_key).collect();
            guards.fenced = batch.guards.iter().filter_map(fenced_key).collect();
        }
        guards
    }

    fn own(&self, key: &Key) -> bool {
        match self.guards.len() {
            ..=FEW => self.guards.iter().filter_map(owned_key).any(|owned| owned == key),
            _ => self.owned.contains(key),
        }
    }

    fn fence(&self, key: &Key) -> bool {
        match self.guards.len() {
            ..=FEW => self.guards.iter().filter_map(fenced_key).any(|fenced| fenced == key),
            _ => self.fenced.contains(key),
        }
    }

    fn some_own(&self, what: &impl std::fmt::Debug) -> Result<()> {
        if !self.guards.iter().any(|guard| owned_key(guard).is_some()) {
            return invalid(format!("{what:?} changes without any version or absent guard"));
        }
        Ok(())
    }
}

fn owned_key(guard: &Guard) -> Option<&Key> {
    match guard {
        Guard::Absent(key) | Guard::Version(key, _) => Some(key),
        Guard::Fence(..) | Guard::Live(_) | Guard::Expired(_) | Guard::NotAfter(_) => None,
    }
}

fn fenced_key(guard: &Guard) -> Option<&Key> {
    match guard {
        Guard::Fence(key, _) => Some(key),
        Guard::Absent(_) | Guard::Version(..) | Guard::Live(_) | Guard::Expired(_) | Guard::NotAfter(_) => None,
    }
}

fn check_entry(entry: &EntryChange, guards: &Guards<'_>) -> Result<()> {
    let (EntryChange::Set { index, member, .. } | EntryChange::Remove { index, member }) = entry;
    check_index(index)?;
    check_name("member", member)?;
    guards.some_own(index)?;
    if let EntryChange::Set { score, .. } = entry
        && !(-limits::SCORE_MAX..=limits::SCORE_MAX).contains(score)
    {
        return invalid(format!("the score {score} is not exact in a double"));
    }
    Ok(())
}

fn check_lease(lease: &LeaseChange, guards: &Guards<'_>) -> Result<()> {
    check_name("key", &lease.key)?;
    check_index(&lease.index)?;
    check_name("member", &lease.member)?;
    if !guards.own(&lease.key) && !guards.fence(&lease.key) {
        return invalid(format!("the lease of {:?} changes without a guard", lease.key));
    }
    if lease.ttl_ms.is_some_and(|ttl| !(1..=limits::DURATION_MAX_MS).contains(&ttl)) {
        return invalid(format!("a lease TTL must be 1 to {} ms", limits::DURATION_MAX_MS));
    }
    Ok(())
}

fn check_append(append: &Append, guards: &Guards<'_>) -> Result<()> {
    check_name("log", &append.log)?;
    if append.records.is_empty() {
        return invalid("an append has no records".into());
    }
    if append.expected.is_some() && guards.guards.is_empty() {
        return invalid("an append with an expected number needs a guard".into());
    }
    Ok(())
}

fn check_name(what: &str, key: &Key) -> Result<()> {
    let length = key.as_bytes().len();
    if length == 0 || length > limits::KEY_MAX_BYTES {
        return invalid(format!("a {what} must have 1 to {} bytes, not {length}", limits::KEY_MAX_BYTES));
    }
    Ok(())
}

fn check_index(index: &IndexName) -> Result<()> {
    let length = index.as_bytes().len();
    if length == 0 || length > limits::INDEX_NAME_MAX_BYTES {
        let max = limits::INDEX_NAME_MAX_BYTES;
        return invalid(format!("an index name must have 1 to {max} bytes, not {length}"));
    }
    Ok(())
}

/// Refuses a field that names the same thing twice.
fn once<T: Eq + Hash>(what: &str, names: impl ExactSizeIterator<Item = T> + Clone) -> Result<()> {
    let count = names.len();
    let distinct = match count {
        0 | 1 => true,
        ..=FEW => names.clone().enumerate().all(|(at, name)| !names.clone().take(at).any(|earlier| earlier == name)),
        _ => names.collect::<HashSet<_>>().len() == count,
    };
    if distinct { Ok(()) } else { invalid(format!("a batch names the same {what} twice")) }
}

fn invalid<T>(why: String) -> Result<T> {
    Err(StoreError::Invalid(why))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{Fence, Hint, Put, Trim};

    fn key(name: &str) -> Key {
        Key::from_bytes(name.as_bytes())
    }

    fn index() -> IndexName {
        IndexName::from_bytes(*b"index")
    }

    fn put(name: &str) -> Put {
        Put { key: key(name), body: Bytes::new(), fence: Fence::default(), expires_at: None }
    }

    fn set(member: &str, score: i64) -> EntryChange {
        EntryChange::Set { index: index(), member: key(member), score }
    }

    fn lease(name: &str, ttl_ms: Option<i64>) -> LeaseChange {
        LeaseChange { key: key(name), ttl_ms, index: index(), member: key(name) }
    }

    fn append(log: &str, expected: Option<u64>) -> Append {
        Append { log: key(log), records: vec![Bytes::new()], expected, cap: 0, in_turn: false }
    }

    fn blob(name: &str) -> BlobChange {
        BlobChange { key: key(name), bytes: Some(Bytes::new()) }
    }

    fn under(guards: &[Guard]) -> Batch {
        Batch { guards: guards.to_vec(), ..Batch::default() }
    }

    fn absent(name: &str) -> Guard {
        Guard::Absent(key(name))
    }

    fn version(name: &str) -> Guard {
        Guard::Version(key(name), Default::default())
    }

    fn fenced(name: &str) -> Guard {
        Guard::Fence(key(name), Fence::default())
    }

    #[track_caller]
    fn ok(batch: Batch) {
        assert_eq!(batch.validate(), Ok(()));
    }

    #[track_caller]
    fn refused(batch: Batch, because: &str) {
        match batch.validate() {
            Err(StoreError::Invalid(why)) => assert!(why.contains(because), "refused because {why}"),
            other => panic!("{because}: {other:?}"),
        }
    }

    #[test]
    fn a_put_needs_a_version_or_absent_guard_of_its_own() {
        for guard in [absent("a"), version("a")] {
            ok(Batch { puts: vec![put("a")], ..under(&[guard]) });
        }
        for guards in [vec![], vec![absent("b")], vec![fenced("a"), Guard::Live(key("a"))], vec![Guard::NotAfter(9)]] {
            refused(Batch { puts: vec![put("a")], ..under(&guards) }, "of its own");
        }
    }

    #[test]
    fn deletes_entries_and_blobs_need_some_version_or_absent_guard() {
        let changes = [
            Batch { deletes: vec![key("a")], ..Batch::default() },
            Batch { entries: vec![set("a", 1)], ..Batch::default() },
            Batch { entries: vec![EntryChange::Remove { index: index(), member: key("a") }], ..Batch::default() },
            Batch { blobs: vec![blob("a")], ..Batch::default() },
        ];
        for change in changes {
            ok(Batch { guards: vec![version("elsewhere")], ..change.clone() });
            refused(change.clone(), "without any version or absent guard");
            refused(Batch { guards: vec![fenced("a")], ..change }, "without any version or absent guard");
        }
    }

    #[test]
    fn a_lease_changes_under_a_guard_on_its_own_document() {
        for guard in [version("a"), fenced("a")] {
            ok(Batch { leases: vec![lease("a", Some(1))], ..under(&[guard]) });
        }
        refused(Batch { leases: vec![lease("a", Some(1))], ..under(&[version("b")]) }, "without a guard");
        refused(Batch { leases: vec![lease("a", None)], ..under(&[Guard::Live(key("a"))]) }, "without a guard");
    }

    #[test]
    fn a_lease_is_set_on_a_document_that_will_be_there() {
        ok(Batch { puts: vec![put("a")], leases: vec![lease("a", Some(1))], ..under(&[absent("a")]) });
        ok(Batch { leases: vec![lease("a", None)], ..under(&[absent("a")]) });
        refused(Batch { leases: vec![lease("a", Some(1))], ..under(&[absent("a")]) }, "not there");
        let delete = Batch { deletes: vec![key("a")], ..under(&[version("a")]) };
        ok(Batch { leases: vec![lease("a", None)], ..delete.clone() });
        refused(Batch { leases: vec![lease("a", Some(1))], ..delete }, "deleted");
    }

    #[test]
    fn a_lease_ttl_is_positive_and_bounded() {
        for ttl_ms in [1, limits::DURATION_MAX_MS] {
            ok(Batch { leases: vec![lease("a", Some(ttl_ms))], ..under(&[fenced("a")]) });
        }
        for ttl_ms in [0, -1, i64::MIN, limits::DURATION_MAX_MS + 1] {
            refused(Batch { leases: vec![lease("a", Some(ttl_ms))], ..under(&[fenced("a")]) }, "TTL");
        }
    }

    #[test]
    fn scores_are_exact_in_a_double() {
        for score in [limits::SCORE_MAX, -limits::SCORE_MAX, 0] {
            ok(Batch { entries: vec![set("a", score)], ..under(&[absent("a")]) });
        }
        for score in [limits::SCORE_MAX + 1, -limits::SCORE_MAX - 1, i64::MAX, i64::MIN] {
            refused(Batch { entries: vec![set("a", score)], ..under(&[absent("a")]) }, "double");
        }
    }

    #[test]
    fn names_are_neither_empty_nor_too_long() {
        let longest = "k".repeat(limits::KEY_MAX_BYTES);
        ok(Batch { puts: vec![put(&longest)], ..under(&[absent(&longest)]) });
        for name in ["", &format!("{longest}k")] {
            let guarded = || under(&[absent("a")]);
            let wrong = [
                under(&[absent(name)]),
                Batch { deletes: vec![key(name)], ..guarded() },
                Batch { entries: vec![set(name, 1)], ..guarded() },
                Batch { leases: vec![LeaseChange { member: key(name), ..lease("a", None) }], ..guarded() },
                Batch { appends: vec![append(name, None)], ..guarded() },
                Batch { trims: vec![Trim { log: key(name), before: 1 }], ..guarded() },
                Batch { blobs: vec![blob(name)], ..guarded() },
            ];
            for batch in wrong {
                refused(batch, "must have 1 to 255 bytes");
            }
        }
        let max = limits::INDEX_NAME_MAX_BYTES;
        for (length, fits) in [(0, false), (1, true), (max, true), (max + 1, false)] {
            let index = IndexName::from_bytes(vec![b'i'; length]);
            let entry = EntryChange::Set { index: index.clone(), member: key("a"), score: 1 };
            let lease = LeaseChange { index, ..lease("a", None) };
            let batches = [
                Batch { entries: vec![entry], ..under(&[absent("a")]) },
                Batch { leases: vec![lease], ..under(&[absent("a")]) },
            ];
            for batch in batches {
                if fits { ok(batch) } else { refused(batch, "an index name must have") }
            }
        }
    }

    #[test]
    fn an_append_has_records_and_a_guard_when_it_expects_a_number() {
        ok(Batch { appends: vec![append("log", None)], ..Batch::default() });
        ok(Batch { appends: vec![append("log", Some(1))], ..under(&[fenced("a")]) });
        refused(Batch { appends: vec![append("log", Some(1))], ..Batch::default() }, "needs a guard");
        refused(
            Batch { appends: vec![Append { records: vec![], ..append("log", None) }], ..Batch::default() },
            "no records",
        );
    }

    #[test]
    fn a_field_names_a_thing_once() {
        let guarded = || under(&[version("a"), version("b")]);
        let remove = EntryChange::Remove { index: index(), member: key("a") };
        let trim = |before| Trim { log: key("log"), before };
        let twice = [
            Batch { puts: vec![put("a"), put("a")], ..guarded() },
            Batch { deletes: vec![key("a"), key("b"), key("a")], ..guarded() },
            Batch { entries: vec![remove, set("a", 1)], ..guarded() },
            Batch { leases: vec![lease("a", None), lease("a", Some(1))], ..guarded() },
            Batch { leases: vec![lease("a", None), LeaseChange { member: key("a"), ..lease("b", None) }], ..guarded() },
            Batch { appends: vec![append("log", None), append("log", Some(2))], ..guarded() },
            Batch { trims: vec![trim(1), trim(2)], ..guarded() },
            Batch { blobs: vec![blob("a"), blob("a")], ..guarded() },
        ];
        for batch in twice {
            refused(batch, "twice");
        }
        ok(Batch { puts: vec![put("a"), put("b")], entries: vec![set("a", 1), set("b", 1)], ..guarded() });
    }

    #[test]
    fn a_batch_has_at_most_so_many_operations_and_bytes() {
        let records = |count: usize| Append { records: vec![Bytes::new(); count], ..append("log", None) };
        let most = limits::COMMIT_OPERATIONS_MAX - 1;
        ok(Batch { appends: vec![records(most)], ..Batch::default() });
        let larger = Batch { appends: vec![records(most + 1)], ..Batch::default() };
        assert!(matches!(larger.validate(), Err(StoreError::TooLarge(_))));
        let hint = |bytes: usize| Hint { partition: ff_core::Partition::SYSTEM, payload: vec![0; bytes].into() };
        ok(Batch { hints: vec![hint(limits::COMMIT_MAX_BYTES - 16)], ..Batch::default() });
        let larger = Batch { hints: vec![hint(limits::COMMIT_MAX_BYTES - 15)], ..Batch::default() };
        assert!(matches!(larger.validate(), Err(StoreError::TooLarge(_))));
    }
}
