//! The sequences on one standalone Valkey, each through an engine of its own: thirty servers side by side.

use std::sync::{Arc, OnceLock};

use ff_engine::env::TokioEnv;
use ff_engine::{Engine, Options};
use ff_sequences::{Api, InProcess};
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::Server;

static SERVER: OnceLock<Server> = OnceLock::new();

async fn open() -> (Arc<dyn Api>, ()) {
    let url = SERVER.get_or_init(Server::start).url();
    let store = ValkeyStore::open(&url).await.expect("the server is there");
    let engine = Engine::start(Arc::new(store), Arc::new(TokioEnv::current()), Options::default())
        .await
        .expect("an engine starts");
    (Arc::new(InProcess(engine)), ())
}

ff_sequences::tests!(open());
