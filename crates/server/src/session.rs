//! Sessions of browsers: a page exchanges an API token for a cookie that scripts cannot read.

use std::sync::Arc;

use bytes::Bytes;
use ff_core::session::SESSION_TTL_MS;
use ff_core::{Code, Error, Result, Role};
use ff_engine::Caller;
use hyper::header::SET_COOKIE;
use hyper::{HeaderMap, Method, Request, Response};
use serde::{Deserialize, Serialize};

use crate::answer::{self, Body};
use crate::app::App;
use crate::arguments::Sent;
use crate::auth;
use crate::body::{self, Reading};
use crate::cookie;
use crate::origin;

/// Where sessions begin, are looked at, and end.
pub(crate) const PATH: &str = "/v1/session";
/// The longest body that begins a session.
const BODY_MAX_BYTES: usize = 4 * 1024;

/// The body of a request to begin a session.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct BeginSession {
    /// An API token.
    token: String,
}

/// On whose behalf a page acts.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SessionView {
    /// The name of the token, as the audit log has it.
    name: String,
    /// The one namespace it reaches; absent where it reaches all.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    /// The role of its caller.
    role: Role,
    /// Whether this server asks for tokens at all.
    tokens_required: bool,
}

/// Answers what concerns the session of a browser.
pub(crate) async fn respond<B>(app: &Arc<App>, request: Request<B>) -> Result<Response<Body>>
where
    B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::error::Error,
{
    let (parts, body) = request.into_parts();
    match parts.method {
        Method::GET | Method::HEAD => {
            let (caller, _) = auth::authenticate(app, &parts.method, &parts.headers).await?;
            answer::json(&view(app, &caller))
        }
        Method::POST => {
            origin::check(&app.config, &parts.headers)?;
            let reading = Reading { max: BODY_MAX_BYTES, timeout: app.config.body_timeout };
            let sent = body::read(&app.config, &parts.method, &parts.headers, body, reading).await?;
            begin(app, &parts.headers, sent).await
        }
        Method::DELETE => {
            origin::check(&app.config, &parts.headers)?;
            let mut response = answer::empty();
            answer::set(&mut response, SET_COOKIE, &cookie::text(&app.config, &parts.headers, "", 0));
            Ok(response)
        }
        _ => Err(Error::of(Code::MethodNotAllowed).with("allowed", ["GET", "POST", "DELETE"])),
    }
}

async fn begin(app: &Arc<App>, headers: &HeaderMap, sent: Sent) -> Result<Response<Body>> {
    let Sent::Json(bytes) = sent else { return Err(Error::invalid("token", "is missing")) };
    // The parser's message may quote the token, so it is not passed on.
    let asked: BeginSession =
        serde_json::from_slice(&bytes).map_err(|_| Error::invalid("token", "must be the one field, a text"))?;
    let (caller, session) = auth::begin_session(app, asked.token.trim()).await?;
    let mut response = answer::json(&view(app, &caller))?;
    let cookie = cookie::text(&app.config, headers, &session.reveal(), SESSION_TTL_MS / 1_000);
    answer::set(&mut response, SET_COOKIE, &cookie);
    Ok(response)
}

fn view(app: &App, caller: &Caller) -> SessionView {
    SessionView {
        name: caller.name.clone(),
        namespace: caller.namespace.clone(),
        role: caller.role,
        tokens_required: !app.config.open(),
    }
}
