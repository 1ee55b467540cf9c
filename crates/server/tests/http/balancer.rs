//! Sends each request to the next of several servers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

/// Starts one; answers where it listens. It ends with the test's runtime.
pub(crate) async fn start(servers: Vec<SocketAddr>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let next = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (servers, next) = (servers.clone(), next.clone());
            let service = service_fn(move |request| {
                let server = servers[next.fetch_add(1, Ordering::Relaxed) % servers.len()];
                forward(server, request)
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

async fn forward(server: SocketAddr, request: Request<Incoming>) -> Result<Response<Incoming>, hyper::Error> {
    let (parts, body) = request.into_parts();
    let request = Request::from_parts(parts, Full::new(body.collect().await?.to_bytes()));
    let stream = TcpStream::connect(server).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    sender.send_request(request).await
}
