//! Letting in what is parked behind a gate that has opened: the best priority first, then the key that has had the fewest
//! turns at this gate, then age.
//!
//! Parked work of each fair key has an index of its own, and work without a key has one in common. So a look costs the
//! keys that wait and not the executions, and a gate that no key waits for is read as one list.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ff_core::event::Effects;
use ff_core::execution::Execution;
use ff_core::index::BlockedName;
use ff_core::{Entry, IndexName, Indexed, Key, Partition, Result, index};
use ff_store::{Answer, Query, Scan, ScanPage};
use futures_util::future::join_all;

use super::Scheduler;
use super::reads::NAMES_LIMIT;
use super::ready::Turns;
use crate::env;
use crate::groups::Name;
use crate::transaction::{Command, Tx};

/// Executions unparked by one commit.
const UNPARK_CHUNK: usize = 64;
/// Keys of a partition whose heads are compared in one look: those that have had the fewest turns.
const KEYS_MAX: usize = 128;
/// Partitions that do not answer within this time are passed over, so that they do not hold up what waits elsewhere.
const LOOK_PATIENCE_MS: i64 = 1_000;
/// Gates whose turns are remembered. A gate that is forgotten begins anew.
const GATES_MAX: usize = 1_024;

/// The turns that keys have had at gates, as far as this engine let them in.
#[derive(Default)]
pub(super) struct TurnsAtGates(BTreeMap<Name, TurnsAtGate>);

#[derive(Default)]
struct TurnsAtGate {
    turns: Turns,
    /// Partitions with more keys than one page of names has: the last name that was read.
    read_up_to: BTreeMap<Partition, IndexName>,
}

impl TurnsAtGates {
    fn at(&mut self, gate: &Name) -> &mut TurnsAtGate {
        if self.0.len() >= GATES_MAX && !self.0.contains_key(gate) {
            self.0.clear();
        }
        self.0.entry(gate.clone()).or_default()
    }
}

/// An execution that waits, as its index shows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Head {
    score: i64,
    member: Key,
    place: Partition,
}

/// The executions of one key that were found.
#[derive(Debug, Default)]
struct Heads {
    found: VecDeque<Head>,
    /// Partitions in which there may be more behind them.
    more: BTreeSet<Partition>,
}

impl Heads {
    /// Takes the first one. Says whether another one of its partition may come before the rest, and is not known.
    fn pop(&mut self) -> Option<(Head, bool)> {
        let head = self.found.pop_front()?;
        let unknown = self.more.contains(&head.place) && !self.found.iter().any(|other| other.place == head.place);
        Some((head, unknown))
    }
}

/// The executions that wait for a gate in some partitions: the first of each key.
#[derive(Debug, Default)]
struct Waiting {
    /// By fair key; work without a key is under "".
    keys: BTreeMap<String, Heads>,
    /// Partitions in which keys wait that were not looked at.
    unseen: BTreeSet<Partition>,
    /// Partitions that could not be read.
    unread: Vec<Partition>,
}

impl Waiting {
    fn add(&mut self, key: &str, place: Partition, page: ScanPage, limit: usize) {
        if page.entries.is_empty() {
            return;
        }
        let heads = self.keys.entry(key.to_owned()).or_default();
        if page.entries.len() > limit {
            heads.more.insert(place);
        }
        heads.found.extend(page.entries.into_iter().map(|e| Head { score: e.score, member: e.member, place }));
        heads.found.make_contiguous().sort_unstable();
    }

    /// Whether no work that waits has a key: then nobody takes turns.
    fn has_no_keys(&self) -> bool {
        self.keys.keys().all(String::is_empty) && self.unseen.is_empty()
    }

    /// Takes up to so many, each from the key that stands first.
    fn choose(&mut self, turns: &mut Turns, limit: usize) -> Vec<(String, Head)> {
        let mut chosen = Vec::new();
        while chosen.len() < limit {
            let stands =
                |(key, heads): (&String, &Heads)| Some((turns.place(key, heads.found.front()?.score), key.clone()));
            let Some((_, key)) = self.keys.iter().filter_map(stands).min() else { break };
            let Some((head, unknown)) = self.keys.get_mut(&key).and_then(Heads::pop) else { break };
            turns.charge(&key, 1);
            chosen.push((key, head));
            // What comes next under this key is to be read before others take its turn.
            if unknown {
                break;
            }
        }
        chosen
    }

    /// Takes up to so many by their scores, where no key waits.
    fn take(&mut self, limit: usize) -> Vec<(String, Head)> {
        let Some(heads) = self.keys.get_mut("") else { return Vec::new() };
        let count = limit.min(heads.found.len());
        heads.found.drain(..count).map(|head| (String::new(), head)).collect()
    }

