//! The table of routes, made from the list of operations.

use std::collections::HashMap;
use std::sync::LazyLock;

use ff_core::api_token::Role;
use ff_core::op::view::Task;
use ff_core::op::{Created, Operation, OperationInfo, Reply};
use ff_core::{Code, Error, ExecutionId, Result};
use ff_engine::{Caller, Engine, Serves};
use futures_util::future::BoxFuture;
use hyper::{Method, Response, StatusCode, header};

use crate::answer::{self, Body};
use crate::app::App;
use crate::arguments::{self, Shape};
use crate::auth::{self, Credential};
use crate::hooks;
use crate::trace::Span;

/// Reads the arguments of an operation from their JSON text, and prepares to carry it out. Nothing runs yet.
type Prepare = for<'a> fn(&'a Engine, &'a Route, &'a Caller, Asked) -> Result<Prepared<'a>>;

/// An operation that is ready to be carried out. Its types are not known from here on, so that the code that serves
/// every operation is compiled once and not for each.
struct Prepared<'a> {
    /// Whether the call may wait so long that the credential of its caller ends before the answer is there.
    may_wait: bool,
    answer: BoxFuture<'a, Result<Answered>>,
}

/// The answer to a call.
struct Answered {
    response: Response<Body>,
    /// The execution that the answer is about, and the tasks that begin with it, for the span of a traced call.
    execution: Option<ExecutionId>,
    handed_out: Vec<Task>,
}

/// A request once its parts are merged.
pub(crate) struct Asked {
    /// The arguments.
    pub(crate) text: String,
    /// The client wants the JSON form of an answer that is bytes.
    pub(crate) json_only: bool,
    /// The call has a span.
    pub(crate) traced: bool,
}

/// One operation, reachable over HTTP.
pub(crate) struct Route {
    pub(crate) info: OperationInfo,
    pub(crate) shape: Shape,
    prepare: Prepare,
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
        Self::new(OperationInfo::of::<O>(), prepare::<O>)
    }

    fn new(info: OperationInfo, prepare: Prepare) -> Self {
        let segment = |part: &'static str| match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
            Some(name) => Segment::Parameter(name),
            None => Segment::Literal(part),
        };
        let segments = info.path.trim_start_matches('/').split('/').map(segment).collect();
        Self { shape: Shape::of(&info), info, prepare, segments }
    }

    /// Carries out its operation, in a span.
    pub(crate) async fn call(
        &self,
        app: &App,
        (caller, credential): (&Caller, &Credential),
        asked: Asked,
        span: Option<Span>,
    ) -> Result<Response<Body>> {
        let answered = self.carry_out(app, (caller, credential), asked).await;
        if let Some(mut span) = span {
            if let Some(id) = answered.as_ref().ok().and_then(|answered| answered.execution) {
                span.set("flowfabric.execution_id", id.to_string());
            }
            span.end(answered.as_ref().err(), answered.as_ref().map_or(&[], |answered| &answered.handed_out));
        }
        answered.map(|answered| answered.response)
    }

    async fn carry_out(
        &self,
        app: &App,
        (caller, credential): (&Caller, &Credential),
        asked: Asked,
    ) -> Result<Answered> {
        let Prepared { may_wait, answer } = (self.prepare)(&app.engine, self, caller, asked)?;
        let _place = app.pools.enter_operation(&self.info, caller)?;
        if !may_wait {
            return answer.await;
        }
        // The call may be dropped here: the engine then gives back the work that it had taken.
        tokio::select! {
            biased;
            ended = credential.ended(app) => Err(ended),
            answer = answer => answer,
        }
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

fn prepare<'a, O: Operation>(
    engine: &'a Engine,
    route: &'a Route,
    caller: &'a Caller,
    asked: Asked,
) -> Result<Prepared<'a>>
where
    Engine: Serves<O>,
{
    let args = arguments::parse::<O>(&route.shape, &asked.text).map_err(|unreadable| {
        // A caller without the role gets only that refusal, and learns nothing about the arguments.
        allow(&route.info, caller, &asked.text).err().unwrap_or(unreadable)
    })?;
    O::check_remote(&args)?;
    let may_wait = O::WATCHING || O::wait_ms(&args) != 0;
    let outcome = Serves::<O>::serve(engine, caller, args);
    Ok(Prepared { may_wait, answer: Box::pin(async move { reply::<O>(&outcome.await?, &asked) }) })
}

fn reply<O: Operation>(outcome: &O::Outcome, asked: &Asked) -> Result<Answered> {
    // Bytes are sent as they are, unless the client asks for JSON.
    let mut response = match O::reply(outcome) {
        Reply::Nothing => answer::empty(),
        Reply::Bytes(content) if !asked.json_only => answer::bytes(content),
        Reply::Bytes(_) | Reply::Json => answer::json_text(O::answer(outcome))?,
    };
    if O::CREATES {
        set_location(&mut response, O::PATH, O::created(outcome), &asked.text);
    }
    let handed_out = if asked.traced { O::handed_out(outcome).to_vec() } else { Vec::new() };
    Ok(Answered { response, execution: O::execution(outcome).filter(|_| asked.traced), handed_out })
}

/// Refuses a caller that may not make this call, whatever its arguments are. A right that depends on the target, such as that of
/// a submitter to its own executions, is judged when the arguments can be read.
fn allow(operation: &OperationInfo, caller: &Caller, arguments: &str) -> Result<()> {
    let required = operation.role;
    let own = operation.own && caller.role == Role::Submitter;
    let signals =
        operation.waitpoint_token && (caller.role == Role::Approver || auth::check_waitpoint_token(arguments).is_ok());
    if operation.any_role || own || signals || caller.role.allows(required) {
        return Ok(());
    }
    let detail = format!("this needs the role {required}, the token has {}", caller.role);
    Err(Error::new(Code::Forbidden, detail).with("required", required))
}

/// Sets the `Location` of the thing that this call created; nothing if it existed before.
fn set_location(response: &mut Response<Body>, path: &str, created: Created, arguments: &str) {
    let id = match created {
        Created::Nothing => return,
        Created::Id(id) => id,
        Created::AsNamed => match serde_json::from_str::<Named>(arguments) {
            Ok(Named { name }) => {
                percent_encoding::utf8_percent_encode(&name, percent_encoding::NON_ALPHANUMERIC).to_string()
            }
            Err(_) => return,
        },
    };
    *response.status_mut() = StatusCode::CREATED;
    answer::set(response, header::LOCATION, &format!("{path}/{id}"));
}

/// The field of arguments by which people name the thing that they create.
#[derive(serde::Deserialize)]
struct Named {
    name: String,
}

/// Every route. Literals win over parameters where both fit.
pub(crate) struct Routes {
    all: Vec<Route>,
    /// The position of the first route of each path without parameters, so that the frequent calls of workers are found
    /// quickly.
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
    /// The table of all routes. It never changes, so the process has one.
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
            // If several paths fit, the first one decides; the others fit only by their parameters.
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
            // Messages to hooks are posted under this path; that is no operation of the list.
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
