//! The cookie that holds the session of a browser.

use ff_core::Result;
use ff_core::session::Session;
use hyper::header::{self, HeaderMap};

use crate::config::Config;

/// The session that a browser sends, if it sends one.
pub(crate) fn session(headers: &HeaderMap) -> Option<Result<Session>> {
    let name = name(headers);
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(key, value)| *key == name && !value.is_empty()).map(|(_, value)| Session::parse(value))
}

/// Cookies do not tell ports apart, so the name does: two servers of one machine do not end each other's sessions.
fn name(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
    match host.rsplit_once(':').filter(|(_, port)| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())) {
        Some((_, port)) => format!("ff_session_{port}"),
        None => "ff_session".to_owned(),
    }
}

/// The cookie that gives a browser its session, or with no value and no time takes it away.
pub(crate) fn text(config: &Config, headers: &HeaderMap, value: &str, max_age_s: i64) -> String {
    // A proxy that ends TLS says so. A client that says so itself only denies its own cookie to plain connections.
    let by_proxy =
        headers.get("x-forwarded-proto").is_some_and(|proto| proto.as_bytes().eq_ignore_ascii_case(b"https"));
    let secure = if by_proxy || config.certificate.is_some() { "; Secure" } else { "" };
    let name = name(headers);
    format!("{name}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Strict{secure}")
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;
    use crate::Settings;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (header::HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn servers_on_one_host_have_cookies_of_their_own() {
        assert_eq!(name(&headers(&[("host", "localhost:7171")])), "ff_session_7171");
        assert_eq!(name(&headers(&[("host", "[::1]:7172")])), "ff_session_7172");
        assert_eq!(name(&headers(&[("host", "ff.example.com")])), "ff_session");
    }

    #[test]
    fn the_cookie_is_hidden_from_scripts_and_other_sites_and_from_plain_connections_behind_tls() {
        let config = Config::resolve(Settings::default(), Settings::default()).unwrap();
        for (proto, secure) in [("https", true), ("http", false)] {
            let sent = headers(&[("host", "ff.example.com"), ("x-forwarded-proto", proto)]);
            let cookie = text(&config, &sent, "x", 60);
            assert!(cookie.starts_with("ff_session=x; ") && cookie.contains("HttpOnly; SameSite=Strict"), "{cookie}");
            assert_eq!(cookie.contains("Secure"), secure);
        }
    }

    #[test]
    fn an_unreadable_session_is_told_from_none() {
        assert!(session(&headers(&[("host", "h"), ("cookie", "a=b; ff_session=")])).is_none());
        assert!(session(&headers(&[("host", "h"), ("cookie", "a=b; ff_session=x")])).unwrap().is_err());
    }
}
