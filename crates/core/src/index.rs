//! The index entries of documents. They are a pure function of the document and the instant at which its lease ends; a
//! commit's index changes are the difference between before and after, so no operation edits an index by hand.
//!
//! This module names the indexes; each document says in its own module which entries it has.

use uuid::Uuid;

use crate::encoding::Document;
use crate::id::{LeaseEpoch, LeaseId};
use crate::key::{Entry, IndexName, Key, UNLISTED};
use crate::state::PublicState;

/// The kind byte of every document, in one place so that no two share one.
pub mod kind {
    /// An execution.
    pub const EXECUTION: u8 = b'x';
    /// A flow.
    pub const FLOW: u8 = b'f';
    /// A dependency edge.
    pub const EDGE: u8 = b'e';
    /// A waitpoint.
    pub const WAITPOINT: u8 = b'w';
    /// An accepted signal.
    pub const SIGNAL: u8 = b's';
    /// The record of an idempotency or dedup key; expires.
    pub const RECORD: u8 = b'd';
    /// A budget.
    pub const BUDGET: u8 = b'b';
    /// A quota policy.
    pub const QUOTA: u8 = b'q';
    /// A schedule.
    pub const SCHEDULE: u8 = b'h';
    /// A bulk job.
    pub const BULK: u8 = b'B';
    /// How far a bulk job has come in one partition.
    pub const BULK_PART: u8 = b'P';
    /// A subscription to events.
    pub const SUBSCRIPTION: u8 = b'n';
    /// How far a subscription has come in the events of a partition.
    pub const CURSOR: u8 = b'u';
    /// How many subscriptions of a namespace ask for the creation of executions.
    pub const CREATION_WATCH: u8 = b'C';
    /// An inbound hook.
    pub const HOOK: u8 = b'H';
    /// A concurrency slot of a quota.
    pub const SLOT: u8 = b'o';
    /// A concurrency key.
    pub const CONCURRENCY_KEY: u8 = b'y';
    /// Which execution a key stands for.
    pub const KEY_HOLDER: u8 = b'g';
    /// A reservation of a budget.
    pub const RESERVATION: u8 = b'r';
    /// A provider and its limits.
    pub const PROVIDER: u8 = b'v';
    /// A call to a provider that has a place in its line.
    pub const BOOKING: u8 = b'k';
    /// A worker.
    pub const WORKER: u8 = b'W';
    /// A server.
    pub const SERVER: u8 = b'S';
    /// A lane.
    pub const LANE: u8 = b'l';
    /// A kind of work that agents may call.
    pub const TOOL: u8 = b'T';
    /// An API token.
    pub const TOKEN: u8 = b't';
    /// The waitpoint secrets.
    pub const SECRETS: u8 = b'c';
    /// The deployment's configuration.
    pub const DEPLOYMENT: u8 = b'p';
    /// The merged summary of an attempt's stream.
    pub const SUMMARY: u8 = b'm';
    /// A frame. It lives in a log and has no key; the kind names it in reports about bytes that cannot be read.
    pub const FRAME: u8 = b'F';
    /// A record of a journal, which lives in a log; see [`FRAME`].
    pub const STEP: u8 = b'J';
    /// An audit record, which lives in a log; see [`FRAME`].
    pub const AUDIT: u8 = b'A';
}

/// A document that knows its key and its index entries.
pub trait Indexed: Document {
    /// Where it lives in its partition.
    fn key(&self) -> Key;

    /// Its index entries, given when its lease ends (0 without one). The entry of the lease itself is included.
    fn index_entries(&self, lease_until: i64) -> Vec<Entry>;

    /// The lease it is under, or was last under.
    fn document_lease(&self) -> DocumentLease {
        DocumentLease::default()
    }
}

/// The lease beside a document: the fence that guards compare, and whether the lease is held now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DocumentLease {
    /// Which lease of the document it is.
    pub epoch: LeaseEpoch,
    /// The lease itself.
    pub lease_id: LeaseId,
    /// How long it lasts without a renewal; `None` when there is no lease now.
    pub ttl_ms: Option<i64>,
}

/// Entries to set and entries to remove, to get from `before` to `after`.
pub fn difference(mut before: Vec<Entry>, mut after: Vec<Entry>) -> (Vec<Entry>, Vec<Entry>) {
    after.retain(|entry| match before.iter().position(|old| old.index == entry.index && old.member == entry.member) {
        Some(at) => before.remove(at).score != entry.score,
        None => true,
    });
    (after, before)
}

