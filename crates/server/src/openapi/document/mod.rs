//! Makes the OpenAPI document from the table of operations and the schemas of their arguments and answers, and keeps the
//! committed copies true.

mod beside;
mod rules;
mod variants;

use std::collections::BTreeSet;

use ff_core::op::{Method, OperationInfo, ReplyKind};
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::answer::{PROBLEM, Problem};
use crate::arguments::Shape;
use crate::route::Routes;
use crate::sse::EVENT_STREAM;

/// Where schemas stand in the document.
const SCHEMAS: &str = "/components/schemas";

/// The document.
fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = SCHEMAS.into();
        settings.meta_schema = None;
    });
    let mut generator = SchemaGenerator::new(settings);
    let mut paths = Map::new();
    let mut infos: Vec<&OperationInfo> = Routes::all().infos().collect();
    infos.sort_by_key(|info| (info.path, info.method));
    for info in infos {
        let operation = operation(&mut generator, info);
        insert(&mut paths, info.path, info.method.as_str(), operation);
    }
    beside::insert_all(&mut generator, &mut paths);
    let problem = generator.subschema_for::<Problem<'static>>().to_value();
    let mut schemas = generator.take_definitions(true);
    variants::name_all(&mut schemas);
    keep_reachable(&mut schemas, &[Value::Object(paths.clone()), problem.clone()]);
    rules::add_all(&mut paths, &mut schemas);
    // Answers have the field and no reader takes it back, so that the schema for reading leaves it out.
    if let Some(properties) = schemas.get_mut("Content").and_then(|content| content["properties"].as_object_mut()) {
        let readable = "The payload once more, readable, when the bytes are JSON.";
        properties.insert("payload".into(), json!({ "description": readable }));
    }
    for operation in paths.values_mut().filter_map(Value::as_object_mut).flat_map(|methods| methods.values_mut()) {
        // Linters and generators want to see that a call can be refused; `default` says the same of its failures.
        operation["responses"]["4XX"] = json!({ "$ref": "#/components/responses/Problem" });
    }
    let tags: Vec<Value> =
        TAGS.iter().map(|(name, description)| json!({ "name": name, "description": description })).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "FlowFabric",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Durable execution of long-running, interruptible, budget-governed work.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "http://127.0.0.1:7171", "description": "Where `ff server` listens without configuration." }],
        "tags": tags,
        "security": [{ "bearer": [] }],
        "x-errors": errors(),
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer" } },
            "responses": {
                "Problem": { "description": "A refusal.", "content": { PROBLEM: { "schema": problem } } },
            },
        },
    })
}

fn insert(paths: &mut Map<String, Value>, path: &str, method: &str, operation: Value) {
    let methods = paths.entry(path).or_insert_with(|| Value::Object(Map::new()));
    methods[method.to_ascii_lowercase()] = operation;
}

fn operation(generator: &mut SchemaGenerator, info: &OperationInfo) -> Value {
    let outcome = (info.outcome_schema)(generator).to_value();
    let args = arguments(generator, info);
    let shape = Shape::of_types(info);
    let (mut parameters, body) = divide(info, args);
    parameters.extend(headers(info, &shape));
    let mut operation = json!({
        "operationId": info.name,
        "summary": info.summary,
        "description": description(info, &shape),
        "tags": [info.path.split('/').nth(2).unwrap_or("")],
        "x-role": info.role,
        "parameters": parameters,
        "responses": responses(info, outcome),
    });
    if matches!(info.method, Method::Post | Method::Put) {
        operation["requestBody"] = request_body(info, &shape, body);
    }
    operation
}

/// Divides arguments into parameters of the path or the query, and the schema of the body.
fn divide(info: &OperationInfo, args: Value) -> (Vec<Value>, Value) {
    let in_path: BTreeSet<&str> = info.path_parameters().collect();
    let mut parameters = Vec::new();
    let mut body = args.clone();
    for (name, schema) in args["properties"].as_object().into_iter().flatten() {
        let place = match (in_path.contains(name.as_str()), info.method) {
            (true, _) => "path",
            (false, Method::Get | Method::Delete) => "query",
            (false, Method::Post | Method::Put) => continue,
        };
        let mut parameter = json!({ "name": name, "in": place, "required": requires(&args, name), "schema": schema });
        if let Some(description) = schema.get("description") {
            parameter["description"] = description.clone();
        }
        parameters.push(parameter);
        if let Some(properties) = body["properties"].as_object_mut() {
            properties.remove(name);
        }
        if let Some(required) = body["required"].as_array_mut() {
            required.retain(|one| one != name);
        }
    }
    (parameters, body)
}

