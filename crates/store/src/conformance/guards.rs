//! Guards: each one passes, fails with its reason, and comes before every write.

use bytes::Bytes;
use ff_core::{CommandId, Key, LeaseId};
use uuid::Uuid;

use super::context::{Build, Context, applied, batch, command, fence, refused, until};
use crate::{Batch, BlobChange, Conflict, ConflictReason, Fence, Guard, LogStart, Outcome, Trim};

/// Asserts that a guard alone fails on this document for this reason.
async fn fails(context: &Context, guard: Guard, why: ConflictReason) {
    let key = guard.key().cloned();
    assert_eq!(context.conflict(batch().guard(guard.clone())).await, Conflict { key, why }, "{guard:?}");
}

/// Asserts that a guard alone holds.
async fn holds(context: &Context, guard: Guard) {
    let outcome = context.commit(batch().guard(guard.clone())).await;
    assert!(matches!(outcome, Outcome::Applied(_)), "{guard:?} met {outcome:?}");
}

pub(super) async fn absent_holds_without_a_document_only(context: Context) {
    let key = context.key("a");
    holds(&context, Guard::Absent(key.clone())).await;
    let version = context.create(&key, "body").await;
    fails(&context, Guard::Absent(key), ConflictReason::Exists(version)).await;
}

pub(super) async fn version_holds_for_the_last_writer_only(context: Context) {
    let key = context.key("a");
    fails(&context, Guard::Version(key.clone(), command()), ConflictReason::Missing).await;
    let first = context.create(&key, "one").await;
    holds(&context, Guard::Version(key.clone(), first)).await;
    fails(&context, Guard::Version(key.clone(), command()), ConflictReason::Version(first)).await;
    let update = batch().guard(Guard::Version(key.clone(), first)).put(&key, "two");
    let second = update.command;
    context.apply(update).await;
    holds(&context, Guard::Version(key.clone(), second)).await;
    fails(&context, Guard::Version(key, first), ConflictReason::Version(second)).await;
}

pub(super) async fn fence_holds_for_epoch_and_lease_together(context: Context) {
    let key = context.key("a");
    fails(&context, Guard::Fence(key.clone(), fence(1)), ConflictReason::Missing).await;
    let current = fence(3);
    let mut create = batch().guard(Guard::Absent(key.clone())).put(&key, "body");
    create.puts[0].fence = current;
    context.apply(create).await;
    holds(&context, Guard::Fence(key.clone(), current)).await;
    for other in [
        Fence { epoch: current.epoch.next(), ..current },
        Fence { lease: LeaseId(Uuid::now_v7()), ..current },
        Fence::default(),
    ] {
        fails(&context, Guard::Fence(key.clone(), other), ConflictReason::Fence(current)).await;
    }
    let plain = context.key("plain");
    context.create(&plain, "without a fence").await;
    holds(&context, Guard::Fence(plain.clone(), Fence::default())).await;
    fails(&context, Guard::Fence(plain, current), ConflictReason::Fence(Fence::default())).await;
}

pub(super) async fn live_holds_until_the_lease_ends(context: Context) {
    let (key, index) = (context.key("a"), context.index("due"));
    fails(&context, Guard::Live(key.clone()), ConflictReason::Missing).await;
    context.create_leased(&key, &index, 60_000).await;
    holds(&context, Guard::Live(key.clone())).await;

    let never = context.key("never leased");
    context.create(&never, "body").await;
    fails(&context, Guard::Live(never), ConflictReason::LeaseOver(0)).await;

    let short = context.key("short");
    let ends = context.create_leased(&short, &index, 30).await.lease_until;
    until("the lease ends", || async {
        match context.commit(batch().guard(Guard::Live(short.clone()))).await {
            Outcome::Applied(applied) => {
                assert!(applied.at < ends, "live at {} until {ends}", applied.at);
                None
            }
            Outcome::Conflict(conflict) => {
                assert_eq!(conflict.why, ConflictReason::LeaseOver(ends));
                assert!(context.now().await >= ends, "a lease ended early");
                Some(())
            }
        }
    })
    .await;
}

