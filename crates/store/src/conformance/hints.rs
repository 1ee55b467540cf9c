//! Hints: told after the commit, never instead of it.

use bytes::Bytes;

use super::context::{Build, Context, TEST_TIMEOUT, batch};
use crate::{Guard, Hint, Hints, WatchEvent};

/// The result of waiting for hints.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    /// All were heard.
    All,
    /// Hints may have been lost, which a store may say at any time.
    Resync,
}

/// A hint that only this case sends.
fn hint(context: &Context, what: &str) -> Hint {
    let payload = [b"\0\xff{}", context.salt(), what.as_bytes()].concat();
    Hint { partition: context.partition, payload: Bytes::from(payload) }
}

/// Listens until all of these were heard, and fails on hearing one of the others.
async fn listen(hints: &mut Hints, mut expected: Vec<Hint>, never: &[Hint]) -> Heard {
    while !expected.is_empty() {
        let event = tokio::time::timeout(TEST_TIMEOUT, hints.next()).await;
        match event.expect("a hint or a resync comes in time").expect("the store is open") {
            WatchEvent::Resync => return Heard::Resync,
            WatchEvent::Hint(heard) => {
                assert!(!never.contains(&heard), "a batch that met a conflict sent a hint");
                // Hints of other cases on the same database come by, too.
                expected.retain(|hint| *hint != heard);
            }
        }
    }
    Heard::All
}

/// Repeats a case until no resync comes in between; each round sends hints of its own.
macro_rules! rounds {
    ($round:ident => $heard:expr) => {{
        let mut heard = Heard::Resync;
        for $round in 0..20 {
            heard = $heard;
            if heard == Heard::All {
                break;
            }
        }
        assert_eq!(heard, Heard::All, "the store lost hints all the time");
    }};
}

pub(super) async fn a_hint_arrives_after_its_commit(context: Context) {
    let mut hints = context.store.watch();
    rounds!(round => {
        let key = context.key(format!("round {round}"));
        let hint = hint(&context, &format!("round {round}"));
        let mut create = batch().guard(Guard::Absent(key.clone())).put(&key, "body");
        create.hints.push(hint.clone());
        let committing = tokio::spawn({
            let context = context.clone();
            async move { context.apply(create).await }
        });
        let heard = listen(&mut hints, vec![hint], &[]).await;
        if heard == Heard::All {
            assert!(context.document(&key).await.is_some(), "the hint came before the commit");
        }
        committing.await.expect("the commit is applied");
        heard
    });
}

pub(super) async fn every_watcher_hears_every_hint(context: Context) {
    let mut watchers = [context.store.watch(), context.store.watch(), context.store.watch()];
    rounds!(round => {
        let sent: Vec<Hint> = (0..6).map(|number| hint(&context, &format!("{round} {number}"))).collect();
        let (mut first, mut second) = (batch(), batch());
        first.hints = sent[..4].to_vec();
        second.hints = sent[4..].to_vec();
        context.commit_all(vec![first, second]).await;
        let mut heard = Heard::All;
        for watcher in &mut watchers {
            if listen(watcher, sent.clone(), &[]).await == Heard::Resync {
                heard = Heard::Resync;
            }
        }
        heard
    });
}

pub(super) async fn a_conflict_sends_no_hint(context: Context) {
    let mut hints = context.store.watch();
    let key = context.key("taken");
    context.create(&key, "body").await;
    rounds!(round => {
        let (never, sent) = (hint(&context, &format!("never {round}")), hint(&context, &format!("sent {round}")));
        let (mut conflicting, mut good) = (batch().guard(Guard::Absent(key.clone())), batch());
        conflicting.hints.push(never.clone());
        good.hints.push(sent.clone());
        context.conflict(conflicting.clone()).await;
        let outcomes = context.commit_all(vec![conflicting, good]).await;
        assert_eq!(outcomes.into_iter().filter_map(crate::Outcome::applied).count(), 1);
        listen(&mut hints, vec![sent], &[never]).await
    });
}
