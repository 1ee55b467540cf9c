//! From where a request comes: which names this server answers to, and which pages may call it.

use std::net::IpAddr;

use ff_core::{Code, Error, Result};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Response, Uri};

use crate::answer::{self, Body};
use crate::config::Config;

/// Refuses a changing call that a foreign page made a browser send.
pub(crate) fn check(config: &Config, headers: &HeaderMap) -> Result<()> {
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

/// The paths that a load balancer asks.
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
    let allowed = "authorization, content-type, idempotency-key, last-event-id, mcp-method, mcp-name, \
                   mcp-protocol-version, traceparent, x-request-id";
    answer::set(&mut response, header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    answer::set(&mut response, header::ACCESS_CONTROL_MAX_AGE, "600");
    Ok(response)
}

/// Lets a configured origin read the answer.
pub(crate) fn allow(config: &Config, headers: &mut HeaderMap, origin: Option<&HeaderValue>) {
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
            check(&config, &headers.collect()).is_ok()
        };
        assert!(judge(&[("host", "ff:1"), ("origin", "http://ff:1")]));
        assert!(judge(&[("host", "inside:2"), ("origin", "https://ff"), ("sec-fetch-site", "same-origin")]));
        assert!(judge(&[("host", "ff:1")]));
        assert!(!judge(&[("host", "ff:1"), ("origin", "http://ff:2")]));
        assert!(!judge(&[("host", "ff:1"), ("origin", "null")]));
        assert!(!judge(&[("host", "ff:1"), ("origin", "http://ff:1"), ("sec-fetch-site", "same-site")]));
        assert!(!judge(&[("host", "ff:1"), ("sec-fetch-site", "cross-site")]));
    }
}