pub(super) async fn expired_holds_once_the_lease_has_ended(context: Context) {
    let (key, index) = (context.key("a"), context.index("due"));
    fails(&context, Guard::Expired(key.clone()), ConflictReason::Missing).await;
    let holder = context.create_leased(&key, &index, 60_000).await;
    fails(&context, Guard::Expired(key.clone()), ConflictReason::LeaseHolds(holder.lease_until)).await;

    let never = context.key("never leased");
    context.create(&never, "body").await;
    holds(&context, Guard::Expired(never)).await;

    let short = context.key("short");
    let ends = context.create_leased(&short, &index, 30).await.lease_until;
    until("the lease ends", || async {
        match context.commit(batch().guard(Guard::Expired(short.clone()))).await {
            Outcome::Applied(applied) => {
                assert!(applied.at >= ends, "expired at {}, but it holds until {ends}", applied.at);
                Some(())
            }
            Outcome::Conflict(conflict) => {
                assert_eq!(conflict.why, ConflictReason::LeaseHolds(ends));
                None
            }
        }
    })
    .await;
}

pub(super) async fn not_after_holds_until_the_instant(context: Context) {
    let now = context.now().await;
    holds(&context, Guard::NotAfter(now + 60_000)).await;
    until("the instant has passed", || async { (context.now().await > now).then_some(()) }).await;
    let conflict = context.conflict(batch().guard(Guard::NotAfter(now))).await;
    assert_eq!(conflict.key, None);
    match conflict.why {
        ConflictReason::TooLate(at) => assert!(at > now, "too late at {at}, which is not after {now}"),
        other => panic!("not a matter of {other:?}"),
    }
}

/// Documents, entries, logs and blobs, and a batch that would change them all.
struct Everything {
    documents: Vec<Key>,
    log: Key,
    version: CommandId,
    change: Batch,
}

impl Everything {
    async fn create(context: &Context) -> Self {
        let (index, due) = (context.index("index"), context.index("due"));
        let documents: Vec<Key> = ["a", "b", "c"].iter().map(|name| context.key(name)).collect();
        let [a, b, c] = &documents[..] else { unreachable!("three names make three keys") };
        let log = context.key("log");
        let mut create = batch().append(&log, Some(1), &["one", "two"]);
        for key in &documents {
            create = create.guard(Guard::Absent(key.clone())).put(key, "before").lease(key, &due, Some(60_000));
            create = create.set(&index, key, 10);
        }
        create.blobs.push(BlobChange { key: a.clone(), bytes: Some(Bytes::from_static(b"before")) });
        let version = create.command;
        context.apply(create).await;

        let mut change = batch()
            .put(a, "after")
            .lease(a, &due, Some(1))
            .lease(b, &due, None)
            .set(&index, a, 20)
            .unset(&index, b)
            .set(&context.index("another"), a, 1)
            .append(&log, None, &["three"]);
        change.deletes.push(c.clone());
        change.trims.push(Trim { log: log.clone(), before: 2 });
        change.blobs.push(BlobChange { key: a.clone(), bytes: None });
        change.blobs.push(BlobChange { key: b.clone(), bytes: Some(Bytes::from_static(b"after")) });
        for key in &documents {
            change = change.guard(Guard::Version(key.clone(), version));
        }
        Self { documents, log, version, change }
    }

    async fn look(&self, context: &Context) -> impl PartialEq + std::fmt::Debug + use<> {
        (
            context.documents(self.documents.clone()).await,
            context.blobs(self.documents.clone()).await,
            context.entries(&context.index("index")).await,
            context.entries(&context.index("due")).await,
            context.entries(&context.index("another")).await,
            context.log(&self.log, LogStart::After(0), 10).await,
        )
    }
}

