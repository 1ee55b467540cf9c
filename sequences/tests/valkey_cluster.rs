//! The sequences on a Valkey Cluster of three primaries and three replicas.

use std::sync::OnceLock;

use ff_testkit::valkey::Cluster;
use flowfabric::Client;

static CLUSTER: OnceLock<Cluster> = OnceLock::new();

async fn open() -> (Client, ()) {
    let url = CLUSTER.get_or_init(Cluster::start).url();
    (Client::connect(&url).await.expect("an engine starts"), ())
}

ff_sequences::tests!(open());
