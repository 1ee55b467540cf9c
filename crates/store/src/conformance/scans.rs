//! Scans: pages of an index, in the order of (score, member), in both directions.

use std::collections::BTreeSet;

use bytes::Bytes;
use ff_core::{IndexName, Key, limits};

use super::context::{Build, Context, batch, breathe, pairs};
use super::indexes::change;
use crate::{Answer, BlobChange, Guard, LogStart, Query, Scan};

/// Fills an index and answers its entries in order.
async fn fill(context: &Context, index: &IndexName, entries: &[(i64, &[u8])]) -> Vec<(i64, Key)> {
    let mut keyed: Vec<(i64, Key)> = entries.iter().map(|(score, member)| (*score, context.key(member))).collect();
    let set = keyed.iter().fold(change(context), |batch, (score, member)| batch.set(index, member, *score));
    context.apply(set).await;
    keyed.sort();
    keyed
}

/// Thirty entries, three at each score.
async fn thirty(context: &Context, index: &IndexName) -> Vec<(i64, Key)> {
    let names: Vec<[u8; 1]> = (0..30).map(|number| [number]).collect();
    let entries: Vec<(i64, &[u8])> = names.iter().map(|name| (i64::from(name[0] % 10) - 5, name.as_slice())).collect();
    fill(context, index, &entries).await
}

pub(super) async fn entries_are_ordered_by_score_and_member(context: Context) {
    let index = context.index("i");
    let entries: [(i64, &[u8]); 12] = [
        (0, b"b"),
        (0, b"a"),
        (0, b"a\0"),
        (0, b"a\xff"),
        (0, b"aa"),
        (0, b"\xff"),
        (0, b"\x80"),
        (-1, b"z"),
        (-10, b"y"),
        (9, b"x"),
        (10, b"w"),
        (100, b"A"),
    ];
    let expected = fill(&context, &index, &entries).await;
    assert_eq!(context.entries(&index).await, expected);
}

pub(super) async fn extreme_scores_stay_exact(context: Context) {
    let index = context.index("i");
    let max = limits::SCORE_MAX;
    let entries: [(i64, &[u8]); 7] =
        [(max, b"a"), (max - 1, b"b"), (max - 2, b"c"), (0, b"d"), (-max, b"e"), (1 - max, b"f"), (2 - max, b"g")];
    let expected = fill(&context, &index, &entries).await;
    assert_eq!(context.entries(&index).await, expected);
    for (score, key) in expected {
        let exactly = Scan { min: score, ..Scan::first(index.clone(), 10) }.up_to(score);
        assert_eq!(pairs(context.scan(exactly).await), [(score, key)]);
    }
}

pub(super) async fn a_descending_scan_is_the_reverse(context: Context) {
    let index = context.index("i");
    let mut expected = thirty(&context, &index).await;
    expected.reverse();
    assert_eq!(pairs(context.scan(Scan::last(index.clone(), 100)).await), expected);
    assert_eq!(pairs(context.scan(Scan::last(index, 4)).await), expected[..4]);
}

pub(super) async fn a_range_includes_both_ends(context: Context) {
    let index = context.index("i");
    let all = thirty(&context, &index).await;
    for (min, max) in [(-5, 4), (-2, 2), (0, 0), (-100, -5), (4, 100), (5, 100), (3, -3), (i64::MIN, i64::MAX)] {
        let mut expected: Vec<_> = all.iter().filter(|(score, _)| (min..=max).contains(score)).cloned().collect();
        let scan = Scan { min, max, ..Scan::first(index.clone(), 100) };
        assert_eq!(pairs(context.scan(scan.clone()).await), expected, "{min} to {max}");
        expected.reverse();
        let scan = Scan { descending: true, ..scan };
        assert_eq!(pairs(context.scan(scan).await), expected, "{max} down to {min}");
    }
}

