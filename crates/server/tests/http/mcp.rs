//! The Model Context Protocol over `/mcp`, as a host speaks it.

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{ADMIN, Answer, Client, Running, settings, with_tokens, within};

const TODAY: &str = "2026-07-28";
const BEFORE: &str = "2025-11-25";
const TASKS: &str = "io.modelcontextprotocol/tasks";

/// A host: what its client can do, and how it is let in.
#[derive(Clone)]
struct Host {
    client: Client,
    capabilities: Value,
    meta: Value,
}

impl Host {
    fn new(client: Client) -> Self {
        Self { client, capabilities: json!({}), meta: json!({}) }
    }

    fn can(mut self, capabilities: Value) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// Says something beside each request.
    fn says(mut self, name: &str, value: &str) -> Self {
        self.meta[name] = json!(value);
        self
    }

    async fn send(&self, method: &str, mut params: Value) -> Answer {
        let name = ["name", "uri", "taskId"].iter().find_map(|field| params[field].as_str().map(str::to_owned));
        let mut meta = self.meta.clone();
        meta["io.modelcontextprotocol/protocolVersion"] = json!(TODAY);
        meta["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        meta["io.modelcontextprotocol/clientInfo"] = json!({ "name": "test", "version": "1" });
        params["_meta"] = meta;
        let mut client = self.client.with("accept", "application/json, text/event-stream");
        client = client.with("mcp-protocol-version", TODAY).with("mcp-method", method);
        if let Some(name) = name {
            client = client.with("mcp-name", &name);
        }
        client.post("/mcp", &json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params })).await
    }

    /// The result of a request, which must have one.
    async fn ask(&self, method: &str, params: Value) -> Value {
        let answer = self.send(method, params).await;
        let last = messages(&answer).pop().unwrap_or_else(|| panic!("{answer:?}"));
        assert!(last["result"].is_object(), "{last}");
        last["result"].clone()
    }

    /// The error of a request, which must have one.
    async fn refused(&self, method: &str, params: Value) -> Value {
        let last = messages(&self.send(method, params).await).pop().unwrap();
        assert!(last["error"].is_object(), "{last}");
        last["error"].clone()
    }

    async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    /// A call that waits beside the test.
    fn calling(&self, tool: &'static str, arguments: Value) -> JoinHandle<Value> {
        let host = self.clone();
        tokio::spawn(async move { host.call(tool, arguments).await })
    }
}

/// The messages of an answer, whether it is one or a stream of them.
fn messages(answer: &Answer) -> Vec<Value> {
    let text = std::str::from_utf8(&answer.body).unwrap();
    if text.starts_with('{') {
        return vec![serde_json::from_str(text).unwrap()];
    }
    let data = text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim);
    data.filter(|data| !data.is_empty()).map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// A worker that speaks plain HTTP.
struct Worker(Client);

impl Worker {
    /// Registers and describes `summarize` to agents.
    async fn register(client: &Client, instance: &str) -> Self {
        Self::register_with(client, instance, json!({})).await
    }

    /// The same, with more fields of the tool.
    async fn register_with(client: &Client, instance: &str, more: Value) -> Self {
        let schema = json!({
            "type": "object", "required": ["text"], "additionalProperties": false,
            "properties": { "text": { "type": "string" }, "words": { "type": "integer", "minimum": 1 } },
        });
        let mut tool = json!({
            "kind": "summarize", "description": "Sums up a text.", "input_schema": schema, "repeatable": true,
            "destructive": false, "output_schema": { "type": "object", "properties": { "summary": { "type": "string" } } },
        });
        tool.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let body = json!({ "worker_id": "w", "lanes": ["agents"], "nonce": "n", "tools": [tool] });
        let client = client.with("content-type", "application/json");
        client.send(hyper::Method::PUT, &format!("/v1/workers/{instance}"), body.to_string()).await.ok();
        Self(client)
    }

