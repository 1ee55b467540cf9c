//! Sessions of browsers: a page exchanges an API token for a cookie that scripts cannot read.

use std::sync::Arc;

use bytes::Bytes;
use ff_core::session::SESSION_TTL_MS;
use ff_core::{Code, Error, Result, Role};
use ff_engine::Caller;
use hyper::header::SET_COOKIE;
use hyper::{HeaderMap, Method, Request, Response};
use schemars::SchemaGenerator;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

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
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BeginSession {
    /// An API token.
    token: String,
}

/// On whose behalf a page acts.
#[derive(Debug, Serialize, schemars::JsonSchema)]
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

/// The routes of sessions in the OpenAPI document, by method.
pub(crate) fn operations(generator: &mut SchemaGenerator) -> [(&'static str, Value); 3] {
    let view = generator.subschema_for::<SessionView>().to_value();
    let begin = generator.subschema_for::<BeginSession>().to_value();
    let operation = |id: &str, summary: &str, responses: Value| json!({ "operationId": id, "summary": summary, "tags": ["session"], "responses": responses });
    let problem = json!({ "$ref": "#/components/responses/Problem" });
    let shown = json!({
        "200": { "description": "Done.", "content": { "application/json": { "schema": view } } },
        "default": problem,
    });
    let look = operation("get_session", "Shows on whose behalf a caller acts.", shown.clone());
    let mut begins = operation("begin_session", "Exchanges an API token for the session cookie of a browser.", shown);
    begins["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": begin } } });
    begins["security"] = json!([]);
    let gone = json!({ "204": { "description": "The cookie is removed." }, "default": problem });
    // No server keeps sessions, so that none can forget one: what ends a session before its time is its token's revocation.
    let summary = "Removes the session cookie of a browser. A copy of the cookie stays good until its time is over or its \
                   token is revoked.";
    let mut ends = operation("end_session", summary, gone);
    ends["security"] = json!([]);
    [("GET", look), ("POST", begins), ("DELETE", ends)]
}