/// Executions that may be claimed: one queue for each namespace, lane, kind, required capability set and set of gates,
/// so that a claim never looks at work that its worker does not serve.
pub fn queue(namespace: &str, lane: &str, kind: &str, route: &str, gate: &str) -> IndexName {
    let parts = [namespace, lane, kind, route, gate].map(str::as_bytes);
    IndexName::from_parts(QUEUE_PREFIX, &parts)
}

/// The queue of work that takes turns by key with other work of its lane.
pub fn fair_queue(namespace: &str, lane: &str, kind: &str, route: &str, gate: &str, fair_key: &str) -> IndexName {
    let parts = [namespace, lane, kind, route, gate, fair_key].map(str::as_bytes);
    IndexName::from_parts(QUEUE_PREFIX, &parts)
}

/// The queue in which an earlier version put executions of every kind.
pub fn queue_of_any_kind(namespace: &str, lane: &str, route: &str, gate: &str) -> IndexName {
    let parts = [namespace, lane, route, gate].map(str::as_bytes);
    IndexName::from_parts(QUEUE_PREFIX, &parts)
}

/// How the names of all queues of a lane begin.
pub fn queues_of_lane(namespace: &str, lane: &str) -> Vec<u8> {
    IndexName::from_parts(QUEUE_PREFIX, &[namespace.as_bytes(), lane.as_bytes()]).as_bytes().to_vec()
}

/// How the names of all queues of a namespace begin.
pub fn queues_of_namespace(namespace: &str) -> Vec<u8> {
    IndexName::from_parts(QUEUE_PREFIX, &[namespace.as_bytes()]).as_bytes().to_vec()
}

/// The first byte of every queue's name.
pub const QUEUE_PREFIX: u8 = b'q';
/// The first byte of the name of every index of executions by state.
pub const STATE_PREFIX: u8 = b's';
/// The first byte of the name of every index of slots.
pub const SLOTS_PREFIX: u8 = b'o';
/// The mark that tells the slots of a concurrency key from those of a quota.
const KEY_SLOTS: &[u8] = b"c";
const BLOCKED: u8 = b'b';
const BLOCKED_BY_KEY: u8 = b'w';
/// The first bytes of the names of indexes of parked work.
pub const BLOCKED_PREFIXES: [u8; 2] = [BLOCKED, BLOCKED_BY_KEY];
/// The first byte of the name of every listing.
pub const LISTING_PREFIX: u8 = b'n';

/// The parts of a queue's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueName {
    /// The namespace.
    pub namespace: String,
    /// The lane.
    pub lane: String,
    /// The kind of everything in it, where it holds one kind only.
    pub kind: Option<String>,
}

impl QueueName {
    /// The parts of this name, if it is the name of a queue.
    pub fn parse(name: &IndexName) -> Option<Self> {
        let parts = name.parts().filter(|_| name.as_bytes().first() == Some(&QUEUE_PREFIX))?;
        let (namespace, lane, kind) = match parts.as_slice() {
            [namespace, lane, kind, _route, _gate] | [namespace, lane, kind, _route, _gate, _] => {
                (namespace, lane, Some(text(kind)?))
            }
            [namespace, lane, _route, _gate] => (namespace, lane, None),
            _ => return None,
        };
        Some(Self { namespace: text(namespace)?, lane: text(lane)?, kind })
    }
}

/// The namespace in the name of an index by state or of a listing; `None` if the index covers all namespaces.
pub fn namespace_of(name: &IndexName) -> Option<String> {
    let parts = name.parts()?;
    let namespace = match *name.as_bytes().first()? {
        STATE_PREFIX => parts.first()?,
        LISTING_PREFIX => parts.get(1)?,
        _ => return None,
    };
    text(namespace).filter(|namespace| !namespace.is_empty())
}

fn text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

/// Everything that happens because time passes, by instant.
pub fn due() -> IndexName {
    const { IndexName::fixed(b"!due") }
}

/// Documents that still owe an effect elsewhere.
pub fn marks() -> IndexName {
    const { IndexName::fixed(b"!marks") }
}

/// Cursors of subscriptions. Not listed: there is one for each partition.
pub fn cursors() -> IndexName {
    const { IndexName::fixed(b"!cursors") }
}

/// Executions of a namespace in a state, by creation.
pub fn state(namespace: &str, state: PublicState) -> IndexName {
    IndexName::from_parts(STATE_PREFIX, &[namespace.as_bytes(), state.as_str().as_bytes()])
}