    /// Whether something is left in a partition.
    fn is_left_in(&self, place: Partition) -> bool {
        let left = |heads: &Heads| heads.more.contains(&place) || heads.found.iter().any(|head| head.place == place);
        self.unseen.contains(&place) || self.keys.values().any(left)
    }
}

/// What a look at partitions left behind.
#[derive(Debug, Default)]
pub(super) struct LetIn {
    /// Nothing waited there.
    pub(super) empty: Vec<Partition>,
    /// All that waited there was let in.
    pub(super) emptied: Vec<Partition>,
    /// These did not answer.
    pub(super) silent: Vec<Partition>,
    /// Something waits elsewhere.
    pub(super) is_left: bool,
    let_in_from: BTreeSet<Partition>,
}

impl Scheduler {
    /// Lets in up to so many executions that wait for a gate in these partitions. Room is kept for them until an instant.
    pub(super) async fn let_in(&self, gate: &Name, places: &[Partition], count: u64, until: i64) -> LetIn {
        let (mut left, mut places, mut looked) = (count, places.to_vec(), LetIn::default());
        while left > 0 && !places.is_empty() {
            let limit = self.transactor.chunk(usize::try_from(left).unwrap_or(UNPARK_CHUNK).min(UNPARK_CHUNK));
            let mut waiting = self.find_waiting(gate, &places, limit).await;
            let chosen = match waiting.has_no_keys() {
                true => waiting.take(limit),
                false => {
                    let mut gates = self.turns_at_gates();
                    let turns = &mut gates.at(gate).turns;
                    if turns.are_many() {
                        turns.forget_unlisted(|key| waiting.keys.contains_key(key));
                    }
                    waiting.choose(turns, limit)
                }
            };
            // A claim may try an execution before this task learns that the execution was put back.
            let looks = &self.memory.gate_looks;
            looks.keep_room(gate, chosen.iter().map(|(_, head)| (head.place, head.member.clone())), until);
            let unparked = self.put_back(gate, &chosen, &mut waiting.unread).await;
            self.correct_turns(gate, &chosen, &unparked);
            let eligible: BTreeSet<&Key> = unparked.iter().filter(|one| one.eligible).map(|one| &one.key).collect();
            let others = chosen.iter().filter(|(_, head)| !eligible.contains(&head.member));
            others.for_each(|(_, head)| looks.forget(&head.member));
            // An execution that another hold keeps back as well uses no room. A round that moved nothing counts in
            // full, so that entries without documents cannot keep this going.
            let used = if unparked.is_empty() { chosen.len() } else { eligible.len() };
            left = left.saturating_sub(used as u64);
            // Where nothing was found there is nothing to come back for, whatever the names of indexes said before.
            for place in std::mem::take(&mut places) {
                if waiting.unread.contains(&place) {
                    looked.silent.push(place);
                } else if !chosen.is_empty() && waiting.is_left_in(place) {
                    places.push(place);
                } else if looked.let_in_from.contains(&place) || chosen.iter().any(|(_, head)| head.place == place) {
                    looked.emptied.push(place);
                } else {
                    looked.empty.push(place);
                }
            }
            looked.let_in_from.extend(chosen.iter().map(|(_, head)| head.place));
        }
        looked.is_left = !places.is_empty();
        looked
    }

    /// The partitions among these in which something waits for a gate, and those that do not answer.
    pub(super) async fn where_waiting(&self, gate: &Name, places: &[Partition]) -> Vec<Partition> {
        let Waiting { keys, unread, .. } = self.find_waiting(gate, places, 1).await;
        let found = keys.values().flat_map(|heads| heads.found.iter().map(|head| head.place));
        let all: BTreeSet<Partition> = found.chain(unread).collect();
        all.into_iter().collect()
    }

