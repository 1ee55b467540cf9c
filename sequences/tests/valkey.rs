//! The sequences on one standalone Valkey, each through an engine of its own, side by side.

use std::sync::OnceLock;

use ff_testkit::valkey::Server;
use flowfabric::Client;

static SERVER: OnceLock<Server> = OnceLock::new();

async fn open() -> (Client, ()) {
    let url = SERVER.get_or_init(Server::start).url();
    (Client::connect(&url).await.expect("an engine starts"), ())
}

ff_sequences::tests!(open());
