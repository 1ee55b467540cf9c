//! Refusals, as the protocol says them.

use ff_core::{Class, Code, Error};
use rmcp::ErrorData;
use serde_json::{Value, json};

/// A refusal as an error of the protocol. A fault in the request is the client's to mend, and so is `invalid params`;
/// the code of our own table is in the data.
pub(crate) fn refusal(error: Error) -> ErrorData {
    let data = Some(data(&error));
    match error.code.class() {
        Class::Internal | Class::Unavailable => ErrorData::internal_error(error.detail, data),
        Class::Unauthenticated | Class::Forbidden => ErrorData::invalid_request(error.detail, data),
        Class::Limit if error.code != Code::PayloadTooLarge => ErrorData::internal_error(error.detail, data),
        _ => ErrorData::invalid_params(error.detail, data),
    }
}

/// The parts of a refusal that programs read.
fn data(error: &Error) -> Value {
    let mut data = json!({
        "code": error.code, "retryable": error.code.retryable(), "advice": error.code.advice(), "details": error.details,
    });
    if let Some(retry_after_ms) = error.retry_after_ms {
        data["retry_after_ms"] = json!(retry_after_ms);
    }
    data
}

/// A refusal as a model reads it.
pub(crate) fn sentence(error: &Error) -> String {
    format!("{}: {}. {}", error.code, error.detail.trim_end_matches('.'), error.code.advice())
}