/// Members of a flow in a state.
pub fn member(flow: Uuid, state: PublicState) -> IndexName {
    IndexName::from_parts(b'm', &[flow.as_bytes(), state.as_str().as_bytes()])
}

/// Executions that were forked from one, by creation.
pub fn forks(origin: Uuid) -> IndexName {
    IndexName::from_parts(b'k', &[origin.as_bytes()])
}

/// Those of them that still copy its journal.
pub fn open_forks(origin: Uuid) -> IndexName {
    IndexName::from_parts(b'k', &[origin.as_bytes(), b"open"])
}

/// Runs of a schedule, by their numbers.
pub fn runs(schedule: Uuid) -> IndexName {
    IndexName::from_parts(b'r', &[schedule.as_bytes()])
}

/// Deliveries of a subscription, by creation.
pub fn deliveries(subscription: Uuid) -> IndexName {
    IndexName::from_parts(b'd', &[subscription.as_bytes()])
}

/// Deliveries of a subscription that have not ended, by creation.
pub fn open_deliveries(subscription: Uuid) -> IndexName {
    IndexName::from_parts(b'd', &[subscription.as_bytes(), b"open"])
}

/// Edges that lead away from an execution.
pub fn edges_from(upstream: Uuid) -> IndexName {
    IndexName::from_parts(b'f', &[upstream.as_bytes()])
}

/// Edges that lead to an execution.
pub fn edges_to(downstream: Uuid) -> IndexName {
    IndexName::from_parts(b't', &[downstream.as_bytes()])
}

/// Executions that wait for people, by when they began to.
pub fn asks(namespace: &str) -> IndexName {
    IndexName::from_parts(b'a', &[namespace.as_bytes()])
}

/// Executions parked because a gate refused them.
pub fn blocked(namespace: &str, gate: &str) -> IndexName {
    IndexName::from_parts(BLOCKED, &[namespace.as_bytes(), gate.as_bytes()])
}

/// Executions of one fair key parked because a gate refused them. Work without a key stands in [`blocked`].
pub fn blocked_by_key(namespace: &str, gate: &str, fair_key: &str) -> IndexName {
    IndexName::from_parts(BLOCKED_BY_KEY, &[namespace.as_bytes(), gate.as_bytes(), fair_key.as_bytes()])
}

/// How the names of all indexes of a gate by key begin.
pub fn blocked_keys(namespace: &str, gate: &str) -> Vec<u8> {
    IndexName::from_parts(BLOCKED_BY_KEY, &[namespace.as_bytes(), gate.as_bytes()]).as_bytes().to_vec()
}

/// The parts of the name of an index of parked work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockedName {
    /// The namespace.
    pub namespace: String,
    /// The text of the gate.
    pub gate: String,
    /// The fair key of everything in it, where it holds one key only.
    pub fair_key: Option<String>,
}

impl BlockedName {
    /// The parts of this name, if it is the name of an index of parked work.
    pub fn parse(name: &IndexName) -> Option<Self> {
        let parts = name.parts()?;
        let (namespace, gate, fair_key) = match (*name.as_bytes().first()?, parts.as_slice()) {
            (BLOCKED, [namespace, gate]) => (namespace, gate, None),
            (BLOCKED_BY_KEY, [namespace, gate, key]) => (namespace, gate, Some(text(key)?)),
            _ => return None,
        };
        Some(Self { namespace: text(namespace)?, gate: text(gate)?, fair_key })
    }
}

/// Executions with a tag.
pub fn tag(namespace: &str, key: &str, value: &str) -> IndexName {
    IndexName::from_parts(b'g', &[namespace.as_bytes(), key.as_bytes(), value.as_bytes()])
}

/// Executions a worker holds leases of. Not listed: it opens and closes with nearly every task.
pub fn worker(namespace: &str, instance: &str) -> IndexName {
    IndexName::from_parts(UNLISTED, &[namespace.as_bytes(), instance.as_bytes()])
}

/// Concurrency slots of a quota.
pub fn slots(namespace: &str, quota: &str) -> IndexName {
    IndexName::from_parts(SLOTS_PREFIX, &[namespace.as_bytes(), quota.as_bytes()])
}

/// Slots of a concurrency key.
pub fn key_slots(namespace: &str, key: &str) -> IndexName {
    IndexName::from_parts(SLOTS_PREFIX, &[namespace.as_bytes(), key.as_bytes(), KEY_SLOTS])
}

