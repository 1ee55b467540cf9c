//! The sequences on PostgreSQL, each through two engines that take turns: what one did, the other acts on next.

use std::sync::OnceLock;

use ff_testkit::postgres::Server;
use flowfabric::Client;

static DATABASE: OnceLock<String> = OnceLock::new();

async fn open() -> ([Client; 2], ()) {
    let url = DATABASE.get_or_init(|| Server::shared().create_database("sequences"));
    // Less than the usual pool: all sequences share what one database has.
    let url = format!("{url}?pool_size=3");
    let engine = async || Client::connect(&url).await.expect("an engine starts");
    ([engine().await, engine().await], ())
}

ff_sequences::tests!(open());
