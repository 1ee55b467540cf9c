//! Sessions of browsers: a page exchanges an API token for a cookie that scripts cannot read.

use std::sync::Arc;

use bytes::Bytes;
use ff_core::session::{SESSION_TTL_MS, Session};
use ff_core::{Code, Error, Result, Role};
use ff_engine::Caller;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response};
use schemars::SchemaGenerator;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::app::App;
use crate::auth;
use crate::http::answer::{self, Body};
use crate::http::{ReadBody, arguments::Sent, read_body};

/// Where sessions begin, are looked at, and end.
pub(crate) const PATH: &str = "/v1/session";
/// The longest body that begins a session.
const BODY_MAX_BYTES: usize = 4 * 1024;

/// What begins a session.
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
    /// What it may do.
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
            auth::check_origin(&app.config, &parts.headers)?;
            let reading = ReadBody { max: BODY_MAX_BYTES, patience: app.config.body_timeout };
            let sent = read_body(app, &parts.method, &parts.headers, body, reading).await?;
            begin(app, &parts.headers, sent).await
        }
        Method::DELETE => {
            auth::check_origin(&app.config, &parts.headers)?;
            let mut response = answer::empty();
            set_cookie(&mut response, &parts.headers, "", 0);
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
    set_cookie(&mut response, headers, &session.reveal(), SESSION_TTL_MS / 1_000);
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

/// What the OpenAPI document says about it, by method.
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

/// The session that a browser sends, if it sends one.
pub(crate) fn of(headers: &HeaderMap) -> Option<Result<Session>> {
    let name = cookie_name(headers);
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(key, value)| *key == name && !value.is_empty()).map(|(_, value)| Session::parse(value))
}

/// Cookies do not tell ports apart, so the name does: two servers of one machine do not end each other's sessions.
fn cookie_name(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
    match host.rsplit_once(':').filter(|(_, port)| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())) {
        Some((_, port)) => format!("ff_session_{port}"),
        None => "ff_session".to_owned(),
    }
}

fn set_cookie(response: &mut Response<Body>, headers: &HeaderMap, value: &str, max_age_s: i64) {
    // A proxy that ends TLS says so. A client that says so itself only denies its own cookie to plain connections.
    let encrypted =
        headers.get("x-forwarded-proto").is_some_and(|proto| proto.as_bytes().eq_ignore_ascii_case(b"https"));
    let secure = if encrypted { "; Secure" } else { "" };
    let name = cookie_name(headers);
    let cookie = format!("{name}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Strict{secure}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (header::HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn servers_on_one_host_have_cookies_of_their_own() {
        assert_eq!(cookie_name(&headers(&[("host", "localhost:7171")])), "ff_session_7171");
        assert_eq!(cookie_name(&headers(&[("host", "[::1]:7172")])), "ff_session_7172");
        assert_eq!(cookie_name(&headers(&[("host", "ff.example.com")])), "ff_session");
    }

    #[test]
    fn the_cookie_is_hidden_from_scripts_and_other_sites_and_from_plain_connections_behind_tls() {
        for (proto, secure) in [("https", true), ("http", false)] {
            let mut response = answer::empty();
            let sent = headers(&[("host", "ff.example.com"), ("x-forwarded-proto", proto)]);
            set_cookie(&mut response, &sent, "x", 60);
            let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap();
            assert!(cookie.starts_with("ff_session=x; ") && cookie.contains("HttpOnly; SameSite=Strict"), "{cookie}");
            assert_eq!(cookie.contains("Secure"), secure);
        }
    }

    #[test]
    fn an_unreadable_session_is_told_from_none() {
        assert!(of(&headers(&[("host", "h"), ("cookie", "a=b; ff_session=")])).is_none());
        assert!(of(&headers(&[("host", "h"), ("cookie", "a=b; ff_session=x")])).unwrap().is_err());
    }
}
