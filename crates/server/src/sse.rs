//! Streams and events while they grow, over SSE.
use std::sync::Arc;

use ff_core::{Code, Error, Result};
use ff_engine::Caller;
use hyper::{HeaderMap, Response};

use crate::app::App;
use crate::http::answer::Body;
use crate::http::route::Route;

pub(crate) const EVENTS: &str = "list_events";
pub(crate) const EVENT_STREAM: &str = "text/event-stream";

#[derive(Default)]
pub(crate) struct Feeds {}

pub(crate) fn stream_path(_path: &str) -> Result<Option<String>> {
    Ok(None)
}

pub(crate) async fn execution(_: &Arc<App>, _: Caller, _: &str, _: &HeaderMap) -> Result<Response<Body>> {
    Err(Error::of(Code::RouteNotFound))
}

pub(crate) fn events(_: &Arc<App>, _: &Route, _: Caller, _: &str, _: &HeaderMap) -> Result<Response<Body>> {
    Err(Error::of(Code::RouteNotFound))
}
