//! Logs: numbered records, read in both directions, capped, trimmed and removed.

use bytes::Bytes;
use ff_core::Key;

use super::context::{Build, Context, applied, batch, until};
use crate::{Append, Conflict, ConflictReason, Guard, LogPage, LogStart, Trim};

/// A batch that appends text records under the expected number.
fn append(context: &Context, log: &Key, expected: u64, records: &[&str]) -> crate::Batch {
    batch().guard(Guard::Absent(context.key("nobody"))).append(log, Some(expected), records)
}

/// A log of `r1`, `r2` and so on, each record in a commit of its own.
async fn fill(context: &Context, log: &Key, count: u64) {
    for number in 1..=count {
        context.apply(append(context, log, number, &[&format!("r{number}")])).await;
    }
}

async fn trim(context: &Context, log: &Key, before: u64) {
    let mut trim = batch();
    trim.relief = true;
    trim.trims.push(Trim { log: log.clone(), before });
    context.apply(trim).await;
}

fn numbers(page: &LogPage) -> Vec<u64> {
    page.records.iter().map(|record| record.sequence).collect()
}

fn texts(page: &LogPage) -> Vec<&str> {
    page.records.iter().map(|record| std::str::from_utf8(&record.record).expect("records of text")).collect()
}

pub(super) async fn an_unknown_log_is_empty(context: Context) {
    let log = context.key("log");
    for start in [LogStart::After(0), LogStart::After(9), LogStart::Since(0), LogStart::Before(u64::MAX)] {
        let page = context.log(&log, start, 10).await;
        assert_eq!(page, LogPage { records: vec![], first: 1, removed_up_to: 0, next: 1 }, "{start:?}");
    }
}

pub(super) async fn a_log_is_numbered_from_one(context: Context) {
    let log = context.key("log");
    let first = context.apply(append(&context, &log, 1, &["a", "b", "c"])).await;
    assert_eq!(first.sequences, [1]);
    let second = context.apply(append(&context, &log, 4, &["d"])).await;
    assert_eq!(second.sequences, [4]);
    let page = context.log(&log, LogStart::After(0), 10).await;
    assert_eq!((numbers(&page), texts(&page)), (vec![1, 2, 3, 4], vec!["a", "b", "c", "d"]));
    assert_eq!((page.first, page.next), (1, 5));
    let times: Vec<i64> = page.records.iter().map(|record| record.at).collect();
    assert_eq!(times, [first.at, first.at, first.at, second.at], "records carry the time of their commit");
}

pub(super) async fn a_wrong_number_is_a_conflict(context: Context) {
    let log = context.key("log");
    let conflict = |next| Conflict { key: Some(log.clone()), why: ConflictReason::Sequence(next) };
    assert_eq!(context.conflict(append(&context, &log, 2, &["early"])).await, conflict(1));
    fill(&context, &log, 2).await;
    for wrong in [1, 2, 4, u64::MAX >> 11] {
        assert_eq!(context.conflict(append(&context, &log, wrong, &["wrong"])).await, conflict(3));
    }
    let page = context.log(&log, LogStart::After(0), 10).await;
    assert_eq!((texts(&page), page.next), (vec!["r1", "r2"], 3));
}

pub(super) async fn a_log_is_read_from_any_number(context: Context) {
    let log = context.key("log");
    fill(&context, &log, 12).await;
    for (after, limit, expected) in
        [(0, 5, 1..6), (5, 5, 6..11), (10, 5, 11..13), (12, 5, 0..0), (99, 5, 0..0), (3, 0, 0..0)]
    {
        let page = context.log(&log, LogStart::After(after), limit).await;
        assert_eq!(numbers(&page), expected.collect::<Vec<_>>(), "{limit} after {after}");
        assert_eq!((page.first, page.next), (1, 13));
    }
}

pub(super) async fn the_newest_records_come_first_when_asked(context: Context) {
    let log = context.key("log");
    fill(&context, &log, 6).await;
    for (before, limit, expected) in [
        (u64::MAX, 3, vec![6, 5, 4]),
        (u64::MAX, 100, vec![6, 5, 4, 3, 2, 1]),
        (4, 2, vec![3, 2]),
        (2, 5, vec![1]),
        (1, 5, vec![]),
        (0, 5, vec![]),
        (7, 1, vec![6]),
        (u64::MAX, 0, vec![]),
    ] {
        let page = context.log(&log, LogStart::Before(before), limit).await;
        assert_eq!(numbers(&page), expected, "{limit} before {before}");
        assert_eq!((page.first, page.next), (1, 7));
    }
}