/// The headers that a call takes.
fn headers(info: &OperationInfo, shape: &Shape) -> Vec<Value> {
    let mut headers = Vec::new();
    if info.method == Method::Post {
        let text = match info.identity_field {
            Some(_) => "The identity of the call, in place of the field in its body.",
            None => "The identity of the call: a repeat is the same call, for 24 hours.",
        };
        headers.push(header("Idempotency-Key", text));
    }
    if shape.has("trace_context") {
        headers.push(header("traceparent", "Handed to the worker as the trace context."));
    }
    headers
}

/// The summary of an operation, and what its bytes look like on the wire.
fn description(info: &OperationInfo, shape: &Shape) -> String {
    let mut description = info.summary.to_owned();
    if let Some(bytes) = shape.bytes() {
        description.push_str(&format!(
            " A body of type application/octet-stream is {bytes}; the other fields then stand in the query, objects as \
             JSON."
        ));
    }
    if info.reply == ReplyKind::Bytes {
        description.push_str(
            " The bytes are sent as they are, with their own content type; with `Accept: application/json` the answer is an \
             object that holds both.",
        );
    }
    description
}

/// The body of a request. A call that needs to say nothing needs none.
fn request_body(info: &OperationInfo, shape: &Shape, body: Value) -> Value {
    let required = body["required"].as_array().is_some_and(|required| !required.is_empty());
    let mut content = json!({ "application/json": { "schema": body } });
    if let Some(example) = example(info.name) {
        content["application/json"]["example"] = example;
    }
    if shape.bytes().is_some() {
        content["application/octet-stream"] = json!({ "schema": { "type": "string", "format": "binary" } });
    }
    json!({ "required": required, "content": content })
}

/// Example arguments of the operations that people call first.
fn example(operation: &str) -> Option<Value> {
    let fence = json!({ "attempt": 0, "lease_id": "0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e", "epoch": 1 });
    Some(match operation {
        "create_execution" => json!({
            "kind": "summarize", "input": { "url": "https://example.com" }, "lane": "default", "tags": { "team": "data" },
            "policy": { "retry": { "max_retries": 1 } },
        }),
        "create_flow" => json!({
            "kind": "report",
            "nodes": [
                { "name": "fetch", "request": { "kind": "fetch" } },
                { "name": "render", "request": { "kind": "render" } },
            ],
            "edges": [{ "from": "fetch", "to": "render" }],
        }),
        "create_budget" => {
            json!({ "name": "team-a", "dimensions": { "tokens": { "hard": 1_000_000, "soft": 800_000 } } })
        }
        "create_quota" => json!({ "name": "model-api", "window_seconds": 60, "max_requests": 60 }),
        "register_worker" => json!({ "worker_id": "summarizer", "lanes": ["default"], "capacity": 4, "nonce": "a1b2" }),
        "claim" => json!({ "lanes": ["default"], "kinds": ["summarize"], "max_tasks": 1, "wait_ms": 20_000 }),
        "complete" => json!({ "fence": fence, "result": { "summary": "Work is handed out under leases." } }),
        "fail" => json!({ "fence": fence, "reason": "the page is gone", "category": "permanent" }),
        "suspend" => json!({
            "fence": fence, "reason": "approval", "question": "Publish it?",
            "condition": { "any": [{ "name": "approve" }] },
        }),
        "deliver_signal" => json!({ "name": "approve", "payload": { "by": "ada" } }),
        "report_usage" => json!({ "fence": fence, "usage": { "tokens": 1200 }, "dedup_key": "draft" }),
        "create_bulk" => json!({
            "filter": { "state": ["failed"], "tag": ["team=data"] }, "action": "replay", "max": 10_000, "rate_per_second": 50,
        }),
        "cancel_execution" => json!({ "reason": "no longer needed" }),
        _ => return None,
    })
}