pub(super) async fn a_limit_is_kept(context: Context) {
    let index = context.index("i");
    let all = thirty(&context, &index).await;
    for limit in [0, 1, 2, 29, 30, 31, 100_000] {
        let found = pairs(context.scan(Scan::first(index.clone(), limit)).await);
        assert_eq!(found, all[..limit.min(30)], "limit {limit}");
        let found = context.scan(Scan::last(index.clone(), limit)).await;
        assert_eq!(found.len(), limit.min(30), "limit {limit}, descending");
    }
}

pub(super) async fn a_scan_goes_on_behind_an_entry(context: Context) {
    let index = context.index("i");
    let all = thirty(&context, &index).await;
    let gone = (all[10].0, context.key([all[10].1.as_bytes()[17], 0]));
    let befores =
        [all[0].clone(), all[7].clone(), all[29].clone(), gone, (-100, context.key("")), (100, context.key(""))];
    for after in befores {
        for (min, max) in [(i64::MIN, i64::MAX), (-2, 2)] {
            let within = |entry: &&(i64, Key)| (min..=max).contains(&entry.0);
            let up: Vec<_> = all.iter().filter(|entry| **entry > after).filter(within).cloned().collect();
            let down: Vec<_> = all.iter().rev().filter(|entry| **entry < after).filter(within).cloned().collect();
            let scan = Scan { min, max, ..Scan::first(index.clone(), 100) }.after(after.0, after.1.clone());
            assert_eq!(pairs(context.scan(scan.clone()).await), up, "behind {after:?}, {min} to {max}");
            let scan = Scan { descending: true, ..scan };
            assert_eq!(pairs(context.scan(scan).await), down, "below {after:?}, {max} down to {min}");
        }
    }
}

/// Reads an index page by page.
async fn pages(context: &Context, first: Scan) -> Vec<(i64, Key)> {
    let mut found = Vec::new();
    let mut scan = first;
    loop {
        let page = pairs(context.scan(scan.clone()).await);
        assert!(page.len() <= scan.limit, "a page is larger than its limit");
        let Some((score, member)) = page.last().cloned() else { return found };
        found.extend(page);
        scan = scan.after(score, member);
    }
}

pub(super) async fn pages_make_the_whole(context: Context) {
    let index = context.index("i");
    let mut all = thirty(&context, &index).await;
    for limit in [1, 4, 7] {
        assert_eq!(pages(&context, Scan::first(index.clone(), limit)).await, all, "pages of {limit}");
    }
    all.reverse();
    assert_eq!(pages(&context, Scan::last(index, 4)).await, all);
}

pub(super) async fn pages_miss_nothing_that_stayed(context: Context) {
    let index = context.index("i");
    let stays = |number: i64| context.key(format!("stays {number}"));
    let comes = |number: i64| context.key(format!("comes {number}"));
    let set = (0..200).fold(change(&context), |batch, number| batch.set(&index, &stays(number), number / 5));
    context.apply(set).await;
    let churning = tokio::spawn({
        let (context, index) = (context.clone(), index.clone());
        let members: Vec<Key> = (0..40).map(comes).collect();
        async move {
            // Ends with the task that owns it; each turn leaves every entry that stays where it is.
            for turn in 0i64.. {
                let batch = (0i64..).zip(&members).fold(change(&context), |batch, (number, member)| {
                    if (turn + number) % 3 == 0 {
                        batch.unset(&index, member)
                    } else {
                        batch.set(&index, member, (number * 7 + turn) % 40)
                    }
                });
                context.apply(batch).await;
                breathe().await;
            }
        }
    });
    let expected: BTreeSet<Key> = (0..200).map(stays).collect();
    for round in 0..6 {
        let scan = if round % 2 == 0 { Scan::first(index.clone(), 9) } else { Scan::last(index.clone(), 9) };
        let ascending = !scan.descending;
        let found = pages(&context, scan).await;
        assert!(found.windows(2).all(|pair| (pair[0] < pair[1]) == ascending), "pages overlap or are out of order");
        let stayed: BTreeSet<Key> =
            found.into_iter().map(|(_, member)| member).filter(|key| expected.contains(key)).collect();
        assert_eq!(stayed.len(), expected.len(), "an entry that stayed was missed");
    }
    churning.abort();
    assert!(churning.await.is_err_and(|error| error.is_cancelled()), "the churn met an error");
}

