//! Servers that claim from one lane: they keep out of each other's way, and none of them is waited for long.

use super::*;

/// Work of a lane in a partition, created at an instant.
fn created(partition: Partition, number: u8, at: i64) -> Candidate {
    let id = ExecutionId::in_partition(partition, &Mint { now_ms: 1_000, random: [number; 10] });
    let request = NewExecution { id, namespace: "n".into(), lane: "lane".into(), kind: "k".into(), ..new_execution() };
    let execution = Arc::new(Execution::create(request, at).expect("a legal request"));
    Candidate { execution, queue: queue("lane", partition), ..candidate("lane", number) }
}

/// A lane with work in a partition of this engine and, older by so much, in one where another server comes first.
fn shared_lane(older_ms: i64) -> (Ready, Criteria) {
    let ranks = Ranks::default();
    ranks.replace(BTreeMap::from([(PLACES[0], 0), (PLACES[1], 1)]));
    let mut ready = Ready::new(ranks);
    let criteria = begin(&mut ready, "lane", 0);
    for place in PLACES {
        ready.learnt(("n", "lane"), place, page(None, &[], false), 0);
    }
    for number in 1..=40 {
        let at = 10_000 + i64::from(number);
        ready.offer(created(PLACES[0], number, at + older_ms), 0);
        ready.offer(created(PLACES[1], number, at), 0);
    }
    (ready, criteria)
}

fn taken(ready: &mut Ready, criteria: &Criteria, count: usize, now: i64) -> Vec<Candidate> {
    ready.pick(criteria, wanted(count, true), now).candidates
}

#[test]
fn a_server_that_was_overtaken_keeps_to_its_own_partitions_for_a_while() {
    let (mut ready, criteria) = shared_lane(NEAR_MS);
    let oldest = taken(&mut ready, &criteria, 1, 1).remove(0);
    assert_eq!(oldest.queue.partition, PLACES[1], "in calm the oldest comes first");
    ready.overtaken(&oldest, 1);
    assert!(taken(&mut ready, &criteria, 8, 2).iter().all(|one| one.queue.partition == PLACES[0]));
    let later = ready.pick(&criteria, wanted(1, true), 1 + CONTENDED_MS);
    assert_eq!(later.reads, [Read::Head(queue("lane", PLACES[1]))], "then the oldest comes first again");
}

#[test]
fn work_of_others_that_is_much_older_is_taken_from_behind_its_head() {
    let (mut ready, criteria) = shared_lane(2 * NEAR_MS);
    let oldest = taken(&mut ready, &criteria, 1, 1).remove(0);
    ready.overtaken(&oldest, 1);
    let pick = ready.pick(&criteria, wanted(1, true), 2);
    assert_eq!(pick.reads, [Read::Head(queue("lane", PLACES[1]))], "it is read again, and not passed over");
    let found: Vec<Candidate> = (1..=40).map(|number| created(PLACES[1], number, 10_000 + i64::from(number))).collect();
    ready.fetched(&queue("lane", PLACES[1]), found, None, true, 3);
    let several = taken(&mut ready, &criteria, 4, 4);
    let numbers: BTreeSet<Key> = several.iter().map(|one| one.place().1).collect();
    assert_eq!((several.len(), numbers.len()), (4, 4));
    assert!(several.iter().all(|one| one.queue.partition == PLACES[1]));
    let head = Execution::key_of(&created(PLACES[1], 2, 10_002).execution.id);
    assert!(several.iter().skip(1).all(|one| one.place().1 != head), "others take the head");
}

/// A lane that another server claims from, too, which has just taken the oldest work. What is left is in a partition of
/// this engine and, older by a millisecond, in one where so many servers come before it; there the head is `number` 2.
fn overtaken(rank: i64) -> (Ready, Criteria) {
    let (mut ready, criteria) = shared_lane(1);
    ready.ranks.replace(BTreeMap::from([(PLACES[0], 0), (PLACES[1], rank)]));
    let oldest = taken(&mut ready, &criteria, 1, 0).remove(0);
    assert_eq!(number_of(&oldest), (PLACES[1], 1));
    ready.overtaken(&oldest, 0);
    ready.queues.get_mut(&oldest.queue).expect("it is to be read again").begin_fetch(0);
    let rest: Vec<Candidate> = (2..=40).map(|number| created(PLACES[1], number, 10_000 + i64::from(number))).collect();
    ready.fetched(&queue("lane", PLACES[1]), rest, None, true, 0);
    (ready, criteria)
}

/// The partition of a candidate, and which of those of `shared_lane` it is.
fn number_of(candidate: &Candidate) -> (Partition, u8) {
    let partition = candidate.queue.partition;
    let is = |number: &u8| created(partition, *number, 1_000).place() == candidate.place();
    (partition, (1..=40).find(is).expect("it is one of them"))
}

#[test]
fn a_head_is_left_to_the_servers_before_this_one_for_a_while_and_then_taken_before_own_work() {
    for rank in 1..=3 {
        let (mut ready, criteria) = overtaken(rank);
        let due = rank * LEFT_PER_RANK_MS;
        for now in [1, due - 1] {
            assert_eq!(taken(&mut ready, &criteria, 1, now)[0].queue.partition, PLACES[0], "rank {rank} at {now}");
        }
        let several = taken(&mut ready, &criteria, 2, due);
        assert_eq!(number_of(&several[0]), (PLACES[1], 2), "rank {rank}");
        assert_eq!(several[1].queue.partition, PLACES[0], "the next head has not stood there for long");
    }
}