pub(super) async fn one_failing_guard_among_many_writes_nothing(context: Context) {
    let everything = Everything::create(&context).await;
    let before = everything.look(&context).await;
    let (a, present) = (&everything.documents[0], everything.version);
    for (guard, why) in [
        (Guard::Absent(a.clone()), ConflictReason::Exists(present)),
        (Guard::Version(a.clone(), command()), ConflictReason::Version(present)),
        (Guard::Version(context.key("never"), present), ConflictReason::Missing),
        (Guard::Fence(a.clone(), fence(9)), ConflictReason::Fence(Fence::default())),
    ] {
        for first in [true, false] {
            let mut change = everything.change.clone();
            change.guards.insert(if first { 0 } else { change.guards.len() }, guard.clone());
            let key = guard.key().cloned();
            assert_eq!(context.conflict(change).await, Conflict { key, why }, "{guard:?}");
            assert_eq!(everything.look(&context).await, before, "{guard:?} failed and something was written");
        }
    }
    // The same change without a failing guard does change things; otherwise nothing was proved.
    context.apply(everything.change.clone()).await;
    assert_ne!(everything.look(&context).await, before);
}

pub(super) async fn a_wrong_sequence_writes_nothing(context: Context) {
    let everything = Everything::create(&context).await;
    let before = everything.look(&context).await;
    for expected in [1, 2, 4] {
        let mut change = everything.change.clone();
        change.appends[0].expected = Some(expected);
        let conflict = Conflict { key: Some(everything.log.clone()), why: ConflictReason::Sequence(3) };
        assert_eq!(context.conflict(change).await, conflict);
        assert_eq!(everything.look(&context).await, before);
    }
    let mut change = everything.change.clone();
    change.appends[0].expected = Some(3);
    assert_eq!(context.apply(change).await.sequences, [3]);
}

pub(super) async fn the_first_guard_that_fails_is_named(context: Context) {
    let (a, b, log) = (context.key("a"), context.key("b"), context.key("log"));
    let version = context.create(&b, "body").await;
    let missing = Guard::Version(a.clone(), command());
    let other = Guard::Version(b.clone(), command());
    for (first, second) in [(&missing, &other), (&other, &missing)] {
        let both = batch().guard(Guard::Version(b.clone(), version)).guard(first.clone()).guard(second.clone()).append(
            &log,
            Some(7),
            &["record"],
        );
        assert_eq!(context.conflict(both).await.key.as_ref(), first.key());
    }
}

pub(super) async fn guards_alone_are_a_batch(context: Context) {
    let key = context.key("a");
    let version = context.create(&key, "body").await;
    let before = context.document(&key).await;
    let applied = context.apply(batch().guard(Guard::Version(key.clone(), version))).await;
    assert!(applied.sequences.is_empty() && applied.at > 0);
    assert_eq!(context.document(&key).await, before, "a check writes nothing");
}

pub(super) async fn a_guard_on_one_document_protects_another(context: Context) {
    let (guarded, other) = (context.key("guarded"), context.key("other"));
    let version = context.create(&guarded, "body").await;
    context.create(&other, "body").await;
    let mut delete = batch().guard(Guard::Version(guarded.clone(), command()));
    delete.deletes.push(other.clone());
    context.conflict(delete.clone()).await;
    assert!(context.document(&other).await.is_some());
    delete.guards = vec![Guard::Version(guarded.clone(), version)];
    context.apply(delete).await;
    assert!(context.document(&other).await.is_none());
    assert!(context.document(&guarded).await.is_some());
}

pub(super) async fn a_conflict_harms_no_other_batch(context: Context) {
    let keys: Vec<Key> = (0..5).map(|number| context.key(number.to_string())).collect();
    let taken = context.create(&keys[2], "first").await;
    let batches = keys.iter().map(|key| batch().guard(Guard::Absent(key.clone())).put(key, "second")).collect();
    let outcomes = context.commit_all(batches).await;
    for (number, outcome) in outcomes.iter().enumerate() {
        if number == 2 {
            let conflict = Conflict { key: Some(keys[2].clone()), why: ConflictReason::Exists(taken) };
            assert_eq!(outcome, &Outcome::Conflict(conflict));
        } else {
            applied(outcome);
        }
    }
    for (number, key) in keys.iter().enumerate() {
        let expected = if number == 2 { "first" } else { "second" };
        assert_eq!(context.body(key).await.as_deref(), Some(expected));
    }
}