    fn turns_at_gates(&self) -> std::sync::MutexGuard<'_, TurnsAtGates> {
        self.memory.turns_at_gates.lock().expect("no holder of this lock panics")
    }

    /// The first executions that wait for a gate in these partitions, up to so many of each key.
    async fn find_waiting(&self, gate: &Name, places: &[Partition], limit: usize) -> Waiting {
        let looks = places.iter().map(|place| async move {
            let look = self.look_into(gate, *place, limit);
            (*place, env::within(self.transactor.env_handle(), LOOK_PATIENCE_MS, look).await)
        });
        let mut waiting = Waiting::default();
        for (place, found) in join_all(looks).await {
            let Some(Ok(found)) = found else {
                waiting.unread.push(place);
                continue;
            };
            for (key, page, limit) in found.pages {
                waiting.add(&key, place, page, limit);
            }
            if found.more_keys {
                waiting.unseen.insert(place);
            }
        }
        waiting
    }

    async fn look_into(&self, gate: &Name, place: Partition, limit: usize) -> Result<Found> {
        let Names { keys, more, plain } = self.read_names(gate, place, limit).await?;
        let keys = self.fewest_turns(gate, keys);
        let more_keys = more || keys.len() > KEYS_MAX;
        let mut found = Found { pages: vec![(String::new(), plain, limit)], more_keys };
        if keys.is_empty() {
            return Ok(found);
        }
        let keys: Vec<String> = keys.into_iter().take(KEYS_MAX).collect();
        let share = limit.div_ceil(keys.len());
        let scan = |key| Query::Scan(Scan::first(index::blocked_by_key(&gate.0, &gate.1, key), share + 1));
        let answers = self.transactor.read(place, keys.iter().map(|key| scan(key)).collect()).await?;
        for (key, answer) in keys.into_iter().zip(answers.answers) {
            found.pages.push((key, answer.into_scan().unwrap_or_default(), share));
        }
        Ok(found)
    }

    /// A page of the keys that wait for a gate in a partition, and the first executions without a key. The next look goes on
    /// behind a page that was full.
    async fn read_names(&self, gate: &Name, place: Partition, limit: usize) -> Result<Names> {
        let page = self.transactor.chunk(NAMES_LIMIT);
        let after = self.turns_at_gates().0.get(gate).and_then(|known| known.read_up_to.get(&place).cloned());
        let names = |after| Query::Indexes { prefix: index::blocked_keys(&gate.0, &gate.1), after, limit: page };
        let mut queries = vec![Query::Scan(Scan::first(index::blocked(&gate.0, &gate.1), limit + 1)), names(None)];
        queries.extend(after.clone().map(|after| names(Some(after))));
        let mut answers = self.transactor.read(place, queries).await?.answers.into_iter();
        let plain = answers.next().and_then(Answer::into_scan).unwrap_or_default();
        let pages: Vec<Vec<IndexName>> = answers.filter_map(Answer::into_indexes).collect();
        let last = pages.last().filter(|names| names.len() == page).and_then(|names| names.last());
        if last.is_some() || after.is_some() {
            let mut gates = self.turns_at_gates();
            let known = &mut gates.at(gate).read_up_to;
            match last {
                Some(last) => drop(known.insert(place, last.clone())),
                None => drop(known.remove(&place)),
            }
        }
        let keys = pages.iter().flatten().filter_map(|name| BlockedName::parse(name)?.fair_key).collect();
        Ok(Names { keys, more: pages.iter().any(|names| names.len() == page), plain })
    }

    /// Keys in the order of the turns that they have had at a gate.
    fn fewest_turns(&self, gate: &Name, keys: BTreeSet<String>) -> Vec<String> {
        let mut keys: Vec<String> = keys.into_iter().collect();
        if keys.len() > KEYS_MAX
            && let Some(known) = self.turns_at_gates().0.get(gate)
        {
            keys.sort_by_cached_key(|key| known.turns.place(key, 0));
        }
        keys
    }

    /// Puts executions back into their queues, one commit for each partition, all at once. Partitions in which that fails
    /// are added to those that could not be read.
    async fn put_back(&self, gate: &Name, chosen: &[(String, Head)], unread: &mut Vec<Partition>) -> Vec<PutBack> {
        let mut by_place: BTreeMap<Partition, Vec<Entry>> = BTreeMap::new();
        for (key, head) in chosen {
            let index = match key.is_empty() {
                true => index::blocked(&gate.0, &gate.1),
                false => index::blocked_by_key(&gate.0, &gate.1, key),
            };
            let entry = Entry { index, member: head.member.clone(), score: head.score };
            by_place.entry(head.place).or_default().push(entry);
        }
        let commits = by_place.into_iter().map(|(place, entries)| async move {
            let verb = Unpark { gate: &gate.1, entries };
            (place, self.transactor.transact(place, self.transactor.fresh_command(), &verb).await)
        });
        let mut unparked = Vec::new();
        for (place, outcome) in join_all(commits).await {
            match outcome {
                Ok(here) => unparked.extend(here),
                Err(error) => {
                    if let Some(suppressed) = self.transactor.may_log("parked work could not be woken") {
                        tracing::warn!(%place, %error, suppressed, "parked work could not be woken; looking again later");
                    }
                    unread.push(place);
                }
            }
        }
        unparked
    }

    /// Each that was chosen was charged as one of weight one. Now its weight is known, and whether it was let in at all.
    fn correct_turns(&self, gate: &Name, chosen: &[(String, Head)], unparked: &[PutBack]) {
        if chosen.iter().all(|(key, _)| key.is_empty()) {
            return;
        }
        let mut gates = self.turns_at_gates();
        let turns = &mut gates.at(gate).turns;
        for (key, head) in chosen {
            match unparked.iter().find(|one| one.key == head.member) {
                Some(one) if one.weight <= 1 => {}
                Some(one) => {
                    turns.refund(key, 1);
                    turns.charge(key, one.weight);
                }
                None => turns.refund(key, 1),
            }
        }
    }
}