pub(super) async fn a_log_is_read_from_an_instant(context: Context) {
    let log = context.key("log");
    for number in 1..=4 {
        let at = context.apply(append(&context, &log, number, &["record"])).await.at;
        until("a millisecond has passed", || async { (context.now().await > at).then_some(()) }).await;
    }
    let all = context.log(&log, LogStart::After(0), 10).await.records;
    assert_eq!(all.len(), 4);
    assert!(all.windows(2).all(|pair| pair[0].at < pair[1].at), "time has passed between the commits");
    for since in [0, all[0].at, all[1].at, all[1].at + 1, all[3].at, all[3].at + 1, i64::MAX, i64::MIN] {
        let expected: Vec<_> = all.iter().filter(|record| record.at >= since).cloned().collect();
        assert_eq!(context.log(&log, LogStart::Since(since), 10).await.records, expected, "since {since}");
    }
    assert_eq!(context.log(&log, LogStart::Since(all[1].at), 2).await.records, all[1..3]);
}

pub(super) async fn a_cap_keeps_the_newest(context: Context) {
    let log = context.key("log");
    for number in 0..60u64 {
        let mut capped = append(&context, &log, number * 3 + 1, &["a", "b", "c"]);
        capped.appends[0].cap = 10;
        context.apply(capped).await;
        let page = context.log(&log, LogStart::Before(u64::MAX), 10).await;
        let next = number * 3 + 4;
        let newest: Vec<u64> = (1..next).rev().take(10).collect();
        assert_eq!(numbers(&page), newest);
        assert_eq!(page.next, next);
        assert!(page.first >= 1 && page.first <= newest[newest.len() - 1]);
    }
    let page = context.log(&log, LogStart::After(0), 1_000).await;
    assert_eq!(numbers(&page), (page.first..181).collect::<Vec<_>>(), "only the oldest may go");
}

pub(super) async fn a_trim_removes_the_oldest_and_keeps_the_numbering(context: Context) {
    let log = context.key("log");
    trim(&context, &log, 5).await;
    fill(&context, &log, 6).await;
    for (before, first) in [(0, 1), (1, 1), (3, 3), (2, 3), (6, 6)] {
        trim(&context, &log, before).await;
        let page = context.log(&log, LogStart::After(0), 10).await;
        assert_eq!((page.first, page.next), (first, 7), "trimmed before {before}");
        assert_eq!(page.removed_up_to, first - 1, "trimmed before {before}");
        assert_eq!(numbers(&page), (first..7).collect::<Vec<_>>());
        assert_eq!(context.log(&log, LogStart::Before(first), 10).await.records, []);
    }
    trim(&context, &log, 1_000).await;
    let page = context.log(&log, LogStart::After(0), 10).await;
    assert_eq!(page, LogPage { records: vec![], first: 7, removed_up_to: 6, next: 7 });
    assert_eq!(context.apply(append(&context, &log, 7, &["r7"])).await.sequences, [7]);
    assert_eq!(numbers(&context.log(&log, LogStart::Since(0), 10).await), [7]);
}

pub(super) async fn a_removed_log_begins_anew(context: Context) {
    let log = context.key("log");
    fill(&context, &log, 3).await;
    trim(&context, &log, u64::MAX).await;
    let gone = LogPage { records: vec![], first: 1, removed_up_to: 0, next: 1 };
    assert_eq!(context.log(&log, LogStart::After(0), 10).await, gone);
    trim(&context, &log, u64::MAX).await;
    assert_eq!(context.apply(append(&context, &log, 1, &["anew"])).await.sequences, [1]);
    let page = context.log(&log, LogStart::After(0), 10).await;
    assert_eq!((texts(&page), page.first, page.next), (vec!["anew"], 1, 2));
    let mut last = append(&context, &log, 2, &["last words"]);
    last.trims.push(Trim { log: log.clone(), before: u64::MAX });
    context.apply(last).await;
    assert_eq!(context.log(&log, LogStart::After(0), 10).await, gone, "trims come after appends");
}

pub(super) async fn unguarded_numbers_only_grow(context: Context) {
    let log = context.key("log");
    let mut firsts = Vec::new();
    for _ in 0..5 {
        firsts.extend(context.apply(batch().append(&log, None, &["a", "b"])).await.sequences);
    }
    assert!(firsts[0] >= 1 && firsts.windows(2).all(|pair| pair[0] + 1 < pair[1]), "{firsts:?}");
    let page = until("all records can be read", || async {
        let page = context.log(&log, LogStart::After(0), 100).await;
        (page.records.len() == 10).then_some(page)
    })
    .await;
    assert!(numbers(&page).windows(2).all(|pair| pair[0] < pair[1]));
    assert!(page.records.windows(2).all(|pair| pair[0].at <= pair[1].at));
    let found: Vec<u64> = numbers(&page).into_iter().step_by(2).collect();
    assert_eq!(found, firsts, "an append answers the number of its first record");
    assert_eq!(page.first, firsts[0]);
    assert!(page.next > *numbers(&page).last().expect("there are ten"));
}