/// Namespace and key of an index of slots, if it is that of a concurrency key.
pub fn key_of_slots(name: &IndexName) -> Option<(String, String)> {
    let parts = name.parts().filter(|_| name.as_bytes().first() == Some(&SLOTS_PREFIX))?;
    match parts.as_slice() {
        [namespace, key, KEY_SLOTS] => Some((text(namespace)?, text(key)?)),
        _ => None,
    }
}

/// Budgets that stand under a root.
pub fn budgets_under(namespace: &str, root: &str) -> IndexName {
    IndexName::from_parts(b'u', &[namespace.as_bytes(), root.as_bytes()])
}

/// Reservations of a budget that are held, by when they were made.
pub fn reservations(namespace: &str, budget: &str) -> IndexName {
    IndexName::from_parts(b'r', &[namespace.as_bytes(), budget.as_bytes()])
}

/// Reservations under a root whose amounts are to be held under other roots, too, by when they were made.
pub fn reservations_beside(namespace: &str, root: &str) -> IndexName {
    IndexName::from_parts(b'r', &[namespace.as_bytes(), root.as_bytes(), b"beside"])
}

/// Bulk jobs of a namespace that have not ended, by creation.
pub fn open_bulk(namespace: &str) -> IndexName {
    IndexName::from_parts(b'j', &[namespace.as_bytes()])
}

/// Waitpoints and signals of an execution.
pub fn execution_parts(execution: Uuid) -> IndexName {
    IndexName::from_parts(b'h', &[execution.as_bytes()])
}

/// Waitpoints of an execution that no suspension has taken yet; those of its suspension stand in the execution.
pub fn pending_waitpoints(execution: Uuid) -> IndexName {
    IndexName::from_parts(b'p', &[execution.as_bytes()])
}

/// Documents of one kind in a namespace: flows and bulk jobs by creation; budgets, quotas, schedules, lanes, workers and tokens by name. Tokens
/// are listed for the whole deployment, where their names are unique.
pub fn listing(document_kind: u8, namespace: &str) -> IndexName {
    IndexName::from_parts(LISTING_PREFIX, &[&[document_kind], namespace.as_bytes()])
}

/// The subject of a `due` entry: its member is the document's key and one more byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Due {
    /// The lease beside the document runs out. The store moves this entry with every renewal.
    Lease,
    /// The earliest of the document's own timers.
    Timer,
}

impl Due {
    /// The member of a document's entry.
    pub fn member(self, key: &Key) -> Key {
        let marker = match self {
            Due::Lease => b'L',
            Due::Timer => b'T',
        };
        key.followed_by(marker)
    }

    /// The document's entry in the `due` index.
    pub fn entry(self, key: &Key, at: i64) -> Entry {
        Entry { index: due(), member: self.member(key), score: at }
    }

    /// The document and the subject that a member stands for.
    pub fn parse(member: &Key) -> Option<(Key, Due)> {
        let (last, key) = member.as_bytes().split_last()?;
        let due = match last {
            b'L' => Due::Lease,
            b'T' => Due::Timer,
            _ => return None,
        };
        Some((Key::from_bytes(key), due))
    }
}

/// Where an execution stands in its queue: one step of priority is worth so much age. By default that is more than any
/// age, so that priority decides and then age.
pub fn queue_score(priority: i64, created_at: i64, aging_ms: i64) -> i64 {
    created_at - priority * aging_ms
}