/// The keys that wait in one partition.
struct Names {
    keys: BTreeSet<String>,
    /// There may be others.
    more: bool,
    /// The first executions without a key.
    plain: ScanPage,
}

/// The executions found in one partition.
struct Found {
    /// Key, its first executions, and how many were wanted of it.
    pages: Vec<(String, ScanPage, usize)>,
    /// There are keys that were not looked at.
    more_keys: bool,
}

/// Puts parked executions back into their queues.
struct Unpark<'a> {
    gate: &'a str,
    entries: Vec<Entry>,
}

/// An execution that was unparked.
struct PutBack {
    key: Key,
    weight: u32,
    /// Nothing else holds it.
    eligible: bool,
}

impl Command for Unpark<'_> {
    type Outcome = Vec<PutBack>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<PutBack>> {
        let mut unparked = Vec::new();
        let keys = self.entries.iter().map(|entry| entry.member.clone()).collect();
        for (loaded, entry) in tx.load_many::<Execution>(keys).await?.into_iter().zip(&self.entries) {
            let parked = loaded.map(|loaded| loaded.document).filter(|execution| execution.parked_on == self.gate);
            let Some(mut execution) = parked else {
                // A version that does not know of indexes by key left it behind. It would stand in the way of others.
                tx.remove_stray(&entry.member, entry.clone()).await?;
                continue;
            };
            let mut effects = Effects::default();
            execution.unpark(tx.now, &mut effects);
            let (key, weight) = (execution.key(), execution.fair_weight());
            unparked.push(PutBack { key, weight, eligible: execution.is_eligible() });
            tx.save_execution(&execution, effects);
        }
        Ok(unparked)
    }
}

#[cfg(test)]
mod tests {
    use ff_store::IndexEntry;

    use super::*;

    fn page(scores: &[i64]) -> ScanPage {
        let entry =
            |score: &i64| IndexEntry { member: Key::from_bytes(score.to_be_bytes()), score: *score, document: None };
        ScanPage { entries: scores.iter().map(entry).collect() }
    }

    fn keys(chosen: &[(String, Head)]) -> Vec<(&str, i64)> {
        chosen.iter().map(|(key, head)| (key.as_str(), head.score)).collect()
    }

    const NOW: i64 = 1_800_000_000_000;
    const URGENT: i64 = NOW - ff_core::limits::AGING_DEFAULT_MS;

    #[test]
    fn keys_take_turns_over_several_looks_and_priority_goes_first() {
        let mut turns = Turns::default();
        let look = |turns: &mut Turns, limit| {
            let mut waiting = Waiting::default();
            waiting.add("a", Partition::flow(0), page(&[NOW, NOW + 1, NOW + 2]), 3);
            waiting.add("b", Partition::flow(1), page(&[NOW + 5]), 3);
            waiting.add("", Partition::flow(1), page(&[URGENT, NOW + 9]), 3);
            let chosen = waiting.choose(turns, limit);
            keys(&chosen).into_iter().map(|(key, score)| (key.to_owned(), score)).collect::<Vec<_>>()
        };
        let all = look(&mut turns, 9);
        let expected = [("", URGENT), ("a", NOW), ("b", NOW + 5), ("a", NOW + 1), ("", NOW + 9), ("a", NOW + 2)];
        assert_eq!(all, expected.map(|(key, score)| (key.to_owned(), score)));
        assert_eq!(look(&mut turns, 2)[1].0, "b", "it has had the fewest turns");
    }

    #[test]
    fn no_key_takes_the_turn_of_one_whose_next_is_not_known() {
        let mut waiting = Waiting::default();
        waiting.add("a", Partition::flow(0), page(&[NOW, NOW + 1]), 1);
        waiting.add("b", Partition::flow(0), page(&[NOW + 2]), 1);
        waiting.keys.get_mut("a").unwrap().found.truncate(1);
        let chosen = waiting.choose(&mut Turns::default(), 9);
        assert_eq!(keys(&chosen), [("a", NOW)]);
        assert!(waiting.is_left_in(Partition::flow(0)) && !waiting.is_left_in(Partition::flow(1)));
    }

    #[test]
    fn without_keys_the_best_scores_go_first() {
        let mut waiting = Waiting::default();
        waiting.add("", Partition::flow(0), page(&[3, 5]), 2);
        waiting.add("", Partition::flow(1), page(&[1, 4]), 2);
        assert!(waiting.has_no_keys());
        assert_eq!(keys(&waiting.take(3)), [("", 1), ("", 3), ("", 4)]);
        assert!(waiting.is_left_in(Partition::flow(0)) && !waiting.is_left_in(Partition::flow(1)));
    }
}
