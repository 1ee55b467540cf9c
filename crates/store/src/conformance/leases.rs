//! Leases: an instant beside a document, moved by the store's own time.

use ff_core::{IndexName, Key};
use tokio::task::JoinSet;

use super::context::{Build, Context, applied, batch, fence, until};
use crate::{Batch, Conflict, ConflictReason, Fence, Guard, LogStart, Outcome, StoredDocument};

/// A renewal as lease holders commit it.
fn renewal(key: &Key, fence: Fence, index: &IndexName, ttl_ms: i64) -> Batch {
    batch().guard(Guard::Fence(key.clone(), fence)).guard(Guard::Live(key.clone())).lease(key, index, Some(ttl_ms))
}

pub(super) async fn a_lease_runs_from_the_time_of_the_commit(context: Context) {
    let (key, index) = (context.key("a"), context.index("due"));
    let before = context.now().await;
    let created = context.create_leased(&key, &index, 60_000).await;
    let after = context.now().await;
    assert!((before + 60_000..=after + 60_000).contains(&created.lease_until));
    assert_eq!(context.document(&key).await.as_ref(), Some(&created));
    assert_eq!(context.entries(&index).await, [(created.lease_until, key)]);
}

pub(super) async fn a_renewal_moves_the_lease_and_leaves_the_document(context: Context) {
    let (key, index) = (context.key("a"), context.index("due"));
    let created = context.create_leased(&key, &index, 60_000).await;
    for ttl_ms in [120_000, 180_000] {
        let applied = context.apply(renewal(&key, created.fence, &index, ttl_ms)).await;
        let expected = StoredDocument { lease_until: applied.at + ttl_ms, ..created.clone() };
        assert_eq!(context.document(&key).await.as_ref(), Some(&expected));
        assert_eq!(context.entries(&index).await, [(expected.lease_until, key.clone())]);
    }
}

pub(super) async fn a_renewal_never_takes_back_what_was_promised(context: Context) {
    let (key, index) = (context.key("a"), context.index("due"));
    let created = context.create_leased(&key, &index, 60_000).await;
    let promised = context.apply(renewal(&key, created.fence, &index, 120_000)).await.at + 120_000;
    context.apply(renewal(&key, created.fence, &index, 30_000)).await;
    let expected = StoredDocument { lease_until: promised, ..created.clone() };
    assert_eq!(context.document(&key).await.as_ref(), Some(&expected));
    assert_eq!(context.entries(&index).await, [(promised, key.clone())]);

    // A batch that writes the document as well decides about its lease.
    let mut shorter = batch().guard(Guard::Version(key.clone(), created.version)).put(&key, "shorter");
    shorter.puts[0].fence = created.fence;
    let ends = context.apply(shorter.lease(&key, &index, Some(30_000))).await.at + 30_000;
    assert_eq!(context.document(&key).await.expect("the document is there").lease_until, ends);
    assert_eq!(context.entries(&index).await, [(ends, key)]);
}

pub(super) async fn a_put_keeps_the_lease(context: Context) {
    let (key, index) = (context.key("a"), context.index("due"));
    let created = context.create_leased(&key, &index, 60_000).await;
    let mut update = batch().guard(Guard::Version(key.clone(), created.version)).put(&key, "a much longer body");
    update.puts[0].fence = created.fence;
    context.apply(update).await;
    let found = context.document(&key).await.expect("the document is there");
    assert_eq!((found.lease_until, found.fence), (created.lease_until, created.fence));
    assert_eq!(found.body.as_ref(), b"a much longer body");
    assert_eq!(context.entries(&index).await, [(created.lease_until, key.clone())]);
    context.apply(batch().guard(Guard::Live(key))).await;
}

pub(super) async fn a_cleared_lease_leaves_no_entry(context: Context) {
    let (key, index) = (context.key("a"), context.index("due"));
    let created = context.create_leased(&key, &index, 60_000).await;
    let end = batch().guard(Guard::Version(key.clone(), created.version)).put(&key, "done").lease(&key, &index, None);
    context.apply(end).await;
    assert_eq!(context.document(&key).await.expect("the document is there").lease_until, 0);
    assert_eq!(context.entries(&index).await, []);
    let why = context.conflict(batch().guard(Guard::Live(key.clone()))).await.why;
    assert_eq!(why, ConflictReason::LeaseOver(0));

    // A fence alone is enough to let go.
    let other = context.key("b");
    let created = context.create_leased(&other, &index, 60_000).await;
    context.apply(batch().guard(Guard::Fence(other.clone(), created.fence)).lease(&other, &index, None)).await;
    let expected = StoredDocument { lease_until: 0, ..created };
    assert_eq!(context.document(&other).await, Some(expected));
    assert_eq!(context.entries(&index).await, []);
}

pub(super) async fn a_delete_may_clear_the_lease_entry(context: Context) {
    let (key, index) = (context.key("a"), context.index("due"));
    let created = context.create_leased(&key, &index, 60_000).await;
    let mut delete = batch().guard(Guard::Version(key.clone(), created.version)).lease(&key, &index, None);
    delete.deletes.push(key.clone());
    context.apply(delete).await;
    assert_eq!(context.document(&key).await, None);
    assert_eq!(context.entries(&index).await, []);
}

