//! Nothing secret in the log.

use serde_json::json;

use crate::process::{Process, request};

#[test]
fn secrets_and_payloads_never_appear_in_the_log() {
    let variables = [
        ("FF_API_TOKEN", "canary-api-token"),
        ("FF_WAITPOINT_SECRET", "c0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ff"),
        ("FF_LOG_LEVEL", "debug"),
    ];
    let server = Process::start("memory://", &variables);
    let admin = ("authorization", "Bearer canary-api-token");
    let call = |head: &str, body: &str| {
        let (status, answer) = request(&server.address, head, &[admin], body).expect("an answer");
        assert!(status < 500, "{head}: {answer}");
        (status, answer)
    };
    let wrong = request(&server.address, "GET /v1/workers", &[("authorization", "Bearer canary-wrong-token")], "");
    assert_eq!(wrong.unwrap().0, 401);
    let made = call("POST /v1/admin/tokens", r#"{"name":"t","role":"worker","namespace":"default"}"#).1;
    let secret = made["secret"].as_str().unwrap().to_owned();
    let stored = format!("Bearer {secret}");
    assert_eq!(request(&server.address, "GET /v1/workers", &[("authorization", &stored)], "").unwrap().0, 200);

    let created =
        call("POST /v1/executions?creator=canary-query", r#"{"kind":"k","input":{"password":"canary-input"}}"#).1;
    let id = created["execution_id"].as_str().unwrap();
    let claimed = call("POST /v1/workers/w/claim", r#"{"lanes":["default"],"wait_ms":5000}"#).1;
    let fence = &claimed["tasks"][0]["fence"];
    let suspend = json!({
        "fence": fence, "condition": { "any": [{ "name": "go" }] }, "reason": "approval",
        "continuation": "canary-continuation",
    });
    let suspended = call(&format!("POST /v1/executions/{id}/suspend"), &suspend.to_string()).1;
    let token = suspended["token"].as_str().unwrap().to_owned();
    let signal = json!({
        "name": "go", "waitpoint_id": suspended["waitpoint_id"], "token": "canary:00", "payload": "canary-payload",
    });
    assert_eq!(call(&format!("POST /v1/executions/{id}/signal"), &signal.to_string()).0, 401);
    let mut signal = signal;
    signal["token"] = json!(token);
    assert_eq!(call(&format!("POST /v1/executions/{id}/signal"), &signal.to_string()).0, 200);
    let rotate =
        r#"{"new_kid":"k2","new_secret_hex":"deadbeefdeadbeefdeadbeefdeadbeefdeadbeefdeadbeefdeadbeefdeadbeef"}"#;
    assert_eq!(call("POST /v1/admin/rotate-waitpoint-secret", rotate).0, 200);
    let garbage = call("POST /v1/executions", r#"{"kind":"k","canary-field":"canary-value"}"#);
    assert_eq!(garbage.0, 400);
    server.terminate();
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("rotate_waitpoint_secret"), "the audit log is missing: {log}");
    for word in ["canary", "c0ffeec0ffee", "deadbeefdead", &secret, &token] {
        assert!(!log.contains(word), "{word} is in the log:\n{log}");
    }
}
