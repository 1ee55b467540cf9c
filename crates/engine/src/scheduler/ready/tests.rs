//! The scheduler's memory by itself: what it keeps, which waiters it wakes, and what it asks to be read.

mod outages;
mod sharing;
mod sweeps;

use std::sync::Arc;

use ff_core::execution::{Execution, NewExecution};
use ff_core::{CapabilitySet, ExecutionId, Mint, Partition, index};

use super::*;

const PLACES: [Partition; 2] = [Partition::flow(0), Partition::flow(1)];

fn queue(lane: &str, partition: Partition) -> QueueId {
    QueueId { partition, index: index::queue("n", lane, "k", "", "") }
}

fn candidate(lane: &str, number: u8) -> Candidate {
    let id = ExecutionId::in_partition(PLACES[0], &Mint { now_ms: 1_000, random: [number; 10] });
    let request = NewExecution { id, namespace: "n".into(), lane: lane.into(), kind: "k".into(), ..new_execution() };
    Candidate {
        execution: Arc::new(Execution::create(request, 1_000).expect("a legal request")),
        version: Default::default(),
        fence: Default::default(),
        queue: queue(lane, PLACES[0]),
    }
}

fn new_execution() -> NewExecution {
    NewExecution {
        id: ExecutionId::in_partition(PLACES[0], &Mint { now_ms: 1_000, random: [0; 10] }),
        namespace: String::new(),
        lane: String::new(),
        kind: String::new(),
        priority: 0,
        creator: String::new(),
        submitted_by: String::new(),
        idempotency_key: String::new(),
        tags: BTreeMap::new(),
        policy: Default::default(),
        capabilities: CapabilitySet::default(),
        budgets: Vec::new(),
        quota: None,
        input: Default::default(),
        delay_until: None,
        deadline_at: None,
        flow: None,
        node: String::new(),
        request_hash: Default::default(),
        trace_context: String::new(),
        schedule: None,
        sharing: Default::default(),
    }
}

fn asks(lane: &str) -> Criteria {
    Criteria { namespace: "n".into(), lanes: vec![lane.into()], skills: Arc::default() }
}

fn wanted(count: usize, patient: bool) -> Wanted {
    Wanted { first_lane: 0, count, reads: READS_MAX, patient }
}

fn begin(ready: &mut Ready, lane: &str, now: i64) -> Criteria {
    let criteria = asks(lane);
    ready.begin(&criteria, || PLACES.to_vec(), now);
    criteria
}

#[test]
fn of_a_lane_that_nobody_asks_for_only_the_partitions_are_remembered() {
    let mut ready = Ready::default();
    for number in 0..100 {
        ready.offer(candidate("idle", number), 0);
    }
    ready.announce(&queue("idle", PLACES[1]), 5, 0);
    assert_eq!((ready.queues.len(), ready.buffered, ready.lanes("n")), (0, 0, vec!["idle".to_owned()]));
    // The first claim learns what its queues are called, and reads their heads then.
    let criteria = begin(&mut ready, "idle", 1);
    assert!(ready.may_have_work(&criteria) && ready.remembered == 0);
    let pick = ready.pick(&criteria, wanted(1, true), 1);
    assert_eq!((pick.reads.len(), pick.candidates.len()), (2, 0));
    assert!(ready.pick(&criteria, wanted(1, true), 1).reads.is_empty(), "they are read once");
    for place in PLACES {
        ready.learnt(("n", "idle"), place, page(None, &[queue("idle", place)], false), 2);
    }
    let heads = ready.pick(&criteria, wanted(1, true), 2).reads;
    assert_eq!(heads, PLACES.map(|place| Read::Head(queue("idle", place))));
}