    /// The next task, waited for.
    async fn claim(&self) -> Value {
        let claimed = self.0.post("/v1/workers/w/claim", &json!({ "lanes": ["agents"], "wait_ms": 20_000 })).await.ok();
        claimed["tasks"][0].clone()
    }

    async fn end(&self, task: &Value, verb: &str, mut body: Value) -> Value {
        body["fence"] = task["fence"].clone();
        let id = task["execution_id"].as_str().unwrap();
        self.0.post(&format!("/v1/executions/{id}/{verb}"), &body).await.ok()
    }

    /// Fails what it claims until no retry is left.
    async fn fail_for_good(&self, reason: &str, category: &str) {
        let failure = json!({ "reason": reason, "category": category, "retry_after_ms": 0 });
        while self.end(&self.claim().await, "fail", failure.clone()).await["outcome"] != "terminal_failed" {}
    }

    async fn complete(&self, task: &Value, result: Value) {
        self.end(task, "complete", json!({ "result": result })).await;
    }
}

async fn count(client: &Client) -> usize {
    client.get("/v1/executions").await.ok()["items"].as_array().unwrap().len()
}

async fn token(admin: &Client, name: &str, namespace: &str, role: &str) -> String {
    let body = json!({ "name": name, "namespace": namespace, "role": role });
    admin.post("/v1/admin/tokens", &body).await.ok()["secret"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_kind_that_a_worker_described_is_a_tool() {
    let server = Running::start(settings()).await;
    Worker::register(&server.client(), "w1").await;
    let listed = Host::new(server.client()).ask("tools/list", json!({})).await;
    let tools = listed["tools"].as_array().unwrap();
    let tool = tools.iter().find(|tool| tool["name"] == "summarize").unwrap();
    assert_eq!(tool["description"], "Sums up a text.");
    assert_eq!(tool["inputSchema"]["required"], json!(["text"]));
    assert_eq!(tool["outputSchema"]["type"], "object");
    let annotations = &tool["annotations"];
    assert_eq!((&annotations["idempotentHint"], &annotations["destructiveHint"]), (&json!(true), &json!(false)));
    assert_eq!(listed["cacheScope"], "private");
    // It outlives its worker, so that a call that comes back later still finds it.
    server.client().send(hyper::Method::DELETE, "/v1/workers/w1", "").await.ok();
    let kept = server.client().get("/v1/tools").await.ok();
    assert_eq!(kept["items"][0]["kind"], "summarize");
    server.client().send(hyper::Method::DELETE, "/v1/tools/summarize", "").await.ok();
    let listed = Host::new(server.client()).ask("tools/list", json!({})).await;
    assert!(listed["tools"].as_array().unwrap().iter().all(|tool| tool["name"] != "summarize"));
    server.stop().await;
}

#[tokio::test]
async fn a_call_is_an_execution_and_answers_its_result() {
    let server = Running::start(settings()).await;
    let worker = Worker::register(&server.client(), "w").await;
    let host = Host::new(server.client());
    let calling = host.calling("summarize", json!({ "text": "a long one" }));
    let task = worker.claim().await;
    assert_eq!((&task["kind"], &task["input"]["payload"]["text"]), (&json!("summarize"), &json!("a long one")));
    worker.complete(&task, json!({ "summary": "short" })).await;
    let result = within(calling).await.unwrap();
    assert_eq!(result["structuredContent"], json!({ "summary": "short" }));
    assert_eq!(result["content"][0]["text"], r#"{"summary":"short"}"#);
    assert_eq!(result["isError"], false);
    assert_eq!(result["_meta"]["flowfabric/execution-id"], task["execution_id"]);
    // One that fails is a result for the model, not an error of the protocol.
    let calling = host.calling("summarize", json!({ "text": "x" }));
    let task = worker.claim().await;
    worker.end(&task, "fail", json!({ "reason": "no ink", "category": "printer" })).await;
    let path = format!("/v1/executions/{}/cancel", task["execution_id"].as_str().unwrap());
    server.client().post(&path, &json!({ "reason": "nobody reads it" })).await.ok();
    let result = within(calling).await.unwrap();
    assert_eq!(result["isError"], true);
    assert!(result["content"][0]["text"].as_str().unwrap().starts_with("cancelled: nobody reads it"), "{result}");
    server.stop().await;
}

#[tokio::test]
async fn a_host_of_an_earlier_version_is_served_too() {
    let server = Running::start(settings()).await;
    let worker = Worker::register(&server.client(), "w").await;
    let client = server.client().with("accept", "application/json, text/event-stream");
    let begin = json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": { "protocolVersion": BEFORE, "capabilities": {}, "clientInfo": { "name": "old", "version": "1" } },
    });
    let begun = messages(&client.post("/mcp", &begin).await).pop().unwrap();
    assert_eq!(begun["result"]["protocolVersion"], BEFORE);
    assert_eq!(begun["result"]["serverInfo"]["name"], "flowfabric");
    let old = client.with("mcp-protocol-version", BEFORE);
    let call = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "summarize", "arguments": { "text": "t" } },
    });
    let calling = tokio::spawn(async move { old.post("/mcp", &call).await });
    let task = worker.claim().await;
    worker.complete(&task, json!({ "summary": "s" })).await;
    let answered = messages(&within(calling).await.unwrap()).pop().unwrap();
    assert_eq!(answered["result"]["structuredContent"]["summary"], "s");
    server.stop().await;
}

