//! The sequences on SQLite, each on a file of its own.

use flowfabric::Client;

async fn open() -> (Client, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let url = format!("sqlite://{}", directory.path().join("flowfabric.db").display());
    (Client::connect(&url).await.expect("an engine starts on an empty store"), directory)
}

ff_sequences::tests!(open());