#[test]
fn what_nobody_asked_for_in_a_while_is_let_go_and_found_again() {
    let mut ready = Ready::default();
    let criteria = begin(&mut ready, "lane", 0);
    ready.offer(candidate("lane", 1), 10);
    assert_eq!((ready.queues.len(), ready.buffered), (1, 1));
    ready.let_go(KEPT_MS);
    assert_eq!((ready.queues.len(), ready.buffered), (1, 1));
    // While a claim waits, its queues stay; candidates that no claim takes do not.
    let (number, _) = ready.wait(Arc::new(criteria.clone()));
    ready.let_go(3 * KEPT_MS);
    assert_eq!((ready.queues.len(), ready.buffered), (1, 0));
    assert_eq!(ready.pick(&criteria, wanted(1, true), 3 * KEPT_MS).reads, [Read::Head(queue("lane", PLACES[0]))]);
    ready.stop_waiting(number, 3 * KEPT_MS);
    ready.let_go(5 * KEPT_MS);
    assert_eq!((ready.queues.len(), ready.remembered), (0, 1));
    begin(&mut ready, "lane", 6 * KEPT_MS);
    assert_eq!(ready.pick(&criteria, wanted(1, true), 6 * KEPT_MS).reads.len(), 1);
}

#[test]
fn a_sweep_forgets_what_it_did_not_find_and_keeps_what_was_announced_since() {
    let mut ready = Ready::default();
    begin(&mut ready, "lane", 0);
    ready.announce(&queue("lane", PLACES[0]), 1, 0);
    ready.announce(&queue("idle", PLACES[0]), 1, 0);
    let began = ready.stamp();
    ready.announce(&queue("late", PLACES[0]), 1, 0);
    ready.sweep_found(PLACES[0], &page(None, &[], false), began, 0);
    ready.sweep_ended(PLACES[0], &BTreeMap::new(), began);
    assert_eq!((ready.queues.len(), ready.lanes("n")), (0, vec!["late".to_owned()]));
}

#[test]
fn a_page_of_a_sweep_speaks_of_the_names_between_its_ends() {
    let mut ready = Ready::default();
    begin(&mut ready, "lane", 0);
    for key in ["a", "b", "c", "d"] {
        ready.announce(&keyed_queue(key), 1, 0);
    }
    let began = ready.stamp();
    ready.sweep_found(PLACES[0], &page(Some("a"), &[keyed_queue("c")], true), began, 0);
    let kept: Vec<QueueId> = ready.queues.keys().cloned().collect();
    assert_eq!(kept, ["a", "c", "d"].map(keyed_queue), "only what stands before the last name is gone");
    ready.sweep_found(PLACES[0], &page(Some("c"), &[], false), began, 0);
    assert!(!ready.queues.contains_key(&keyed_queue("d")));
}

fn keyed_queue(key: &str) -> QueueId {
    QueueId { partition: PLACES[0], index: index::fair_queue("n", "lane", "k", "", "", key) }
}

fn page(after: Option<&str>, queues: &[QueueId], more: bool) -> NamesPage {
    let names = queues.iter().map(|id| id.index.clone()).collect();
    NamesPage { after: after.map(|key| keyed_queue(key).index), names, more }
}

/// A lane that is remembered in one partition, and asked for now.
fn remembered(ready: &mut Ready) -> Criteria {
    ready.announce(&queue("lane", PLACES[0]), 5, 0);
    begin(ready, "lane", 0)
}

