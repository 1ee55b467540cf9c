//! The sequences on the memory store.

use std::sync::Arc;

use ff_engine::env::TokioEnv;
use ff_engine::{Engine, Options};
use ff_sequences::{Api, InProcess};
use ff_store::memory::MemoryStore;

async fn open() -> (Arc<dyn Api>, ()) {
    let engine = Engine::start(Arc::new(MemoryStore::new()), Arc::new(TokioEnv::current()), Options::default())
        .await
        .expect("an engine starts on an empty store");
    (Arc::new(InProcess(engine)), ())
}

ff_sequences::tests!(open());
