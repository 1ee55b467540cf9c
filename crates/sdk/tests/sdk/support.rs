//! A deployment to talk to, in process or behind a server in this process.

use std::sync::Arc;
use std::time::Duration;

use ff_server::{Config, Server, Settings};
use ff_store::Store;
use ff_store::memory::MemoryStore;
use flowfabric::Client;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longer than anything here may take.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Waits, but not forever.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, future).await.expect("it takes too long")
}

/// A server that runs.
pub(crate) struct Running {
    pub(crate) url: String,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

impl Running {
    pub(crate) async fn start(settings: Settings, store: Arc<dyn Store>) -> Self {
        let settings = Settings { store: Some("memory://".into()), ..settings };
        let listen = settings.listen.clone().or_else(|| Some("127.0.0.1:0".into()));
        let config = Config::resolve(Settings { listen, ..settings }, Settings::default()).unwrap();
        let server = within(Server::start_on(config, store)).await.unwrap();
        let url = format!("http://{}", server.address());
        let (stop, stopped) = oneshot::channel();
        let ended = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        Self { url, stop, ended }
    }

    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        within(self.ended).await.unwrap();
    }
}

/// A client in each way, with what must stay alive.
pub(crate) async fn both_ways() -> Vec<(&'static str, Client, Option<Running>)> {
    let server = Running::start(Settings::default(), Arc::new(MemoryStore::new())).await;
    let over_http = Client::connect(&server.url).await.unwrap();
    let in_process = Client::connect("memory://").await.unwrap();
    vec![("in process", in_process, None), ("over HTTP", over_http, Some(server))]
}