#[test]
fn names_are_learnt_page_by_page_and_the_best_of_what_is_known_is_taken() {
    let mut ready = Ready::default();
    let criteria = remembered(&mut ready);
    let names = |after: Option<&str>| Read::Names {
        partition: PLACES[0],
        namespace: "n".into(),
        lane: "lane".into(),
        after: after.map(|key| keyed_queue(key).index),
    };
    assert_eq!(ready.pick(&criteria, wanted(1, true), 0).reads, [names(None)]);
    ready.learnt(("n", "lane"), PLACES[0], page(None, &[keyed_queue("a"), keyed_queue("b")], true), 0);
    let head = |key: &str| Read::Head(keyed_queue(key));
    assert_eq!(ready.pick(&criteria, wanted(1, true), 0).reads, [names(Some("b")), head("a"), head("b")]);
    ready.learnt(("n", "lane"), PLACES[0], page(Some("b"), &[keyed_queue("c"), keyed_queue("d")], true), 0);
    let found = Candidate { queue: keyed_queue("a"), ..candidate("lane", 1) };
    ready.fetched(&keyed_queue("a"), vec![found], None, true, 0);
    // A claim that has waited long enough reads neither names nor heads while it knows of work.
    let pick = ready.pick(&criteria, wanted(1, false), 0);
    assert_eq!((pick.candidates.len(), pick.reads), (1, vec![]));
    assert_eq!(
        ready.pick(&criteria, wanted(1, false), 0).reads,
        [head("c"), head("d")],
        "and heads when it knows of none"
    );
    assert_eq!(
        ready.pick(&criteria, wanted(1, false), 0).reads,
        [names(Some("d"))],
        "and names when it has no heads to read"
    );
    // A page that was asked for twice is taken up once.
    ready.learnt(("n", "lane"), PLACES[0], page(Some("b"), &[keyed_queue("z")], false), 0);
    assert!(!ready.queues.contains_key(&keyed_queue("z")));
    ready.learnt(("n", "lane"), PLACES[0], page(Some("d"), &[], false), 0);
    assert!(!ready.may_have_work(&criteria));
}

#[test]
fn a_claim_with_much_to_read_asks_for_no_more_names() {
    let mut ready = Ready::default();
    let criteria = remembered(&mut ready);
    ready.pick(&criteria, wanted(1, true), 0);
    let many: Vec<QueueId> = (0..2 * UNREAD_MAX).map(|number| keyed_queue(&format!("{number:09}"))).collect();
    ready.learnt(("n", "lane"), PLACES[0], page(None, &many, true), 0);
    let pick = ready.pick(&criteria, wanted(1, true), 0);
    assert_eq!(heads(&pick).len(), READS_MAX);
    assert_eq!(pick.reads.len(), READS_MAX);
}

#[test]
fn names_without_room_are_learnt_from_where_there_was_none() {
    let mut ready = Ready::default();
    let criteria = remembered(&mut ready);
    ready.pick(&criteria, wanted(1, true), 0);
    let all: Vec<QueueId> = (0..=QUEUES_MAX).map(|number| keyed_queue(&format!("{number:09}"))).collect();
    ready.learnt(("n", "lane"), PLACES[0], page(None, &all, true), 0);
    assert_eq!(ready.queues.len(), QUEUES_MAX);
    let pages = |pick: &Pick| pick.reads.iter().any(|read| matches!(read, Read::Names { .. }));
    assert!(!pages(&ready.pick(&criteria, wanted(1, true), 0)), "not before its time");
    // One is read and empty, so that there is room for another.
    ready.fetched(&all[0], Vec::new(), None, true, 0);
    ready.open_due(POSTPONED_MS);
    let learning = lane_mut(&mut ready.lanes, "n", "lane").unwrap().unlearnt[&PLACES[0]].clone();
    let last = all[QUEUES_MAX - 1].index.clone();
    assert_eq!((learning.state, learning.after), (LearningState::Due { suspect: false }, Some(last.clone())));
    let rest = NamesPage { after: Some(last), names: vec![all[QUEUES_MAX].index.clone()], more: false };
    ready.learnt(("n", "lane"), PLACES[0], rest, POSTPONED_MS);
    assert!(ready.queues.contains_key(&all[QUEUES_MAX]));
    // What was offered when there was no room is looked for from the beginning; what is known is not read again for it.
    ready.announce(&keyed_queue("new"), 1, POSTPONED_MS);
    ready.fetched(&all[1], Vec::new(), None, true, 0);
    ready.queues.get_mut(&all[2]).unwrap().contents = queue::Contents::Unknown(7);
    ready.relist(&all[2]);
    ready.learnt(("n", "lane"), PLACES[0], page(None, &[all[2].clone(), keyed_queue("new")], false), 2 * POSTPONED_MS);
    assert_eq!(ready.queues[&all[2]].listed, queue::Listing { head: Some(7), unread: None });
    assert!(ready.queues.contains_key(&keyed_queue("new")));
}

