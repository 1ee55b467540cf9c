//! Stores and batches for the tests here.

use std::sync::Arc;
use std::time::Duration;

use ff_core::{CommandId, IndexName, Key, Partition};
use ff_store::{Append, Batch, EntryChange, Fence, Guard, Put, Store};
use ff_store_postgres::{Options, PostgresStore};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

pub(crate) const PARTITION: Partition = Partition::flow(0);

/// Nothing here takes this long; what hangs fails instead.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) async fn open(url: &str) -> Arc<dyn Store> {
    Arc::new(PostgresStore::open(Options::parse(url).unwrap()).await.unwrap())
}

/// A connection of our own, beside the store's.
pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(crate) fn command() -> CommandId {
    CommandId(Uuid::now_v7())
}

pub(crate) fn key(name: &str) -> Key {
    Key::from_bytes(name.as_bytes())
}

pub(crate) fn index(name: &str) -> IndexName {
    IndexName::from_bytes(name.as_bytes())
}

pub(crate) fn put(key: &Key, body: &str) -> Put {
    Put { key: key.clone(), body: body.to_owned().into(), fence: Fence::default(), expires_at: None }
}

pub(crate) fn set(name: &str, member: &Key, score: i64) -> EntryChange {
    EntryChange::Set { index: index(name), member: member.clone(), score }
}

pub(crate) fn append(log: &str, record: &str, expected: Option<u64>) -> Append {
    Append { log: key(log), records: vec![record.to_owned().into()], expected, cap: 0, in_turn: false }
}

/// A new document.
pub(crate) fn create(key: &Key, body: &str) -> Batch {
    Batch { guards: vec![Guard::Absent(key.clone())], puts: vec![put(key, body)], ..Batch::new(command()) }
}
