//! The least of a client: one request on one connection.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// Longer than any wait that is asked for.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Sends a request; `None` when there is no whole answer, so that nothing was acknowledged.
pub(crate) fn request(address: &str, head: &str, body: &Value) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(WAIT_MAX)).ok()?;
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let text = format!(
        "{head} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).and_then(|text| text.parse().ok());
    (body.len() >= length.unwrap_or(0usize)).then(|| (status, body.to_owned()))
}

/// A call that was acknowledged.
pub(crate) fn call(address: &str, path: &str, body: &Value) -> Option<Value> {
    let (status, body) = request(address, &format!("POST {path}"), body)?;
    (200..300).contains(&status).then(|| serde_json::from_str(&body).unwrap_or_default())
}