#[test]
fn too_many_lanes_are_looked_for_where_they_may_be() {
    let mut ready = Ready::default();
    for number in 0..=LANES_REMEMBERED_MAX {
        ready.announce(&queue(&format!("lane-{number}"), PLACES[0]), 1, 0);
    }
    assert_eq!((ready.remembered, ready.forgot_lanes), (LANES_REMEMBERED_MAX, true));
    let criteria = begin(&mut ready, "unheard", 0);
    assert_eq!(ready.pick(&criteria, wanted(1, true), 0).reads.len(), PLACES.len());
}

#[test]
fn a_failed_partition_is_left_alone_for_a_while_and_then_read_by_one() {
    let mut ready = Ready::default();
    let criteria = begin(&mut ready, "lane", 0);
    ready.offer(candidate("lane", 1), 0);
    ready.announce(&queue("lane", PLACES[1]), 1, 0);
    ready.partition_failed(PLACES[0], 10);
    let pick = ready.pick(&criteria, wanted(1, true), 10);
    assert_eq!((pick.reads, pick.suspects), (vec![Read::Head(queue("lane", PLACES[1]))], vec![]));
    let (_, wake) = ready.wait(Arc::new(criteria.clone()));
    assert_eq!(ready.next_opening(), Some(10 + BLOCKED_MS));
    ready.open_due(10 + BLOCKED_MS);
    assert!(futures_util::FutureExt::now_or_never(wake.notified()).is_some());
    // The next read finds out, and no claim waits for it.
    let pick = ready.pick(&criteria, wanted(1, true), 10 + BLOCKED_MS);
    assert_eq!((pick.reads, pick.suspects), (vec![], vec![Read::Head(queue("lane", PLACES[0]))]));
    assert!(ready.is_unreadable(&criteria, 0, 10 + BLOCKED_MS));
    ready.fetched(&queue("lane", PLACES[0]), vec![candidate("lane", 1)], None, true, 2_000);
    assert!(!ready.is_unreadable(&criteria, 0, 2_000));
    assert_eq!(ready.pick(&criteria, wanted(1, true), 2_000).candidates.len(), 1);
}

#[test]
fn work_wakes_the_one_who_has_waited_longest_and_can_take_it() {
    let mut ready = Ready::default();
    let gpu = CapabilitySet::new(["gpu"]).expect("a legal set");
    let plain = begin(&mut ready, "lane", 0);
    let capable = Criteria { skills: Arc::new(Skills { capabilities: gpu, ..Skills::default() }), ..plain.clone() };
    begin(&mut ready, "other", 0);
    let waits = [asks("other"), plain.clone(), capable.clone(), plain, capable].map(|criteria| {
        let (_, wake) = ready.wait(Arc::new(criteria));
        wake
    });
    let woken = || waits.iter().map(|wake| futures_util::FutureExt::now_or_never(wake.notified()).is_some());
    ready.announce(&QueueId { partition: PLACES[0], index: index::queue("n", "lane", "k", "gpu", "") }, 1, 0);
    assert!(woken().eq([false, false, true, false, false]));
    ready.announce(&queue("lane", PLACES[0]), 1, 0);
    assert!(woken().eq([false, true, false, false, false]));
    ready.announce(&queue("lane", PLACES[1]), 1, 0);
    assert!(woken().eq([false, false, false, true, false]));
    // A waiter that was woken and leaves passes it on.
    ready.stop_waiting(3, 0);
    assert!(woken().eq([false, false, false, false, true]));
}

