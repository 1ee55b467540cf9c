//! Authentication: which caller sends a request.

use std::net::IpAddr;
use std::time::Duration;

use ff_core::session::{SESSION_TTL_MS, Session};
use ff_core::{Code, Error, Result, Role};
use ff_engine::{Caller, Standing};
use hyper::Method;
use hyper::header::{self, HeaderMap};
use tokio::time::Instant;

use crate::app::App;
use crate::config::Config;
use crate::cookie;
use crate::origin;
use crate::token_digest::TokenDigest;

/// For how long a checked credential is trusted, so that a revocation holds everywhere within a second.
pub(crate) const CONFIRMED_FOR: Duration = Duration::from_millis(500);

/// The proof that a request brings of its sender.
#[derive(Clone)]
enum Presented {
    Nothing,
    Bearer(String),
    Session(Session),
    /// A ticket for streams was redeemed for this caller.
    Ticket(Caller),
}

impl Presented {
    /// The proof that a request carries. An API token takes precedence over the session of a browser. A server without
    /// tokens ignores sessions, which are left over from another configuration.
    fn of(config: &Config, headers: &HeaderMap) -> Result<Self> {
        if let Some(bearer) = bearer(headers)? {
            return Ok(Self::Bearer(bearer.to_owned()));
        }
        if config.open() {
            return Ok(Self::Nothing);
        }
        cookie::session(headers).transpose().map(|session| session.map_or(Self::Nothing, Self::Session))
    }
}

/// The caller behind a request, and the credential that proves it. Without configured tokens (which only a loopback
/// address allows) every caller on this machine is an administrator; a token that is sent all the same must be valid.
pub(crate) async fn authenticate(app: &App, method: &Method, headers: &HeaderMap) -> Result<(Caller, Credential)> {
    let presented = Presented::of(&app.config, headers)?;
    // A browser sends its cookies on behalf of any page it shows, so a call that changes something must come from our
    // own page.
    if matches!(presented, Presented::Session(_)) && !matches!(*method, Method::GET | Method::HEAD) {
        origin::check(&app.config, headers)?;
    }
    let caller = identify(app, &presented).await?;
    Ok((caller, Credential { presented, confirmed: Instant::now() }))
}

/// Admits a caller to an operation for which a waitpoint's token is enough. A caller without any proof, or with a
/// session that has ended, is let in as a stranger; [`check_waitpoint_token`] checks that it has such a token.
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

/// Refuses a stranger without a waitpoint's token, with the same error as a caller without any proof.
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

/// The caller behind a request for a stream, by the proof in its headers or by a ticket. A ticket for one execution
/// opens no other.
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
            Some(token) => Ok(configured_caller(token)),
            None => app.engine.authenticate(bearer).await,
        },
        Presented::Ticket(caller) => app.engine.confirm_caller(caller).await.map(|()| caller.clone()),
        Presented::Session(session) => {
            let owner = app.config.api_tokens.iter().find(|token| token.public_id() == session.token_id());
            match owner {
                Some(token) => session.check(token.session_key(), app.engine.now()).map(|()| configured_caller(token)),
                None => app.engine.authenticate_session(session).await,
            }
        }
    }
}

/// The configured token that equals this one. Every token is compared, so that the time does not tell which one
/// matched.
fn configured<'a>(app: &'a App, bearer: &str) -> Option<&'a TokenDigest> {
    let digest = TokenDigest::of(bearer);
    app.config.api_tokens.iter().fold(None, |known, token| if token.is(&digest) { Some(token) } else { known })
}

fn configured_caller(token: &TokenDigest) -> Caller {
    Caller {
        standing: Standing::Token,
        configured_token: Some(token.public_id()),
        ..Caller::new(token.caller_name(), None, Role::Admin)
    }
}

/// A session for the bearer of this token.
pub(crate) async fn begin_session(app: &App, bearer: &str) -> Result<(Caller, Session)> {
    if let Some(token) = configured(app, bearer) {
        let session = Session::begin(token.public_id(), token.session_key(), app.engine.now() + SESSION_TTL_MS);
        return Ok((configured_caller(token), session));
    }
    let session = app.engine.begin_session(bearer).await?;
    Ok((app.engine.authenticate_session(&session).await?, session))
}

/// The credential of a call with a long-lived answer. A token that is revoked meanwhile must not see the rest of the
/// answer.
pub(crate) struct Credential {
    presented: Presented,
    confirmed: Instant,
}

impl Credential {
    /// Returns when the credential is no longer valid, because a waiting call must not be given work that its caller
    /// may not have any more. It borrows nothing of the credential.
    pub(crate) fn ended<'a>(&self, app: &'a App) -> impl Future<Output = Error> + Send + use<'a> {
        let presented = self.presented.clone();
        async move {
            if matches!(presented, Presented::Nothing) {
                return std::future::pending().await;
            }
            loop {
                tokio::time::sleep(CONFIRMED_FOR).await;
                match identify(app, &presented).await {
                    Ok(_) => {}
                    Err(error) if error.code == Code::Unauthenticated => return error,
                    // A store that does not answer revokes nothing; the next check may succeed.
                    Err(_) => {}
                }
            }
        }
    }

    /// Refuses it when it is no longer good.
    pub(crate) async fn confirm(&self, app: &App) -> Result<()> {
        identify(app, &self.presented).await.map(drop)
    }

    /// Whether the credential must be checked again.
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