pub(super) async fn batches_of_one_call_see_the_ones_before(context: Context) {
    let (key, log) = (context.key("a"), context.key("log"));
    let create = batch().guard(Guard::Absent(key.clone())).put(&key, "one").append(&log, Some(1), &["one"]);
    let update =
        batch().guard(Guard::Version(key.clone(), create.command)).put(&key, "two").append(&log, Some(2), &["two"]);
    let second = update.command;
    let late = batch().guard(Guard::Absent(key.clone())).put(&key, "three");
    let mut delete = batch().guard(Guard::Version(key.clone(), second));
    delete.deletes.push(key.clone());
    let anew = batch().guard(Guard::Absent(key.clone())).put(&key, "four");
    let outcomes = context.commit_all(vec![create, update, late, delete, anew]).await;
    assert_eq!(applied(&outcomes[0]).sequences, [1]);
    assert_eq!(applied(&outcomes[1]).sequences, [2]);
    let conflict = Conflict { key: Some(key.clone()), why: ConflictReason::Exists(second) };
    assert_eq!(outcomes[2], Outcome::Conflict(conflict));
    applied(&outcomes[3]);
    applied(&outcomes[4]);
    let times: Vec<i64> = outcomes.into_iter().filter_map(Outcome::applied).map(|applied| applied.at).collect();
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!(context.body(&key).await.as_deref(), Some("four"));
}

pub(super) async fn an_invalid_batch_refuses_the_whole_call(context: Context) {
    let (good, bad) = (context.key("good"), context.key("bad"));
    let unguarded = batch().put(&bad, "unguarded");
    let fenced_only = batch().guard(Guard::Fence(bad.clone(), Fence::default())).put(&bad, "fenced");
    let elsewhere = batch().guard(Guard::Absent(good.clone())).put(&bad, "guarded elsewhere");
    let mut endless = batch().guard(Guard::Absent(bad.clone())).put(&bad, "");
    endless = endless.lease(&bad, &context.index("due"), Some(0));
    for invalid in [unguarded, fenced_only, elsewhere, endless] {
        let create = batch().guard(Guard::Absent(good.clone())).put(&good, "good");
        let result = context.store.commit(context.partition, [create, invalid].into()).await;
        refused(result);
        assert_eq!(context.documents(vec![good.clone(), bad.clone()]).await, [None, None]);
    }
}

pub(super) async fn a_repeated_commit_meets_its_own_version(context: Context) {
    let (key, log) = (context.key("a"), context.key("log"));
    let create = batch().guard(Guard::Absent(key.clone())).put(&key, "one").append(&log, Some(1), &["one"]);
    context.apply(create.clone()).await;
    assert_eq!(context.conflict(create.clone()).await.why, ConflictReason::Exists(create.command));
    let update = batch().guard(Guard::Version(key.clone(), create.command)).put(&key, "two");
    context.apply(update.clone()).await;
    assert_eq!(context.conflict(update.clone()).await.why, ConflictReason::Version(update.command));
    assert_eq!(context.log(&log, LogStart::After(0), 10).await.records.len(), 1, "the repetition appended nothing");
}

pub(super) async fn versions_are_compared_for_equality_only(context: Context) {
    let key = context.key("a");
    let mut present = context.create(&key, "0").await;
    // Neither order nor age means anything: the smallest, the largest, and one that was there before.
    for next in [CommandId(Uuid::nil()), CommandId(Uuid::max()), present, CommandId(Uuid::from_u128(1))] {
        let mut update = batch().guard(Guard::Version(key.clone(), present)).put(&key, "next");
        update.command = next;
        context.apply(update).await;
        assert_eq!(context.document(&key).await.expect("the document is there").version, next);
        fails(&context, Guard::Version(key.clone(), present), ConflictReason::Version(next)).await;
        present = next;
    }
}
