//! The OpenAPI document, `/openapi.json`. Tests make it from the table of operations and their types, and compare it with the
//! committed copy. The server sends that copy without its indentation, so that no JSON schema is compiled into the program that
//! people install.

use std::sync::LazyLock;

use hyper::{Response, StatusCode};

use crate::answer::{self, Body};

/// The document, as `build.rs` leaves it.
const TEXT: &str = include_str!(concat!(env!("OUT_DIR"), "/openapi.json"));
/// The ways to be let in that hold for every route without ways of its own. Nothing in front of it reads the same.
const SECURITY: &str = r#""security":[{"bearer":[]}]"#;
/// The same on a server without tokens.
const OPEN_SECURITY: &str = r#""security":[{},{"bearer":[]}]"#;

/// The document as a response. A server without tokens says that none is needed.
pub(crate) fn response(open: bool) -> Response<Body> {
    static OPEN: LazyLock<String> = LazyLock::new(|| TEXT.replacen(SECURITY, OPEN_SECURITY, 1));
    answer::whole(StatusCode::OK, "application/json", if open { OPEN.as_str() } else { TEXT })
}

#[cfg(test)]
mod document;

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    use super::*;

    async fn sent(open: bool) -> Value {
        let body = response(open).into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&body).unwrap()
    }

    #[tokio::test]
    async fn a_server_without_tokens_says_that_none_is_needed() {
        let (mut open, closed) = (sent(true).await, sent(false).await);
        assert_eq!(open["security"], json!([{}, { "bearer": [] }]));
        open["security"] = json!([{ "bearer": [] }]);
        assert_eq!(open, closed);
    }

    #[tokio::test]
    async fn the_document_without_its_indentation_says_what_the_committed_one_says() {
        let committed: Value = serde_json::from_str(include_str!("../../openapi.json")).unwrap();
        assert_eq!(sent(false).await, committed);
        assert!(!TEXT.contains('\n'));
    }
}