#[tokio::test]
async fn the_same_call_under_the_same_key_finds_the_same_execution() {
    let server = Running::start(settings()).await;
    let worker = Worker::register(&server.client(), "w").await;
    let host = Host::new(server.client()).says("flowfabric/idempotency-key", "once");
    let dropped = host.calling("summarize", json!({ "text": "t" }));
    let task = worker.claim().await;
    // The connection dies in the middle.
    dropped.abort();
    let again = host.calling("summarize", json!({ "text": "t" }));
    worker.complete(&task, json!({ "summary": "s" })).await;
    let result = within(again).await.unwrap();
    assert_eq!(result["_meta"]["flowfabric/execution-id"], task["execution_id"]);
    // And once more when it has long ended.
    let later = host.call("summarize", json!({ "text": "t" })).await;
    assert_eq!(later["structuredContent"]["summary"], "s");
    assert_eq!(count(&server.client()).await, 1);
    let other = host.refused("tools/call", json!({ "name": "summarize", "arguments": { "text": "other" } })).await;
    assert_eq!((&other["code"], &other["data"]["code"]), (&json!(-32602), &json!("idempotency_conflict")));
    server.stop().await;
}

#[tokio::test]
async fn bad_input_starts_nothing() {
    let server = Running::start(settings()).await;
    Worker::register(&server.client(), "w").await;
    let host = Host::new(server.client());
    for (arguments, field) in [
        (json!({}), "arguments.text"),
        (json!({ "text": 7 }), "arguments.text"),
        (json!({ "text": "t", "words": 0 }), "arguments.words"),
        (json!({ "text": "t", "more": 1 }), "arguments.more"),
    ] {
        let refused = host.call("summarize", arguments).await;
        assert_eq!(refused["isError"], true);
        assert!(refused["content"][0]["text"].as_str().unwrap().contains(field), "{refused}");
    }
    let unknown = host.refused("tools/call", json!({ "name": "nothing", "arguments": {} })).await;
    assert_eq!((&unknown["code"], &unknown["data"]["code"]), (&json!(-32602), &json!("tool_not_found")));
    let large = "x".repeat(1024 * 1024);
    let large = host.refused("tools/call", json!({ "name": "summarize", "arguments": { "text": large } })).await;
    assert_eq!((&large["code"], &large["data"]["code"]), (&json!(-32602), &json!("payload_too_large")));
    let larger =
        host.send("tools/call", json!({ "name": "summarize", "arguments": { "text": "x".repeat(2 << 20) } })).await;
    assert_eq!((larger.status, larger.code().as_str()), (413, "payload_too_large"));
    let key = host.clone().says("flowfabric/idempotency-key", &"k".repeat(300));
    let key = key.refused("tools/call", json!({ "name": "summarize", "arguments": { "text": "t" } })).await;
    assert_eq!(key["data"]["details"]["field"], "idempotency_key");
    assert_eq!(count(&server.client()).await, 0);
    server.stop().await;
}

