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
