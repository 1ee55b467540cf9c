//! The conformance suite on a cluster, which all cases share, with every commit confirmed by a replica.

use std::sync::{Arc, LazyLock};

use ff_store::Store;
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::Cluster;

static CLUSTER: LazyLock<Cluster> = LazyLock::new(Cluster::start_patient);

async fn open() -> Arc<dyn Store> {
    let url = format!("{}&tier=replicated&request_timeout_ms=30000", CLUSTER.url());
    Arc::new(ValkeyStore::open(&url).await.expect("the store opens"))
}

ff_store::conformance!(open());