#[tokio::test]
async fn a_task_is_an_execution() {
    let server = Running::start(settings()).await;
    let worker = Worker::register(&server.client(), "w").await;
    let host = Host::new(server.client()).can(json!({ "extensions": { TASKS: {} } }));
    let created = host.call("summarize", json!({ "text": "t" })).await;
    assert_eq!((&created["resultType"], &created["status"]), (&json!("task"), &json!("working")));
    let task = worker.claim().await;
    let id = created["taskId"].as_str().unwrap();
    assert_eq!(task["execution_id"], id);
    let get = json!({ "taskId": id });
    let working = host.ask("tasks/get", get.clone()).await;
    assert_eq!((&working["status"], &working["ttlMs"]), (&json!("working"), &Value::Null));
    worker.complete(&task, json!({ "summary": "s" })).await;
    let done = host.ask("tasks/get", get.clone()).await;
    assert_eq!((&done["status"], &done["result"]["structuredContent"]["summary"]), (&json!("completed"), &json!("s")));
    assert!(done["ttlMs"].as_u64().unwrap() >= 7 * 24 * 3_600_000, "{done}");
    // A failure is a result with an error in it; a cancellation is a state of its own.
    let created = host.call("summarize", json!({ "text": "t" })).await;
    host.ask("tasks/cancel", json!({ "taskId": created["taskId"] })).await;
    let cancelled = host.ask("tasks/get", json!({ "taskId": created["taskId"] })).await;
    assert_eq!(cancelled["status"], "cancelled");
    // Without the capability there are no tasks, and no client is handed one.
    let plain = Host::new(server.client());
    assert_eq!(plain.refused("tasks/get", get).await["code"], -32021);
    for id in ["nonsense", "0000-0190a0a0-0000-7000-8000-000000000000"] {
        let unknown = host.refused("tasks/get", json!({ "taskId": id })).await;
        assert_eq!((&unknown["code"], &unknown["data"]["code"]), (&json!(-32602), &json!("execution_not_found")));
    }
    server.stop().await;
}

#[tokio::test]
async fn a_tool_says_whether_its_calls_are_tasks() {
    let server = Running::start(settings()).await;
    let plain = Host::new(server.client());
    let with_tasks = plain.clone().can(json!({ "extensions": { TASKS: {} } }));
    let call = json!({ "name": "summarize", "arguments": { "text": "t" } });
    Worker::register_with(&server.client(), "w", json!({ "tasks": "required" })).await;
    assert_eq!(server.client().get("/v1/tools").await.ok()["items"][0]["tasks"], "required");
    let refused = plain.refused("tools/call", call.clone()).await;
    assert_eq!(refused["code"], -32021);
    assert!(refused["data"]["requiredCapabilities"]["extensions"][TASKS].is_object(), "{refused}");
    assert_eq!(count(&server.client()).await, 0, "a call that is refused starts nothing");
    let created = with_tasks.ask("tools/call", call).await;
    assert_eq!(created["resultType"], "task");
    with_tasks.ask("tasks/cancel", json!({ "taskId": created["taskId"] })).await;
    let worker = Worker::register_with(&server.client(), "w", json!({ "tasks": "never" })).await;
    let calling = with_tasks.calling("summarize", json!({ "text": "t" }));
    let task = worker.claim().await;
    worker.complete(&task, json!({ "summary": "s" })).await;
    let answered = within(calling).await.unwrap();
    assert_eq!((&answered["resultType"], &answered["taskId"]), (&json!("complete"), &Value::Null));
    assert_eq!(answered["structuredContent"]["summary"], "s");
    server.stop().await;
}

