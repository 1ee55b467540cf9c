//! The memory store keeps the contract of all stores.

use std::sync::Arc;

use ff_store::Store;
use ff_store::memory::MemoryStore;

async fn open() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

ff_store::conformance!(open());
