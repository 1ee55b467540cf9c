//! Arguments as an HTTP request: the other half of what a server reads.
//!
//! Path parameters come from the fields of their names. An operation that reads or removes has the other fields in its
//! query, any other in a JSON body. Values keep the very texts they are written in.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::error::{Code, Error, Result};
use crate::op::{Method, Operation, path_parameters};

/// A request that calls an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireRequest {
    /// The HTTP method.
    pub method: Method,
    /// Path and query.
    pub target: String,
    /// The JSON body, if there is one.
    pub body: Option<String>,
    /// How long the call asks the server to wait before it answers.
    pub wait_ms: u64,
}

/// Writes a call as a request.
pub fn write<O: Operation>(args: &O::Args) -> Result<WireRequest> {
    let text = O::to_text(args).map_err(unwritable)?;
    request(O::METHOD, O::PATH, text, O::wait_ms(args))
}

/// This is compiled once, and not for each operation.
fn request(method: Method, pattern: &str, text: String, wait_ms: u64) -> Result<WireRequest> {
    let has_body = matches!(method, Method::Post | Method::Put);
    if has_body && path_parameters(pattern).next().is_none() {
        // No field stands elsewhere than in the body, so that nobody has to look for one.
        return Ok(WireRequest { method, target: pattern.to_owned(), body: Some(text), wait_ms });
    }
    let fields: BTreeMap<String, &RawValue> = serde_json::from_str(&text).map_err(unwritable)?;
    let mut target = path(pattern, &fields)?;
    if has_body {
        return Ok(WireRequest { method, target, body: Some(text), wait_ms });
    }
    let in_path: Vec<&str> = path_parameters(pattern).collect();
    let mut separator = '?';
    for (name, value) in fields.iter().filter(|(name, _)| !in_path.contains(&name.as_str())) {
        for text in texts(value)? {
            target.push(separator);
            target.push_str(name);
            target.push('=');
            encode(&text, &mut target);
            separator = '&';
        }
    }
    Ok(WireRequest { method, target, body: None, wait_ms })
}

fn unwritable(error: serde_json::Error) -> Error {
    Error::new(Code::Invalid, format!("arguments: {error}"))
}

fn path(pattern: &str, fields: &BTreeMap<String, &RawValue>) -> Result<String> {
    let mut path = String::new();
    for part in pattern.split('/').skip(1) {
        path.push('/');
        let Some(name) = part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) else {
            path.push_str(part);
            continue;
        };
        let value = fields.get(name).map(|value| text(value)).transpose()?.unwrap_or_default();
        // A part of dots alone means another path to every proxy and server on the way.
        if value.is_empty() || value == "." || value == ".." {
            return Err(Error::invalid(name, "must not be empty or dots alone"));
        }
        encode(&value, &mut path);
    }
    Ok(path)
}

/// The texts of a value in a query: none for null, several for a list.
fn texts(value: &RawValue) -> Result<Vec<String>> {
    match value.get().as_bytes().first() {
        Some(b'n') => Ok(Vec::new()),
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(value.get()).map_err(unreadable)?;
            items.into_iter().map(text).collect()
        }
        _ => Ok(vec![text(value)?]),
    }
}

/// A string stands for itself, anything else for its JSON.
fn text(value: &RawValue) -> Result<String> {
    let json = value.get();
    if json.starts_with('"') { serde_json::from_str(json).map_err(unreadable) } else { Ok(json.to_owned()) }
}

fn unreadable(error: serde_json::Error) -> Error {
    Error::new(Code::Internal, format!("what was just written cannot be read: {error}"))
}

/// Percent-encoding of everything but what RFC 3986 calls unreserved.
fn encode(text: &str, out: &mut String) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventKind;
    use crate::op;

    #[test]
    fn a_read_has_its_fields_in_path_and_query() {
        let args = op::list_events::Args {
            kinds: vec![EventKind::Lease, EventKind::Signal],
            tag: Some("team=a b&c".into()),
            wait_ms: Some(2_500),
            ..Default::default()
        };
        let request = write::<op::ListEvents>(&args).unwrap();
        assert_eq!(request.target, "/v1/events?kinds=lease&kinds=signal&tag=team%3Da%20b%26c&wait_ms=2500");
        assert_eq!((request.method, request.body, request.wait_ms), (Method::Get, None, 2_500));
    }

    #[test]
    fn an_act_has_a_body_and_its_path_is_encoded() {
        let args = op::pause_lane::Args { lane: "a/b".into(), namespace: None, reason: Some("why".into()) };
        let request = write::<op::PauseLane>(&args).unwrap();
        assert_eq!(request.target, "/v1/lanes/a%2Fb/pause");
        assert_eq!(request.body.as_deref(), Some(r#"{"lane":"a/b","reason":"why"}"#));
    }

    #[test]
    fn a_path_without_its_name_is_refused_by_the_name() {
        let args = op::pause_lane::Args { lane: String::new(), namespace: None, reason: None };
        let error = write::<op::PauseLane>(&args).unwrap_err();
        assert_eq!(error.details["field"], "lane");
    }
}