#[tokio::test]
async fn a_failure_that_no_worker_reported_is_an_error_of_the_protocol() {
    let server = Running::start(settings()).await;
    let worker = Worker::register(&server.client(), "w").await;
    let host = Host::new(server.client()).can(json!({ "extensions": { TASKS: {} } }));
    // The worker says the same category as the engine does, and is still the one that said it.
    let failing = host.call("summarize", json!({ "text": "t" })).await;
    worker.fail_for_good("no text", "suspension_timeout").await;
    let failed = host.ask("tasks/get", json!({ "taskId": failing["taskId"] })).await;
    assert_eq!((&failed["status"], &failed["result"]["isError"]), (&json!("completed"), &json!(true)));
    let waiting = host.call("summarize", json!({ "text": "t" })).await;
    let task = worker.claim().await;
    let suspension =
        json!({ "condition": { "any": [] }, "reason": "signal", "timeout_ms": 1, "timeout_behavior": "fail" });
    worker.end(&task, "suspend", suspension).await;
    let id = waiting["taskId"].as_str().unwrap();
    let ended = server.client().get(&format!("/v1/executions/{id}/wait?wait_ms=20000")).await.ok();
    assert_eq!(ended["execution"]["last_failure"]["by_engine"], true, "{ended}");
    let failed = host.ask("tasks/get", json!({ "taskId": id })).await;
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!(-32603)));
    assert_eq!(failed["error"]["data"]["category"], "suspension_timeout");
    assert_eq!((&failed["error"]["data"]["state"], failed.get("result")), (&json!("failed"), None));
    // A call that waits has a model that reads, not a program.
    let same = Host::new(server.client()).says("flowfabric/idempotency-key", "k");
    let calling = same.calling("summarize", json!({ "text": "t" }));
    let task = worker.claim().await;
    let suspension =
        json!({ "condition": { "any": [] }, "reason": "signal", "timeout_ms": 1, "timeout_behavior": "fail" });
    worker.end(&task, "suspend", suspension).await;
    assert_eq!(within(calling).await.unwrap()["isError"], true);
    server.stop().await;
}

#[tokio::test]
async fn several_questions_are_asked_at_once_and_answered_one_by_one() {
    let server = Running::start(settings()).await;
    let worker = Worker::register(&server.client(), "w").await;
    let host = Host::new(server.client()).can(json!({ "elicitation": {}, "extensions": { TASKS: {} } }));
    let created = host.call("summarize", json!({ "text": "t" })).await;
    let get = json!({ "taskId": created["taskId"] });
    let task = worker.claim().await;
    let condition = json!({ "all": [{ "name": "title" }, { "name": "tone" }] });
    worker.end(&task, "suspend", json!({ "condition": condition, "reason": "approval", "question": "Which?" })).await;
    let asked = host.ask("tasks/get", get.clone()).await;
    let requests = asked["inputRequests"].as_object().unwrap();
    let key = |name: &str| requests.keys().find(|key| key.ends_with(name)).unwrap().clone();
    let (title, tone) = (key("/title"), key("/tone"));
    assert_eq!((requests.len(), &requests[&tone]["params"]["message"]), (2, &json!("Which? (tone)")));
    let accept = |key: &str, text: &str| {
        let answers =
            json!({ key: { "action": "accept", "content": { "text": text } }, "unknown": { "ignored": true } });
        json!({ "taskId": created["taskId"], "inputResponses": answers })
    };
    // An answer that cannot be read hands over none of them.
    let mut malformed = accept(&title, "a");
    malformed["inputResponses"][&tone] = json!({ "action": "perhaps" });
    assert_eq!(host.refused("tasks/update", malformed).await["code"], -32602);
    assert_eq!(host.ask("tasks/get", get.clone()).await["inputRequests"].as_object().unwrap().len(), 2);
    host.ask("tasks/update", accept(&tone, "kind")).await;
    let left = host.ask("tasks/get", get.clone()).await;
    assert_eq!(left["status"], "input_required");
    assert_eq!(left["inputRequests"].as_object().unwrap().keys().collect::<Vec<_>>(), [&title]);
    host.ask("tasks/update", accept(&title, "On rain")).await;
    let resumed = worker.claim().await;
    let names: Vec<&Value> =
        resumed["resume_signals"].as_array().unwrap().iter().map(|signal| &signal["name"]).collect();
    assert_eq!(names, [&json!("tone"), &json!("title")]);
    assert_eq!(host.ask("tasks/get", get).await["status"], "working");
    server.stop().await;
}

