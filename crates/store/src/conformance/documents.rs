//! Documents: what is put reads back, expires and goes.

use bytes::Bytes;
use ff_core::{Key, Partition};

use super::context::{Build, Context, batch, fence, until};
use crate::{BlobChange, Conflict, ConflictReason, Guard, LogStart, Outcome, Scan, StoredDocument};

pub(super) async fn what_was_put_reads_back(context: Context) {
    let key = context.key("a");
    let mut create = batch().guard(Guard::Absent(key.clone())).put(&key, "body");
    create.puts[0].fence = fence(7);
    let expected = StoredDocument {
        key: key.clone(),
        body: Bytes::from_static(b"body"),
        version: create.command,
        fence: create.puts[0].fence,
        lease_until: 0,
    };
    context.apply(create).await;
    assert_eq!(context.document(&key).await, Some(expected));
}

pub(super) async fn an_unknown_key_reads_as_absent(context: Context) {
    assert_eq!(context.document(&context.key("never")).await, None);
}

pub(super) async fn documents_come_in_the_order_asked(context: Context) {
    let (a, b, c) = (context.key("a"), context.key("b"), context.key("c"));
    context.create(&a, "of a").await;
    context.create(&c, "of c").await;
    let asked = vec![c.clone(), b.clone(), a.clone(), c.clone()];
    let bodies: Vec<_> = context.documents(asked).await.into_iter().map(|found| found.map(|it| it.body)).collect();
    let (of_a, of_c) = (Bytes::from_static(b"of a"), Bytes::from_static(b"of c"));
    assert_eq!(bodies, [Some(of_c.clone()), None, Some(of_a), Some(of_c)]);
}

pub(super) async fn a_put_replaces_body_version_and_fence(context: Context) {
    let key = context.key("a");
    let version = context.create(&key, "long old body").await;
    let mut update = batch().guard(Guard::Version(key.clone(), version)).put(&key, "new");
    update.puts[0].fence = fence(u64::MAX >> 11);
    let (command, fence) = (update.command, update.puts[0].fence);
    context.apply(update).await;
    let found = context.document(&key).await.expect("the document is there");
    assert_eq!((found.body.as_ref(), found.version, found.fence), (b"new".as_slice(), command, fence));
}

pub(super) async fn an_empty_body_is_a_document(context: Context) {
    let key = context.key("a");
    let version = context.create(&key, "").await;
    let found = context.document(&key).await.expect("an empty document is there");
    assert_eq!((found.body.len(), found.version), (0, version));
    assert_eq!(
        context.conflict(batch().guard(Guard::Absent(key.clone()))).await.why,
        ConflictReason::Exists(version),
        "an empty document is not an absent one"
    );
}

pub(super) async fn every_byte_value_survives(context: Context) {
    let key = context.key("a");
    let body: Bytes = (0..=u8::MAX).cycle().take(70_000).collect();
    let mut create = batch().guard(Guard::Absent(key.clone())).put(&key, "");
    create.puts[0].body = body.clone();
    context.apply(create).await;
    assert_eq!(context.document(&key).await.expect("the document is there").body, body);
}

pub(super) async fn keys_are_binary(context: Context) {
    let mut keys: Vec<Key> =
        [&b"\0"[..], b"\0\0", b"\xff", b"\xff\xff", b"\r\n", b" ", b"{", b"}", b"{}", b"%_*?[]\\'\"", b"\xc3\x28"]
            .iter()
            .flat_map(|odd| {
                let leading = Key::from_bytes([odd, context.salt()].concat());
                [context.key(odd), leading]
            })
            .collect();
    keys.push(context.key(""));
    keys.push(context.key([0xff; 255 - 17]));
    for (number, key) in keys.iter().enumerate() {
        context.create(key, &number.to_string()).await;
    }
    let found = context.documents(keys.clone()).await;
    for (number, (key, found)) in keys.into_iter().zip(found).enumerate() {
        let found = found.expect("each key has its document");
        assert_eq!((found.key, found.body), (key, Bytes::from(number.to_string())));
    }
}

pub(super) async fn a_deleted_document_is_absent(context: Context) {
    let key = context.key("a");
    let version = context.create(&key, "body").await;
    let mut delete = batch().guard(Guard::Version(key.clone(), version));
    delete.deletes.push(key.clone());
    context.apply(delete.clone()).await;
    assert_eq!(context.document(&key).await, None);
    let gone = Conflict { key: Some(key.clone()), why: ConflictReason::Missing };
    assert_eq!(context.conflict(delete).await, gone);
    context.create(&key, "again").await;
    assert_eq!(context.body(&key).await.as_deref(), Some("again"));
}

pub(super) async fn deleting_what_is_not_there_is_fine(context: Context) {
    let key = context.key("a");
    let mut delete = batch().guard(Guard::Absent(key.clone()));
    delete.deletes.push(key.clone());
    context.apply(delete).await;
    assert_eq!(context.document(&key).await, None);
}