pub(super) async fn a_stale_fence_renews_nothing(context: Context) {
    let (key, index) = (context.key("a"), context.index("due"));
    let created = context.create_leased(&key, &index, 60_000).await;
    let same_epoch = Fence { lease: fence(1).lease, ..created.fence };
    let same_lease = Fence { epoch: created.fence.epoch.next(), ..created.fence };
    for stale in [same_epoch, same_lease, Fence::default()] {
        let conflict = context.conflict(renewal(&key, stale, &index, 120_000)).await;
        assert_eq!(conflict, Conflict { key: Some(key.clone()), why: ConflictReason::Fence(created.fence) });
    }
    assert_eq!(context.document(&key).await.as_ref(), Some(&created));
    assert_eq!(context.entries(&index).await, [(created.lease_until, key)]);
}

pub(super) async fn a_lease_that_ran_out_is_not_renewed(context: Context) {
    let (key, index) = (context.key("a"), context.index("due"));
    let created = context.create_leased(&key, &index, 30).await;
    until("the lease ends", || async { (context.now().await >= created.lease_until).then_some(()) }).await;
    let why = context.conflict(renewal(&key, created.fence, &index, 60_000)).await.why;
    assert_eq!(why, ConflictReason::LeaseOver(created.lease_until));
    assert_eq!(context.document(&key).await.as_ref(), Some(&created), "an ended lease stays where it ended");
    assert_eq!(context.entries(&index).await, [(created.lease_until, key)]);
}

pub(super) async fn either_the_renewal_or_the_expiry_wins(context: Context) {
    let mut rounds = JoinSet::new();
    for lane in 0..4 {
        let context = context.clone();
        rounds.spawn(async move {
            for round in 0..12i64 {
                let key = context.key(format!("{lane} {round}"));
                renew_against_expiry(&context, &key, round % 3).await;
            }
        });
    }
    while let Some(round) = rounds.join_next().await {
        round.expect("no round ends in a panic");
    }
}

/// Renews a lease about when it ends, while another task expires it as soon as it may.
async fn renew_against_expiry(context: &Context, key: &Key, early_ms: i64) {
    let index = context.index("due");
    let created = context.create_leased(key, &index, 25).await;
    let expiring = tokio::spawn({
        let (context, key, created, index) = (context.clone(), key.clone(), created.clone(), index.clone());
        async move {
            until("the lease ends or is renewed", || async {
                let mut expiry = batch()
                    .guard(Guard::Version(key.clone(), created.version))
                    .guard(Guard::Expired(key.clone()))
                    .put(&key, "expired")
                    .lease(&key, &index, None);
                expiry.puts[0].fence = created.fence;
                match context.commit(expiry).await {
                    Outcome::Applied(_) => Some(true),
                    Outcome::Conflict(Conflict { why: ConflictReason::LeaseHolds(ends), .. }) => {
                        (ends > created.lease_until).then_some(false)
                    }
                    Outcome::Conflict(other) => panic!("an expiry met {other:?}"),
                }
            })
            .await
        }
    });
    until("the lease is about to end", || async {
        (context.now().await + early_ms >= created.lease_until).then_some(())
    })
    .await;
    let renewed = match context.commit(renewal(key, created.fence, &index, 60_000)).await {
        Outcome::Applied(applied) => Some(applied.at + 60_000),
        Outcome::Conflict(conflict) => {
            assert!(matches!(conflict.why, ConflictReason::LeaseOver(_)), "a renewal met {conflict:?}");
            None
        }
    };
    let expired = expiring.await.expect("the expiry ends without a panic");
    assert_ne!(renewed.is_some(), expired, "exactly one of renewal and expiry is acknowledged");
    let found = context.document(key).await.expect("the document stays");
    assert_eq!(found.lease_until, renewed.unwrap_or(0));
    assert_eq!(found.body.as_ref(), if expired { b"expired".as_slice() } else { b"leased" });
}

pub(super) async fn a_lease_holder_appends_under_its_fence(context: Context) {
    let (key, index, log) = (context.key("a"), context.index("due"), context.key("frames"));
    let created = context.create_leased(&key, &index, 60_000).await;
    let append = |fence, expected, record| {
        let guarded = batch().guard(Guard::Fence(key.clone(), fence)).guard(Guard::Live(key.clone()));
        guarded.append(&log, Some(expected), &[record])
    };
    assert_eq!(context.apply(append(created.fence, 1, "one")).await.sequences, [1]);
    assert_eq!(context.apply(append(created.fence, 2, "two")).await.sequences, [2]);
    let why = context.conflict(append(fence(1), 3, "of a stale holder")).await.why;
    assert_eq!(why, ConflictReason::Fence(created.fence));
    assert_eq!(context.log(&log, LogStart::After(0), 10).await.records.len(), 2);
    assert_eq!(context.document(&key).await, Some(created), "appending leaves the document as it is");
}

pub(super) async fn renewals_of_one_call_are_independent(context: Context) {
    let index = context.index("due");
    let mut leased = Vec::new();
    for number in 0..60 {
        leased.push(context.create_leased(&context.key(number.to_string()), &index, 60_000).await);
    }
    let stale = |number: usize| number % 7 == 3;
    let renewals = leased.iter().enumerate().map(|(number, document)| {
        let fence = if stale(number) { fence(1) } else { document.fence };
        renewal(&document.key, fence, &index, 90_000)
    });
    let outcomes = context.commit_all(renewals.collect()).await;
    for (number, (document, outcome)) in leased.iter().zip(&outcomes).enumerate() {
        let expected = if stale(number) {
            let why = ConflictReason::Fence(document.fence);
            assert_eq!(outcome, &Outcome::Conflict(Conflict { key: Some(document.key.clone()), why }));
            document.lease_until
        } else {
            applied(outcome).at + 90_000
        };
        let found = context.document(&document.key).await.expect("the document is there");
        assert_eq!(found.lease_until, expected, "renewal {number}");
    }
}
