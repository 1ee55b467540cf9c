//! The worked sequences of the behaviour contract, over HTTP.

use std::sync::Arc;

use flowfabric::Client;

use crate::support::{Running, settings};

async fn serve(store: Arc<dyn ff_store::Store>) -> (Client, Running) {
    let server = Running::start_on(settings(), store).await;
    let client = Client::connect(&format!("http://{}", server.address)).await.expect("the server is there");
    (client, server)
}

mod memory {
    use super::*;

    async fn open() -> (Client, Running) {
        serve(Arc::new(ff_store::memory::MemoryStore::new())).await
    }

    ff_sequences::tests!(open());
}

mod sqlite {
    use super::*;

    async fn open() -> (Client, (Running, tempfile::TempDir)) {
        let directory = tempfile::tempdir().unwrap();
        let options = ff_store_sqlite::Options::new(directory.path().join("ff.db"));
        let (client, server) = serve(ff_store_sqlite::open(&options).unwrap()).await;
        (client, (server, directory))
    }

    ff_sequences::tests!(open());
}

/// A Valkey for each sequence: servers that end with their test do not say goodbye, and would count as living for a while.
mod valkey {
    use super::*;

    async fn open() -> (Client, (Running, ff_testkit::valkey::Server)) {
        let valkey = ff_testkit::valkey::Server::start();
        let store = ff_store_valkey::ValkeyStore::open(&valkey.url()).await.unwrap();
        let (client, server) = serve(Arc::new(store)).await;
        (client, (server, valkey))
    }

    ff_sequences::tests!(open());
}

/// A server for each sequence, on one Valkey Cluster.
mod valkey_cluster {
    use std::sync::OnceLock;

    use super::*;

    static CLUSTER: OnceLock<ff_testkit::valkey::Cluster> = OnceLock::new();

    async fn open() -> (Client, Running) {
        let url = CLUSTER.get_or_init(ff_testkit::valkey::Cluster::start).url();
        serve(Arc::new(ff_store_valkey::ValkeyStore::open(&url).await.unwrap())).await
    }

    ff_sequences::tests!(open());
}

/// Any request at any server: two of them on one Valkey, request by request in turn.
mod two_servers_on_valkey {
    use super::*;

    async fn open() -> (Client, ((Running, Running), ff_testkit::valkey::Server)) {
        let valkey = ff_testkit::valkey::Server::start();
        let url = valkey.url();
        let store = || async { Arc::new(ff_store_valkey::ValkeyStore::open(&url).await.unwrap()) };
        let (client, servers) = in_turn(store().await, store().await).await;
        (client, (servers, valkey))
    }

    ff_sequences::tests!(open());
}

/// The sequences on PostgreSQL, in a database for each.
mod two_servers_on_postgres {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    static DATABASES: AtomicU32 = AtomicU32::new(0);

    async fn open() -> (Client, (Running, Running)) {
        let name = format!("http_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
        let url = format!("{}?pool_size=3", ff_testkit::postgres::Server::shared().create_database(&name));
        let store = || async {
            let options = ff_store_postgres::Options::parse(&url).unwrap();
            Arc::new(ff_store_postgres::PostgresStore::open(options).await.unwrap())
        };
        in_turn(store().await, store().await).await
    }

    ff_sequences::tests!(open());
}

async fn in_turn(one: Arc<dyn ff_store::Store>, other: Arc<dyn ff_store::Store>) -> (Client, (Running, Running)) {
    let one = Running::start_on(settings(), one).await;
    let other = Running::start_on(settings(), other).await;
    let balancer = crate::balancer::start(vec![one.address, other.address]).await;
    let client = Client::connect(&format!("http://{balancer}")).await.expect("the servers are there");
    (client, (one, other))
}