pub(super) async fn a_document_reads_as_absent_from_its_expiry_on(context: Context) {
    let (key, index) = (context.key("a"), context.index("i"));
    let expires_at = context.now().await + 50;
    let mut create = batch().guard(Guard::Absent(key.clone())).put(&key, "mortal").set(&index, &key, 1);
    create.puts[0].expires_at = Some(expires_at);
    let version = create.command;
    context.apply(create).await;
    until("the document expires", || async {
        let answers = context.store.read(context.partition, vec![crate::Query::Documents(vec![key.clone()])]).await;
        let answers = answers.expect("the store reads documents");
        let at = answers.at;
        let found = answers.into_only(crate::Answer::into_documents).expect("documents were asked for").remove(0);
        assert_eq!(found.is_some(), at < expires_at, "at {at}, expiring at {expires_at}");
        found.is_none().then_some(())
    })
    .await;
    let entries = context.scan(Scan::first(index, 10).with_documents()).await;
    assert_eq!((entries.len(), &entries[0].document), (1, &None), "the entry stays, the document is gone");
    for guard in [
        Guard::Version(key.clone(), version),
        Guard::Fence(key.clone(), crate::Fence::default()),
        Guard::Live(key.clone()),
        Guard::Expired(key.clone()),
    ] {
        let why = context.conflict(batch().guard(guard.clone())).await.why;
        assert_eq!(why, ConflictReason::Missing, "{guard:?}");
    }
    context.create(&key, "successor").await;
    assert_eq!(context.body(&key).await.as_deref(), Some("successor"));
}

pub(super) async fn an_expiry_in_the_past_reads_as_absent_at_once(context: Context) {
    let key = context.key("a");
    for expires_at in [1, context.now().await - 1] {
        let mut create = batch().guard(Guard::Absent(key.clone())).put(&key, "dead");
        create.puts[0].expires_at = Some(expires_at);
        context.apply(create).await;
        assert_eq!(context.document(&key).await, None);
    }
}

pub(super) async fn a_put_without_expiry_stays(context: Context) {
    // A slow machine may let the document expire before the second put; that round proves nothing.
    for round in 0..50 {
        let key = context.key(format!("round {round}"));
        let expires_at = context.now().await + 100;
        let mut create = batch().guard(Guard::Absent(key.clone())).put(&key, "mortal");
        create.puts[0].expires_at = Some(expires_at);
        let version = create.command;
        context.apply(create).await;
        let update = batch().guard(Guard::Version(key.clone(), version)).put(&key, "immortal");
        if let Outcome::Applied(_) = context.commit(update).await {
            until("the first expiry has passed", || async { (context.now().await > expires_at + 10).then_some(()) })
                .await;
            assert_eq!(context.body(&key).await.as_deref(), Some("immortal"));
            return;
        }
    }
    panic!("no update came within 100 ms of its create");
}

pub(super) async fn a_new_document_inherits_no_lease(context: Context) {
    let index = context.index("due");
    let deleted = context.key("deleted");
    let version = context.create_leased(&deleted, &index, 60_000).await.version;
    let mut delete = batch().guard(Guard::Version(deleted.clone(), version));
    delete.deletes.push(deleted.clone());
    context.apply(delete).await;

    let expired = context.key("expired");
    let mut create =
        batch().guard(Guard::Absent(expired.clone())).put(&expired, "").lease(&expired, &index, Some(60_000));
    create.puts[0].expires_at = Some(1);
    context.apply(create).await;

    for key in [deleted, expired] {
        context.create(&key, "new").await;
        assert_eq!(context.document(&key).await.expect("just created").lease_until, 0, "{key:?}");
    }
}

pub(super) async fn partitions_are_isolated(context: Context) {
    let number = context.partition.number % 4;
    let corners = [
        context.clone(),
        context.elsewhere(),
        context.within(Partition::budget(number)),
        context.within(Partition::quota(number)),
        context.within(Partition::SYSTEM),
    ];
    let (key, index) = (context.key("same"), context.index("same"));
    for (score, corner) in (0i64..).zip(&corners) {
        let body = corner.partition.to_string();
        let mut create = batch().guard(Guard::Absent(key.clone())).put(&key, &body).set(&index, &key, score).append(
            &key,
            Some(1),
            &[&body],
        );
        create.blobs.push(BlobChange { key: key.clone(), bytes: Some(body.into()) });
        corner.apply(create).await;
    }
    for (score, corner) in (0i64..).zip(&corners) {
        let body = corner.partition.to_string();
        assert_eq!(corner.body(&key).await.as_ref(), Some(&body));
        assert_eq!(corner.entries(&index).await, [(score, key.clone())]);
        assert_eq!(corner.blobs(vec![key.clone()]).await, [Some(Bytes::from(body.clone()))]);
        let page = corner.log(&key, LogStart::After(0), 10).await;
        assert_eq!(page.records.len(), 1);
        assert_eq!(page.records[0].record, body);
    }
}
