//! Limits: the largest calls work, what is larger is refused whole, and time goes one way.

use bytes::Bytes;
use ff_core::{Key, limits};

use super::context::{Build, Context, applied, batch, until};
use crate::{Answers, Batch, BlobChange, Guard, Outcome, Query, Scan, StoreError};

fn keys(context: &Context, count: usize) -> Vec<Key> {
    (0..count).map(|number| context.key(format!("{number:05}"))).collect()
}

/// A batch that creates a document for each key: two operations each.
fn create(keys: &[Key]) -> Batch {
    keys.iter().fold(batch(), |batch, key| batch.guard(Guard::Absent(key.clone())).put(key, "body"))
}

async fn too_large(context: &Context, large: Batch) {
    let small = context.key("small");
    let neighbour = batch().guard(Guard::Absent(small.clone())).put(&small, "body");
    let result = context.store.commit(context.partition, [neighbour, large].into()).await;
    assert!(matches!(result, Err(StoreError::TooLarge(_))), "not refused as too large: {result:?}");
    assert_eq!(context.document(&small).await, None, "a refused call applies nothing");
}

pub(super) async fn the_largest_number_of_operations_is_applied(context: Context) {
    let keys = keys(&context, limits::COMMIT_OPERATIONS_MAX / 2);
    let largest = create(&keys);
    assert_eq!(largest.operations(), limits::COMMIT_OPERATIONS_MAX);
    too_large(&context, largest.clone().guard(Guard::NotAfter(i64::MAX))).await;
    assert_eq!(context.document(&keys[0]).await, None);
    context.apply(largest).await;
    for chunk in keys.chunks(1_000) {
        assert!(context.documents(chunk.to_vec()).await.iter().all(Option::is_some));
    }
}

pub(super) async fn the_largest_number_of_bytes_is_applied(context: Context) {
    let mebibyte = Bytes::from(vec![0xa5; 1024 * 1024]);
    let keys = keys(&context, limits::COMMIT_MAX_BYTES / mebibyte.len());
    let mut largest = batch().guard(Guard::Absent(context.key("nobody")));
    largest.blobs = keys.iter().map(|key| BlobChange { key: key.clone(), bytes: Some(mebibyte.clone()) }).collect();
    too_large(&context, largest.clone()).await;
    // The last one gives way to the keys and the guard, so that exactly the limit remains.
    let excess = largest.bytes() - limits::COMMIT_MAX_BYTES;
    let last = largest.blobs.last_mut().expect("there are many");
    last.bytes = Some(mebibyte.slice(excess..));
    assert_eq!(largest.bytes(), limits::COMMIT_MAX_BYTES);
    context.apply(largest).await;
    for (number, key) in keys.iter().enumerate() {
        let found = context.blobs(vec![key.clone()]).await.remove(0).expect("the blob is there");
        let expected = if number + 1 == keys.len() { mebibyte.slice(excess..) } else { mebibyte.clone() };
        assert!(found == expected, "blob {number} came back with {} bytes", found.len());
    }
    let mut remove = batch().guard(Guard::Absent(context.key("nobody")));
    remove.blobs = keys.into_iter().map(|key| BlobChange { key, bytes: None }).collect();
    context.apply(remove).await;
}

pub(super) async fn two_thousand_entries_fit_one_commit(context: Context) {
    let (keys, index) = (keys(&context, 2_000), context.index("i"));
    let guarded = batch().guard(Guard::Absent(context.key("nobody")));
    let set = (0i64..).zip(&keys).fold(guarded.clone(), |batch, (score, key)| batch.set(&index, key, score));
    context.apply(set).await;
    assert_eq!(context.count(&index, 0, 1_999).await, 2_000);
    let found = context.scan(Scan::first(index.clone(), 2_000)).await;
    assert!(found.iter().map(|entry| &entry.member).eq(&keys));
    let unset = keys.iter().fold(guarded, |batch, key| batch.unset(&index, key));
    context.apply(unset).await;
    assert_eq!(context.count(&index, i64::MIN, i64::MAX).await, 0);
}

pub(super) async fn a_thousand_batches_fit_one_call(context: Context) {
    let keys = keys(&context, 1_000);
    let batches = keys.iter().map(|key| create(std::slice::from_ref(key))).collect();
    let outcomes = context.commit_all(batches).await;
    for outcome in &outcomes {
        applied(outcome);
    }
    assert!(context.documents(keys).await.iter().all(Option::is_some));
}

pub(super) async fn a_thousand_keys_fit_one_read(context: Context) {
    let keys = keys(&context, 1_000);
    let present: Vec<Key> = keys.iter().step_by(2).cloned().collect();
    context.apply(create(&present)).await;
    let found = context.documents(keys.clone()).await;
    for (number, (key, found)) in keys.into_iter().zip(found).enumerate() {
        assert_eq!(found.map(|found| found.key), (number % 2 == 0).then_some(key));
    }
}

pub(super) async fn nothing_asked_is_answered(context: Context) {
    let Answers { at, answers } = context.store.read(context.partition, vec![]).await.expect("an empty read");
    assert!(at > 0 && answers.is_empty());
    assert_eq!(context.documents(vec![]).await, []);
    assert_eq!(context.blobs(vec![]).await, Vec::<Option<Bytes>>::new());
    assert_eq!(context.commit_all(vec![]).await, []);
    assert!(context.apply(batch()).await.at >= at, "a batch of nothing is applied");
}

pub(super) async fn time_advances_and_never_goes_back(context: Context) {
    let start = context.now().await;
    let mut last = start;
    // Commits and reads may take different ways into the database; one clock serves both.
    for round in 0..100 {
        let at = if round % 2 == 0 {
            let answers = context.store.read(context.partition, vec![Query::Documents(vec![])]).await;
            answers.expect("the store reads").at
        } else {
            context.apply(batch().guard(Guard::NotAfter(i64::MAX))).await.at
        };
        assert!(at >= last, "time went from {last} back to {at}");
        last = at;
    }
    let later = until("time advances", || async {
        let outcomes = context.commit_all(vec![batch(), batch()]).await;
        let times: Vec<i64> = outcomes.into_iter().filter_map(Outcome::applied).map(|applied| applied.at).collect();
        assert!(times.len() == 2 && last <= times[0] && times[0] <= times[1], "{last} then {times:?}");
        (times[0] > start).then_some(times[1])
    })
    .await;
    assert!(later > start);
}
