//! Messages that the protocol's crate would not take for what they are: it answers a body that it cannot read as if its media type
//! were wrong, and a known method with wrong parameters as if there were no such method.

use bytes::Bytes;
use rmcp::model::{
    CallToolRequestParams, CancelTaskParams, ErrorCode, GetTaskParams, InitializeRequestParams,
    ReadResourceRequestParams, UpdateTaskParams,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A message that is answered without being carried out.
#[derive(Debug, PartialEq)]
pub(crate) struct Malformed {
    id: Value,
    code: ErrorCode,
    message: String,
}

impl Malformed {
    fn new(id: &Value, code: ErrorCode, message: impl Into<String>) -> Self {
        let id = if id.is_string() || id.is_number() { id.clone() } else { Value::Null };
        Self { id, code, message: message.into() }
    }

    /// Whether the message is no request at all, of which HTTP is told as well.
    pub(crate) fn is_no_request(&self) -> bool {
        self.code != ErrorCode::INVALID_PARAMS
    }

    /// The answer in the words of JSON-RPC.
    pub(crate) fn answer(&self) -> Bytes {
        let error = json!({ "code": self.code.0, "message": self.message });
        json!({ "jsonrpc": "2.0", "id": self.id, "error": error }).to_string().into()
    }
}

/// Refuses a body that is no message, and a request whose parameters are not those of its method.
pub(crate) fn check(body: &[u8]) -> Result<(), Malformed> {
    let message: Value = serde_json::from_slice(body).map_err(|error| {
        Malformed::new(&Value::Null, ErrorCode::PARSE_ERROR, format!("the body is no JSON: {error}"))
    })?;
    let id = &message["id"];
    let invalid = |what: &str| Malformed::new(id, ErrorCode::INVALID_REQUEST, what);
    let Some(fields) = message.as_object() else {
        return Err(invalid("the body must be one message; there are no batches"));
    };
    if message["jsonrpc"] != "2.0" {
        return Err(invalid("jsonrpc must be \"2.0\""));
    }
    if fields.contains_key("id") && !(id.is_string() || id.is_i64() || id.is_u64()) {
        return Err(invalid("id must be a text or a whole number"));
    }
    if !message["method"].is_string() {
        let is_answer = fields.contains_key("result") || fields.contains_key("error");
        return if is_answer { Ok(()) } else { Err(invalid("method must be a text")) };
    }
    let params = message["params"].clone();
    let wrong = match message["method"].as_str().unwrap_or_default() {
        "initialize" => unreadable::<InitializeRequestParams>(params),
        "tools/call" => unreadable::<CallToolRequestParams>(params),
        "resources/read" => unreadable::<ReadResourceRequestParams>(params),
        "tasks/get" => unreadable::<GetTaskParams>(params),
        "tasks/update" => unreadable::<UpdateTaskParams>(params),
        "tasks/cancel" => unreadable::<CancelTaskParams>(params),
        _ => None,
    };
    match wrong {
        Some(why) => Err(Malformed::new(id, ErrorCode::INVALID_PARAMS, format!("params: {why}"))),
        None => Ok(()),
    }
}

fn unreadable<P: DeserializeOwned>(params: Value) -> Option<String> {
    serde_json::from_value::<P>(params).err().map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(body: &str) -> Option<i32> {
        check(body.as_bytes()).err().map(|malformed| malformed.code.0)
    }

    #[test]
    fn what_is_no_message_is_told_from_what_is_asked_wrongly() {
        assert_eq!(code(r#"{"jsonrpc":"#), Some(-32_700));
        for body in ["[]", "5", r#"[{"jsonrpc":"2.0","id":7,"method":"ping"}]"#, r#"{"jsonrpc":"2.0","id":1}"#] {
            assert_eq!(code(body), Some(-32_600), "{body}");
        }
        assert_eq!(code(r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#), Some(-32_600));
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#), Some(-32_600));
        for params in ["", r#","params":{"name":"t","arguments":[1]}"#] {
            assert_eq!(code(&format!(r#"{{"jsonrpc":"2.0","id":6,"method":"tools/call"{params}}}"#)), Some(-32_602));
        }
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":5}}"#), Some(-32_602));
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#), Some(-32_602));
    }

    #[test]
    fn messages_of_the_protocol_pass() {
        for body in [
            r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"t"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        ] {
            assert_eq!(code(body), None, "{body}");
        }
    }

    #[test]
    fn an_answer_names_the_request_where_it_has_a_name() {
        let refused = check(br#"{"jsonrpc":"2.0","id":"a","method":"tools/call"}"#).unwrap_err();
        let answer: Value = serde_json::from_slice(&refused.answer()).unwrap();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!("a"), &json!(-32_602)));
        assert!(!refused.is_no_request() && check(b"5").unwrap_err().is_no_request());
    }
}
