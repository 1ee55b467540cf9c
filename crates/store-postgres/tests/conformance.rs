//! The conformance suite of all stores.

use std::sync::Arc;

use ff_store::Store;
use ff_store_postgres::{Options, PostgresStore};
use ff_testkit::postgres::Server;

/// All cases share one database: they keep to keys of their own, and disturb each other as real users would.
async fn open() -> Arc<dyn Store> {
    let options = Options::parse(&format!("{}?pool_size=4", Server::shared().url())).unwrap();
    Arc::new(PostgresStore::open(options).await.unwrap())
}

ff_store::conformance!(open());
