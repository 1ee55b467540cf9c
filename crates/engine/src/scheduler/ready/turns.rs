//! Turns by key in a lane. Each key has an account of the turns it has had; the key that has had the fewest is served
//! next, and a turn costs less the more weight the work has. A key that had no work saves up no turns: it joins at the
//! level of the others.

use std::collections::{BTreeMap, BTreeSet};

use super::queue::QueueId;

/// The cost of a turn for a key of weight one.
const TURN: u64 = 1_000_000;
/// The number of accounts at which those that make no difference are forgotten.
const ACCOUNTS_MAX: usize = 1_024;
/// The number of accounts at which those of all keys without work are forgotten. While every key that comes is served
/// for the first time, every account makes a difference, so the smaller limit forgets none.
const ACCOUNTS_KEPT: usize = 65_536;
/// The range of scores of one priority.
const BAND: i64 = ff_core::limits::AGING_DEFAULT_MS;
/// Heads that are examined to find one in a partition in which this engine is ranked first.
const NEAR_MAX: usize = 64;
/// The beginning of the first band, chosen so that instants of the years 2017 to 2049 lie within one band.
const BAND_BEGINS: i64 = BAND + BAND / 2;

/// Where a queue stands among the heads of its lane. In a lane without keys only the score counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// Heads of a better priority come first, whatever their keys.
    band: i64,
    turn: u64,
    score: i64,
}

/// The accounts of the keys of a lane. Work without a key has the key "".
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// The turns that each key has had. A key that is not here has had none since the others began.
    had: BTreeMap<String, u64>,
    /// The account that the key served last had before its turn.
    now: u64,
}

impl Turns {
    /// Where a key stands with a head of this score.
    pub(crate) fn place(&self, key: &str, score: i64) -> Place {
        let band = score.saturating_sub(BAND_BEGINS).div_euclid(BAND);
        Place { band, turn: self.had.get(key).copied().unwrap_or(0), score }
    }

    /// Charges a turn to a key that is served.
    pub(crate) fn charge(&mut self, key: &str, weight: u32) {
        let had = match self.had.get_mut(key) {
            Some(had) => had,
            None => self.had.entry(key.to_owned()).or_default(),
        };
        self.now = self.now.max(*had);
        *had = self.now + TURN / u64::from(weight.max(1));
    }

    /// Refunds the turn of a key that was not served after all.
    pub(crate) fn refund(&mut self, key: &str, weight: u32) {
        if let Some(had) = self.had.get_mut(key) {
            *had = had.saturating_sub(TURN / u64::from(weight.max(1)));
        }
    }

    /// Whether there are so many accounts that some should be forgotten.
    pub(crate) fn are_many(&self) -> bool {
        self.had.len() >= ACCOUNTS_MAX && self.had.len().is_power_of_two()
    }

    /// Forgets the accounts of keys that are not listed and have had no more turns than the key served last: they are
    /// as good as new. If there are very many accounts, those with more turns are forgotten, too; such a key gets one
    /// turn too early when it comes back.
    pub(crate) fn forget_unlisted(&mut self, is_listed: impl Fn(&str) -> bool) {
        let (now, many) = (self.now, self.had.len() >= ACCOUNTS_KEPT);
        self.had.retain(|key, had| (*had > now && !many) || is_listed(key));
    }
}

/// Queues in the order in which their heads are to be taken.
#[derive(Debug)]
pub(super) enum Order {
    ByScore(BTreeSet<(i64, QueueId)>),
    ByTurn(ByTurn),
}

/// Keys in the order of their turns, and the queues of each by their scores. A turn moves its key and no queue.
#[derive(Debug, Default)]
pub(super) struct ByTurn {
    keys: BTreeMap<String, KeyQueues>,
    order: BTreeSet<(Place, String)>,
}

#[derive(Debug)]
struct KeyQueues {
    /// Where the key stands in the order.
    place: Place,
    queues: BTreeSet<(i64, QueueId)>,
}

