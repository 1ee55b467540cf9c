//! Partitions that failed: how they are found to work again, and what that costs.

use super::*;

/// A lane with so many queues in a partition that fails and may be asked again at the instant returned.
fn failed(ready: &mut Ready, queues: usize) -> (Criteria, i64) {
    let criteria = begin(ready, "lane", 0);
    for number in 0..queues {
        ready.announce(&keyed_queue(&format!("{number:09}")), 1, 0);
    }
    ready.partition_failed(PLACES[0], 10);
    ready.open_due(10 + BLOCKED_MS);
    (criteria, 10 + BLOCKED_MS)
}

fn probe(ready: &mut Ready, criteria: &Criteria, now: i64) -> Option<QueueId> {
    let pick = ready.pick(criteria, wanted(1, true), now);
    assert!(pick.reads.is_empty() && pick.candidates.is_empty(), "{pick:?}");
    assert!(pick.suspects.len() <= 1, "{}", pick.suspects.len());
    pick.suspects.into_iter().next().map(|read| match read {
        Read::Head(id) => id,
        names => panic!("{names:?}"),
    })
}

#[test]
fn a_partition_that_failed_is_asked_by_one_read_however_many_queues_it_has() {
    let mut ready = Ready::default();
    let (criteria, due) = failed(&mut ready, 10 * READS_MAX);
    let first = probe(&mut ready, &criteria, due).expect("a read that finds out");
    assert_eq!(probe(&mut ready, &criteria, due), None, "one is enough");
    ready.fetched(&first, Vec::new(), None, true, due);
    let pick = ready.pick(&criteria, wanted(1, true), due);
    assert_eq!((pick.reads.len(), pick.suspects.len()), (READS_MAX, 0), "one answer speaks for all");
}

#[test]
fn a_read_that_hangs_is_followed_by_one_of_another_queue_and_a_failure_by_a_pause() {
    let mut ready = Ready::default();
    let (criteria, due) = failed(&mut ready, 2);
    let first = probe(&mut ready, &criteria, due).expect("a read that finds out");
    ready.open_due(due + BLOCKED_MS);
    let second = probe(&mut ready, &criteria, due + BLOCKED_MS).expect("the first one hangs");
    assert_ne!(first, second);
    ready.open_due(due + 2 * BLOCKED_MS);
    assert_eq!(probe(&mut ready, &criteria, due + 2 * BLOCKED_MS), None, "both are being read");
    let ended = due + 3 * BLOCKED_MS;
    ready.fetch_met_outage(&second, ended);
    ready.open_due(ended);
    assert_eq!(probe(&mut ready, &criteria, ended), None, "it failed a moment ago");
    ready.open_due(ended + BLOCKED_MS);
    assert_eq!(probe(&mut ready, &criteria, ended + BLOCKED_MS), Some(second));
}

#[test]
fn what_is_announced_during_an_outage_waits_for_its_end_and_a_commit_ends_it() {
    let mut ready = Ready::default();
    let (criteria, due) = failed(&mut ready, 1);
    probe(&mut ready, &criteria, due).expect("a read that finds out");
    ready.announce(&keyed_queue("new"), 1, due);
    assert!(!ready.may_have_work(&criteria));
    ready.offer(Candidate { queue: keyed_queue("offered"), ..candidate("lane", 1) }, due);
    assert_eq!(heads(&ready.pick(&criteria, wanted(1, true), due)), [&keyed_queue("new")]);
}

#[test]
fn a_claim_that_leaves_passes_on_the_read_that_it_was_told_to_make() {
    let mut ready = Ready::default();
    let (criteria, due) = failed(&mut ready, 1);
    let first = probe(&mut ready, &criteria, due).expect("a read that finds out");
    let (number, _) = ready.wait(Arc::new(criteria.clone()));
    let (_, wake) = ready.wait(Arc::new(criteria.clone()));
    ready.fetch_met_outage(&first, due);
    ready.open_due(due + BLOCKED_MS);
    let woken = || futures_util::FutureExt::now_or_never(wake.notified()).is_some();
    assert!(!woken());
    ready.stop_waiting(number, due + BLOCKED_MS);
    assert!(woken());
}

