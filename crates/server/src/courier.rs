//! Sends webhooks over HTTP. A request has ten seconds for everything, its answer is read up to a limit, a redirect is not
//! followed, and the connection goes to the very address that was checked, whatever the name resolves to a moment later.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;

use ff_core::limits;
use ff_core::subscription::WebhookUrl;
use ff_engine::env::BoxFuture;
use ff_engine::{Courier, Undelivered, Webhook};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::{Request, Response, StatusCode, body::Incoming, header};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::networks::Reachable;
use crate::tls;

/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 4;
/// A receiver may ask for a pause up to this one.
const RETRY_AFTER_MAX_MS: i64 = 24 * 3600 * 1000;
/// Bytes of headers that an answer may have.
const HEADERS_MAX_BYTES: usize = 64 * 1024;

/// Sends webhooks to where they may go.
#[derive(Clone)]
pub(crate) struct HttpCourier {
    reachable: Reachable,
    /// For everything from the look-up of the name to the end of the answer.
    answer_timeout: Duration,
}

impl HttpCourier {
    pub(crate) fn new(reachable: Reachable) -> Self {
        Self { reachable, answer_timeout: Duration::from_millis(limits::WEBHOOK_TIMEOUT_MS.unsigned_abs()) }
    }
}

impl std::fmt::Debug for HttpCourier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HttpCourier")
    }
}

impl Courier for HttpCourier {
    fn send(&self, webhook: Webhook) -> BoxFuture<'static, Result<u16, Undelivered>> {
        let courier = self.clone();
        Box::pin(async move {
            match tokio::time::timeout(courier.answer_timeout, courier.post(webhook)).await {
                Ok(sent) => sent,
                Err(_) => Err(failed("timeout", format!("no answer within {} ms", courier.answer_timeout.as_millis()))),
            }
        })
    }
}

fn failed(category: &'static str, reason: impl Into<String>) -> Undelivered {
    Undelivered { reason: reason.into(), category, retry_after_ms: None }
}

fn not_connected(why: impl std::fmt::Display) -> Undelivered {
    failed("connection", format!("the receiver cannot be reached: {why}"))
}

impl HttpCourier {
    async fn post(&self, webhook: Webhook) -> Result<u16, Undelivered> {
        let url = WebhookUrl::parse("url", &webhook.url).map_err(|error| failed("address_refused", error.detail))?;
        let stream = self.connect(&url).await?;
        if !url.https {
            return exchange(stream, &url, webhook).await;
        }
        let name = ServerName::try_from(url.host.clone()).map_err(not_connected)?;
        let stream = connector()?.connect(name, stream).await.map_err(not_connected)?;
        exchange(stream, &url, webhook).await
    }

    /// Connects to one of the host's addresses that webhooks may go to.
    async fn connect(&self, url: &WebhookUrl) -> Result<TcpStream, Undelivered> {
        let addresses: Vec<SocketAddr> = match url.host.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, url.port)],
            Err(_) => {
                let found = tokio::net::lookup_host((url.host.as_str(), url.port)).await;
                found.map_err(not_connected)?.collect()
            }
        };
        let admitted = addresses.iter().filter(|address| self.reachable.admits(address.ip()));
        let mut last = match addresses.is_empty() {
            true => not_connected("its name has no address"),
            // The address is not told: a reader of this must not learn what names mean inside of the network.
            false => failed(
                "address_refused",
                "the address is loopback, private or otherwise not of the Internet; FF_WEBHOOK_ALLOW_PRIVATE allows networks",
            ),
        };
        for address in admitted.take(ADDRESSES_MAX) {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = not_connected(error),
            }
        }
        Err(last)
    }
}

/// The authorities of the system are read once, when the first webhook needs them.
fn connector() -> Result<&'static TlsConnector, Undelivered> {
    static CONNECTOR: OnceLock<Result<TlsConnector, String>> = OnceLock::new();
    CONNECTOR.get_or_init(tls::connector).as_ref().map_err(not_connected)
}

async fn exchange<T>(stream: T, url: &WebhookUrl, webhook: Webhook) -> Result<u16, Undelivered>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut builder = http1::Builder::new();
    builder.max_buf_size(HEADERS_MAX_BYTES);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(not_connected)?;
    let mut request = Request::post(&url.path)
        .header(header::HOST, &url.authority)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, concat!("FlowFabric/", env!("CARGO_PKG_VERSION")))
        .header(header::CONNECTION, "close");
    for (name, value) in &webhook.headers {
        request = request.header(*name, value);
    }
    let request =
        request.body(Full::new(webhook.body)).map_err(|error| failed("address_refused", error.to_string()))?;
    let mut answer = pin!(async {
        let response = sender.send_request(request).await.map_err(not_connected)?;
        judge(response).await
    });
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        // An answer that came before the end of the connection is still there to be read.
        _ended = &mut connection => answer.await,
    }
}

