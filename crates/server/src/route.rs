//! The table of routes, made from the list of operations.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use ff_core::op::{Created, Operation, OperationInfo, Reply};
use ff_core::{Code, Error, Result};
use ff_engine::{Caller, Engine, Serves};
use futures_util::future::BoxFuture;
use hyper::{Method, Response, StatusCode, header};

use crate::answer::{self, Body};
use crate::app::App;
use crate::arguments::{self, Shape};
use crate::auth::Credential;
use crate::hooks;
use crate::trace::Span;

/// Carries out an operation whose arguments are in a JSON text.
type Call = fn(Arc<App>, &'static Route, Caller, Asked) -> BoxFuture<'static, Result<Response<Body>>>;

/// A request once its parts are merged.
pub(crate) struct Asked {
    /// The arguments.
    pub(crate) text: String,
    /// The client wants the JSON form of an answer that is bytes.
    pub(crate) json_only: bool,
    /// The span of the call.
    pub(crate) span: Option<Span>,
    /// The proof that the caller brought.
    pub(crate) credential: Credential,
}

/// One operation, reachable over HTTP.
pub(crate) struct Route {
    pub(crate) info: OperationInfo,
    pub(crate) shape: Shape,
    pub(crate) call: Call,
    segments: Vec<Segment>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Segment {
    Literal(&'static str),
    Parameter(&'static str),
}

impl Route {
    fn of<O: Operation>() -> Self
    where
        Engine: Serves<O>,
    {
        let segment = |part: &'static str| match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
            Some(name) => Segment::Parameter(name),
            None => Segment::Literal(part),
        };
        let info = OperationInfo::of::<O>();
        let segments = info.path.trim_start_matches('/').split('/').map(segment).collect();
        Self { shape: Shape::of(&info), info, call: call::<O>, segments }
    }

    /// The parameters of a path that is this route's.
    fn matches(&self, path: &[String]) -> Option<Vec<(&'static str, String)>> {
        if path.len() != self.segments.len() {
            return None;
        }
        let mut parameters = Vec::new();
        for (segment, part) in self.segments.iter().zip(path) {
            match segment {
                Segment::Literal(literal) if literal == part => {}
                Segment::Parameter(name) if !part.is_empty() => parameters.push((*name, part.clone())),
                _ => return None,
            }
        }
        Some(parameters)
    }
}

fn call<O: Operation>(
    app: Arc<App>,
    route: &'static Route,
    caller: Caller,
    asked: Asked,
) -> BoxFuture<'static, Result<Response<Body>>>
where
    Engine: Serves<O>,
{
    Box::pin(async move {
        let outcome = carry_out::<O>(&app, route, &caller, &asked.text, asked.credential).await;
        if let Some(mut span) = asked.span {
            if let Some(created) = outcome.as_ref().ok().and_then(O::execution) {
                span.set("flowfabric.execution_id", created.to_string());
            }
            span.end(outcome.as_ref().err(), outcome.as_ref().map_or(&[], O::handed_out));
        }
        let outcome = outcome?;
        let mut response = respond::<O>(&outcome, asked.json_only)?;
        if let Some(location) = location::<O>(&outcome, &asked.text) {
            *response.status_mut() = StatusCode::CREATED;
            answer::set(&mut response, header::LOCATION, &location);
        }
        Ok(response)
    })
}

async fn carry_out<O: Operation>(
    app: &App,
    route: &Route,
    caller: &Caller,
    text: &str,
    credential: Credential,
) -> Result<O::Outcome>
where
    Engine: Serves<O>,
{
    let args = arguments::parse::<O>(&route.shape, text).map_err(|unreadable| {
        // A caller without the role learns only that, and nothing about the arguments.
        allow::<O>(caller).err().unwrap_or(unreadable)
    })?;
    O::check_remote(&args)?;
    let _place = app.pools.enter_operation(&route.info, caller)?;
    if !O::WATCHING && O::wait_ms(&args) == 0 {
        return app.engine.call::<O>(caller, args).await;
    }
    // The engine gives back what a call has taken by the time it is dropped.
    tokio::select! {
        biased;
        ended = credential.ended(app) => Err(ended),
        outcome = app.engine.call::<O>(caller, args) => outcome,
    }
}

fn allow<O: Operation>(caller: &Caller) -> Result<()> {
    let required = O::ROLE;
    if O::ANY_ROLE || caller.role.allows(required) {
        return Ok(());
    }
    let detail = format!("this needs the role {required}, the token has {}", caller.role);
    Err(Error::new(Code::Forbidden, detail).with("required", required))
}

/// Where something stands that this call created; none where it was there before.
fn location<O: Operation>(outcome: &O::Outcome, arguments: &str) -> Option<String> {
    let id = match O::created(outcome) {
        Created::Nothing => return None,
        Created::Id(id) => id,
        Created::AsNamed => {
            let name = serde_json::from_str::<Named>(arguments).ok()?.name;
            percent_encoding::utf8_percent_encode(&name, percent_encoding::NON_ALPHANUMERIC).to_string()
        }
    };
    Some(format!("{}/{id}", O::PATH))
}

/// The arguments of what people name.
#[derive(serde::Deserialize)]
struct Named {
    name: String,
}

/// Bytes are sent as they are, unless the client asks for JSON.
fn respond<O: Operation>(outcome: &O::Outcome, json_only: bool) -> Result<Response<Body>> {
    match O::reply(outcome) {
        Reply::Nothing => Ok(answer::empty()),
        Reply::Bytes(content) if !json_only => Ok(answer::bytes(content)),
        Reply::Bytes(_) | Reply::Json => answer::json(outcome),
    }
}

/// Every route. Literals win over parameters where both fit.
pub(crate) struct Routes {
    all: Vec<Route>,
    /// Where the routes of a path without parameters begin: the calls of workers are among them.
    literal: HashMap<&'static str, usize>,
}

/// The route that a path leads to.
pub(crate) struct Found {
    pub(crate) route: &'static Route,
    pub(crate) parameters: Vec<(&'static str, String)>,
}

macro_rules! mount {
    ($($module:ident $name:ident;)*) => {
        vec![ $( Route::of::<ff_core::op::$name>(), )* ]
    };
}

impl Routes {
    /// All of them; the table never changes, so the process has one.
    pub(crate) fn all() -> &'static Self {
        static ROUTES: LazyLock<Routes> = LazyLock::new(|| {
            let mut routes = ff_core::operations!(mount);
            // Routes of one path stand together; `find` relies on it.
            routes.sort_by(|one, other| one.segments.cmp(&other.segments));
            let mut literal = HashMap::new();
            for (place, route) in routes.iter().enumerate() {
                if route.segments.iter().all(|segment| matches!(segment, Segment::Literal(_))) {
                    literal.entry(route.info.path).or_insert(place);
                }
            }
            Routes { all: routes, literal }
        });
        &ROUTES
    }

    /// The route of a request.
    pub(crate) fn find(&'static self, method: &Method, path: &str) -> Result<Found> {
        if let Some(&place) = self.literal.get(path) {
            let mut same = self.all[place..].iter().take_while(|route| route.info.path == path);
            if let Some(route) = same.find(|route| route.info.method.as_str() == method.as_str()) {
                return Ok(Found { route, parameters: Vec::new() });
            }
        }
        let parts =
            path.strip_prefix('/').unwrap_or(path).split('/').map(arguments::decode).collect::<Result<Vec<_>>>()?;
        // HEAD is answered as GET is; the connection leaves the body out.
        let method = if *method == Method::HEAD { &Method::GET } else { method };
        let mut methods = Vec::new();
        let mut meant = None;
        for route in &self.all {
            // Of several paths that fit, the first is meant; the others only look like it.
            if meant.is_some_and(|path| path != route.info.path) {
                break;
            }
            if let Some(parameters) = route.matches(&parts) {
                if route.info.method.as_str() == method.as_str() {
                    return Ok(Found { route, parameters });
                }
                meant = Some(route.info.path);
                methods.push(route.info.method.as_str());
            }
        }
        if methods.is_empty() {
            return Err(Error::of(Code::RouteNotFound));
        }
        if meant == Some(hooks::PATH) {
            // Messages are posted there, which is no operation.
            methods.push("POST");
        }
        Err(Error::of(Code::MethodNotAllowed).with("allowed", methods))
    }

    /// The declarations of the mounted operations.
    pub(crate) fn infos(&self) -> impl Iterator<Item = &OperationInfo> {
        self.all.iter().map(|route| &route.info)
    }
}

impl std::fmt::Debug for Routes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.infos().map(|info| info.name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_means_one_thing_whatever_the_method() {
        let find = |method: &Method, path: &str| Routes::all().find(method, path).map(|found| found.route.info.name);
        assert_eq!(find(&Method::POST, "/v1/executions/batch"), Ok("create_executions"));
        let refused = find(&Method::GET, "/v1/executions/batch").unwrap_err();
        assert_eq!((refused.code, &refused.details["allowed"]), (Code::MethodNotAllowed, &serde_json::json!(["POST"])));
        let both = find(&Method::PATCH, "/v1/executions").unwrap_err();
        assert_eq!(both.details["allowed"].as_array().map(Vec::len), Some(2));
        assert_eq!(find(&Method::GET, "/v1/executions/x").unwrap(), "get_execution");
    }
}
