//! Inbound hooks over HTTP: a sender has no API token, and proves itself by the signature of its message.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use ff_core::{Error, Result};
use ff_engine::HookMessage;
use hyper::{Method, Request, Response};
use tokio::time::Instant;

use crate::answer::{self, Body};
use crate::app::App;
use crate::arguments;
use crate::body::{self, Reading};

/// Where messages are posted to.
pub(crate) const PATH: &str = "/v1/hooks/{name}";
/// The beginning of the path.
const PREFIX: &str = "/v1/hooks/";

/// The hook that a request posts to, if it does.
pub(crate) fn posted_to(method: &Method, path: &str) -> Result<Option<String>> {
    let name = path.strip_prefix(PREFIX).filter(|name| *method == Method::POST && !name.contains('/'));
    name.map(arguments::decode).transpose()
}

/// Receives a message.
pub(crate) async fn respond<B>(
    app: &Arc<App>,
    peer: IpAddr,
    name: String,
    request: Request<B>,
    unread: &AtomicBool,
) -> Result<Response<Body>>
where
    B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::error::Error,
{
    app.strangers.take(peer, Instant::now())?;
    let namespace = namespace(request.uri().query().unwrap_or(""))?;
    let (parts, body) = request.into_parts();
    // The signature is over these bytes, whatever they are.
    let reading = Reading { max: app.config.engine.limits.input_max_bytes, timeout: app.config.body_timeout };
    let body = body::bytes(&app.config, &parts.headers, body, reading).await?;
    unread.store(false, Ordering::Relaxed);
    // A body that comes slowly takes no place.
    let _place = app.strangers.enter(peer)?;
    // A header that is no text, or that is there twice, proves nothing.
    let mut headers = BTreeMap::new();
    for name in parts.headers.keys() {
        let mut values = parts.headers.get_all(name).iter();
        if let (Some(Ok(value)), None) = (values.next().map(|value| value.to_str()), values.next()) {
            headers.insert(name.as_str().to_owned(), value.to_owned());
        }
    }
    let receipt = app.engine.receive_hook(HookMessage { name, namespace, headers, body }).await?;
    answer::json(&receipt)
}

fn namespace(query: &str) -> Result<Option<String>> {
    let mut namespace = None;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=') {
            Some(("namespace", value)) if namespace.is_none() => namespace = Some(arguments::decode(value)?),
            _ => return Err(Error::invalid("query", "takes one namespace and nothing else")),
        }
    }
    Ok(namespace)
}
