//! The least of a client: one request at a time on a connection that is kept.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// Longer than any wait that is asked for.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// An answer: its status and its body.
pub type Answer = (u16, String);

/// Connections to several servers, one for each.
#[derive(Debug, Default)]
pub struct Client {
    kept: HashMap<String, BufReader<TcpStream>>,
}

impl Client {
    /// Sends a request; `None` when there is no whole answer, so that nothing was acknowledged. `head` is the method and
    /// the path. A connection without an answer is not used again.
    pub fn request(&mut self, address: &str, head: &str, body: &Value) -> Option<Answer> {
        let mut connection = match self.kept.remove(address) {
            Some(connection) => connection,
            None => connect(address)?,
        };
        let answer = exchange(&mut connection, head, body)?;
        self.kept.insert(address.to_owned(), connection);
        Some(answer)
    }
}

/// One request on a connection of its own.
pub fn request(address: &str, head: &str, body: &Value) -> Option<Answer> {
    Client::default().request(address, head, body)
}

/// A call that was acknowledged, on a connection of its own.
pub fn call(address: &str, path: &str, body: &Value) -> Option<Value> {
    let (status, body) = request(address, &format!("POST {path}"), body)?;
    (200..300).contains(&status).then(|| serde_json::from_str(&body).unwrap_or_default())
}

fn connect(address: &str) -> Option<BufReader<TcpStream>> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(WAIT_MAX)).ok()?;
    stream.set_write_timeout(Some(WAIT_MAX)).ok()?;
    stream.set_nodelay(true).ok()?;
    Some(BufReader::new(stream))
}

fn exchange(connection: &mut BufReader<TcpStream>, head: &str, body: &Value) -> Option<Answer> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = format!(
        "{head} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.get_mut().write_all(request.as_bytes()).ok()?;
    let mut line = String::new();
    connection.read_line(&mut line).ok()?;
    let status = line.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let mut length = 0;
    loop {
        line.clear();
        if connection.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let header = line.trim_end();
        if header.is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let mut bytes = vec![0; length];
    connection.read_exact(&mut bytes).ok()?;
    Some((status, String::from_utf8(bytes).ok()?))
}
