//! `/mcp`: the Model Context Protocol, with the tokens, roles and limits of every other route.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use ff_core::op::{CreateExecution, Operation, OperationInfo};
use ff_core::{Code, Error, Result, Role, text};
use ff_engine::{Caller, Engine, Serves};
use ff_mcp::{Deployment, Server};
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response};
use tokio::time::Instant;

use crate::answer::Body;
use crate::app::App;
use crate::arguments::{self, Sent};
use crate::auth::{self, CONFIRMED_FOR, Credential};
use crate::body::{self, Reading};
use crate::origin;
use crate::shares::Place;

/// Where agent hosts connect.
pub(crate) const PATH: &str = "/mcp";

/// Answers a request of an agent host.
pub(crate) async fn respond<B>(app: &Arc<App>, request: Request<B>) -> Result<Response<Body>>
where
    B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::error::Error,
{
    let (parts, body) = request.into_parts();
    // Without tokens a page of a stranger could call tools through the browser of a person on this machine.
    origin::check(&app.config, &parts.headers)?;
    let (caller, credential) = auth::authenticate(app, &parts.method, &parts.headers).await?;
    let place = Arc::new(app.pools.enter_call(&app.config, &caller)?);
    let namespace = namespace(parts.uri.query().unwrap_or(""))?;
    // The arguments of a call are the input of an execution, and take as much room.
    let reading = Reading { max: CreateExecution::BODY_MAX_BYTES, timeout: app.config.body_timeout };
    let body = match body::read(&app.config, &parts.method, &parts.headers, body, reading).await? {
        Sent::Json(bytes) => bytes,
        Sent::Nothing => Bytes::new(),
        Sent::Raw(_) => return Err(Error::of(Code::UnsupportedMediaType)),
    };
    let (credential, confirmed) = (Arc::new(credential), Arc::new(Mutex::new(Instant::now())));
    let reached = Reached { app: app.clone(), caller, credential, confirmed, namespace, _place: place };
    let request = Request::from_parts(parts, Full::new(body));
    let response = ff_mcp::http::respond(Server::new(reached), request).await;
    Ok(response.map(|body| body.boxed_unsync()))
}

/// The namespace that the address names, for a token that reaches several.
fn namespace(query: &str) -> Result<Option<Arc<str>>> {
    let mut named = None;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        if name != "namespace" || named.is_some() {
            return Err(Error::invalid(name, "is not known here, or given more than once"));
        }
        let value = arguments::decode(value)?;
        text::name("namespace", &value)?;
        named = Some(Arc::from(value));
    }
    Ok(named)
}

/// The engine, for one caller.
#[derive(Clone)]
struct Reached {
    app: Arc<App>,
    caller: Caller,
    credential: Arc<Credential>,
    /// When the credential was last found good.
    confirmed: Arc<Mutex<Instant>>,
    namespace: Option<Arc<str>>,
    /// Kept until the last answer to the request is given.
    _place: Arc<Option<Place<String>>>,
}

impl Reached {
    /// A call of a tool may last for days; a token that was revoked meanwhile gets nothing more out of it.
    async fn confirm(&self) -> Result<()> {
        let lock = || self.confirmed.lock().expect("no holder of this lock panics");
        if lock().elapsed() < CONFIRMED_FOR {
            return Ok(());
        }
        self.credential.confirm(&self.app).await?;
        *lock() = Instant::now();
        Ok(())
    }
}

impl Deployment for Reached {
    async fn call<O: Operation>(&self, mut args: O::Args) -> Result<O::Outcome>
    where
        Engine: Serves<O>,
    {
        self.confirm().await?;
        if let Some(namespace) = &self.namespace {
            O::set_default_namespace(&mut args, namespace);
        }
        O::check_remote(&args)?;
        let _place = self.app.pools.enter_operation(&OperationInfo::of::<O>(), &self.caller)?;
        if !O::WATCHING && O::wait_ms(&args) == 0 {
            return self.app.engine.call::<O>(&self.caller, args).await;
        }
        tokio::select! {
            biased;
            ended = self.credential.ended(&self.app) => Err(ended),
            outcome = self.app.engine.call::<O>(&self.caller, args) => outcome,
        }
    }

    /// Tools for operators would only distract an agent whose token is for submitting or working.
    fn offers(&self, operation: &OperationInfo) -> bool {
        let operates = !matches!(self.caller.role, Role::Submitter | Role::Worker);
        operates && (operation.any_role || self.caller.role.allows(operation.role))
    }

    fn with_key(&self, key: &str) -> Self {
        let caller = Caller { idempotency_key: Some(key.to_owned()), ..self.caller.clone() };
        Self { caller, ..self.clone() }
    }
}
