//! The suite every store passes, each case on a file of its own.

use std::sync::Arc;

use ff_store::Store;
use ff_store_sqlite::Options;
use tempfile::TempDir;

async fn open() -> (Arc<dyn Store>, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let store = ff_store_sqlite::open(&Options::new(directory.path().join("ff.db"))).unwrap();
    (store, directory)
}

ff_store::conformance!(open());
