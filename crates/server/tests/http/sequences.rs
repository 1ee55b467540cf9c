//! The worked sequences of the behaviour contract, over HTTP.

use std::sync::Arc;

use ff_core::op::{Method, OPERATIONS};
use ff_core::{Error, Result};
use ff_engine::env::BoxFuture;
use ff_sequences::Api;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::support::{Client, Running, settings};

/// Calls operations over HTTP, as any client would that knows the table.
struct OverHttp(Client);

impl Api for OverHttp {
    fn call<'a>(&'a self, operation: &'a str, args: Value) -> BoxFuture<'a, Result<Value>> {
        Box::pin(self.send(operation, args))
    }
}

impl OverHttp {
    async fn send(&self, operation: &str, mut args: Value) -> Result<Value> {
        let info = OPERATIONS.iter().find(|info| info.name == operation).expect("sequences call known operations");
        let fields = args.as_object_mut().expect("arguments are an object");
        let mut path = info.path.to_owned();
        for parameter in info.path_parameters() {
            let value = fields.remove(parameter).map(|value| encode(&value)).unwrap_or_default();
            path = path.replace(&format!("{{{parameter}}}"), &value);
        }
        let mut client = self.0.with("accept", "application/json");
        let mut body = String::new();
        if matches!(info.method, Method::Get | Method::Delete) {
            let pairs: Vec<String> = fields.iter().flat_map(|(name, value)| pairs(name, value)).collect();
            path = format!("{path}?{}", pairs.join("&"));
        } else {
            client = client.with("content-type", "application/json");
            body = args.to_string();
        }
        let answer = client.send(info.method.as_str().parse().expect("a method"), &path, body).await;
        match answer.status {
            200 => Ok(answer.json()),
            204 => Ok(json!({ "tasks": [], "grants": [] })),
            status => {
                let error: Error = serde_json::from_slice(&answer.body).expect("a problem");
                assert_eq!(error.code.http_status(), status);
                Err(error)
            }
        }
    }
}

fn pairs(name: &str, value: &Value) -> Vec<String> {
    match value {
        Value::Null => Vec::new(),
        Value::Array(items) => items.iter().map(|item| format!("{name}={}", encode(item))).collect(),
        value => vec![format!("{name}={}", encode(value))],
    }
}

fn encode(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    utf8_percent_encode(&text, NON_ALPHANUMERIC).to_string()
}

async fn serve(store: Arc<dyn ff_store::Store>) -> (Arc<dyn Api>, Running) {
    let server = Running::start_on(settings(), store).await;
    (Arc::new(OverHttp(server.client())), server)
}

mod memory {
    use super::*;

    async fn open() -> (Arc<dyn Api>, Running) {
        serve(Arc::new(ff_store::memory::MemoryStore::new())).await
    }

    ff_sequences::tests!(open());
}

mod sqlite {
    use super::*;

    async fn open() -> (Arc<dyn Api>, (Running, tempfile::TempDir)) {
        let directory = tempfile::tempdir().unwrap();
        let options = ff_store_sqlite::Options::new(directory.path().join("ff.db"));
        let (api, server) = serve(ff_store_sqlite::open(&options).unwrap()).await;
        (api, (server, directory))
    }

    ff_sequences::tests!(open());
}

/// One Valkey for all, and a server for each sequence: thirty servers side by side.
mod valkey {
    use std::sync::OnceLock;

    use super::*;

    static SERVER: OnceLock<ff_testkit::valkey::Server> = OnceLock::new();

    async fn open() -> (Arc<dyn Api>, Running) {
        let url = SERVER.get_or_init(ff_testkit::valkey::Server::start).url();
        serve(Arc::new(ff_store_valkey::ValkeyStore::open(&url).await.unwrap())).await
    }

    ff_sequences::tests!(open());
}