/// Where a name stands in a listing: by its first six bytes, which is all that stays exact in a double.
pub fn name_score(name: &str) -> i64 {
    name.bytes().chain(std::iter::repeat(0)).take(6).fold(0, |score, byte| (score << 8) | i64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits;

    const AGING: i64 = limits::AGING_DEFAULT_MS;

    fn entry(member: u8, score: i64) -> Entry {
        Entry { index: due(), member: Key::from_bytes([member]), score }
    }

    #[test]
    fn a_moved_entry_is_set_and_not_removed() {
        let (set, removed) = difference(vec![entry(1, 10), entry(2, 10)], vec![entry(1, 20)]);
        assert_eq!((set, removed), (vec![entry(1, 20)], vec![entry(2, 10)]));
    }

    #[test]
    fn what_is_not_listed_has_names_of_its_own() {
        let unlisted = [due(), marks(), worker("default", "w"), worker("due", "")];
        assert!(unlisted.iter().all(|index| !index.is_listed()));
        assert_eq!(unlisted.iter().collect::<std::collections::BTreeSet<_>>().len(), unlisted.len());
        assert!(queue("n", "l", "k", "", "").is_listed() && state("n", PublicState::Active).is_listed());
    }

    #[test]
    fn the_name_of_an_index_of_parked_work_says_its_gate_and_key() {
        let name = |key: Option<&str>| BlockedName {
            namespace: "n".into(),
            gate: "q:a,b".into(),
            fair_key: key.map(str::to_owned),
        };
        assert_eq!(BlockedName::parse(&blocked("n", "q:a,b")), Some(name(None)));
        assert_eq!(BlockedName::parse(&blocked_by_key("n", "q:a,b", "acme")), Some(name(Some("acme"))));
        assert_eq!(BlockedName::parse(&queue("n", "l", "k", "", "q:a,b")), None);
        assert!(blocked_by_key("n", "q:a", "x").as_bytes().starts_with(&blocked_keys("n", "q:a")));
        assert!(!blocked_by_key("n", "q:ab", "x").as_bytes().starts_with(&blocked_keys("n", "q:a")));
    }

    #[test]
    fn queue_scores_stay_exact_in_a_double() {
        let year_2200 = 7_258_118_400_000;
        assert!(queue_score(limits::PRIORITY_MAX, 0, AGING).abs() <= limits::SCORE_MAX);
        assert!(queue_score(0, year_2200, AGING).abs() <= limits::SCORE_MAX);
        let (now, thirty_years) = (1_800_000_000_000, 30 * 365 * 86_400_000);
        assert!(queue_score(1, now + thirty_years, AGING) < queue_score(0, now, AGING));
    }

    #[test]
    fn the_queues_of_a_lane_and_no_others_begin_like_it() {
        let prefix = queues_of_lane("n", "l");
        assert!(queue("n", "l", "k", "gpu", "b:x").as_bytes().starts_with(&prefix));
        assert!(queue_of_any_kind("n", "l", "gpu", "b:x").as_bytes().starts_with(&prefix));
        assert!(!queue("n", "l2", "k", "", "").as_bytes().starts_with(&prefix));
    }

    #[test]
    fn names_of_indexes_tell_what_they_are_about() {
        let queue = queue("n", "l", "k", "gpu", "b:x");
        let parsed = QueueName::parse(&queue).unwrap();
        assert_eq!((parsed.namespace.as_str(), parsed.lane.as_str()), ("n", "l"));
        assert_eq!(parsed.kind.as_deref(), Some("k"));
        let fair = fair_queue("n", "l", "k", "gpu", "b:x", "tenant");
        assert_eq!(QueueName::parse(&fair), Some(parsed));
        assert!(fair.as_bytes().starts_with(&queues_of_lane("n", "l")));
        assert_eq!(QueueName::parse(&queue_of_any_kind("n", "l", "gpu", "b:x")).unwrap().kind, None);
        assert!(queue.as_bytes().starts_with(&queues_of_namespace("n")));
        assert!(!queue.as_bytes().starts_with(&queues_of_namespace("n2")));
        assert_eq!(QueueName::parse(&state("n", PublicState::Active)), None);
        assert_eq!(namespace_of(&state("n", PublicState::Active)).as_deref(), Some("n"));
        assert_eq!(namespace_of(&listing(kind::LANE, "n")).as_deref(), Some("n"));
        assert_eq!(namespace_of(&listing(kind::TOKEN, "")), None);
        assert_eq!(namespace_of(&queue), None);
    }

    #[test]
    fn slots_of_a_concurrency_key_are_told_from_those_of_a_quota() {
        assert_eq!(key_of_slots(&key_slots("n", "k")), Some(("n".to_owned(), "k".to_owned())));
        assert_eq!(key_of_slots(&slots("n", "k")), None);
    }

    #[test]
    fn names_are_listed_in_their_order() {
        let names = ["", "a", "aa", "ab", "b", "team-a", "zz"];
        assert!(names.is_sorted_by_key(|name| name_score(name)));
        assert!(name_score("\u{10ffff}\u{10ffff}") <= limits::SCORE_MAX);
    }

    #[test]
    fn a_due_member_leads_back_to_its_document() {
        let key = Key::new(kind::EXECUTION, &[&[7; 16]]);
        for due in [Due::Lease, Due::Timer] {
            assert_eq!(Due::parse(&due.member(&key)), Some((key.clone(), due)));
        }
    }
}
