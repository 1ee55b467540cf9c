//! Mutated answers of a server. Nothing may panic; a frame that is read takes bytes, and reads the same when its bytes come
//! one by one.

use bytes::BytesMut;
use ff_testkit::fuzz::{CASES, Target, fuzz};

use super::take_frame;

const CORPUS: &[&[u8]] = &[
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":1\r\n",
    b":-9223372036854775808\r\n",
    b"$5\r\nhello\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"*2\r\n$1\r\na\r\n:7\r\n",
    b"*3\r\n*1\r\n+a\r\n*0\r\n$0\r\n\r\n",
    b"-MOVED 3999 127.0.0.1:6381\r\n",
    b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
    b"$9223372036854775807\r\n",
    b"*9223372036854775807\r\n:1\r\n",
    b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
];

#[test]
fn answers_never_panic_and_read_the_same_byte_by_byte() {
    let corpus = CORPUS.iter().map(|input| input.to_vec()).collect();
    fuzz(
        Target {
            name: "resp",
            corpus,
            words: &["\r\n", "*", "$", ":", "-1", "1048576", "18446744073709551616"],
            cases: CASES,
        },
        |input| {
            let mut whole = BytesMut::from(input);
            let Ok(Some(frame)) = take_frame(&mut whole) else { return false };
            let length = input.len() - whole.len();
            assert!(length > 0, "a frame takes bytes");
            let mut buffer = BytesMut::new();
            for (place, byte) in input[..length].iter().enumerate() {
                buffer.extend_from_slice(&[*byte]);
                let read = take_frame(&mut buffer);
                let expected = if place + 1 == length { Some(frame.clone()) } else { None };
                assert_eq!(read, Ok(expected), "after {} of {length} bytes", place + 1);
            }
            true
        },
    );
}