impl Order {
    /// An empty order, for a lane whose work takes turns or does not.
    pub(super) fn of(turns: Option<&Turns>) -> Self {
        if turns.is_some() { Self::ByTurn(ByTurn::default()) } else { Self::ByScore(BTreeSet::new()) }
    }

    pub(super) fn insert(&mut self, key: &str, head: (i64, QueueId), turns: Option<&Turns>) {
        match (self, turns) {
            (Self::ByScore(heads), _) => drop(heads.insert(head)),
            (Self::ByTurn(keys), Some(turns)) => keys.insert(key, head, turns),
            (Self::ByTurn(_), None) => {}
        }
    }

    pub(super) fn remove(&mut self, key: &str, head: &(i64, QueueId), turns: Option<&Turns>) {
        match (self, turns) {
            (Self::ByScore(heads), _) => drop(heads.remove(head)),
            (Self::ByTurn(keys), Some(turns)) => keys.remove(key, head, turns),
            (Self::ByTurn(_), None) => {}
        }
    }

    /// Moves a key whose account has changed.
    pub(super) fn moved(&mut self, key: &str, turns: &Turns) {
        if let Self::ByTurn(keys) = self {
            keys.moved(key, turns);
        }
    }

    pub(super) fn has_key(&self, key: &str) -> bool {
        matches!(self, Self::ByTurn(keys) if keys.keys.contains_key(key))
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::ByScore(heads) => heads.len(),
            Self::ByTurn(keys) => keys.keys.values().map(|key| key.queues.len()).sum(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::ByScore(heads) => heads.is_empty(),
            Self::ByTurn(keys) => keys.keys.is_empty(),
        }
    }

    /// The first queues whose heads have this score or a better one. Where keys take turns, none but the first may be taken.
    pub(super) fn up_to(&self, score: i64) -> impl Iterator<Item = (i64, &QueueId)> {
        let heads = match self {
            Self::ByScore(heads) => Some(heads),
            Self::ByTurn(_) => None,
        };
        let near = heads.into_iter().flatten().take(NEAR_MAX).take_while(move |(head, _)| *head <= score);
        near.map(|(head, id)| (*head, id))
    }

    /// The queue that is to be taken first, and its place.
    pub(super) fn first(&self) -> Option<(Place, &QueueId)> {
        match self {
            Self::ByScore(heads) => heads.first().map(|(score, id)| (Place { band: 0, turn: 0, score: *score }, id)),
            Self::ByTurn(keys) => {
                let (place, key) = keys.order.first()?;
                keys.keys.get(key)?.queues.first().map(|(_, id)| (*place, id))
            }
        }
    }
}

impl Place {
    /// The worst score of work that is at most this much younger.
    pub(super) fn not_later_than(self, ms: i64) -> i64 {
        self.score.saturating_add(ms)
    }
}

impl ByTurn {
    fn insert(&mut self, key: &str, head: (i64, QueueId), turns: &Turns) {
        match self.keys.get_mut(key) {
            Some(known) => drop(known.queues.insert(head)),
            None => {
                let place = turns.place(key, head.0);
                self.order.insert((place, key.to_owned()));
                self.keys.insert(key.to_owned(), KeyQueues { place, queues: BTreeSet::from([head]) });
            }
        }
        self.moved(key, turns);
    }

    fn remove(&mut self, key: &str, head: &(i64, QueueId), turns: &Turns) {
        if let Some(known) = self.keys.get_mut(key) {
            known.queues.remove(head);
        }
        self.moved(key, turns);
    }

