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

/// One Valkey for all, and a server for each sequence: thirty servers side by side.
mod valkey {
    use std::sync::OnceLock;

    use super::*;

    static SERVER: OnceLock<ff_testkit::valkey::Server> = OnceLock::new();

    async fn open() -> (Client, Running) {
        let url = SERVER.get_or_init(ff_testkit::valkey::Server::start).url();
        serve(Arc::new(ff_store_valkey::ValkeyStore::open(&url).await.unwrap())).await
    }

    ff_sequences::tests!(open());
}

/// Any request at any server: two of them on one Valkey, request by request in turn.
mod two_servers_on_valkey {
    use std::sync::OnceLock;

    use super::*;

    static SERVER: OnceLock<ff_testkit::valkey::Server> = OnceLock::new();

    async fn open() -> (Client, (Running, Running)) {
        let url = SERVER.get_or_init(ff_testkit::valkey::Server::start).url();
        let store = || async { Arc::new(ff_store_valkey::ValkeyStore::open(&url).await.unwrap()) };
        in_turn(store().await, store().await).await
    }

    ff_sequences::tests!(open());
}

/// The same on one PostgreSQL.
mod two_servers_on_postgres {
    use std::sync::OnceLock;

    use super::*;

    static DATABASE: OnceLock<String> = OnceLock::new();

    async fn open() -> (Client, (Running, Running)) {
        let create = || ff_testkit::postgres::Server::shared().create_database("http");
        let url = format!("{}?pool_size=3", DATABASE.get_or_init(create));
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