#[test]
fn reads_that_end_together_bring_no_more_than_there_is_room_for() {
    const READ: u8 = 64;
    let mut ready = Ready::default();
    let criteria = begin(&mut ready, "lane", 0);
    let count = 2 * BUFFERED_MAX / usize::from(READ);
    let all: Vec<QueueId> = (0..count).map(|number| keyed_queue(&format!("{number:09}"))).collect();
    all.iter().for_each(|id| ready.announce(id, 1, 0));
    let mut reads = Vec::new();
    while reads.len() < count {
        reads.extend(ready.pick(&criteria, wanted(1, true), 0).reads);
    }
    for id in &all {
        let found = (0..READ).map(|number| Candidate { queue: id.clone(), ..candidate("lane", number) });
        ready.fetched(id, found.collect(), None, true, 0);
    }
    let least = 2 * count;
    assert!((BUFFERED_MAX..=BUFFERED_MAX + least).contains(&ready.buffered), "{}", ready.buffered);
    let last = &ready.queues[&all[count - 1]];
    assert_eq!(last.buffer.len(), 2);
    assert!(matches!(last.contents, queue::Contents::Unknown(_)), "the rest is read when these are used up");
}

#[test]
fn a_partition_whose_reads_hang_is_read_by_one_and_hands_out_what_is_known_of_it() {
    let mut ready = Ready::default();
    let criteria = begin(&mut ready, "lane", 0);
    ready.announce(&keyed_queue("a"), 1, 0);
    assert_eq!(ready.pick(&criteria, wanted(1, true), 0).reads.len(), 1);
    ready.announce(&keyed_queue("b"), 1, 0);
    ready.read_answered(PLACES[0], 1);
    ready.read_hangs(PLACES[0], READ_PATIENCE_MS);
    assert!(ready.outages.is_empty(), "others were answered meanwhile");
    ready.read_hangs(PLACES[0], 1 + READ_PATIENCE_MS);
    assert!(!ready.may_have_work(&criteria), "nothing is known, and nothing is to be read for a while");
    ready.open_due(1 + READ_PATIENCE_MS + BLOCKED_MS);
    assert_eq!(probe(&mut ready, &criteria, 1 + READ_PATIENCE_MS + BLOCKED_MS), Some(keyed_queue("b")));
}

#[test]
fn what_is_known_of_a_partition_stays_in_sight_while_its_reads_hang_and_not_when_it_fails() {
    let mut ready = Ready::default();
    let criteria = begin(&mut ready, "lane", 0);
    for number in [1, 2, 4] {
        ready.offer(candidate("lane", number), 0);
    }
    // Something better may be there, and cannot be read.
    ready.announce(&queue("lane", PLACES[0]), 1, 0);
    ready.read_hangs(PLACES[0], READ_PATIENCE_MS);
    assert_eq!(ready.pick(&criteria, wanted(1, true), READ_PATIENCE_MS).candidates.len(), 1);
    ready.offer(Candidate { queue: keyed_queue("new"), ..candidate("lane", 3) }, READ_PATIENCE_MS);
    let pick = ready.pick(&criteria, wanted(2, true), READ_PATIENCE_MS);
    assert_eq!((pick.candidates.len(), pick.reads.len()), (2, 0), "a commit does not show that reads work");
    ready.partition_failed(PLACES[0], READ_PATIENCE_MS);
    assert!(!ready.may_have_work(&criteria));
    assert_eq!(ready.buffered, 0);
}

#[test]
fn a_claim_that_may_read_no_more_takes_what_is_known() {
    let mut ready = Ready::default();
    let criteria = begin(&mut ready, "lane", 0);
    let began = ready.stamp();
    ready.sweep_found(PLACES[0], &page(None, &[keyed_queue("a")], false), began, 0);
    ready.offer(candidate("lane", 1), 0);
    let pick = ready.pick(&criteria, Wanted { reads: 0, ..wanted(2, true) }, 0);
    assert_eq!((pick.candidates.len(), pick.reads.len(), pick.suspects.len()), (1, 0, 0));
}