pub(super) async fn documents_come_with_their_entries(context: Context) {
    let index = context.index("i");
    let (a, b, c) = (context.key("a"), context.key("b"), context.key("c"));
    let version = context.create(&a, "of a").await;
    context.create(&c, "of c").await;
    context.apply(change(&context).set(&index, &a, 1).set(&index, &b, 2).set(&index, &c, 3)).await;
    for descending in [false, true] {
        let scan = Scan { descending, ..Scan::first(index.clone(), 10) };
        let mut found = context.scan(scan.clone().with_documents()).await;
        if descending {
            found.reverse();
        }
        let bodies: Vec<_> = found.iter().map(|entry| entry.document.as_ref().map(|it| it.body.as_ref())).collect();
        assert_eq!(bodies, [Some(b"of a".as_slice()), None, Some(b"of c")]);
        let first = found[0].document.as_ref().expect("the document of a is there");
        assert_eq!((&first.key, first.version, first.lease_until), (&a, version, 0));
        assert!(context.scan(scan).await.iter().all(|entry| entry.document.is_none()), "nobody asked for documents");
    }
}

pub(super) async fn an_unknown_index_is_empty(context: Context) {
    let index = context.index("unknown");
    assert_eq!(context.scan(Scan::first(index.clone(), 10).with_documents()).await, []);
    assert_eq!(context.scan(Scan::last(index, 10).after(0, context.key("a"))).await, []);
}

pub(super) async fn queries_are_answered_in_order(context: Context) {
    let (key, index) = (context.key("a"), context.index("i"));
    let mut create = batch().guard(Guard::Absent(key.clone())).put(&key, "document").set(&index, &key, 4).append(
        &key,
        Some(1),
        &["record"],
    );
    create.blobs.push(BlobChange { key: key.clone(), bytes: Some(Bytes::from_static(b"blob")) });
    context.apply(create).await;
    let queries = vec![
        Query::Count { index: index.clone(), min: 0, max: 9, at_most: u64::MAX },
        Query::Log { log: key.clone(), start: LogStart::After(0), limit: 5 },
        Query::Documents(vec![key.clone()]),
        Query::Indexes { prefix: context.prefix(), after: None, limit: 5 },
        Query::Documents(vec![context.key("b"), key.clone()]),
        Query::Blobs(vec![key.clone()]),
        Query::Scan(Scan::first(index.clone(), 5)),
        Query::Count { index: context.index("unknown"), min: 0, max: 9, at_most: 2 },
    ];
    let answers = context.store.read(context.partition, queries).await.expect("the store reads").answers;
    assert_eq!(answers.len(), 8);
    let mut answers = answers.into_iter();
    let mut next = || answers.next().expect("there are eight");
    assert_eq!(next(), Answer::Count(1));
    assert_eq!(next().into_log().expect("a log was asked for").records[0].record.as_ref(), b"record");
    let first = next().into_documents().expect("documents were asked for");
    assert_eq!(first[0].as_ref().map(|it| it.body.as_ref()), Some(b"document".as_slice()));
    assert_eq!(next(), Answer::Indexes(vec![index]));
    let second = next().into_documents().expect("documents were asked for");
    assert_eq!((&second[0], &second[1]), (&None, &first[0]));
    assert_eq!(next(), Answer::Blobs(vec![Some(Bytes::from_static(b"blob"))]));
    assert_eq!(pairs(next().into_scan().expect("a scan was asked for").entries), [(4, key)]);
    assert_eq!(next(), Answer::Count(0));
}