pub(super) async fn a_page_says_up_to_where_records_were_removed(context: Context) {
    let (log, other) = (context.key("log"), context.key("other"));
    let mut numbered = Vec::new();
    for _ in 0..6 {
        // Where logs share numbers, those of the other one are holes in this one.
        context.apply(batch().append(&other, None, &["x", "y"])).await;
        numbered.extend(context.apply(batch().append(&log, None, &["record"])).await.sequences);
    }
    let page = until("all records can be read", || async {
        let page = context.log(&log, LogStart::After(0), 100).await;
        (page.records.len() == 6).then_some(page)
    })
    .await;
    assert_eq!((numbers(&page), page.removed_up_to), (numbered.clone(), 0), "nothing was removed yet");
    for gone in [2, 4, 6] {
        trim(&context, &log, numbered[gone - 1] + 1).await;
        let page = context.log(&log, LogStart::After(0), 100).await;
        assert_eq!(numbers(&page), numbered[gone..]);
        assert_eq!(page.removed_up_to, numbered[gone - 1], "who has read that far missed nothing");
        assert!(page.next > numbered[5]);
    }
    let last = context.apply(batch().append(&log, None, &["last"])).await.sequences[0];
    let page = until("the last record can be read", || async {
        let page = context.log(&log, LogStart::After(numbered[5]), 100).await;
        (!page.records.is_empty()).then_some(page)
    })
    .await;
    assert_eq!((numbers(&page), page.removed_up_to), (vec![last], numbered[5]));
}

pub(super) async fn a_trim_spares_what_a_later_batch_appends(context: Context) {
    for (name, before) in [("some", 1_000_000), ("all", u64::MAX)] {
        let log = context.key(name);
        context.apply(batch().append(&log, None, &["old"])).await;
        let mut trimming = batch();
        trimming.relief = true;
        trimming.trims.push(Trim { log: log.clone(), before });
        let appending = batch().append(&log, None, &["new"]);
        let outcomes = context.commit_all(vec![trimming, appending]).await;
        outcomes.iter().for_each(|outcome| assert!(applied(outcome).at > 0));
        let kept = until("the later record can be read", || async {
            let page = context.log(&log, LogStart::After(0), 100).await;
            (!page.records.is_empty()).then_some(page)
        })
        .await;
        assert_eq!(texts(&kept), ["new"], "trimmed {name}, then appended");
        let mut trimming = batch();
        trimming.relief = true;
        trimming.trims.push(Trim { log: log.clone(), before: u64::MAX });
        context.commit_all(vec![batch().append(&log, None, &["newer"]), trimming]).await;
        let page = context.log(&log, LogStart::After(0), 100).await;
        assert_eq!(texts(&page), [""; 0], "appended, then removed");
    }
}

pub(super) async fn several_logs_answer_in_order(context: Context) {
    let (a, b, c) = (context.key("a"), context.key("b"), context.key("c"));
    fill(&context, &a, 4).await;
    fill(&context, &b, 2).await;
    let guarded = append(&context, &b, 3, &["x"]).append(&c, Some(1), &["y", "z"]).append(&a, Some(5), &["w"]);
    assert_eq!(context.apply(guarded).await.sequences, [3, 1, 5]);
    let one_wrong = append(&context, &b, 4, &["x"]).append(&c, Some(1), &["y"]);
    let conflict = Conflict { key: Some(c.clone()), why: ConflictReason::Sequence(3) };
    assert_eq!(context.conflict(one_wrong).await, conflict);
    assert_eq!(context.log(&b, LogStart::After(0), 10).await.next, 4, "the other log got nothing either");
}

pub(super) async fn records_are_binary(context: Context) {
    let log = context.key(b"\0{log}\xff");
    let records: Vec<Bytes> = vec![
        Bytes::new(),
        Bytes::from_static(b"\0"),
        (0..=u8::MAX).collect(),
        (0..=u8::MAX).cycle().take(64 * 1024).collect(),
        Bytes::from_static(b"\xff\xfe{}\r\n"),
    ];
    let mut append = batch().guard(Guard::Absent(context.key("nobody")));
    append.appends.push(Append {
        log: log.clone(),
        records: records.clone(),
        expected: Some(1),
        cap: 0,
        in_turn: false,
    });
    context.apply(append).await;
    let page = context.log(&log, LogStart::After(0), 10).await;
    assert_eq!(page.records.into_iter().map(|record| record.record).collect::<Vec<_>>(), records);
}
