//! The conformance suite on a standalone server, which all cases share.

use std::sync::{Arc, LazyLock};

use ff_store::Store;
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::Server;

static SERVER: LazyLock<Server> = LazyLock::new(Server::start);

async fn open() -> Arc<dyn Store> {
    Arc::new(ValkeyStore::open(&SERVER.url()).await.expect("the store opens"))
}

ff_store::conformance!(open());
