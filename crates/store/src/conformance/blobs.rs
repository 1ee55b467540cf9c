//! Blobs: bytes under keys of their own.

use bytes::Bytes;
use ff_core::Key;

use super::context::{Build, Context, batch};
use crate::{BlobChange, Guard, LogStart};

/// Writes or removes blobs in one commit.
async fn write(context: &Context, changes: Vec<(&Key, Option<Bytes>)>) {
    let mut write = batch().guard(Guard::Absent(context.key("nobody")));
    write.blobs = changes.into_iter().map(|(key, bytes)| BlobChange { key: key.clone(), bytes }).collect();
    context.apply(write).await;
}

pub(super) async fn a_mebibyte_of_every_byte_value_survives(context: Context) {
    let key = context.key("a");
    let bytes: Bytes = (0..=u8::MAX).cycle().take(1024 * 1024).collect();
    write(&context, vec![(&key, Some(bytes.clone()))]).await;
    let found = context.blobs(vec![key]).await.remove(0).expect("the blob is there");
    assert!(found == bytes, "a blob of {} bytes came back as another of {}", bytes.len(), found.len());
}

pub(super) async fn a_blob_is_replaced_and_removed(context: Context) {
    let key = context.key("a");
    for bytes in [&b"a long first version"[..], b"short", b"longer again"] {
        let bytes = Bytes::from_static(bytes);
        write(&context, vec![(&key, Some(bytes.clone()))]).await;
        assert_eq!(context.blobs(vec![key.clone()]).await, [Some(bytes)]);
    }
    for _ in 0..2 {
        write(&context, vec![(&key, None)]).await;
        assert_eq!(context.blobs(vec![key.clone()]).await, [None]);
    }
}

pub(super) async fn an_empty_blob_is_a_blob(context: Context) {
    let key = context.key("a");
    write(&context, vec![(&key, Some(Bytes::new()))]).await;
    assert_eq!(context.blobs(vec![key]).await, [Some(Bytes::new())]);
}

pub(super) async fn documents_blobs_and_logs_have_separate_keys(context: Context) {
    let key = context.key("same");
    write(&context, vec![(&key, Some(Bytes::from_static(b"blob")))]).await;
    assert_eq!(context.document(&key).await, None);
    let version = context.create(&key, "document").await;
    let append = batch().guard(Guard::Version(key.clone(), version)).append(&key, Some(1), &["record"]);
    context.apply(append).await;
    assert_eq!(context.blobs(vec![key.clone()]).await, [Some(Bytes::from_static(b"blob"))]);
    assert_eq!(context.body(&key).await.as_deref(), Some("document"));
    assert_eq!(context.log(&key, LogStart::After(0), 5).await.records[0].record.as_ref(), b"record");

    let mut delete = batch().guard(Guard::Version(key.clone(), version));
    delete.deletes.push(key.clone());
    context.apply(delete).await;
    assert_eq!(context.blobs(vec![key.clone()]).await, [Some(Bytes::from_static(b"blob"))]);
    assert_eq!(context.log(&key, LogStart::After(0), 5).await.records.len(), 1);
    write(&context, vec![(&key, None)]).await;
    assert_eq!(context.log(&key, LogStart::After(0), 5).await.records.len(), 1);
}

pub(super) async fn blobs_come_in_the_order_asked(context: Context) {
    let keys: Vec<Key> =
        [&b"\0"[..], b"\xff", b"{", b"}", b"{}", b"\r\n", b"%"].iter().map(|name| context.key(name)).collect();
    let bytes = |key: &Key| Some(Bytes::copy_from_slice(key.as_bytes()));
    write(&context, keys.iter().map(|key| (key, bytes(key))).collect()).await;
    let mut asked: Vec<Key> = keys.iter().rev().cloned().collect();
    asked.insert(2, context.key("never"));
    asked.push(keys[0].clone());
    let expected: Vec<_> = asked.iter().map(|key| if keys.contains(key) { bytes(key) } else { None }).collect();
    assert_eq!(context.blobs(asked).await, expected);
}
