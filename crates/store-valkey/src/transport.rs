//! One authenticated byte stream to one server, plain or TLS.

use std::sync::Arc;

use bytes::BytesMut;
use ff_store::{Result, StoreError};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::Options;
use crate::refusal::Refusal;
use crate::resp::{Frame, command, take_frame};

/// Bytes in both directions.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Why a connection could not be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DialError {
    /// Waiting may help.
    Unreachable(String),
    /// The credentials are wrong: waiting does not help.
    Denied(String),
}

impl std::fmt::Display for DialError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DialError::Unreachable(why) | DialError::Denied(why) => f.write_str(why),
        }
    }
}

/// A connection that is ready for commands.
pub(crate) struct Line {
    pub(crate) stream: Box<dyn Duplex>,
    /// The id of the server's process, which is new after each start. It is asked for only if another server may have
    /// taken over meanwhile.
    pub(crate) run_id: Option<String>,
}

/// Makes connections that are ready for commands.
pub(crate) struct Dialer {
    pub(crate) options: Arc<Options>,
    tls: Option<TlsConnector>,
}

impl Dialer {
    pub(crate) fn new(options: Arc<Options>) -> Result<Self> {
        let tls = if options.tls { Some(tls_connector(&options)?) } else { None };
        Ok(Self { options, tls })
    }

    /// Connects, authenticates and exchanges a PING, in the time of one request: a server that has stopped still accepts
    /// connections.
    pub(crate) async fn dial(&self, address: &str) -> std::result::Result<Line, DialError> {
        let patience = self.options.connect_timeout.min(self.options.request_timeout);
        match timeout(patience, self.handshake(address)).await {
            Ok(result) => result,
            Err(_) => Err(DialError::Unreachable(format!("{address} did not answer in time"))),
        }
    }

    async fn handshake(&self, address: &str) -> std::result::Result<Line, DialError> {
        let unreachable = |why: std::io::Error| DialError::Unreachable(format!("{address}: {why}"));
        let tcp = TcpStream::connect(address).await.map_err(unreachable)?;
        tcp.set_nodelay(true).map_err(unreachable)?;
        let mut stream: Box<dyn Duplex> = match &self.tls {
            None => Box::new(tcp),
            Some(connector) => {
                let name = server_name(address)
                    .ok_or_else(|| DialError::Denied(format!("{address} is no name a certificate can have")))?;
                Box::new(connector.connect(name, tcp).await.map_err(unreachable)?)
            }
        };
        if let Some(password) = &self.options.password {
            let user = self.options.user.as_deref();
            let auth = match user {
                Some(user) => command(&[b"AUTH", user.as_bytes(), password.as_bytes()]),
                None => command(&[b"AUTH", password.as_bytes()]),
            };
            match exchange(&mut stream, &auth).await.map_err(unreachable)? {
                Frame::Error(text) => return Err(DialError::Denied(format!("{address}: {text}"))),
                _ => tracing::trace!(address, "authenticated"),
            }
        }
        match exchange(&mut stream, &command(&[b"PING"])).await.map_err(unreachable)? {
            Frame::Error(text) if matches!(Refusal::parse(&text), Refusal::Denied) => {
                return Err(DialError::Denied(format!("{address}: {text}")));
            }
            // A server that is loading answers PING with an error, and calls with the same: they wait for it.
            _ => tracing::trace!(address, "reached"),
        }
        let run_id = match self.options.may_change_hands() {
            true => Some(run_id(&mut stream).await.map_err(unreachable)?),
            false => None,
        };
        Ok(Line { stream, run_id })
    }
}

/// Exchanges one command and its answer on a connection that is not in use yet.
async fn exchange(stream: &mut Box<dyn Duplex>, request: &[u8]) -> std::io::Result<Frame> {
    stream.write_all(request).await?;
    let mut buffer = BytesMut::new();
    loop {
        if let Some(frame) = take_frame(&mut buffer).map_err(std::io::Error::other)? {
            return Ok(frame);
        }
        if stream.read_buf(&mut buffer).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The id of the process at the other end.
async fn run_id(stream: &mut Box<dyn Duplex>) -> std::io::Result<String> {
    let info = exchange(stream, &command(&[b"INFO", b"server"])).await?;
    let run_id = info.text().and_then(|info| info_field(info, "run_id"));
    run_id.map(str::to_owned).ok_or_else(|| std::io::Error::other(format!("INFO names no process: {info:?}")))
}

/// A field of an answer of INFO.
pub(crate) fn info_field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim_end)
}

fn server_name(address: &str) -> Option<ServerName<'static>> {
    let (host, _) = address.rsplit_once(':')?;
    ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).ok()
}

fn unusable(path: &str, why: &impl std::fmt::Display) -> StoreError {
    StoreError::Config(format!("{path} cannot be used: {why}"))
}

/// The certificates in a file, at least one.
fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(path).map_err(|why| unusable(path, &why))?;
    let found: Vec<_> = found.collect::<std::result::Result<_, _>>().map_err(|why| unusable(path, &why))?;
    if found.is_empty() { Err(unusable(path, &"it holds no certificate")) } else { Ok(found) }
}

fn tls_connector(options: &Options) -> Result<TlsConnector> {
    let mut roots = rustls::RootCertStore::empty();
    match &options.ca_file {
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|why| unusable(path, &why))?;
            }
        }
        None => {
            // Some certificates of a system cannot be used; they are left out, as is common practice.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|why| StoreError::Config(format!("TLS cannot be set up: {why}")))?
        .with_root_certificates(roots);
    let config = match &options.client_certificate {
        None => config.with_no_client_auth(),
        Some(own) => {
            let key = PrivateKeyDer::from_pem_file(&own.key_file).map_err(|why| unusable(&own.key_file, &why))?;
            config
                .with_client_auth_cert(certificates(&own.cert_file)?, key)
                .map_err(|why| unusable(&own.cert_file, &why))?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}