fn of_kind(kind: &str, partition: Partition) -> QueueId {
    QueueId { partition, index: index::queue("n", "lane", kind, "", "") }
}

fn serving(kinds: &[&str]) -> Criteria {
    let kinds = kinds.iter().map(|kind| (*kind).to_owned()).collect();
    Criteria { skills: Arc::new(Skills { kinds, ..Skills::default() }), ..asks("lane") }
}

fn heads(pick: &Pick) -> Vec<&QueueId> {
    let mut heads = Vec::new();
    for read in &pick.reads {
        if let Read::Head(id) = read {
            heads.push(id);
        }
    }
    heads
}

#[test]
fn a_claim_looks_only_at_queues_of_the_kinds_it_names() {
    let mut ready = Ready::default();
    begin(&mut ready, "lane", 0);
    for (kind, score) in [("a", 3), ("b", 1), ("c", 2)] {
        ready.announce(&of_kind(kind, PLACES[0]), score, 0);
    }
    let both = serving(&["a", "c", "unheard"]);
    ready.begin(&both, Vec::new, 0);
    let pick = ready.pick(&both, wanted(8, true), 0);
    assert_eq!(heads(&pick), [&of_kind("c", PLACES[0]), &of_kind("a", PLACES[0])]);
    assert!(!ready.may_have_work(&both) && !ready.may_have_work(&serving(&["unheard"])));
    assert!(ready.may_have_work(&serving(&["b"])));
    // A claim that names none has them all.
    assert_eq!(heads(&ready.pick(&asks("lane"), wanted(8, true), 0)), [&of_kind("b", PLACES[0])]);
    // A queue that was listed by kind leaves the list when it is gone.
    for kind in ["a", "b", "c"] {
        ready.fetched(&of_kind(kind, PLACES[0]), Vec::new(), None, true, 1);
    }
    assert!(!ready.may_have_work(&serving(&["b"])) && !ready.may_have_work(&asks("lane")));
}

#[test]
fn work_wakes_only_those_who_serve_its_kind() {
    let mut ready = Ready::default();
    begin(&mut ready, "lane", 0);
    let lines = [serving(&["a"]), serving(&["b"]), serving(&["a", "b"]), asks("lane")];
    let waits = lines.map(|criteria| {
        ready.begin(&criteria, Vec::new, 0);
        ready.wait(Arc::new(criteria)).1
    });
    let woken = || waits.iter().map(|wake| futures_util::FutureExt::now_or_never(wake.notified()).is_some());
    ready.announce(&of_kind("b", PLACES[0]), 1, 0);
    assert!(woken().eq([false, true, false, false]));
    ready.announce(&of_kind("b", PLACES[1]), 1, 0);
    assert!(woken().eq([false, false, true, false]));
    ready.announce(&of_kind("c", PLACES[0]), 1, 0);
    assert!(woken().eq([false, false, false, true]));
    // The waiter that was woken for a `b` leaves without it: no other waiter may take one now.
    ready.stop_waiting(1, 0);
    assert!(woken().eq([false; 4]));
    ready.wait_again(2);
    ready.stop_waiting(3, 0);
    assert!(woken().eq([false, false, true, false]), "the work of one who leaves goes to the next who serves it");
}

#[test]
fn a_queue_of_an_earlier_version_is_read_by_everybody_and_hands_out_nothing_itself() {
    let mut ready = Ready::default();
    let criteria = serving(&["k"]);
    ready.begin(&criteria, Vec::new, 0);
    let old = QueueId { partition: PLACES[0], index: index::queue_of_any_kind("n", "lane", "", "") };
    ready.offer(Candidate { queue: old.clone(), ..candidate("lane", 1) }, 0);
    let pick = ready.pick(&criteria, wanted(1, true), 0);
    assert!(pick.candidates.is_empty());
    assert_eq!(heads(&pick), [&old]);
}

