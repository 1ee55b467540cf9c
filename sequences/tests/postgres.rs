//! The sequences on PostgreSQL, all in one database, each through an engine of its own.

use std::sync::OnceLock;

use ff_testkit::postgres::Server;
use flowfabric::Client;

static DATABASE: OnceLock<String> = OnceLock::new();

async fn open() -> (Client, ()) {
    let url = DATABASE.get_or_init(|| Server::shared().create_database("sequences"));
    (Client::connect(url).await.expect("an engine starts"), ())
}

ff_sequences::tests!(open());