/// The groups of operations, and what each is about.
const TAGS: [(&str, &str); 22] = [
    ("executions", "Submit work, look at it, change it, and speak for it as its worker."),
    ("workers", "Register, claim work and keep leases."),
    ("flows", "Graphs of executions."),
    ("budgets", "Limits for what may be spent."),
    ("quotas", "How much may start, and how much may run."),
    ("schedules", "Templates of work, and the instants at which it is created."),
    ("bulk", "One change, made to everything that a filter matches."),
    ("subscriptions", "Events that are delivered to others, and the state of their deliveries."),
    ("hooks", "Messages from outside that lead to work."),
    ("lanes", "Where work waits, and whether it is handed out."),
    ("signals", "Signals by the id of their waitpoint."),
    ("approvals", "Executions that wait for people."),
    ("events", "The log of everything that happens in the deployment."),
    ("stream-tickets", "Short-lived tickets for the streams of a browser."),
    ("leases", "Renewals of many leases at once."),
    ("counts", "How much there is, by state."),
    ("namespaces", "Which namespaces there are."),
    ("deployment", "The store, the partitions and the settings of this deployment."),
    ("test", "The clock of a server that a test moves."),
    ("admin", "Tokens, secrets and the record of administrative acts."),
    ("session", "The session of a browser."),
    ("server", "Outside of the versioned routes."),
];

/// Every code with what it means, for generators of clients and of pages.
fn errors() -> Value {
    let codes = ff_core::Code::ALL.iter().map(|code| {
        let meaning = json!({
            "status": code.http_status(), "class": code.class(), "retryable": code.retryable(), "advice": code.advice(),
        });
        (code.as_str().to_owned(), meaning)
    });
    Value::Object(codes.collect())
}

/// The schema of the arguments itself, not a reference to it: parts of it go into path and query.
fn arguments(generator: &mut SchemaGenerator, info: &OperationInfo) -> Value {
    let reference = (info.args_schema)(generator).to_value();
    let name = reference["$ref"].as_str().and_then(|path| path.rsplit('/').next()).map(str::to_owned);
    name.and_then(|name| generator.definitions().get(&name).cloned()).unwrap_or(reference)
}

fn requires(schema: &Value, name: &str) -> bool {
    schema["required"].as_array().is_some_and(|required| required.iter().any(|one| one == name))
}

fn header(name: &str, description: &str) -> Value {
    json!({ "name": name, "in": "header", "required": false, "description": description, "schema": { "type": "string" } })
}

fn responses(info: &OperationInfo, outcome: Value) -> Value {
    let mut content = json!({ "application/json": { "schema": outcome } });
    if info.reply == ReplyKind::Bytes {
        // Bytes that are sent as they are may be JSON of any form.
        let themselves = "The bytes themselves, where their own type is JSON and no other form was asked for.";
        content["application/json"]["schema"] = json!({ "anyOf": [outcome, { "description": themselves }] });
        content["*/*"] = json!({ "schema": {} });
    }
    if info.event_stream {
        content[EVENT_STREAM] = events();
    }
    let mut responses = json!({
        "200": { "description": "Done.", "content": content },
        "default": { "$ref": "#/components/responses/Problem" },
    });
    if info.creates {
        let location = json!({ "description": "Where it stands.", "schema": { "type": "string" } });
        let content = responses["200"]["content"].clone();
        responses["201"] =
            json!({ "description": "Created.", "headers": { "Location": location }, "content": content });
        responses["200"]["description"] = json!("It was there before, the same.");
    }
    if info.reply == ReplyKind::JsonOrNothing {
        responses["204"] = json!({ "description": "Nothing was claimable for the whole wait." });
    }
    responses
}

/// A stream of events. Some readers take the schema for that of the whole text, others for that of each event: so it has
/// no type.
fn events() -> Value {
    json!({ "schema": { "description": "Server-sent events, each with `event`, `data` and, where it has one, `id`." } })
}

