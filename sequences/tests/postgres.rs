//! The sequences on PostgreSQL, all in one database, each through an engine of its own.

use std::sync::{Arc, OnceLock};

use ff_engine::env::TokioEnv;
use ff_engine::{Engine, Options};
use ff_sequences::{Api, InProcess};
use ff_store_postgres::PostgresStore;
use ff_testkit::postgres::Server;

static DATABASE: OnceLock<String> = OnceLock::new();

async fn open() -> (Arc<dyn Api>, ()) {
    let url = DATABASE.get_or_init(|| Server::shared().create_database("sequences"));
    let options = ff_store_postgres::Options::parse(url).expect("the harness makes good addresses");
    let store = PostgresStore::open(options).await.expect("the server is there");
    let engine = Engine::start(Arc::new(store), Arc::new(TokioEnv::current()), Options::default())
        .await
        .expect("an engine starts");
    (Arc::new(InProcess(engine)), ())
}

ff_sequences::tests!(open());
