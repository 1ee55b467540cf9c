//! The answers of the doctor, for every kind of store.

use std::sync::Arc;

use ff_core::deployment::Deployment;
use ff_core::{CommandId, Document, Indexed, Partition, PartitionConfig};
use ff_store::{Batch, Fence, Guard, Put, Store, StoreError};
use ff_stores::{Examination, examine, open};

/// Starts a deployment with these counts, as the engine does.
async fn pin(store: &Arc<dyn Store>) {
    let deployment = Deployment::new(&PartitionConfig { flow: 3, budget: 2, quota: 1 }, 1);
    let put =
        Put { key: deployment.key(), body: deployment.encode().into(), fence: Fence::default(), expires_at: None };
    let batch =
        Batch { guards: vec![Guard::Absent(deployment.key())], puts: vec![put], ..Batch::new(CommandId::default()) };
    let outcomes = store.commit(Partition::SYSTEM, [batch].into()).await.unwrap();
    assert!(outcomes[0].clone().applied().is_some());
}

/// Nothing there yet, then a deployment: what is found each time.
async fn before_and_after(url: &str) -> (Examination, Examination) {
    let before = examine(url).await.unwrap();
    assert_eq!((before.layout_found, before.reached.is_some()), (None, false), "{before}");
    let again = examine(url).await.unwrap();
    assert_eq!(again.layout_found, None, "looking changes nothing");
    let store = open(url).await.unwrap();
    pin(&store).await;
    store.close().await;
    let after = examine(url).await.unwrap();
    assert_eq!(after.layout_found, Some(after.layout_needed));
    let reached = after.reached.as_ref().unwrap();
    assert_eq!(reached.partitions, Some(PartitionConfig { flow: 3, budget: 2, quota: 1 }));
    assert!(reached.round_trip_us > 0 && reached.clock_offset_ms.abs() < 10_000, "{after}");
    assert!(!reached.durability.is_empty() && !after.version.is_empty(), "{after}");
    (before, after)
}

fn setting<'a>(examination: &'a Examination, wanted: &str) -> Option<&'a str> {
    examination.settings.iter().find(|(name, _)| name.ends_with(wanted)).map(|(_, value)| value.as_str())
}

#[tokio::test]
async fn memory_says_that_it_forgets() {
    let found = examine("memory://").await.unwrap();
    assert_eq!(found.reached.as_ref().unwrap().partitions, None);
    assert_eq!(found.warnings, ["everything ends with the process"]);
    assert!(found.to_string().contains("partitions   fixed by the first start"), "{found}");
}

#[tokio::test]
async fn a_file_is_looked_at_also_while_it_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("ff.db").display());
    let (before, after) = before_and_after(&url).await;
    assert!(before.to_string().contains("layout       none yet"), "{before}");
    assert_eq!((setting(&after, "synchronous"), setting(&after, "journal_mode")), (Some("FULL"), Some("wal")));
    assert!(after.warnings.is_empty(), "{after}");
    let store = open(&url).await.unwrap();
    let used = examine(&url).await.unwrap();
    assert_eq!((used.layout_found, used.reached.is_some()), (Some(used.layout_needed), false));
    assert!(used.warnings.iter().any(|warning| warning.contains("in use")), "{used}");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn valkey_tells_its_library_and_its_persistence() {
    let server = ff_testkit::valkey::Server::start();
    let (_, after) = before_and_after(&server.url()).await;
    assert_eq!(setting(&after, "aof_enabled"), Some("0"));
    assert!(after.warnings.iter().any(|warning| warning.contains("append-only")), "{after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_tells_its_schema_and_its_settings() {
    let url = ff_testkit::postgres::Server::shared().create_database("examine");
    let (_, after) = before_and_after(&url).await;
    assert_eq!((setting(&after, "fsync"), setting(&after, "synchronous_commit")), (Some("on"), Some("on")));
    assert!(after.warnings.is_empty(), "{after}");
    let greedy = examine(&format!("{url}?pool_size=256")).await.unwrap();
    assert!(greedy.warnings.iter().any(|warning| warning.contains("max_connections")), "{greedy}");
}

#[tokio::test]
async fn an_address_that_names_no_store_is_refused() {
    for url in ["flowfabric.db", "mysql://host"] {
        assert!(matches!(examine(url).await, Err(StoreError::Config(_))), "{url}");
    }
}
