//! Sweeps find names: what is known besides stays in sight, and every queue is read in its turn.

use super::*;

/// A key whose queue stands behind those with numbers.
const LAST: &str = "zzzzzzzzz";

fn under_key(key: &str, number: u8) -> Candidate {
    Candidate { queue: keyed_queue(key), ..candidate("lane", number) }
}

#[test]
fn sweeps_do_not_keep_the_last_names_from_being_read() {
    let mut ready = Ready::default();
    let criteria = begin(&mut ready, "lane", 0);
    let all: Vec<QueueId> = (0..2 * READS_MAX).map(|number| keyed_queue(&format!("{number:09}"))).collect();
    let mut read = BTreeSet::new();
    for round in 0..2 {
        let began = ready.stamp();
        ready.sweep_found(PLACES[0], &page(None, &all, false), began, round);
        for one in ready.pick(&criteria, wanted(1, true), round).reads {
            let Read::Head(id) = one else { panic!("{one:?}") };
            let found = Candidate { queue: id.clone(), ..candidate("lane", 1) };
            ready.fetched(&id, vec![found], None, true, round);
            read.insert(id);
        }
    }
    assert_eq!(read.len(), all.len());
}

/// A lane in which a sweep finds as many names as a claim reads at once, and one behind them. The first queue has been read.
fn swept(ready: &mut Ready) -> Criteria {
    let criteria = begin(ready, "lane", 0);
    let mut names: Vec<QueueId> = (0..READS_MAX).map(|number| keyed_queue(&format!("{number:09}"))).collect();
    names.push(keyed_queue(LAST));
    let began = ready.stamp();
    ready.sweep_found(PLACES[0], &page(None, &names, false), began, 0);
    let reads = ready.pick(&criteria, wanted(1, true), 0).reads;
    assert!(reads.len() == READS_MAX && !reads.contains(&Read::Head(keyed_queue(LAST))));
    ready.fetched(&keyed_queue("000000000"), vec![under_key("000000000", 2)], None, true, 0);
    criteria
}

fn urgent() -> Candidate {
    let mut urgent = under_key(LAST, 1);
    Arc::make_mut(&mut urgent.execution).priority = 9;
    urgent
}

#[test]
fn a_sweep_hides_no_work_that_is_known() {
    let mut ready = Ready::default();
    begin(&mut ready, "lane", 0);
    ready.offer(urgent(), 0);
    let criteria = swept(&mut ready);
    assert_eq!(ready.pick(&criteria, wanted(1, false), 0).candidates[0].execution.priority, 9);
    assert_eq!(
        ready.pick(&criteria, wanted(1, true), 0).reads,
        [Read::Head(keyed_queue(LAST))],
        "it is read all the same"
    );
}

#[test]
fn work_that_comes_to_a_queue_known_by_its_name_has_it_read_in_its_place() {
    let mut ready = Ready::default();
    let criteria = swept(&mut ready);
    ready.offer(urgent(), 0);
    // Older work may stand before it, so that it is not handed out before the queue was read.
    assert_eq!(ready.pick(&criteria, wanted(1, false), 0).reads, [Read::Head(keyed_queue(LAST))]);
    ready.fetched(&keyed_queue(LAST), vec![urgent()], None, true, 0);
    assert_eq!(ready.pick(&criteria, wanted(1, false), 0).candidates[0].execution.priority, 9);
}

#[test]
fn a_name_found_during_a_read_or_before_one_that_failed_has_the_queue_read_again() {
    let mut ready = Ready::default();
    let criteria = begin(&mut ready, "lane", 0);
    let id = keyed_queue("a");
    let sweep = |ready: &mut Ready| {
        let began = ready.stamp();
        ready.sweep_found(PLACES[0], &page(None, &[keyed_queue("a")], false), began, 0);
    };
    sweep(&mut ready);
    assert_eq!(ready.pick(&criteria, wanted(1, true), 0).reads, [Read::Head(id.clone())]);
    sweep(&mut ready);
    ready.fetched(&id, Vec::new(), None, true, 0);
    assert_eq!(ready.pick(&criteria, wanted(1, true), 0).reads, [Read::Head(id.clone())]);
    ready.fetch_failed(&id, 0);
    ready.open_due(BLOCKED_MS);
    assert_eq!(ready.pick(&criteria, wanted(1, true), BLOCKED_MS).suspects, [Read::Head(id.clone())]);
    ready.fetched(&id, Vec::new(), None, true, BLOCKED_MS);
    assert!(!ready.may_have_work(&criteria) && ready.queues.is_empty());
}