#[tokio::test]
async fn each_of_several_waitpoints_asks() {
    let server = Running::start(settings()).await;
    let worker = Worker::register(&server.client(), "w").await;
    let host = Host::new(server.client()).can(json!({ "elicitation": {} }));
    let calling = host.calling("summarize", json!({ "text": "t" }));
    let task = worker.claim().await;
    let id = task["execution_id"].as_str().unwrap();
    let mut waitpoints = Vec::new();
    for _ in 0..2 {
        let body = json!({ "fence": task["fence"] });
        let made = worker.0.post(&format!("/v1/executions/{id}/waitpoints"), &body).await.ok();
        waitpoints.push(made["waitpoint_id"].clone());
    }
    let condition = json!({ "count": { "n": 2, "distinct": "waitpoints" } });
    let suspension =
        json!({ "condition": condition, "waitpoint_ids": waitpoints, "reason": "approval", "question": "Sign?" });
    worker.end(&task, "suspend", suspension).await;
    let asked = within(calling).await.unwrap();
    let requests = asked["inputRequests"].as_object().unwrap();
    let mut texts: Vec<&str> =
        requests.values().map(|request| request["params"]["message"].as_str().unwrap()).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["Sign? (1 of 2)", "Sign? (2 of 2)"]);
    let answers: Value = requests.keys().map(|key| (key.clone(), json!({ "action": "accept" }))).collect();
    let again = json!({
        "name": "summarize", "arguments": { "text": "t" }, "requestState": asked["requestState"],
        "inputResponses": answers,
    });
    let waiting = host.clone();
    let waiting = tokio::spawn(async move { waiting.ask("tools/call", again).await });
    let resumed = worker.claim().await;
    assert_eq!(resumed["resume_signals"].as_array().unwrap().len(), 2);
    worker.complete(&resumed, json!({ "summary": "signed" })).await;
    assert_eq!(within(waiting).await.unwrap()["structuredContent"]["summary"], "signed");
    server.stop().await;
}

#[tokio::test]
async fn a_question_is_answered_by_the_host() {
    let server = Running::start(settings()).await;
    let worker = Worker::register(&server.client(), "w").await;
    let host = Host::new(server.client()).can(json!({ "elicitation": { "form": {} } }));
    let calling = host.calling("summarize", json!({ "text": "t" }));
    let task = worker.claim().await;
    let schema = json!({ "type": "object", "properties": { "tone": { "type": "string" } }, "required": ["tone"] });
    let condition = json!({ "any": [{ "name": "approve" }] });
    let suspension =
        json!({ "condition": condition, "reason": "approval", "question": "Which tone?", "schema": schema });
    worker.end(&task, "suspend", suspension).await;
    let asked = within(calling).await.unwrap();
    assert_eq!(asked["resultType"], "input_required");
    let (key, request) = asked["inputRequests"].as_object().unwrap().iter().next().unwrap();
    assert_eq!(
        (&request["method"], &request["params"]["message"]),
        (&json!("elicitation/create"), &json!("Which tone?"))
    );
    assert_eq!(request["params"]["requestedSchema"]["required"], json!(["tone"]));
    let again = json!({
        "name": "summarize", "arguments": { "text": "t" }, "requestState": asked["requestState"],
        "inputResponses": { key: { "action": "accept", "content": { "tone": "kind" } } },
    });
    let waiting = host.clone();
    let waiting = tokio::spawn(async move { waiting.ask("tools/call", again).await });
    let resumed = worker.claim().await;
    assert_eq!(resumed["claim_kind"], "resumed");
    assert_eq!(resumed["resume_signals"][0]["name"], "approve");
    worker.complete(&resumed, json!({ "summary": "kindly" })).await;
    assert_eq!(within(waiting).await.unwrap()["structuredContent"]["summary"], "kindly");
    server.stop().await;
}

