//! The sequences on the memory store.

use flowfabric::Client;

async fn open() -> (Client, ()) {
    (Client::connect("memory://").await.expect("an engine starts on an empty store"), ())
}

ff_sequences::tests!(open());