/// The meaning of an answer. Its body is read, so that a receiver that sends it first is not cut off, and not kept.
async fn judge(response: Response<Incoming>) -> Result<u16, Undelivered> {
    let (parts, mut body) = response.into_parts();
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| failed("connection", format!("the answer broke off: {error}")))?;
        read += frame.data_ref().map_or(0, bytes::Bytes::len);
        if read >= limits::WEBHOOK_ANSWER_MAX_BYTES {
            break;
        }
    }
    let status = parts.status;
    let retry_after = parts.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<i64>().ok());
    let retry_after_ms = retry_after.map(|seconds| seconds.saturating_mul(1_000).clamp(0, RETRY_AFTER_MAX_MS));
    match status {
        StatusCode::GONE => Err(failed("gone", "the receiver answered 410: it wants no more of these")),
        _ if status.is_success() => Ok(status.as_u16()),
        _ if status.is_redirection() => Err(failed(
            "redirect",
            format!("the receiver answered {}, and redirects are not followed", status.as_u16()),
        )),
        _ => {
            let reason = format!("the receiver answered {}", status.as_u16());
            Err(Undelivered { retry_after_ms, ..failed("http_status", reason) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    fn courier(networks: &[&str]) -> HttpCourier {
        let networks: Vec<String> = networks.iter().map(|one| (*one).to_owned()).collect();
        HttpCourier::new(Reachable::with(&networks).unwrap())
    }

    fn webhook(url: &str) -> Webhook {
        Webhook { url: url.to_owned(), headers: vec![("webhook-id", "m1".to_owned())], body: "{}".into() }
    }

    /// A receiver that reads a request, answers with these bytes and keeps the connection open.
    async fn receiver(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut request = [0; 4_096];
                    let _ = stream.read(&mut request).await;
                    let _ = stream.write_all(answer).await;
                    std::future::pending::<()>().await;
                });
            }
        });
        address
    }

    async fn sent_to(answer: &'static [u8]) -> Result<u16, Undelivered> {
        let mut courier = courier(&["127.0.0.1"]);
        courier.answer_timeout = Duration::from_millis(300);
        courier.send(webhook(&format!("http://{}/x", receiver(answer).await))).await
    }

    #[tokio::test]
    async fn answers_are_judged_by_their_status_and_nobody_is_waited_for_for_long() {
        assert_eq!(sent_to(b"HTTP/1.1 204 No Content\r\n\r\n").await, Ok(204));
        let category = async |answer| sent_to(answer).await.unwrap_err().category;
        assert_eq!(category(b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n").await, "http_status");
        assert_eq!(category(b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n").await, "gone");
        assert_eq!(category(b"").await, "timeout");
        // The answer begins, and never ends.
        assert_eq!(category(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc").await, "timeout");
        let later = sent_to(b"HTTP/1.1 429 Slow\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n").await.unwrap_err();
        assert_eq!((later.category, later.retry_after_ms), ("http_status", Some(7_000)));
        assert_eq!(
            courier(&["127.0.0.1"]).send(webhook("http://127.0.0.1:1/")).await.unwrap_err().category,
            "connection"
        );
    }

    #[tokio::test]
    async fn a_redirect_is_not_followed() {
        let answer = b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(sent_to(answer).await.unwrap_err().category, "redirect");
    }

    #[tokio::test]
    async fn an_answer_is_read_up_to_its_limit() {
        // The header announces more than the courier reads.
        let mut answer = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n".to_vec();
        answer.resize(answer.len() + limits::WEBHOOK_ANSWER_MAX_BYTES, b'x');
        assert_eq!(sent_to(answer.leak()).await, Ok(200));
    }

    #[tokio::test]
    async fn nothing_is_sent_to_addresses_inside_by_whatever_name() {
        let address = receiver(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        let port = address.port();
        for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "0.0.0.0", "[::1]"] {
            let refused = courier(&[]).send(webhook(&format!("http://{host}:{port}/"))).await.unwrap_err();
            assert_eq!(refused.category, "address_refused", "{host}: {refused:?}");
        }
        assert_eq!(courier(&["127.0.0.0/8"]).send(webhook(&format!("http://{address}/"))).await, Ok(200));
    }
}
