//! Mutated requests. Nothing may panic, no refusal is a defect of ours, and whatever is merged is one JSON object.

use bytes::Bytes;
use ff_core::Class;
use ff_core::op::{self, Operation, OperationInfo};
use ff_testkit::fuzz::{CASES, Target, fuzz, lines};
use hyper::HeaderMap;

use super::{Request, Sent, Shape, merge, parse};

/// The body, and behind a tab the query.
const CORPUS: &str = include_str!("requests.txt");

fn take<O: Operation>(body: &[u8], query: &str) -> bool {
    let shape = Shape::of(&OperationInfo::of::<O>());
    let body = if body.is_empty() { Sent::Nothing } else { Sent::Json(Bytes::copy_from_slice(body)) };
    let request = Request { path: &[], query, headers: &HeaderMap::new(), body };
    let merged = match merge(&shape, O::NAME, request) {
        Ok(merged) => merged,
        Err(error) => {
            assert_ne!(error.code.class(), Class::Internal, "{error:?}");
            return false;
        }
    };
    assert!(serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&merged).is_ok(), "{merged}");
    match parse::<O>(&shape, &merged) {
        Ok(_) => true,
        Err(error) => {
            assert_ne!(error.code.class(), Class::Internal, "{error:?}");
            false
        }
    }
}

#[test]
fn requests_never_panic_and_are_never_our_fault() {
    let words = &["\"", "{", "}", "null", "1e999", "\\u0000", "&", "=", "%00", "\"kind\":", "\"tags\":{", "-1"];
    fuzz(Target { name: "requests", corpus: lines(CORPUS), words, cases: CASES / 4 }, |input| {
        let at = input.iter().position(|byte| *byte == b'\t').unwrap_or(input.len());
        let (body, query) = input.split_at(at);
        let Ok(query) = std::str::from_utf8(query.get(1..).unwrap_or_default()) else { return false };
        let taken = [
            take::<op::CreateExecution>(body, query),
            take::<op::ListExecutions>(body, query),
            take::<op::Claim>(body, query),
        ];
        taken.contains(&true)
    });
}
