//! Who is calling, and from where.

use std::net::IpAddr;
use std::time::Duration;

use ff_core::session::{SESSION_TTL_MS, Session};
use ff_core::{Code, Error, Result, Role};
use ff_engine::{Caller, Standing};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Response, Uri};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use crate::app::App;
use crate::config::Config;
use crate::http::answer::{self, Body};
use crate::session;

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

    /// What sessions call this token. It tells nothing about the token, nor about its digest.
    fn session_id(&self) -> [u8; 16] {
        let digest: [u8; 32] = Sha256::digest(self.0).into();
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        id
    }
}

impl std::fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[redacted]")
    }
}

/// How a request says who sends it.
enum Presented {
    Nothing,
    Bearer(String),
    Session(Session),
    /// A ticket for streams was redeemed for this caller.
    Ticket(Caller),
}

impl Presented {
    /// What a request carries. An API token is stronger than the session of a browser; where no token is asked for, a
    /// session that was left over from another time means nothing.
    fn of(config: &Config, headers: &HeaderMap) -> Result<Self> {
        if let Some(bearer) = bearer(headers)? {
            return Ok(Self::Bearer(bearer.to_owned()));
        }
        if config.open() {
            return Ok(Self::Nothing);
        }
        session::of(headers).transpose().map(|session| session.map_or(Self::Nothing, Self::Session))
    }
}

/// The caller behind a request, and what it proved that with. Without configured tokens (which only a loopback address
/// allows) everybody on this machine is an administrator; a token that is sent all the same must be a good one.
pub(crate) async fn authenticate(app: &App, method: &Method, headers: &HeaderMap) -> Result<(Caller, Credential)> {
    let presented = Presented::of(&app.config, headers)?;
    // A browser sends its cookies on behalf of any page it shows, so what changes something must come from our own.
    if matches!(presented, Presented::Session(_)) && !matches!(*method, Method::GET | Method::HEAD) {
        check_origin(&app.config, headers)?;
    }
    let caller = identify(app, &presented).await?;
    Ok((caller, Credential { presented, confirmed: Instant::now() }))
}

/// The same where a waitpoint's token will do: a caller that cannot prove who it is, because it brings nothing or a session
/// that has ended, is let in as a stranger. Whether it has such a token, [`check_waitpoint_token`] says.
pub(crate) async fn admit(
    app: &App,
    method: &Method,
    headers: &HeaderMap,
    peer: IpAddr,
) -> Result<(Caller, Credential)> {
    match authenticate(app, method, headers).await {
        Err(error) if matches!(error.code, Code::Unauthenticated | Code::Forbidden) && !app.config.open() => {
            app.strangers.take(peer, Instant::now())?;
            let credential = Credential { presented: Presented::Nothing, confirmed: Instant::now() };
            Ok((Caller::stranger(), credential))
        }
        known => known,
    }
}

/// Refuses a stranger without a waitpoint's token as everybody is refused who brings nothing.
pub(crate) fn check_waitpoint_token(arguments: &str) -> Result<()> {
    #[derive(serde::Deserialize)]
    struct Brought {
        #[serde(default)]
        token: Option<serde_json::Value>,
    }
    match serde_json::from_str::<Brought>(arguments) {
        Ok(Brought { token: Some(serde_json::Value::String(token)) }) if !token.is_empty() => Ok(()),
        _ => Err(Error::of(Code::Unauthenticated)),
    }
}

/// The caller behind a request for a stream, by what it carries or by a ticket. A ticket for one execution opens no other.
pub(crate) async fn viewer(
    app: &App,
    headers: &HeaderMap,
    ticket: Option<&str>,
    execution_id: Option<&str>,
) -> Result<(Caller, Credential)> {
    let presented = match ticket {
        Some(ticket) => {
            let (caller, only) = app.engine.redeem_ticket(ticket).await?;
            if only.is_some_and(|only| execution_id != Some(only.to_string().as_str())) {
                return Err(Error::new(Code::Forbidden, "this ticket is for the stream of another execution"));
            }
            Presented::Ticket(caller)
        }
        None => Presented::of(&app.config, headers)?,
    };
    let caller = identify(app, &presented).await?;
    check_reader(&caller)?;
    Ok((caller, Credential { presented, confirmed: Instant::now() }))
}

/// Refuses a caller that may not read.
pub(crate) fn check_reader(caller: &Caller) -> Result<()> {
    if caller.role.allows(Role::Reader) {
        return Ok(());
    }
    let detail = format!("this needs the role {}, the token has {}", Role::Reader, caller.role);
    Err(Error::new(Code::Forbidden, detail).with("required", Role::Reader))
}

async fn identify(app: &App, presented: &Presented) -> Result<Caller> {
    match presented {
        Presented::Nothing if app.config.open() => Ok(local()),
        Presented::Nothing => Err(Error::of(Code::Unauthenticated)),
        Presented::Bearer(bearer) => match configured(app, bearer) {
            Some(_) => Ok(configured_caller()),
            None => app.engine.authenticate(bearer).await,
        },
        Presented::Ticket(caller) => app.engine.confirm_caller(caller).await.map(|()| caller.clone()),
        Presented::Session(session) => {
            let owner = app.config.api_tokens.iter().find(|token| token.session_id() == session.token_id());
            match owner {
                Some(token) => session.check(&token.0, app.engine.now()).map(|()| configured_caller()),
                None => app.engine.authenticate_session(session).await,
            }
        }
    }
}