#[test]
fn work_of_others_is_not_taken_from_behind_a_head_that_was_left_for_long() {
    let (mut ready, criteria) = overtaken(1);
    // There is nothing else to take.
    ready.fetched(&queue("lane", PLACES[0]), Vec::new(), None, true, 0);
    let first = taken(&mut ready, &criteria, 3, 1).iter().map(number_of).collect::<Vec<_>>();
    assert_eq!(first[0], (PLACES[1], 2));
    assert!(!first.contains(&(PLACES[1], 3)), "the next head is left to others: {first:?}");
    let later = taken(&mut ready, &criteria, 1, 1 + LEFT_PER_RANK_MS);
    assert_eq!(number_of(&later[0]), (PLACES[1], 3));
}

#[test]
fn a_head_that_is_only_announced_is_read_when_it_was_left_for_long() {
    let (mut ready, criteria) = overtaken(1);
    // A lease was lost, and the execution comes back to its place before the others.
    let back = created(PLACES[1], 41, 9_999);
    ready.announce(&back.queue, back.execution.queue_score(), 10);
    for now in [10, 9 + LEFT_PER_RANK_MS] {
        let pick = ready.pick(&criteria, wanted(1, true), now);
        assert_eq!((pick.reads, pick.candidates[0].queue.partition), (vec![], PLACES[0]), "at {now}");
    }
    let pick = ready.pick(&criteria, wanted(1, true), 10 + LEFT_PER_RANK_MS);
    assert_eq!((heads(&pick), pick.candidates.len()), (vec![&queue("lane", PLACES[1])], 0));
    let found = vec![back.clone(), created(PLACES[1], 2, 10_002)];
    ready.fetched(&back.queue, found, None, true, 11 + LEFT_PER_RANK_MS);
    let first = taken(&mut ready, &criteria, 1, 11 + LEFT_PER_RANK_MS).remove(0);
    assert_eq!(first.place(), back.place(), "the time of a head goes on while it is read");
}

/// Work that several servers claim, by partition.
struct Shared(BTreeMap<Partition, Vec<Candidate>>);

impl Shared {
    /// Claims for a server, as often as it takes until it has work. Returns how often another server was faster.
    fn claim(&mut self, ready: &mut Ready, criteria: &Criteria, now: i64) -> usize {
        let mut conflicts = 0;
        loop {
            let pick = ready.pick(criteria, wanted(1, true), now);
            for id in heads(&pick) {
                let waits = self.0[&id.partition].iter().take(BUFFER_MAX / 8).cloned().collect::<Vec<_>>();
                let last = waits.last().map(|one| (one.execution.queue_score(), one.place().1));
                ready.fetched(id, waits.clone(), last, waits.len() == self.0[&id.partition].len(), now);
            }
            let Some(candidate) = pick.candidates.first() else {
                assert!(!pick.reads.is_empty(), "there is work");
                continue;
            };
            let waits = self.0.get_mut(&candidate.queue.partition).expect("both partitions have work");
            match waits.iter().position(|one| one.place() == candidate.place()) {
                Some(at) => {
                    waits.remove(at);
                    ready.settled(candidate);
                    return conflicts;
                }
                None => {
                    conflicts += 1;
                    ready.overtaken(candidate, now);
                }
            }
        }
    }
}

#[test]
fn two_servers_with_much_work_seldom_try_the_same() {
    // A millisecond apart, which is as fast as each server claims.
    let work =
        |partition: Partition| (partition, (1_000..2_000).map(|at| created_at(partition, at)).collect::<Vec<_>>());
    let mut shared = Shared(PLACES.map(work).into());
    let mut servers = [[0, 1], [1, 0]].map(|ranks| {
        let known = Ranks::default();
        known.replace(PLACES.into_iter().zip(ranks).collect());
        let mut ready = Ready::new(known);
        let criteria = begin(&mut ready, "lane", 0);
        PLACES.iter().for_each(|place| ready.announce(&queue("lane", *place), i64::MIN, 0));
        (ready, criteria)
    });
    let (mut claims, mut conflicts) = (0, 0);
    for now in 0..900 {
        for (ready, criteria) in &mut servers {
            conflicts += shared.claim(ready, criteria, now);
            claims += 1;
        }
    }
    assert!(conflicts * 50 < claims, "{conflicts} conflicts in {claims} claims");
}

/// Work of a lane in a partition, with an id for each instant.
fn created_at(partition: Partition, at: i64) -> Candidate {
    let id = ExecutionId::in_partition(partition, &Mint { now_ms: at, random: [0; 10] });
    let request = NewExecution { id, namespace: "n".into(), lane: "lane".into(), kind: "k".into(), ..new_execution() };
    let execution = Arc::new(Execution::create(request, at).expect("a legal request"));
    Candidate { execution, queue: queue("lane", partition), ..candidate("lane", 0) }
}
