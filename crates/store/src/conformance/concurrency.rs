//! Concurrency: many callers at once, and the answers that still hold.

use std::collections::BTreeSet;
use std::future::Future;

use ff_core::Key;
use tokio::task::JoinSet;

use super::context::{Build, Context, batch, breathe, pairs, until};
use super::indexes::change;
use crate::{Batch, ConflictReason, Guard, LogStart, Outcome, Scan, StoredDocument};

/// Runs several callers at once and answers what they answered.
async fn all<T, F>(count: u64, caller: impl Fn(u64) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut callers: JoinSet<T> = (0..count).map(caller).collect();
    let mut answers = Vec::new();
    while let Some(answer) = callers.join_next().await {
        answers.push(answer.expect("no caller ends in a panic"));
    }
    answers
}

fn number(document: &StoredDocument) -> i64 {
    std::str::from_utf8(&document.body).ok().and_then(|text| text.parse().ok()).expect("the cases write numbers")
}

/// Reads documents, changes their numbers and commits under their versions, again and again until it succeeds.
async fn update(context: &Context, keys: &[Key], change: impl Fn(&mut [i64])) {
    loop {
        let found = context.documents(keys.to_vec()).await;
        let found: Vec<_> = found.into_iter().map(|found| found.expect("the documents are there")).collect();
        let mut numbers: Vec<i64> = found.iter().map(number).collect();
        change(&mut numbers);
        let changed = found.iter().zip(numbers).fold(batch(), |batch, (document, number)| {
            let guard = Guard::Version(document.key.clone(), document.version);
            batch.guard(guard).put(&document.key, &number.to_string())
        });
        let outcome = context.commit(changed).await;
        breathe().await;
        if let Outcome::Applied(_) = outcome {
            return;
        }
    }
}

async fn total(context: &Context, keys: &[Key]) -> i64 {
    context.documents(keys.to_vec()).await.iter().flatten().map(number).sum()
}

pub(super) async fn no_update_is_lost(context: Context) {
    let key = context.key("counter");
    context.create(&key, "0").await;
    all(8, |_| {
        let (context, keys) = (context.clone(), vec![key.clone()]);
        async move {
            for _ in 0..20 {
                update(&context, &keys, |numbers| numbers[0] += 1).await;
            }
        }
    })
    .await;
    assert_eq!(context.body(&key).await.as_deref(), Some("160"));
}

pub(super) async fn one_of_many_creators_wins(context: Context) {
    for round in 0..10 {
        let (key, index) = (context.key(format!("round {round}")), context.index(format!("round {round}")));
        let outcomes = all(16, |creator| {
            let (context, key) = (context.clone(), key.clone());
            let member = context.key(format!("{round} by {creator}"));
            let create = batch().guard(Guard::Absent(key.clone())).put(&key, "created").set(&index, &member, 1);
            async move { (create.command, context.commit(create).await) }
        })
        .await;
        let winners: Vec<_> =
            outcomes.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Applied(_))).map(|(by, _)| *by).collect();
        assert_eq!(winners.len(), 1, "exactly one creator wins");
        for (_, outcome) in outcomes {
            if let Outcome::Conflict(conflict) = outcome {
                assert_eq!(conflict.why, ConflictReason::Exists(winners[0]));
            }
        }
        assert_eq!(context.document(&key).await.map(|found| found.version), Some(winners[0]));
        assert_eq!(context.count(&index, 1, 1).await, 1, "the losers wrote nothing");
    }
}

pub(super) async fn unguarded_appends_get_numbers_of_their_own(context: Context) {
    let log = context.key("log");
    let claimed = all(8, |caller| {
        let (context, log) = (context.clone(), log.clone());
        async move {
            let mut claimed = Vec::new();
            for turn in 0..20 {
                let text = format!("{caller} {turn}");
                let appended = context.apply(batch().append(&log, None, &[&text])).await;
                claimed.push((appended.sequences[0], text));
            }
            assert!(claimed.is_sorted(), "the numbers of one caller grow");
            claimed
        }
    })
    .await;
    let claimed: BTreeSet<(u64, String)> = claimed.into_iter().flatten().collect();
    assert_eq!(claimed.len(), 160, "no two appends share a number");
    let page = until("all records can be read", || async {
        let page = context.log(&log, LogStart::After(0), 1_000).await;
        (page.records.len() == 160).then_some(page)
    })
    .await;
    assert!(page.records.windows(2).all(|pair| pair[0].sequence < pair[1].sequence && pair[0].at <= pair[1].at));
    let found = page
        .records
        .into_iter()
        .map(|record| (record.sequence, String::from_utf8(record.record.to_vec()).expect("the callers append text")));
    assert_eq!(found.collect::<BTreeSet<_>>(), claimed);
}