/// The configured token that this is. Every one is compared, so that the time says nothing about which it was.
fn configured<'a>(app: &'a App, bearer: &str) -> Option<&'a TokenDigest> {
    let digest = TokenDigest::of(bearer);
    app.config.api_tokens.iter().fold(None, |known, token| if token.is(&digest) { Some(token) } else { known })
}

fn configured_caller() -> Caller {
    Caller { standing: Standing::Token, ..Caller::new("api_token", None, Role::Admin) }
}

/// A session for whoever shows this token.
pub(crate) async fn begin_session(app: &App, bearer: &str) -> Result<(Caller, Session)> {
    if let Some(token) = configured(app, bearer) {
        let session = Session::begin(token.session_id(), &token.0, app.engine.now() + SESSION_TTL_MS);
        return Ok((configured_caller(), session));
    }
    let session = app.engine.begin_session(bearer).await?;
    Ok((app.engine.authenticate_session(&session).await?, session))
}

/// Refuses a changing call that a page of somebody else made a browser send.
pub(crate) fn check_origin(config: &Config, headers: &HeaderMap) -> Result<()> {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let site = headers.get("sec-fetch-site").and_then(|value| value.to_str().ok());
    let origin = text(header::ORIGIN);
    let own = match (site, origin) {
        (Some("same-origin"), _) => true,
        // A browser says where a changing call comes from; a program that says nothing has no cookies to misuse.
        (None, None) => true,
        (_, Some(origin)) => {
            let host = origin.split_once("://").map(|(_, host)| host);
            (site.is_none() && host.is_some() && host == text(header::HOST))
                || config.cors_origins.iter().any(|one| one == origin)
        }
        (Some(_), None) => false,
    };
    if own { Ok(()) } else { Err(Error::new(Code::Forbidden, "this call comes from a page of another origin")) }
}

/// What a long-lived answer was asked with. A token that is revoked meanwhile must not see what comes later.
pub(crate) struct Credential {
    presented: Presented,
    confirmed: Instant,
}

impl Credential {
    /// Ends when it is no longer good: a call that waits must not be handed what its caller may not have any more.
    pub(crate) async fn ended(mut self, app: &App) -> Error {
        loop {
            tokio::time::sleep(CONFIRMED_FOR).await;
            match self.renew(app).await {
                Ok(()) => {}
                Err(error) if error.code == Code::Unauthenticated => return error,
                // A store that does not answer takes nothing away; the next look may tell.
                Err(_) => {}
            }
        }
    }

    /// Whether it must be looked at again.
    pub(crate) fn is_stale(&self) -> bool {
        self.confirmed.elapsed() >= CONFIRMED_FOR
    }

    /// Refuses it when it is no longer good.
    pub(crate) async fn renew(&mut self, app: &App) -> Result<()> {
        identify(app, &self.presented).await?;
        self.confirmed = Instant::now();
        Ok(())
    }
}

fn local() -> Caller {
    Caller::new("local", None, Role::Admin)
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
    if headers.get_all(header::HOST).iter().count() > 1 {
        return Err(Error::invalid("Host", "is given more than once"));
    }
    let Some(allowed) = &config.allowed_hosts else { return Ok(()) };
    // A probe names whatever address it was given, and learns nothing.
    if HEALTH.contains(&uri.path()) {
        return Ok(());
    }
    let named =
        headers.get(header::HOST).and_then(|host| host.to_str().ok()).or_else(|| uri.authority().map(|a| a.as_str()));
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
    let allowed = "authorization, content-type, idempotency-key, last-event-id, traceparent, x-request-id";
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

/// Whether a page of another origin may have made this request: browsers say so where they send one.
pub(crate) fn is_foreign(config: &Config, headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return false };
    let own = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
    let named = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    !(own.is_some() && own == named || allowed_origin(config, Some(origin)))
}

fn allowed_origin(config: &Config, origin: Option<&HeaderValue>) -> bool {
    let origin = origin.and_then(|origin| origin.to_str().ok());
    origin.is_some_and(|origin| config.cors_origins.iter().any(|one| one == origin))
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderName;

    use super::*;

    #[test]
    fn a_host_is_compared_without_its_port() {
        assert_eq!(host_of("localhost:7171"), "localhost");
        assert_eq!(host_of("[::1]:7171"), "::1");
        assert_eq!(host_of("::1"), "::1");
        assert_eq!(host_of("example.com"), "example.com");
    }

    #[test]
    fn a_changing_call_comes_from_our_own_page() {
        let config = Config::resolve(crate::Settings::default(), crate::Settings::default()).unwrap();
        let judge = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs.iter();
            let headers = pairs.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            check_origin(&config, &headers.collect()).is_ok()
        };
        assert!(judge(&[("host", "ff:1"), ("origin", "http://ff:1")]));
        assert!(judge(&[("host", "inside:2"), ("origin", "https://ff"), ("sec-fetch-site", "same-origin")]));
        assert!(judge(&[("host", "ff:1")]));
        assert!(!judge(&[("host", "ff:1"), ("origin", "http://ff:2")]));
        assert!(!judge(&[("host", "ff:1"), ("origin", "null")]));
        assert!(!judge(&[("host", "ff:1"), ("origin", "http://ff:1"), ("sec-fetch-site", "same-site")]));
        assert!(!judge(&[("host", "ff:1"), ("sec-fetch-site", "cross-site")]));
    }

    #[test]
    fn a_configured_token_does_not_show() {
        assert_eq!(format!("{:?}", TokenDigest::of("hunter2")), "[redacted]");
    }
}
