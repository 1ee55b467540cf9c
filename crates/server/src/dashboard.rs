//! The dashboard: files that were built from `dashboard/` and stand inside of the program.
//!
//! The files show nothing of the deployment and are served to every browser. The page asks for its data over the same
//! API as any other program, and gets what its session may see.

use ff_core::{Code, Error, Result};
use hyper::header::{self, HeaderName};
use hyper::{Method, Response, StatusCode};

use crate::answer::{self, Body};

#[derive(rust_embed::Embed)]
#[folder = "dashboard"]
struct Files;

/// The page that every screen begins with.
const PAGE: &str = "index.html";
/// Names under this folder hold a digest of their content, so a browser may keep the files for good.
const ASSETS: &str = "assets/";
/// The first part of the path of each screen but the first; everything below it is the page's own affair.
const SCREENS: &[&str] = &[
    "executions",
    "flows",
    "approvals",
    "lanes",
    "workers",
    "budgets",
    "schedules",
    "bulk",
    "webhooks",
    "system",
    "waitpoints",
];
/// Scripts, styles and calls only of this origin, nothing inline, and no other page may frame this one.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The file that a path leads to, if it is the dashboard's.
pub(crate) fn file(path: &str) -> Option<&str> {
    let path = path.strip_prefix('/')?;
    if path.is_empty() || SCREENS.contains(&path.split('/').next().unwrap_or("")) {
        return Some(PAGE);
    }
    (path == "favicon.svg" || path.starts_with(ASSETS)).then_some(path)
}

/// The page, which says by itself when there is no screen for a path.
pub(crate) fn page() -> Result<Response<Body>> {
    respond(&Method::GET, PAGE)
}

/// Serves a file.
pub(crate) fn respond(method: &Method, file: &str) -> Result<Response<Body>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Err(Error::of(Code::MethodNotAllowed).with("allowed", ["GET", "HEAD"]));
    }
    let found = Files::get(file).ok_or_else(|| Error::of(Code::RouteNotFound))?;
    let mut response = answer::whole(StatusCode::OK, content_type(file), found.data.into_owned());
    let kept = if file.starts_with(ASSETS) { "public, max-age=31536000, immutable" } else { "no-cache" };
    answer::set(&mut response, header::CACHE_CONTROL, kept);
    answer::set(&mut response, header::CONTENT_SECURITY_POLICY, POLICY);
    // The address of a screen names executions, which other sites need not learn of.
    answer::set(&mut response, header::REFERRER_POLICY, "no-referrer");
    answer::set(&mut response, HeaderName::from_static("cross-origin-opener-policy"), "same-origin");
    Ok(response)
}

fn content_type(file: &str) -> &'static str {
    match file.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => ff_core::op::parts::OCTETS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_is_the_page_and_nothing_else_is() {
        assert_eq!(file("/"), Some(PAGE));
        assert_eq!(file("/executions/0000-x"), Some(PAGE));
        assert_eq!(file("/assets/a.js"), Some("assets/a.js"));
        for other in ["/v1/executions", "//v1/executions", "/openapi.json", "/executionsx", "/../Cargo.toml"] {
            assert_eq!(file(other), None, "{other}");
        }
    }

    #[test]
    fn a_file_that_does_not_exist_is_not_the_page() {
        assert_eq!(respond(&Method::GET, "assets/none.js").unwrap_err().code, Code::RouteNotFound);
        assert_eq!(respond(&Method::POST, PAGE).unwrap_err().code, Code::MethodNotAllowed);
    }

    #[test]
    fn the_page_allows_nothing_inline() {
        let page = respond(&Method::GET, PAGE).unwrap();
        let policy = page.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    }
}