/// Drops the schemas nothing refers to: those of arguments that were taken apart.
fn keep_reachable(schemas: &mut Map<String, Value>, roots: &[Value]) {
    let mut reached = BTreeSet::new();
    let mut waiting = Vec::new();
    roots.iter().for_each(|root| references(root, &mut waiting));
    while let Some(name) = waiting.pop() {
        if let Some(schema) = schemas.get(&name)
            && reached.insert(name)
        {
            references(schema, &mut waiting);
        }
    }
    schemas.retain(|name, _| reached.contains(name));
}

fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(name) = fields.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next()) {
                found.push(name.to_owned());
            }
            fields.values().for_each(|field| references(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Compares a committed file with what the types say. `UPDATE=1 cargo test -p ff-server openapi` writes it anew.
    fn compare(name: &str, made: &impl serde::Serialize) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let mut text = serde_json::to_string_pretty(made).unwrap();
        text.push('\n');
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == text, "{name} is out of date: run UPDATE=1 cargo test -p ff-server openapi");
    }

    #[test]
    fn the_committed_copy_is_the_document() {
        compare("openapi.json", &document());
    }

    #[test]
    fn the_committed_table_of_arguments_is_that_of_the_types() {
        compare("arguments.json", &Shape::table_of_types());
    }

    #[test]
    fn every_parameter_says_what_it_is_and_every_example_says_what_its_operation_takes() {
        let document = document();
        let mut examples = 0;
        for (path, methods) in document["paths"].as_object().unwrap() {
            for operation in methods.as_object().unwrap().values() {
                for parameter in operation["parameters"].as_array().into_iter().flatten() {
                    let described = parameter["description"].is_string() || parameter["schema"].get("$ref").is_some();
                    assert!(described || parameter["in"] == "path", "{path}: {parameter}");
                }
                let body = &operation["requestBody"]["content"]["application/json"];
                let Some(example) = body["example"].as_object() else { continue };
                examples += 1;
                for (field, _) in example {
                    assert!(body["schema"]["properties"].get(field).is_some(), "{path}: {field}");
                }
                for required in body["schema"]["required"].as_array().into_iter().flatten() {
                    assert!(example.contains_key(required.as_str().unwrap()), "{path}: {required}");
                }
            }
        }
        assert!(examples >= 12, "{examples} examples");
        assert!(document["components"]["schemas"]["Content"]["properties"]["payload"].is_object());
    }

    #[test]
    fn names_of_tokens_and_ids_of_frames_that_are_refused_are_not_offered() {
        let document = document();
        let body =
            &document["paths"]["/v1/admin/tokens"]["post"]["requestBody"]["content"]["application/json"]["schema"];
        let pattern = body["properties"]["name"]["pattern"].as_str().unwrap();
        for name in ff_core::api_token::RESERVED_NAMES {
            assert!(pattern.contains(&name.replace('*', r"\*")), "{name}: {pattern}");
        }
        let longest = format!("{}-{}", "9".repeat(9), "9".repeat(19));
        assert!(longest.parse::<ff_core::FrameId>().is_ok());
        assert_eq!(document["components"]["schemas"]["FrameId"]["pattern"], "^[0-9]{1,9}-[0-9]{1,19}$");
    }

    #[test]
    fn an_answer_of_bytes_may_be_json_of_any_form() {
        let document = document();
        for path in ["/v1/executions/{execution_id}/input", "/v1/executions/{execution_id}/result"] {
            let content = &document["paths"][path]["get"]["responses"]["200"]["content"];
            let forms = content["application/json"]["schema"]["anyOf"].as_array().unwrap();
            assert_eq!(forms[0]["$ref"], "#/components/schemas/Content", "{path}");
            assert!(forms[1].as_object().unwrap().keys().eq(["description"]), "{path}: {}", forms[1]);
            assert!(content["*/*"].is_object(), "{path}");
        }
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_operation_has_an_id_of_its_own() {
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        for name in found {
            let schema = document["components"]["schemas"].get(&name);
            assert!(schema.or(document["components"]["responses"].get(&name)).is_some(), "{name}");
        }
        let mut ids = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for operation in methods.as_object().unwrap().values() {
                assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{path}");
            }
        }
    }
}
