//! Event numbers: a reader that follows a log misses nothing, in whatever order transactions commit.

use std::collections::BTreeSet;

use ff_store::{Batch, LogPage, LogRecord, LogStart, Store};
use ff_testkit::postgres::Server;
use tokio::time::timeout;

use crate::fixture::{PARTITION, TEST_TIMEOUT, append, command, connect, key, open};

const APPENDERS: usize = 16;
const COMMITS_EACH: usize = 100;

async fn all_behind(store: &dyn Store, mut after: u64) -> Vec<LogRecord> {
    let mut records = Vec::new();
    loop {
        let page = store.log(PARTITION, key("events"), LogStart::After(after), 64).await.unwrap();
        let Some(last) = page.records.last() else { return records };
        after = last.sequence;
        records.extend(page.records);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_follows_concurrent_appends_misses_nothing() {
    let url = Server::shared().create_database("events_follow");
    // Two stores stand for two processes; each has several writers.
    let stores = [open(&url).await, open(&url).await];
    let appenders: Vec<_> = (0..APPENDERS)
        .map(|appender| {
            let store = stores[appender % stores.len()].clone();
            tokio::spawn(async move {
                for n in 0..COMMITS_EACH {
                    let record = append("events", &format!("{appender}-{n}"), None);
                    let batch = Batch { appends: vec![record], ..Batch::new(command()) };
                    store.commit(PARTITION, [batch].into()).await.unwrap();
                }
            })
        })
        .collect();
    let mut followed: Vec<LogRecord> = Vec::new();
    while appenders.iter().any(|appender| !appender.is_finished()) {
        let after = followed.last().map_or(0, |record| record.sequence);
        followed.extend(all_behind(&*stores[0], after).await);
    }
    for appender in appenders {
        appender.await.unwrap();
    }
    let after = followed.last().map_or(0, |record| record.sequence);
    followed.extend(all_behind(&*stores[0], after).await);
    assert_eq!(followed, all_behind(&*stores[1], 0).await);
    assert!(followed.windows(2).all(|pair| pair[0].sequence < pair[1].sequence && pair[0].at <= pair[1].at));
    let distinct: BTreeSet<_> = followed.iter().map(|record| record.record.clone()).collect();
    assert_eq!(distinct.len(), APPENDERS * COMMITS_EACH);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_transaction_does_not_hold_readers_back() {
    let url = Server::shared().create_database("events_foreign");
    let store = open(&url).await;
    let foreign = connect(&url).await;
    // As a long data migration of another program would, in any database of the server.
    foreign.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
    let batch = Batch { appends: vec![append("events", "a", None)], ..Batch::new(command()) };
    store.commit(PARTITION, [batch].into()).await.unwrap();
    // A reader is told of a record once: what it does not see then, it sees when something else happens.
    let records = timeout(TEST_TIMEOUT, all_behind(&*store, 0)).await.expect("no transaction is waited for");
    assert_eq!(records.len(), 1);
    let newest = store.log(PARTITION, key("events"), LogStart::Before(u64::MAX), 1).await.unwrap();
    assert_eq!(newest.records, records);
    foreign.batch_execute("ROLLBACK").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_are_appended_in_turn_show_at_once_whatever_else_runs() {
    let url = Server::shared().create_database("events_in_turn");
    let store = open(&url).await;
    let appending = |record: &str, in_turn: bool| {
        let append = ff_store::Append { in_turn, ..append("events", record, None) };
        Batch { appends: vec![append], ..Batch::new(command()) }
    };
    // A log that an earlier version wrote goes on with larger numbers.
    store.commit(PARTITION, [appending("old", false)].into()).await.unwrap();
    assert_eq!(all_behind(&*store, 0).await.len(), 1);
    let foreign = connect(&url).await;
    foreign.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
    for count in 2..5 {
        store.commit(PARTITION, [appending("new", true)].into()).await.unwrap();
        let records = all_behind(&*store, 0).await;
        assert_eq!(records.len(), count, "{records:?}");
        assert!(records.windows(2).all(|pair| pair[0].sequence < pair[1].sequence));
    }
    foreign.batch_execute("ROLLBACK").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_go_on_after_everything_was_trimmed() {
    let store = open(&Server::shared().create_database("events_trimmed")).await;
    let append = || Batch { appends: vec![append("events", "a", None)], ..Batch::new(command()) };
    store.commit(PARTITION, [append(), append()].into()).await.unwrap();
    let page = store.log(PARTITION, key("events"), LogStart::After(0), 10).await.unwrap();
    let trim = ff_store::Trim { log: key("events"), before: page.next };
    store.commit(PARTITION, [Batch { trims: vec![trim], ..Batch::new(command()) }].into()).await.unwrap();
    let empty = store.log(PARTITION, key("events"), LogStart::After(0), 10).await.unwrap();
    assert_eq!((empty.records.len(), empty.first, empty.next), (0, page.next, page.next));
    store.commit(PARTITION, [append()].into()).await.unwrap();
    let page = shown(&*store, 1).await;
    assert!(page.records[0].sequence >= empty.next);
}

/// A page of so many records.
async fn shown(store: &dyn Store, count: usize) -> LogPage {
    let page = store.log(PARTITION, key("events"), LogStart::After(0), 10).await.unwrap();
    assert_eq!(page.records.len(), count);
    page
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_at_the_end_of_a_log_learns_that_nothing_was_removed_unread() {
    let url = Server::shared().create_database("events_holes");
    let store = open(&url).await;
    let appending = |log: &str, count: usize, cap: u64| {
        let records = (0..count).map(|number| number.to_string().into()).collect();
        let append = ff_store::Append { log: key(log), records, expected: None, cap, in_turn: false };
        Batch { appends: vec![append], ..Batch::new(command()) }
    };
    store.commit(PARTITION, [appending("events", 3, 0)].into()).await.unwrap();
    let read = shown(&*store, 3).await.records[2].sequence;
    // Numbers of another log lie between what was read and what comes next.
    store.commit(PARTITION, [appending("other", 50, 0)].into()).await.unwrap();
    store.commit(PARTITION, [appending("events", 2, 0)].into()).await.unwrap();
    let trim = ff_store::Trim { log: key("events"), before: read + 1 };
    store.commit(PARTITION, [Batch { trims: vec![trim], ..Batch::new(command()) }].into()).await.unwrap();
    let page = shown(&*store, 2).await;
    assert!(page.first > read + 1, "numbers skip");
    assert_eq!(page.removed_up_to, read, "all that was removed was read");
    // A cap removes more, in the background.
    store.commit(PARTITION, [appending("events", 300, 10)].into()).await.unwrap();
    let capped = timeout(TEST_TIMEOUT, async {
        loop {
            let page = store.log(PARTITION, key("events"), LogStart::After(read), 1_000).await.unwrap();
            if page.records.len() == 10 && page.removed_up_to > read {
                return page;
            }
        }
    });
    let page = capped.await.expect("it is trimmed");
    assert_eq!(page.removed_up_to + 1, page.first, "the numbers of one append follow each other");
}
