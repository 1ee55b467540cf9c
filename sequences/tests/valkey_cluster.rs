//! The sequences on a Valkey Cluster of three primaries and three replicas.

use std::sync::{Arc, OnceLock};

use ff_engine::env::TokioEnv;
use ff_engine::{Engine, Options};
use ff_sequences::{Api, InProcess};
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::Cluster;

static CLUSTER: OnceLock<Cluster> = OnceLock::new();

async fn open() -> (Arc<dyn Api>, ()) {
    let url = CLUSTER.get_or_init(Cluster::start).url();
    let store = ValkeyStore::open(&url).await.expect("the cluster is there");
    let engine = Engine::start(Arc::new(store), Arc::new(TokioEnv::current()), Options::default())
        .await
        .expect("an engine starts");
    (Arc::new(InProcess(engine)), ())
}

ff_sequences::tests!(open());