#[tokio::test]
async fn a_task_asks_and_takes_the_answer() {
    let server = Running::start(settings()).await;
    let worker = Worker::register(&server.client(), "w").await;
    let host = Host::new(server.client()).can(json!({ "elicitation": {}, "extensions": { TASKS: {} } }));
    let created = host.call("summarize", json!({ "text": "t" })).await;
    let task = worker.claim().await;
    let suspension = json!({ "condition": { "any": [] }, "reason": "approval", "question": "Send it?" });
    worker.end(&task, "suspend", suspension).await;
    let asked = host.ask("tasks/get", json!({ "taskId": created["taskId"] })).await;
    assert_eq!((&asked["status"], &asked["statusMessage"]), (&json!("input_required"), &json!("Send it?")));
    let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap();
    let stale = json!({ "taskId": created["taskId"], "inputResponses": { "another": { "action": "accept" } } });
    host.ask("tasks/update", stale).await;
    let answer = json!({ "taskId": created["taskId"], "inputResponses": { key: { "action": "decline" } } });
    host.ask("tasks/update", answer).await;
    let resumed = worker.claim().await;
    assert_eq!(resumed["resume_signals"][0]["name"], "reject");
    server.stop().await;
}

#[tokio::test]
async fn progress_and_steps_are_told_while_a_call_waits() {
    let server = Running::start(settings()).await;
    let worker = Worker::register(&server.client(), "w").await;
    let host = Host::new(server.client()).says("progressToken", "p");
    let calling = tokio::spawn(async move {
        host.send("tools/call", json!({ "name": "summarize", "arguments": { "text": "t" } })).await
    });
    let task = worker.claim().await;
    worker.end(&task, "progress", json!({ "pct": 40, "message": "reading" })).await;
    let entry = json!({ "name": "fetch", "state": "completed", "result": 1 });
    worker.end(&task, "steps", json!({ "first_number": 1, "entries": [entry] })).await;
    worker.complete(&task, json!({ "summary": "s" })).await;
    let heard = messages(&within(calling).await.unwrap());
    let told: Vec<&Value> = heard
        .iter()
        .filter(|message| message["method"] == "notifications/progress")
        .map(|message| &message["params"])
        .collect();
    assert!(told.iter().any(|told| told["message"] == "step fetch completed"), "{told:?}");
    assert!(told.iter().any(|told| told["message"] == "reading" && told["total"] == 100.0), "{told:?}");
    let amounts: Vec<f64> = told.iter().map(|told| told["progress"].as_f64().unwrap()).collect();
    assert!(amounts.windows(2).all(|pair| pair[0] < pair[1]), "{amounts:?}");
    assert_eq!(heard.last().unwrap()["result"]["structuredContent"]["summary"], "s");
    server.stop().await;
}

