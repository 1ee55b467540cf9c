//! Connections to a server, kept for the next call.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Failure;
use crate::error::SdkError;

/// Connections that wait for a call; more are closed.
const IDLE_MAX: usize = 64;
/// A server that does not accept within this time is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection, ready for one request at a time.
pub(super) type Sender = SendRequest<Full<Bytes>>;

/// The authorities that may vouch for a server.
pub(super) enum Trusted<'a> {
    /// Those of the system.
    System,
    /// Those in a PEM file, and no others.
    File(&'a Path),
}

/// Connections to one server.
pub(super) struct Pool {
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
    idle: Mutex<Vec<Sender>>,
}

impl Pool {
    /// Connections to a server, over TLS if there is something to trust its certificate by.
    pub(super) fn new(host: String, port: u16, trusted: Option<Trusted<'_>>) -> Result<Self, SdkError> {
        let tls = trusted.map(connector).transpose()?;
        Ok(Self { host, port, tls, idle: Mutex::default() })
    }

    /// Sends a request and reads the head of its answer. The connection comes back with it; a caller that has read the
    /// whole body gives it to [`Pool::keep`].
    pub(super) async fn send(&self, request: Request<Full<Bytes>>) -> Result<(Response<Incoming>, Sender), Failure> {
        let mut request = request;
        // A connection the server has closed meanwhile gives the request back unsent.
        while let Some(mut sender) = self.take() {
            if sender.ready().await.is_err() {
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, sender)),
                Err(mut refused) => match refused.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(unreachable(&refused.into_error())),
                },
            }
        }
        // Boxed, because nearly every request finds a connection, and would hold all that it takes to make one.
        let mut sender = Box::pin(self.dial()).await?;
        let response = sender.send_request(request).await.map_err(|error| unreachable(&error))?;
        Ok((response, sender))
    }

    /// Keeps a connection whose answer was read to its end.
    pub(super) fn keep(&self, sender: Sender) {
        let mut idle = self.idle.lock().expect("no holder of this lock panics");
        if !sender.is_closed() && idle.len() < IDLE_MAX {
            idle.push(sender);
        }
    }

    /// The connection used last is the one most likely to be open.
    fn take(&self) -> Option<Sender> {
        let mut idle = self.idle.lock().expect("no holder of this lock panics");
        while let Some(sender) = idle.pop() {
            if !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    async fn dial(&self) -> Result<Sender, Failure> {
        match tokio::time::timeout(CONNECT_TIMEOUT, self.connect()).await {
            Ok(connected) => connected,
            Err(_) => Err(Failure::Unreachable(format!("{}:{} does not accept connections", self.host, self.port))),
        }
    }

    async fn connect(&self) -> Result<Sender, Failure> {
        let failed = |error: std::io::Error| Failure::Unreachable(format!("{}:{}: {error}", self.host, self.port));
        let tcp = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(failed)?;
        tcp.set_nodelay(true).map_err(failed)?;
        let Some(tls) = &self.tls else { return handshake(tcp).await };
        let name = ServerName::try_from(self.host.clone())
            .map_err(|_| Failure::Unreadable(format!("{} is no name a certificate can have", self.host)))?;
        let encrypted = tls.connect(name, tcp).await.map_err(|error| match is_distrusted(&error) {
            true => Failure::Unreachable(format!(
                "{}:{}: {error}; FF_CA_FILE can name a file with the authority to trust",
                self.host, self.port
            )),
            false => failed(error),
        })?;
        handshake(encrypted).await
    }
}

async fn handshake(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<Sender, Failure> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| unreachable(&error))?;
    // It ends with its sender, or when the server hangs up; a caller that waits for an answer learns of errors there.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}

pub(super) fn unreachable(error: &hyper::Error) -> Failure {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    Failure::Unreachable(format!("{error}{cause}"))
}

/// Whether the server was reached, and its certificate is not trusted.
fn is_distrusted(error: &std::io::Error) -> bool {
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidCertificate(_)))
}

fn connector(trusted: Trusted<'_>) -> Result<TlsConnector, SdkError> {
    let mut roots = rustls::RootCertStore::empty();
    match trusted {
        Trusted::System => {
            // Systems carry odd certificates; those that cannot be used are left out, as everyone does.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Trusted::File(file) => {
            let wrong = |why: String| SdkError::config("connect", "ca_file", format!("{}: {why}", file.display()));
            let certificates = CertificateDer::pem_file_iter(file).map_err(|error| wrong(error.to_string()))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
                roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(wrong("holds no certificate in PEM".into()));
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| SdkError::config("connect", "url", format!("needs TLS: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
