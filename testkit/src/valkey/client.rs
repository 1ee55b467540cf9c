//! A small blocking client, so that tests can look at servers without the code under test.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A status line or nothing.
    Status(String),
    /// An error reply.
    Error(String),
    /// A number.
    Integer(i64),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Nothing.
    Null,
    /// Several.
    Array(Vec<Value>),
}

impl Value {
    /// The number; panics on anything else.
    pub fn integer(&self) -> i64 {
        match self {
            Value::Integer(number) => *number,
            other => panic!("{other:?} is no number"),
        }
    }

    /// The text; panics on anything else.
    pub fn into_text(self) -> String {
        match self {
            Value::Status(text) => text,
            Value::Bytes(bytes) => String::from_utf8(bytes).expect("the answer is text"),
            other => panic!("{other:?} is no text"),
        }
    }

    /// The items; panics on anything else.
    pub fn into_array(self) -> Vec<Value> {
        match self {
            Value::Array(items) => items,
            other => panic!("{other:?} is no array"),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub struct Client(BufReader<TcpStream>);

impl Client {
    /// Connects.
    pub fn connect(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// One command, as words; panics on an error reply.
    pub fn command(&mut self, words: &str) -> Value {
        let parts: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        match self.try_command(&parts) {
            Ok(Value::Error(text)) => panic!("{words}: {text}"),
            Ok(value) => value,
            Err(why) => panic!("{words}: {why}"),
        }
    }

    /// One command; error replies are values.
    pub fn try_command(&mut self, parts: &[&[u8]]) -> io::Result<Value> {
        let mut request = format!("*{}\r\n", parts.len()).into_bytes();
        for part in parts {
            request.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
            request.extend_from_slice(part);
            request.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&request)?;
        self.value()
    }

    fn value(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let bad = || io::Error::other(format!("not the protocol: {line:?}"));
        let (kind, rest) = line.split_at_checked(1).ok_or_else(bad)?;
        let number = || rest.parse::<i64>().map_err(|_| bad());
        Ok(match kind {
            "+" => Value::Status(rest.to_owned()),
            "-" => Value::Error(rest.to_owned()),
            ":" => Value::Integer(number()?),
            "$" => match usize::try_from(number()?) {
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.0.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Value::Bytes(bytes)
                }
                Err(_) => Value::Null,
            },
            "*" => match usize::try_from(number()?) {
                Ok(length) => Value::Array((0..length).map(|_| self.value()).collect::<io::Result<_>>()?),
                Err(_) => Value::Null,
            },
            _ => return Err(bad()),
        })
    }
}
