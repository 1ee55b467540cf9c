//! Who is calling, and from where.

use std::net::IpAddr;
use std::time::Duration;

use ff_core::{Code, Error, Result, Role};
use ff_engine::Caller;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Response, Uri};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use crate::app::App;
use crate::config::Config;
use crate::http::answer::{self, Body};

/// A revocation holds everywhere within a second.
const CONFIRMED_FOR: Duration = Duration::from_millis(500);

/// A configured token. Only its digest is kept, so that no dump or log can show it.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    /// The digest of a token.
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token).into())
    }

    fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl std::fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[redacted]")
    }
}

/// The caller behind a request. Without configured tokens (which only a loopback address allows) everybody on this
/// machine is an administrator; a token that is sent all the same must be a good one.
pub(crate) async fn authenticate(app: &App, headers: &HeaderMap) -> Result<Caller> {
    identify(app, bearer(headers)?).await
}

async fn identify(app: &App, bearer: Option<&str>) -> Result<Caller> {
    let Some(bearer) = bearer else {
        return if app.config.open() { Ok(local()) } else { Err(Error::of(Code::Unauthenticated)) };
    };
    let digest = TokenDigest::of(bearer);
    // Every configured token is compared, so that the time says nothing about which one it was.
    let known = app.config.api_tokens.iter().fold(false, |known, token| known | token.is(&digest));
    if known {
        return Ok(Caller { name: "api_token".into(), namespace: None, role: Role::Admin, idempotency_key: None });
    }
    app.engine.authenticate(bearer).await
}

/// What a long-lived answer was asked with. A token that is revoked meanwhile must not see what comes later.
pub(crate) struct Credential {
    bearer: Option<String>,
    confirmed: Instant,
}

impl Credential {
    /// The credential of a request that was let in just now.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self> {
        Ok(Self { bearer: bearer(headers)?.map(str::to_owned), confirmed: Instant::now() })
    }

    /// Whether it must be looked at again.
    pub(crate) fn is_stale(&self) -> bool {
        self.confirmed.elapsed() >= CONFIRMED_FOR
    }

    /// Refuses it when it is no longer good.
    pub(crate) async fn renew(&mut self, app: &App) -> Result<()> {
        identify(app, self.bearer.as_deref()).await?;
        self.confirmed = Instant::now();
        Ok(())
    }
}

fn local() -> Caller {
    Caller { name: "local".into(), namespace: None, role: Role::Admin, idempotency_key: None }
}

fn bearer(headers: &HeaderMap) -> Result<Option<&str>> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let text = value.to_str().map_err(|_| Error::of(Code::Unauthenticated))?;
    match text.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(Some(token.trim())),
        _ => Err(Error::of(Code::Unauthenticated)),
    }
}

/// What a load balancer asks.
const HEALTH: [&str; 3] = ["/livez", "/readyz", "/healthz"];

/// Refuses a host name that is not ours: a page of a stranger may have made a browser resolve its own name to us.
pub(crate) fn check_host(config: &Config, headers: &HeaderMap, uri: &Uri) -> Result<()> {
    let Some(allowed) = &config.allowed_hosts else { return Ok(()) };
    let named =
        headers.get(header::HOST).and_then(|host| host.to_str().ok()).or_else(|| uri.authority().map(|a| a.as_str()));
    // A browser always names a host; health checks in HTTP/1.0 often do not, and learn nothing.
    if named.is_none() && HEALTH.contains(&uri.path()) {
        return Ok(());
    }
    let host = named.map_or("", host_of);
    if allowed.iter().any(|one| one.eq_ignore_ascii_case(host)) {
        return Ok(());
    }
    Err(Error::of(Code::HostNotAllowed).with("host", host))
}

/// The host without its port.
fn host_of(authority: &str) -> &str {
    if let Some((inside, _)) = authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return inside;
    }
    match authority.rsplit_once(':') {
        Some((host, _)) if authority.parse::<IpAddr>().is_err() => host,
        _ => authority,
    }
}

/// Answers a browser's question whether another origin may call.
pub(crate) fn preflight(config: &Config, headers: &HeaderMap) -> Result<Response<Body>> {
    if !allowed_origin(config, headers.get(header::ORIGIN)) {
        return Err(Error::new(Code::Forbidden, "this origin is not configured"));
    }
    let mut response = answer::empty();
    answer::set(&mut response, header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, PUT, DELETE");
    let allowed = "authorization, content-type, idempotency-key, last-event-id, traceparent";
    answer::set(&mut response, header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    answer::set(&mut response, header::ACCESS_CONTROL_MAX_AGE, "600");
    Ok(response)
}

/// Lets a configured origin read the answer.
pub(crate) fn allow_origin(config: &Config, headers: &mut HeaderMap, origin: Option<&HeaderValue>) {
    if config.cors_origins.is_empty() {
        return;
    }
    headers.insert(header::VARY, HeaderValue::from_static("origin"));
    if allowed_origin(config, origin)
        && let Some(origin) = origin
    {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    }
}

fn allowed_origin(config: &Config, origin: Option<&HeaderValue>) -> bool {
    let origin = origin.and_then(|origin| origin.to_str().ok());
    origin.is_some_and(|origin| config.cors_origins.iter().any(|one| one == origin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_compared_without_its_port() {
        assert_eq!(host_of("localhost:7171"), "localhost");
        assert_eq!(host_of("[::1]:7171"), "::1");
        assert_eq!(host_of("::1"), "::1");
        assert_eq!(host_of("example.com"), "example.com");
    }

    #[test]
    fn a_configured_token_does_not_show() {
        assert_eq!(format!("{:?}", TokenDigest::of("hunter2")), "[redacted]");
    }
}