pub(super) async fn expected_appends_leave_no_hole(context: Context) {
    let log = context.key("log");
    all(4, |caller| {
        let (context, log) = (context.clone(), log.clone());
        async move {
            let mut expected = 1;
            for turn in 0..10 {
                loop {
                    let guarded = batch().guard(Guard::Absent(context.key("nobody")));
                    let append = guarded.append(&log, Some(expected), &[&format!("{caller} {turn}")]);
                    match context.commit(append).await {
                        Outcome::Applied(applied) => {
                            assert_eq!(applied.sequences, [expected]);
                            expected += 1;
                            break;
                        }
                        Outcome::Conflict(conflict) => match conflict.why {
                            ConflictReason::Sequence(next) => {
                                assert_ne!(next, expected, "a conflict about the very number that was expected");
                                expected = next;
                            }
                            other => panic!("an append met {other:?}"),
                        },
                    }
                }
            }
        }
    })
    .await;
    let page = context.log(&log, LogStart::After(0), 1_000).await;
    assert!(page.records.iter().map(|record| record.sequence).eq(1..=40));
    let texts: BTreeSet<_> = page.records.iter().map(|record| record.record.clone()).collect();
    assert_eq!((texts.len(), page.next), (40, 41));
}

pub(super) async fn transfers_in_both_directions_keep_the_sum(context: Context) {
    let keys: Vec<Key> = (0..4).map(|number| context.key(number.to_string())).collect();
    for key in &keys {
        context.create(key, "100").await;
    }
    all(6, |caller| {
        let (context, mut keys) = (context.clone(), keys.clone());
        // Half of the callers name the documents in the opposite order: no order of locking may end in a deadlock.
        if caller % 2 == 0 {
            keys.reverse();
        }
        async move {
            for _ in 0..10 {
                update(&context, &keys, |numbers| {
                    numbers[0] -= 3;
                    numbers[3] += 3;
                })
                .await;
            }
        }
    })
    .await;
    assert_eq!(total(&context, &keys).await, 400);
}

pub(super) async fn calls_in_opposite_order_all_end(context: Context) {
    let keys: Vec<Key> = (0..12).map(|number| context.key(number.to_string())).collect();
    for key in &keys {
        context.create(key, "0").await;
    }
    let applied = all(6, |caller| {
        let (context, mut keys) = (context.clone(), keys.clone());
        if caller % 2 == 0 {
            keys.reverse();
        }
        async move {
            let mut applied = 0i64;
            for _ in 0..10 {
                let found = context.documents(keys.clone()).await;
                let batches: Vec<Batch> = found
                    .into_iter()
                    .flatten()
                    .map(|document| {
                        let next = (number(&document) + 1).to_string();
                        batch().guard(Guard::Version(document.key.clone(), document.version)).put(&document.key, &next)
                    })
                    .collect();
                for outcome in context.commit_all(batches).await {
                    match outcome {
                        Outcome::Applied(_) => applied += 1,
                        Outcome::Conflict(conflict) => {
                            assert!(matches!(conflict.why, ConflictReason::Version(_)), "{conflict:?}");
                        }
                    }
                }
            }
            applied
        }
    })
    .await;
    assert_eq!(total(&context, &keys).await, applied.iter().sum::<i64>());
}

/// Runs a writer beside a reader; the writer ends with the reader.
async fn beside<F: Future<Output = ()> + Send + 'static>(writer: F, reader: impl Future<Output = ()>) {
    let writing = tokio::spawn(writer);
    reader.await;
    writing.abort();
    assert!(writing.await.is_err_and(|error| error.is_cancelled()), "the writer met an error");
}

pub(super) async fn documents_of_one_answer_are_from_one_instant(context: Context) {
    let keys: Vec<Key> = (0..5).map(|number| context.key(number.to_string())).collect();
    for key in &keys {
        context.create(key, "0").await;
    }
    let writer = {
        let (context, keys) = (context.clone(), keys.clone());
        async move {
            loop {
                update(&context, &keys, |numbers| numbers.iter_mut().for_each(|number| *number += 1)).await;
            }
        }
    };
    let reader = async {
        for _ in 0..200 {
            let found = context.documents(keys.clone()).await;
            breathe().await;
            let numbers: BTreeSet<i64> = found.iter().flatten().map(number).collect();
            assert_eq!(numbers.len(), 1, "one answer mixes two instants: {numbers:?}");
        }
    };
    beside(writer, reader).await;
}

pub(super) async fn entries_and_documents_of_one_answer_agree(context: Context) {
    let (key, index) = (context.key("document"), context.index("by number"));
    context.create(&key, "0").await;
    context.apply(change(&context).set(&index, &key, 0)).await;
    let writer = {
        let (context, key, index) = (context.clone(), key.clone(), index.clone());
        async move {
            loop {
                let found = context.document(&key).await.expect("the document is there");
                let next = number(&found) + 1;
                let guard = Guard::Version(key.clone(), found.version);
                context.apply(batch().guard(guard).put(&key, &next.to_string()).set(&index, &key, next)).await;
                breathe().await;
            }
        }
    };
    let reader = async {
        for _ in 0..200 {
            let entries = context.scan(Scan::first(index.clone(), 10).with_documents()).await;
            breathe().await;
            let found: Vec<i64> = entries.iter().filter_map(|entry| entry.document.as_ref()).map(number).collect();
            let scores: Vec<i64> = pairs(entries).into_iter().map(|(score, _)| score).collect();
            assert_eq!((scores.len(), &scores), (1, &found), "an entry and its document are from two instants");
        }
    };
    beside(writer, reader).await;
}