#[test]
fn the_first_key_in_a_lane_finds_what_waited_there_before_it() {
    let keyed = |key: &str, number: u8| {
        let mut candidate = candidate("lane", number);
        let mut execution = Execution::clone(&candidate.execution);
        execution.sharing = Some(Box::new(ff_core::Sharing { fair_key: key.into(), ..Default::default() }));
        candidate.queue.index = execution.queue();
        candidate.execution = Arc::new(execution);
        candidate
    };
    let mut ready = Ready::default();
    let criteria = begin(&mut ready, "lane", 0);
    for number in 1..=3 {
        ready.offer(candidate("lane", number), 0);
    }
    for number in 4..=6 {
        ready.offer(keyed("a", number), 0);
    }
    ready.offer(keyed("b", 7), 0);
    let picked = ready.pick(&criteria, wanted(4, true), 0).candidates;
    let keys: Vec<&str> = picked.iter().map(|candidate| candidate.execution.fair_key()).collect();
    assert_eq!(keys.iter().filter(|key| **key == "b").count(), 1, "{keys:?}");
    assert!(keys[..3].contains(&"") && keys[..3].contains(&"a") && keys[..3].contains(&"b"), "{keys:?}");
    // A candidate that is given back is as if it had never been taken.
    for candidate in picked {
        ready.put_back(candidate);
    }
    let by_kind = serving(&["k"]);
    ready.begin(&by_kind, Vec::new, 0);
    let all = ready.pick(&by_kind, wanted(10, true), 0).candidates;
    assert_eq!(all.len(), 7);
    assert!(all[..3].iter().any(|candidate| candidate.execution.fair_key() == "b"));
    assert!(!ready.may_have_work(&by_kind));
}

#[test]
fn what_is_announced_before_a_head_in_flight_is_read() {
    let mut ready = Ready::default();
    let criteria = begin(&mut ready, "lane", 0);
    let (id, head) = (queue("lane", PLACES[0]), candidate("lane", 1));
    let (score, key) = (head.execution.queue_score(), Execution::key_of(&head.execution.id));
    ready.offer(head.clone(), 0);
    assert_eq!(ready.pick(&criteria, wanted(1, true), 0).candidates.len(), 1);
    for announced in [score - 1, score] {
        // Another claim reads a page on which there is nothing but what the first one tries to take.
        ready.announce(&id, score, 0);
        assert_eq!(ready.pick(&criteria, wanted(1, true), 0).reads, [Read::Head(id.clone())]);
        ready.fetched(&id, vec![head.clone()], Some((score, key.clone())), false, 0);
        assert_eq!(ready.read_after(&id), Some((score, key.clone())), "the next read begins behind it");
        ready.announce(&id, announced, 0);
        assert_eq!(ready.read_after(&id), None, "and before it when something may stand there");
        assert_eq!(ready.pick(&criteria, wanted(1, true), 0).reads, [Read::Head(id.clone())]);
        ready.fetched(&id, Vec::new(), None, true, 0);
    }
}

/// The head of one queue is known, and what the other holds is better and yet to be read.
#[test]
fn a_claimer_that_waits_no_longer_takes_what_is_known_beside_the_reads_that_may_find_better_work() {
    for patient in [true, false] {
        let mut ready = Ready::default();
        let criteria = begin(&mut ready, "lane", 0);
        ready.pick(&criteria, wanted(1, true), 0);
        for place in PLACES {
            ready.learnt(("n", "lane"), place, NamesPage { after: None, names: Vec::new(), more: false }, 0);
        }
        ready.offer(candidate("lane", 1), 0);
        ready.announce(&queue("lane", PLACES[1]), 1, 0);
        let pick = ready.pick(&criteria, wanted(2, patient), 0);
        assert_eq!((pick.candidates.len(), pick.reads.len()), (usize::from(!patient), 1), "{patient}");
    }
}
