//! The sequences on SQLite, each on a file of its own.

use std::sync::Arc;

use ff_engine::env::TokioEnv;
use ff_engine::{Engine, Options};
use ff_sequences::{Api, InProcess};

async fn open() -> (Arc<dyn Api>, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let options = ff_store_sqlite::Options::new(directory.path().join("flowfabric.db"));
    let store = ff_store_sqlite::open(&options).expect("a new file opens");
    let engine = Engine::start(store, Arc::new(TokioEnv::current()), Options::default())
        .await
        .expect("an engine starts on an empty store");
    (Arc::new(InProcess(engine)), directory)
}

ff_sequences::tests!(open());