    fn moved(&mut self, key: &str, turns: &Turns) {
        let Some(known) = self.keys.get_mut(key) else { return };
        let place = known.queues.first().map(|(score, _)| turns.place(key, *score));
        if place == Some(known.place) {
            return;
        }
        let mut entry = (known.place, key.to_owned());
        self.order.remove(&entry);
        match place {
            Some(place) => {
                known.place = place;
                entry.0 = place;
                self.order.insert(entry);
            }
            None => drop(self.keys.remove(key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(number: u8) -> QueueId {
        let index = ff_core::IndexName::from_bytes([number]);
        QueueId { partition: ff_core::Partition::flow(0), index }
    }

    /// Serves the key that stands first, with these weights, so many times.
    fn served(turns: &mut Turns, keys: &[(&'static str, u32)], times: usize) -> Vec<&'static str> {
        let mut order = Order::of(Some(turns));
        for (number, (key, _)) in keys.iter().enumerate() {
            order.insert(key, (5, queue(u8::try_from(number).unwrap())), Some(turns));
        }
        let serve = |_| {
            let (_, first) = order.first().expect("there are keys");
            let (key, weight) = keys[usize::from(first.index.as_bytes()[0])];
            turns.charge(key, weight);
            order.moved(key, turns);
            key
        };
        (0..times).map(serve).collect()
    }

    #[test]
    fn keys_take_turns_and_one_that_comes_late_catches_up_with_nobody() {
        let mut turns = Turns::default();
        assert_eq!(served(&mut turns, &[("a", 1)], 100).len(), 100);
        let late = served(&mut turns, &[("a", 1), ("b", 1)], 6);
        assert_eq!(late.iter().filter(|key| **key == "b").count(), 3, "{late:?}");
        assert_eq!(late[0], "b");
        // One that paused has saved up nothing.
        served(&mut turns, &[("a", 1)], 50);
        let again = served(&mut turns, &[("a", 1), ("b", 1)], 4);
        assert_eq!(again.iter().filter(|key| **key == "b").count(), 2, "{again:?}");
    }

    #[test]
    fn weight_is_a_share() {
        let mut turns = Turns::default();
        let heavy = served(&mut turns, &[("a", 1), ("b", 3)], 40);
        let share = heavy.iter().filter(|key| **key == "b").count();
        assert!((29..=31).contains(&share), "{share} of 40");
    }

    #[test]
    fn priority_goes_before_turns_and_turns_before_age() {
        let mut turns = Turns::default();
        turns.charge("a", 1);
        let now = 1_800_000_000_000;
        let score = |priority: i64, created: i64| created - priority * BAND;
        assert!(turns.place("a", score(1, now)) < turns.place("b", score(0, now - 1_000_000_000)));
        assert!(turns.place("b", score(0, now + 1_000_000_000)) < turns.place("a", score(0, now)));
        assert!(turns.place("a", i64::MIN) < turns.place("b", score(9_000, now)), "what is unknown is read first");
        turns.refund("a", 1);
        assert!(turns.place("a", score(0, now)) < turns.place("b", score(0, now + 1)));
    }

    #[test]
    fn the_best_queue_of_a_key_speaks_for_it_and_an_empty_key_leaves() {
        let turns = Turns::default();
        let mut order = Order::of(Some(&turns));
        for (key, score, number) in [("a", 7, 1), ("a", 3, 2), ("b", 5, 3)] {
            order.insert(key, (score, queue(number)), Some(&turns));
        }
        let mut taken = Vec::new();
        for (key, score, number) in [("a", 3, 2), ("b", 5, 3), ("a", 7, 1)] {
            let first = order.first().map(|(_, id)| id.clone());
            assert_eq!(first, Some(queue(number)));
            order.remove(key, &(score, queue(number)), Some(&turns));
            taken.push(order.has_key(key));
        }
        assert_eq!(taken, [true, false, false]);
        assert!(order.is_empty() && order.first().is_none());
    }

    #[test]
    fn accounts_that_say_nothing_are_forgotten() {
        let mut turns = Turns::default();
        for number in 0..10_000 {
            turns.charge("busy", 1);
            turns.charge(&number.to_string(), 1);
            if turns.are_many() {
                turns.forget_unlisted(|key| key == "busy");
            }
        }
        assert!(turns.had.len() <= ACCOUNTS_MAX && turns.had.contains_key("busy"), "{}", turns.had.len());
    }
}
