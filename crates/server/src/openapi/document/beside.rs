//! The routes beside the table of operations: streams of executions, sessions, hooks, and those outside of `/v1`.

use ff_core::op::HookReceipt;
use schemars::SchemaGenerator;
use serde_json::{Map, Value, json};

use super::{events, header, insert};
use crate::session::{BeginSession, SessionView};
use crate::sse::EVENT_STREAM;
use crate::{hooks, session};

/// Adds them all.
pub(super) fn insert_all(generator: &mut SchemaGenerator, paths: &mut Map<String, Value>) {
    insert(paths, "/v1/executions/{execution_id}/stream", "GET", execution_stream());
    for (method, operation) in sessions(generator) {
        insert(paths, session::PATH, method, operation);
    }
    insert(paths, hooks::PATH, "POST", hook(generator));
    for (path, summary, content_type) in [
        ("/livez", "Whether the process runs.", "text/plain"),
        ("/healthz", "The same as /livez.", "text/plain"),
        ("/readyz", "Whether the server takes requests and its store answers.", "text/plain"),
        ("/metrics", "Metrics in the text format of Prometheus.", "text/plain"),
        ("/openapi.json", "This document.", "application/json"),
    ] {
        insert(paths, path, "GET", plain(path, summary, content_type));
    }
}

fn execution_stream() -> Value {
    let id = json!({ "name": "execution_id", "in": "path", "required": true,
        "schema": { "$ref": "#/components/schemas/ExecutionId" } });
    let steps = json!({
        "name": "steps", "in": "query", "schema": { "type": "string", "pattern": "^([0-9]{1,9}-)?(10000|[0-9]{1,4})$" },
        "description": "Show the journal, too, behind this entry: its number, or generation-number.",
    });
    json!({
        "operationId": "stream_execution",
        "summary": "Shows the frames of all attempts while they are written.",
        "description": "Server-sent events: `frame` with the id attempt-sequence, `attempt` when another attempt begins \
                        and what it replaces is void, `step` for each entry of the journal where `steps` asks for them, \
                        `paused`, `ping` every 15 seconds, and `end` when the execution is terminal.",
        "tags": ["executions"],
        "x-role": ff_core::Role::Reader,
        "parameters": [
            id,
            steps,
            { "name": "after", "in": "query", "required": false, "schema": { "type": "string" },
              "description": "The same as Last-Event-ID, for a browser's first request." },
            { "name": "ticket", "in": "query", "required": false, "schema": { "type": "string" },
              "description": "A ticket in place of an API token; see create_stream_ticket." },
            header("Last-Event-ID", "The last event that is known; the answer begins after it."),
        ],
        "responses": {
            "200": { "description": "Events.", "content": { EVENT_STREAM: events() } },
            "default": { "$ref": "#/components/responses/Problem" },
        },
    })
}

/// The routes of sessions, by method.
fn sessions(generator: &mut SchemaGenerator) -> [(&'static str, Value); 3] {
    let view = generator.subschema_for::<SessionView>().to_value();
    let begin = generator.subschema_for::<BeginSession>().to_value();
    let operation = |id: &str, summary: &str, responses: Value| json!({ "operationId": id, "summary": summary, "tags": ["session"], "responses": responses });
    let problem = json!({ "$ref": "#/components/responses/Problem" });
    let shown = json!({
        "200": { "description": "Done.", "content": { "application/json": { "schema": view } } },
        "default": problem,
    });
    let look = operation("get_session", "Shows on whose behalf a caller acts.", shown.clone());
    let mut begins = operation("begin_session", "Exchanges an API token for the session cookie of a browser.", shown);
    begins["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": begin } } });
    begins["security"] = json!([]);
    let gone = json!({ "204": { "description": "The cookie is removed." }, "default": problem });
    // No server keeps sessions, so that none can forget one: what ends a session before its time is its token's revocation.
    let summary = "Removes the session cookie of a browser. A copy of the cookie stays good until its time is over or its \
                   token is revoked.";
    let mut ends = operation("end_session", summary, gone);
    ends["security"] = json!([]);
    [("GET", look), ("POST", begins), ("DELETE", ends)]
}

fn hook(generator: &mut SchemaGenerator) -> Value {
    let receipt = generator.subschema_for::<HookReceipt>();
    let parameter = |name: &str, place: &str, description: &str| {
        let required = place == "path";
        let schema = json!({ "type": "string" });
        json!({ "name": name, "in": place, "required": required, "description": description, "schema": schema })
    };
    json!({
        "operationId": "receive_hook",
        "summary": "Posts a message to an inbound hook. No API token is needed: the signature of the message is its proof.",
        "tags": ["hooks"],
        "security": [],
        "parameters": [
            parameter("name", "path", "The hook."),
            parameter("namespace", "query", "Where it works; `default` when absent."),
        ],
        "requestBody": { "required": true, "content": {
            "application/json": { "schema": {} },
            "application/octet-stream": { "schema": { "type": "string", "format": "binary" } },
        } },
        "responses": {
            "200": { "description": "What became of it.", "content": { "application/json": { "schema": receipt } } },
            "default": { "$ref": "#/components/responses/Problem" },
        },
    })
}

fn plain(path: &str, summary: &str, content_type: &str) -> Value {
    let mut operation = json!({
        "operationId": path.trim_matches('/').replace('.', "_"),
        "summary": summary,
        "tags": ["server"],
        "responses": {
            "200": { "description": "Yes.", "content": { content_type: { "schema": {} } } },
            "default": { "$ref": "#/components/responses/Problem" },
        },
    });
    if path != "/metrics" {
        operation["security"] = json!([]);
    }
    operation
}
