//! The wire protocol, version 2: commands out, frames in.

use bytes::{Buf, Bytes, BytesMut};

/// The deepest nesting of arrays in any expected answer. Deeper arrays mean that the position in the stream was lost.
const DEPTH_MAX: usize = 8;

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// `+OK`
    Status(String),
    /// `-ERR ...`
    Error(String),
    /// `:1`
    Integer(i64),
    /// A string of bytes.
    Bulk(Bytes),
    /// Nothing.
    Null,
    /// Several.
    Array(Vec<Frame>),
}

impl Frame {
    pub(crate) fn into_array(self) -> Option<Vec<Frame>> {
        match self {
            Frame::Array(items) => Some(items),
            _ => None,
        }
    }

    pub(crate) fn into_bulk(self) -> Option<Bytes> {
        match self {
            Frame::Bulk(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub(crate) fn integer(&self) -> Option<i64> {
        match self {
            Frame::Integer(number) => Some(*number),
            _ => None,
        }
    }

    /// A bulk or status answer as text.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Frame::Status(text) => Some(text),
            Frame::Bulk(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }
}

/// A command that is being written down.
pub(crate) struct Command(Vec<u8>);

impl Command {
    /// Begins a command of this many parts, its name included.
    pub(crate) fn new(parts: usize) -> Self {
        Self::with_capacity(parts, 128)
    }

    /// The same, with room for about so many bytes.
    pub(crate) fn with_capacity(parts: usize, capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity);
        number_line(&mut bytes, b'*', parts);
        Self(bytes)
    }

    pub(crate) fn part(&mut self, part: &[u8]) -> &mut Self {
        self.parts(&[part])
    }

    /// Adds one part of the command, put together from several pieces.
    pub(crate) fn parts(&mut self, pieces: &[&[u8]]) -> &mut Self {
        number_line(&mut self.0, b'$', pieces.iter().map(|piece| piece.len()).sum());
        for piece in pieces {
            self.0.extend_from_slice(piece);
        }
        self.0.extend_from_slice(b"\r\n");
        self
    }

    /// Begins a command of this many parts behind other commands.
    pub(crate) fn behind(mut others: Vec<u8>, parts: usize) -> Self {
        number_line(&mut others, b'*', parts);
        Self(others)
    }

    /// Adds a number as a part.
    pub(crate) fn count(&mut self, count: usize) -> &mut Self {
        self.part(Decimal::of_count(count).as_bytes())
    }

    pub(crate) fn into_vec(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        self.0.into()
    }
}

/// A whole command at once.
pub(crate) fn command(parts: &[&[u8]]) -> Bytes {
    let mut command = Command::new(parts.len());
    for part in parts {
        command.part(part);
    }
    command.into_bytes()
}

fn number_line(bytes: &mut Vec<u8>, kind: u8, number: usize) {
    bytes.push(kind);
    bytes.extend_from_slice(Decimal::of_count(number).as_bytes());
    bytes.extend_from_slice(b"\r\n");
}

/// A number in decimal digits, without an allocation: a commit writes dozens.
pub(crate) struct Decimal {
    digits: [u8; Self::LENGTH_MAX],
    start: usize,
}

impl Decimal {
    /// The sign and the digits of 64 bits.
    const LENGTH_MAX: usize = 20;

    pub(crate) fn of_count(number: usize) -> Self {
        let mut decimal = Self { digits: [b'0'; Self::LENGTH_MAX], start: Self::LENGTH_MAX };
        decimal.write(u64::try_from(number).unwrap_or(u64::MAX));
        decimal
    }

    pub(crate) fn of(number: i64) -> Self {
        let mut decimal = Self { digits: [b'0'; Self::LENGTH_MAX], start: Self::LENGTH_MAX };
        decimal.write(number.unsigned_abs());
        if number < 0 {
            decimal.start -= 1;
            decimal.digits[decimal.start] = b'-';
        }
        decimal
    }

    fn write(&mut self, mut number: u64) {
        loop {
            self.start -= 1;
            self.digits[self.start] += u8::try_from(number % 10).expect("a digit is below 10");
            number /= 10;
            if number == 0 {
                return;
            }
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.digits[self.start..]
    }
}

/// Takes the first frame off the buffer when all of it is there. An error means that the bytes are not of this
/// protocol.
pub(crate) fn take_frame(buffer: &mut BytesMut) -> Result<Option<Frame>, String> {
    let mut cursor = Cursor { bytes: buffer, at: 0 };
    match cursor.frame(0) {
        Ok(frame) => {
            let length = cursor.at;
            buffer.advance(length);
            Ok(Some(frame))
        }
        Err(Stop::Incomplete) => Ok(None),
        Err(Stop::Garbage(why)) => Err(why),
    }
}

enum Stop {
    Incomplete,
    Garbage(String),
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let rest = &self.bytes[self.at..];
        let mut from = 0;
        loop {
            // Lines are short and end at the first carriage return, unless an error's text holds one.
            let end = from + rest[from..].iter().position(|byte| *byte == b'\r').ok_or(Stop::Incomplete)?;
            match rest.get(end + 1) {
                Some(b'\n') => {
                    self.at += end + 2;
                    return Ok(&rest[..end]);
                }
                Some(_) => from = end + 1,
                None => return Err(Stop::Incomplete),
            }
        }
    }

    fn frame(&mut self, depth: usize) -> Result<Frame, Stop> {
        let line = self.line()?;
        let (kind, rest) = line.split_first().ok_or_else(|| Stop::Garbage("an empty line".into()))?;
        let text = || String::from_utf8(rest.to_vec()).map_err(|_| Stop::Garbage("a status that is not text".into()));
        match kind {
            b'+' => Ok(Frame::Status(text()?)),
            b'-' => Ok(Frame::Error(text()?)),
            b':' => Ok(Frame::Integer(number(rest)?)),
            b'$' => match usize::try_from(number(rest)?) {
                Ok(length) => {
                    let bytes = self.bytes.get(self.at..self.at + length + 2).ok_or(Stop::Incomplete)?;
                    self.at += length + 2;
                    Ok(Frame::Bulk(Bytes::copy_from_slice(&bytes[..length])))
                }
                Err(_) => Ok(Frame::Null),
            },
            b'*' if depth < DEPTH_MAX => match usize::try_from(number(rest)?) {
                // The capacity is bounded by what has arrived, whatever the header claims.
                Ok(length) => {
                    let mut items = Vec::with_capacity(length.min(self.bytes.len() - self.at));
                    for _ in 0..length {
                        items.push(self.frame(depth + 1)?);
                    }
                    Ok(Frame::Array(items))
                }
                Err(_) => Ok(Frame::Null),
            },
            other => Err(Stop::Garbage(format!("a frame of kind {other:#04x}"))),
        }
    }
}

fn number(text: &[u8]) -> Result<i64, Stop> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| Stop::Garbage("a length that is not a number".into()))
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_taken_only_when_all_of_it_is_there() {
        let whole: &[u8] = b"*4\r\n:-7\r\n$3\r\na\r\n\r\n$-1\r\n*1\r\n-ERR no\r\n";
        for cut in 0..whole.len() {
            let mut buffer = BytesMut::from(&whole[..cut]);
            assert_eq!(take_frame(&mut buffer), Ok(None), "after {cut} bytes");
            assert_eq!(buffer.len(), cut);
        }
        let mut buffer = BytesMut::from(&[whole, b"+OK\r\n"].concat()[..]);
        let expected = Frame::Array(vec![
            Frame::Integer(-7),
            Frame::Bulk(Bytes::from_static(b"a\r\n")),
            Frame::Null,
            Frame::Array(vec![Frame::Error("ERR no".into())]),
        ]);
        assert_eq!(take_frame(&mut buffer), Ok(Some(expected)));
        assert_eq!(take_frame(&mut buffer), Ok(Some(Frame::Status("OK".into()))));
        assert!(buffer.is_empty());
    }

    #[test]
    fn what_is_not_the_protocol_is_an_error() {
        for text in
            [&b"HTTP/1.1 400\r\n"[..], b"$x\r\n", b"\r\n", b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n"]
        {
            assert!(take_frame(&mut BytesMut::from(text)).is_err(), "{text:?}");
        }
    }

    #[test]
    fn numbers_are_written_as_everybody_writes_them() {
        for number in [0, 7, -7, 10, 1_234_567_890, i64::MAX, i64::MIN] {
            assert_eq!(Decimal::of(number).as_bytes(), number.to_string().as_bytes());
        }
        for number in [0, 9, 10, usize::MAX] {
            assert_eq!(Decimal::of_count(number).as_bytes(), number.to_string().as_bytes());
        }
    }

    #[test]
    fn commands_carry_any_bytes() {
        assert_eq!(command(&[b"SET", b"k", b"\r\n\0"]), &b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\n\r\n\0\r\n"[..]);
    }
}
