//! The sequences on Valkey, each through two engines that take turns: what one did, the other acts on next.

use std::sync::OnceLock;

use ff_testkit::valkey::Server;
use flowfabric::Client;

static SERVER: OnceLock<Server> = OnceLock::new();

async fn open() -> ([Client; 2], ()) {
    let url = SERVER.get_or_init(Server::start).url();
    let engine = async || Client::connect(&url).await.expect("an engine starts");
    ([engine().await, engine().await], ())
}

ff_sequences::tests!(open());