#[tokio::test]
async fn a_foreign_token_sees_nothing() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    let mine = server.client_with(&token(&admin, "mine", "mine", "operator").await);
    let theirs = server.client_with(&token(&admin, "theirs", "theirs", "operator").await);
    Worker::register(&mine, "w").await;
    let tasks = json!({ "extensions": { TASKS: {} } });
    let created = Host::new(mine.clone()).can(tasks.clone()).call("summarize", json!({ "text": "t" })).await;
    let host = Host::new(theirs).can(tasks);
    let listed = host.ask("tools/list", json!({})).await;
    assert!(listed["tools"].as_array().unwrap().iter().all(|tool| tool["name"] != "summarize"));
    let call = host.refused("tools/call", json!({ "name": "summarize", "arguments": { "text": "t" } })).await;
    assert_eq!(call["data"]["code"], "tool_not_found");
    for (method, more) in
        [("tasks/get", json!({})), ("tasks/cancel", json!({})), ("tasks/update", json!({ "inputResponses": {} }))]
    {
        let mut params = more;
        params["taskId"] = created["taskId"].clone();
        let refused = host.refused(method, params).await;
        assert_eq!(
            (&refused["code"], &refused["data"]["code"]),
            (&json!(-32602), &json!("execution_not_found")),
            "{method}"
        );
    }
    let uri = format!("flowfabric://executions/{}", created["taskId"].as_str().unwrap());
    assert_eq!(host.refused("resources/read", json!({ "uri": uri })).await["code"], -32602);
    assert_eq!(host.ask("resources/list", json!({})).await["resources"], json!([]));
    let stranger = Host::new(server.client()).send("tools/list", json!({})).await;
    assert_eq!((stranger.status, stranger.code().as_str()), (401, "unauthenticated"));
    let page = Host::new(mine.with("origin", "https://evil.example")).send("tools/list", json!({})).await;
    assert_eq!(page.status, 403);
    // It was neither cancelled nor touched.
    let id = created["taskId"].as_str().unwrap();
    assert_eq!(mine.get(&format!("/v1/executions/{id}")).await.ok()["public_state"], "waiting");
    server.stop().await;
}

#[tokio::test]
async fn what_operates_a_deployment_is_offered_by_role() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    let named = async |role: &str| {
        let host = Host::new(server.client_with(&token(&admin, role, "default", role).await));
        let listed = host.ask("tools/list", json!({})).await;
        let names = listed["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned());
        (host, names.collect::<Vec<_>>())
    };
    let (submitter, offered) = named("submitter").await;
    assert_eq!(offered, Vec::<String>::new());
    let (approver, offered) = named("approver").await;
    assert!(
        offered.contains(&"flowfabric_list_approvals".to_owned())
            && offered.contains(&"flowfabric_decide_step".to_owned())
    );
    assert!(!offered.contains(&"flowfabric_cancel_execution".to_owned()));
    let (operator, offered) = named("operator").await;
    assert!(offered.contains(&"flowfabric_cancel_execution".to_owned()));
    let created = admin.post("/v1/executions", &json!({ "kind": "k" })).await.ok();
    let id = json!({ "execution_id": created["execution_id"] });
    let explained = operator.call("flowfabric_explain_execution", id.clone()).await;
    assert_eq!(explained["structuredContent"]["public_state"], "waiting");
    let refused = approver.call("flowfabric_cancel_execution", id.clone()).await;
    assert_eq!(refused["isError"], true);
    assert!(refused["content"][0]["text"].as_str().unwrap().starts_with("forbidden"), "{refused}");
    let foreign = submitter.call("flowfabric_cancel_execution", id.clone()).await;
    assert_eq!(foreign["isError"], true);
    let cancelled = operator.call("flowfabric_cancel_execution", id).await;
    assert_eq!(cancelled["structuredContent"]["outcome"], "cancelled");
    let unknown = operator.refused("tools/call", json!({ "name": "flowfabric_fly", "arguments": {} })).await;
    assert_eq!(unknown["data"]["code"], "tool_not_found");
    let read = operator
        .ask(
            "resources/read",
            json!({ "uri": format!("flowfabric://executions/{}", created["execution_id"].as_str().unwrap()) }),
        )
        .await;
    assert!(read["contents"][0]["text"].as_str().unwrap().contains("cancelled"));
    server.stop().await;
}

#[tokio::test]
async fn a_revoked_token_gets_nothing_out_of_a_call_that_waits() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    let secret = token(&admin, "leaver", "default", "submitter").await;
    let worker = Worker::register(&admin, "w").await;
    let host = Host::new(server.client_with(&secret));
    let calling = tokio::spawn(async move {
        host.refused("tools/call", json!({ "name": "summarize", "arguments": { "text": "t" } })).await
    });
    worker.claim().await;
    admin.send(hyper::Method::DELETE, "/v1/admin/tokens/leaver", "").await.ok();
    assert_eq!(within(calling).await.unwrap()["data"]["code"], "unauthenticated");
    server.stop().await;
}
