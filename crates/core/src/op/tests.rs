//! Rules that hold for every operation, and round trips of some.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::api_token::Role;
use crate::error::Code;
use crate::id::{ExecutionId, LeaseId, Mint};
use crate::limits;
use crate::partition::Partition;

fn mint(n: u8) -> Mint {
    Mint { now_ms: 1_700_000_000_000, random: [n; 10] }
}

fn execution(n: u8) -> ExecutionId {
    ExecutionId::in_partition(Partition::flow(3), &mint(n))
}

fn fence() -> Value {
    json!({ "attempt": 0, "lease_id": LeaseId::mint(&mint(9)), "epoch": 1 })
}

fn schema(info: &OperationInfo, of: fn(&OperationInfo, &mut schemars::SchemaGenerator) -> schemars::Schema) -> Value {
    let mut generator = schemars::SchemaGenerator::default();
    let schema = of(info, &mut generator).to_value();
    let Some(reference) = schema.get("$ref").and_then(Value::as_str) else { return schema };
    let name = reference.rsplit('/').next().unwrap();
    generator.definitions()[name].clone()
}

#[test]
fn names_and_routes_are_unique() {
    let mut names = BTreeSet::new();
    let mut routes = BTreeSet::new();
    for info in OPERATIONS {
        assert!(names.insert(info.name), "{} stands twice", info.name);
        // Two routes that differ only in the name of a parameter are one route.
        let shape: Vec<_> = info.path.split('/').map(|part| if part.starts_with('{') { "{}" } else { part }).collect();
        assert!(routes.insert((info.method, shape)), "{} {} stands twice", info.method.as_str(), info.path);
        assert!(info.path.starts_with("/v1/"), "{}", info.path);
    }
}

/// The verbs of all `operation!` declarations in a folder and the folders in it.
fn declared_in(folder: &std::path::Path) -> BTreeSet<String> {
    let mut verbs = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            verbs.extend(declared_in(&path));
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for declaration in text.split("\noperation! {").skip(1) {
            verbs.insert(declaration.split('"').nth(1).unwrap().to_owned());
        }
    }
    verbs
}

#[test]
fn every_declared_operation_is_in_the_list() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/op");
    let listed: BTreeSet<String> = OPERATIONS.iter().map(|info| info.name.to_owned()).collect();
    assert_eq!(declared_in(&folder), listed);
}

#[test]
fn path_parameters_are_required_arguments() {
    for info in OPERATIONS {
        let schema = schema(info, |info, generator| (info.args_schema)(generator));
        for parameter in info.path_parameters() {
            assert!(schema["properties"].get(parameter).is_some(), "{} has no argument {parameter}", info.name);
            let required = schema["required"].as_array().is_some_and(|list| list.contains(&parameter.into()));
            assert!(required, "{}: {parameter} is in the path and must be required", info.name);
        }
    }
}

/// The properties of an operation's arguments.
fn fields(info: &OperationInfo) -> BTreeSet<String> {
    let schema = schema(info, |info, generator| (info.args_schema)(generator));
    schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
}

#[test]
fn whatever_names_a_namespace_takes_the_callers_default() {
    for info in OPERATIONS {
        let has_field = fields(info).contains("namespace") || info.name == "create_executions";
        assert_eq!(info.namespaced, has_field, "{}", info.name);
    }
}

#[test]
fn an_identity_in_the_arguments_is_declared() {
    for info in OPERATIONS {
        let fields = fields(info);
        let field = ["idempotency_key", "dedup_key", "command_id"].into_iter().find(|name| fields.contains(*name));
        assert_eq!(info.identity_field, field, "{}", info.name);
    }
}

#[test]
fn a_call_that_waits_says_how_long() {
    fn waits<O: Operation>(args: Value) -> u64 {
        O::wait_ms(&serde_json::from_value(args).unwrap())
    }
    let wait_fields = ["wait_ms", "block_ms"];
    let waiting: BTreeSet<&str> = OPERATIONS
        .iter()
        .filter(|info| wait_fields.iter().any(|name| fields(info).contains(*name)))
        .map(|info| info.name)
        .collect();
    assert_eq!(waiting, BTreeSet::from(["claim", "list_events", "tail_stream", "wait_execution"]));
    assert_eq!(waits::<Claim>(json!({ "instance_id": "i", "lanes": ["l"], "wait_ms": 7 })), 7);
    assert_eq!(waits::<ListEvents>(json!({ "wait_ms": 7 })), 7);
    assert_eq!(waits::<TailStream>(json!({ "execution_id": execution(1), "attempt": 0, "block_ms": 7 })), 7);
    assert_eq!(waits::<WaitExecution>(json!({ "execution_id": execution(1), "wait_ms": 7 })), 7);
    assert_eq!(waits::<WaitExecution>(json!({ "execution_id": execution(1) })), 0);
    assert_eq!(waits::<WaitUntilIdle>(json!({ "timeout_ms": 7 })), 7);
}

#[test]
fn a_claim_that_found_nothing_has_no_body() {
    let nothing = Claim::read_nothing().unwrap();
    assert!(matches!(Claim::reply(&nothing), Reply::Nothing));
    assert_eq!((nothing.tasks.len(), nothing.grants.len()), (0, 0));
}

#[test]
fn every_operation_refuses_unknown_arguments() {
    for info in OPERATIONS {
        let schema = schema(info, |info, generator| (info.args_schema)(generator));
        assert_eq!(schema["additionalProperties"], json!(false), "{} takes unknown arguments", info.name);
    }
    let args = json!({ "execution_id": execution(1), "fence": fence(), "reson": "typing" });
    let error = serde_json::from_value::<fail::Args>(args).unwrap_err().to_string();
    assert!(error.contains("unknown field `reson`"), "{error}");
}

#[test]
fn every_argument_and_answer_is_described() {
    for info in OPERATIONS {
        for schema in [
            schema(info, |info, generator| (info.args_schema)(generator)),
            schema(info, |info, generator| (info.outcome_schema)(generator)),
        ] {
            let Some(properties) = schema["properties"].as_object() else { continue };
            for (name, property) in properties {
                let described = property["description"].is_string() || property.get("$ref").is_some();
                assert!(described, "{}: {name} has no description", info.name);
            }
        }
    }
}

#[test]
fn schemas_of_different_operations_have_different_names() {
    let mut generator = schemars::SchemaGenerator::default();
    for info in OPERATIONS {
        (info.args_schema)(&mut generator);
        (info.outcome_schema)(&mut generator);
    }
    for name in generator.definitions().keys() {
        let numbered = name.ends_with(|c: char| c.is_ascii_digit());
        assert!(!numbered && name != "Args" && name != "Outcome", "{name} is the name of two types");
    }
}

#[test]
fn what_acts_on_the_system_leaves_an_audit_record() {
    for info in OPERATIONS {
        let admin = matches!(info.role, Role::Operator | Role::Admin);
        if admin && info.method != Method::Get && !unaudited(info) {
            assert!(info.audited, "{} leaves no audit record", info.name);
        }
        // Reading a waitpoint's token is as good as using it.
        let reads = info.method == Method::Get && info.name != "get_waitpoint_token";
        assert!(!(info.administrative && reads), "{} only reads", info.name);
    }
}

/// Signals and usage are part of work, tags and edges are part of its description, and a test clock belongs to a test.
fn unaudited(info: &OperationInfo) -> bool {
    const PARTS_OF_WORK: [&str; 8] = [
        "deliver_signal",
        "signal_waitpoint",
        "report_budget_usage",
        "set_tags",
        "add_execution_to_flow",
        "stage_dependency_edge",
        "apply_dependency_to_child",
        "close_flow",
    ];
    PARTS_OF_WORK.contains(&info.name) || info.path.starts_with("/v1/test/")
}

fn round_trip<O: Operation>(args: Value) -> O::Args {
    let parsed: O::Args =
        serde_json::from_str(&args.to_string()).unwrap_or_else(|error| panic!("{}: {error}", O::NAME));
    let written = serde_json::to_string(&parsed).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), args, "{}", O::NAME);
    O::validate(&parsed).unwrap_or_else(|error| panic!("{}: {error}", O::NAME));
    parsed
}

#[test]
fn arguments_survive_json() {
    round_trip::<CreateExecution>(json!({
        "kind": "agent.run", "lane": "gpu", "input": null, "priority": 3, "tags": { "team": "a" },
        "required_capabilities": ["cuda", "gpu"], "budget_ids": ["team-a"],
        "delay_until": 1_700_000_000_000i64, "idempotency_key": "order 7",
    }));
    round_trip::<Complete>(json!({
        "execution_id": execution(1), "fence": fence(), "result_base64": "AP8=", "content_type": "image/png",
    }));
    round_trip::<Fail>(json!({ "execution_id": execution(1), "fence": fence(), "reason": "no answer" }));
    round_trip::<Claim>(json!({
        "instance_id": "w-1", "lanes": ["default"], "max_tasks": 1, "mode": "grant", "retry": true,
        "lease_ids": [LeaseId::mint(&mint(1))],
    }));
    round_trip::<ListExecutions>(json!({ "state": ["waiting_children"], "tag": ["team=a=b"], "limit": 1000 }));
    round_trip::<CreateFlow>(json!({
        "kind": "etl",
        "nodes": [
            { "name": "read", "request": { "kind": "read" } },
            { "name": "write", "request": { "kind": "write" }, "join": { "quorum": { "k": 1, "on_satisfied": "let_run" } } },
        ],
        "edges": [{ "from": "read", "to": "write", "data_ref": "rows" }],
    }));
    round_trip::<CreateBudget>(json!({
        "name": "team-a", "dimensions": { "tokens": { "hard": 100, "soft": 80 } }, "enforcement": "observe",
    }));
    round_trip::<HeartbeatWorker>(json!({
        "instance_id": "w-1", "nonce": "abc", "leases": [{ "execution_id": execution(1), "fence": fence() }],
    }));
}

#[test]
fn answers_carry_their_outcome_by_name() {
    let retry = fail::Outcome::RetryScheduled { at: 1_700_000_000_000 };
    assert_eq!(serde_json::to_string(&retry).unwrap(), r#"{"outcome":"retry_scheduled","at":1700000000000}"#);
    let created = create_execution::Outcome {
        execution_id: execution(1),
        duplicate: false,
        flow_id: None,
        public_state: crate::state::PublicState::Waiting,
        superseded: None,
    };
    let created = CreateResult::Created(created);
    let text = serde_json::to_string(&created).unwrap();
    assert!(text.starts_with(r#"{"outcome":"created","execution_id":"#), "{text}");
    assert_eq!(serde_json::from_str::<CreateResult>(&text).unwrap(), created);
}

#[test]
fn an_input_of_null_is_an_input() {
    let content = |text: &str| serde_json::from_str::<create_execution::Args>(text).unwrap().input().unwrap();
    assert_eq!(&content(r#"{"kind":"k","input":null}"#).unwrap().bytes[..], b"null");
    assert_eq!(content(r#"{"kind":"k"}"#), None);
    let kept = content(r#"{"kind":"k","input":{"n": 1.0}}"#).unwrap();
    assert_eq!((&kept.bytes[..], kept.content_type.as_str()), (&br#"{"n": 1.0}"#[..], parts::JSON));
}

fn named(kind: &str) -> create_execution::Args {
    create_execution::Args { kind: kind.into(), ..Default::default() }
}

#[test]
fn the_content_of_a_submission_is_compared_without_identity_trace_and_defaults() {
    let plain = named("k").content_digest();
    let same = create_execution::Args {
        execution_id: Some(execution(1)),
        idempotency_key: Some("key".into()),
        trace_context: Some("00-1-2-01".into()),
        lane: Some("default".into()),
        priority: Some(-5),
        policy: Some(Default::default()),
        ..named("k")
    };
    assert_eq!(same.content_digest(), plain);
    let input = create_execution::Args { input: Some(crate::JsonText("1".into())), ..named("k") };
    for other in [named("l"), input, create_execution::Args { priority: Some(1), ..named("k") }] {
        assert_ne!(other.content_digest(), plain);
    }
}

#[test]
fn batches_hold_at_the_limit_and_not_one_past_it() {
    let batch = |n: usize| create_executions::Args { executions: vec![named("k"); n] };
    assert!(batch(limits::BATCH_CREATE_MAX).validate().is_ok());
    assert!(batch(limits::BATCH_CREATE_MAX + 1).validate().is_err() && batch(0).validate().is_err());

    let renewal: parts::Renewal =
        serde_json::from_value(json!({ "execution_id": execution(1), "fence": fence() })).unwrap();
    let renewals = |n: usize| renew_leases::Args { leases: vec![renewal.clone(); n] };
    assert!(renewals(limits::RENEWALS_MAX).validate().is_ok());
    assert!(renewals(limits::RENEWALS_MAX + 1).validate().is_err());

    let graph = |nodes: usize| create_flow::Args {
        kind: Some("f".into()),
        nodes: (0..nodes)
            .map(|n| NodeRequest { name: format!("n{n}"), request: named("k"), ..Default::default() })
            .collect(),
        ..Default::default()
    };
    assert!(graph(limits::GRAPH_NODES_MAX).validate().is_ok());
    assert!(graph(limits::GRAPH_NODES_MAX + 1).validate().is_err());

    let frame = FrameRequest { frame_type: "token".into(), ..Default::default() };
    let frames = |n: usize| append_frames::Args {
        execution_id: execution(1),
        fence: serde_json::from_value(fence()).unwrap(),
        first_sequence: 1,
        frames: vec![frame.clone(); n],
    };
    assert!(frames(limits::FRAMES_PER_APPEND_MAX).validate().is_ok());
    assert!(frames(limits::FRAMES_PER_APPEND_MAX + 1).validate().is_err() && frames(0).validate().is_err());
}

fn claim() -> claim::Args {
    serde_json::from_value(json!({ "instance_id": "w-1", "lanes": ["default"] })).unwrap()
}

#[test]
fn a_claim_holds_at_its_limits_and_not_one_past_them() {
    let tasks = |n: usize| claim::Args { max_tasks: Some(n), ..claim() };
    assert!(tasks(limits::CLAIM_TASKS_MAX).validate().is_ok());
    assert!(tasks(limits::CLAIM_TASKS_MAX + 1).validate().is_err() && tasks(0).validate().is_err());
    let wait = |wait_ms: i64| claim::Args { wait_ms: Some(wait_ms), ..claim() };
    assert!(wait(limits::CLAIM_WAIT_MAX_MS).validate().is_ok());
    assert!(wait(limits::CLAIM_WAIT_MAX_MS + 1).validate().is_err());
    let lanes = |n: usize| claim::Args { lanes: (0..n).map(|n| n.to_string()).collect(), ..claim() };
    assert!(lanes(limits::LANES_MAX).validate().is_ok() && lanes(limits::LANES_MAX + 1).validate().is_err());
    assert_eq!(lanes(0).validate().unwrap_err().code, Code::NoLanes);
}

#[test]
fn lease_ids_fit_the_tasks_they_are_for() {
    let ids = |ids: &[u8]| claim::Args {
        lease_ids: ids.iter().map(|&n| LeaseId::mint(&mint(n))).collect(),
        max_tasks: Some(2),
        retry: true,
        ..claim()
    };
    assert!(ids(&[1, 2]).validate().is_ok());
    for wrong in [&[][..], &[1], &[1, 1], &[1, 2, 3]] {
        assert_eq!(ids(wrong).validate().unwrap_err().details["field"], "lease_ids", "{wrong:?}");
    }
}

#[test]
fn a_graph_that_does_not_fit_together_is_refused() {
    let graph = |edges: &[(&str, &str)]| create_flow::Args {
        kind: Some("f".into()),
        nodes: ["a", "b"]
            .map(|name| NodeRequest { name: name.into(), request: named("k"), ..Default::default() })
            .into(),
        edges: edges
            .iter()
            .map(|&(from, to)| GraphEdge { from: from.into(), to: to.into(), ..Default::default() })
            .collect(),
        ..Default::default()
    };
    assert!(graph(&[("a", "b")]).validate().is_ok());
    assert_eq!(graph(&[("a", "a")]).validate().unwrap_err().code, Code::SelfReferencingEdge);
    assert_eq!(graph(&[("a", "c")]).validate().unwrap_err().details["field"], "edges[0].to");
    assert_eq!(graph(&[("a", "b"), ("a", "b")]).validate().unwrap_err().details["field"], "edges[1]");
    let mut foreign = graph(&[]);
    foreign.nodes[1].request.namespace = Some("elsewhere".into());
    assert_eq!(foreign.validate().unwrap_err().details["node"], "b");
}

#[test]
fn a_bad_requirement_is_refused_by_the_name_of_its_field() {
    let submitted = |more: Value| {
        let mut args = json!({ "kind": "k" });
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let args: create_execution::Args = serde_json::from_value(args).unwrap();
        let refusal = CreateExecution::validate(&args).unwrap_err();
        (refusal.code, refusal.details["field"].clone())
    };
    let bad = json!({ "required_capabilities": ["a,b"] });
    let (code, field) = submitted(bad.clone());
    assert_eq!((code, field), (Code::InvalidCapabilities, json!("required_capabilities")));
    let (_, field) = submitted(json!({ "policy": { "routing": bad } }));
    assert_eq!(field, "policy.routing.required_capabilities");
}

#[test]
fn the_kind_of_a_dependency_is_refused_by_the_name_of_its_field() {
    fn field<O: Operation>(args: Value) -> Value {
        let args: O::Args = serde_json::from_value(args).unwrap();
        O::validate(&args).unwrap_err().details["field"].clone()
    }
    let flow = crate::id::FlowId::in_partition(Partition::flow(3), &mint(1));
    for kind in ["two words".to_owned(), "k".repeat(limits::KIND_MAX_BYTES + 1)] {
        let node = |name: &str| json!({ "name": name, "request": { "kind": "k" } });
        let edges = json!([{ "from": "a", "to": "b", "kind": kind }]);
        let graph = json!({ "kind": "f", "nodes": [node("a"), node("b")], "edges": edges });
        assert_eq!(field::<CreateFlow>(graph), "edges[0].kind");
        let staged = json!({ "flow_id": flow, "upstream": execution(1), "downstream": execution(2), "kind": kind });
        assert_eq!(field::<StageDependencyEdge>(staged), "kind");
        let dependencies = json!([{ "upstream": execution(1), "kind": kind }]);
        let dependent = json!({ "kind": "k", "flow_id": flow, "dependencies": dependencies });
        assert_eq!(field::<CreateExecution>(dependent), "dependencies[0].kind");
        let parent = json!({ "execution_id": execution(1), "fence": fence(), "kind": kind });
        assert_eq!(field::<CreateExecution>(json!({ "kind": "k", "parent": parent })), "parent.kind");
    }
}

#[test]
fn a_hook_cannot_send_the_signal_that_stands_for_a_timeout() {
    let target = |name: &str| json!({ "signal": { "correlation_id": "/id", "name": name } });
    let hook = |name: &str| serde_json::from_value::<create_hook::Args>(json!({ "name": "h", "target": target(name) }));
    hook("paid").unwrap().validate().unwrap();
    let refused = hook(crate::condition::TIMEOUT_SIGNAL).unwrap().validate().unwrap_err();
    assert_eq!(refused.details["field"], "target.signal.name");
}

#[test]
fn a_proof_in_the_arguments_lowers_the_role() {
    let with = |proof: Value| {
        let mut args = json!({ "execution_id": execution(1) });
        args.as_object_mut().unwrap().extend(proof.as_object().unwrap().clone());
        args
    };
    let cancel = |proof| CancelExecution::role(&serde_json::from_value(with(proof)).unwrap());
    assert_eq!(cancel(json!({})), Role::Operator);
    assert_eq!(cancel(json!({ "fence": fence() })), Role::Worker);
    let signal = |proof| DeliverSignal::role(&serde_json::from_value(with(proof)).unwrap());
    assert_eq!(signal(json!({ "name": "approve" })), Role::Approver);
    assert_eq!(signal(json!({ "name": "approve", "token": "k1:00" })), Role::Reader);
}

#[test]
fn secrets_do_not_show_in_debug_output() {
    let args: rotate_waitpoint_secret::Args =
        serde_json::from_value(json!({ "new_kid": "k2", "new_secret_hex": "deadbeef" })).unwrap();
    assert!(!format!("{args:?}").contains("deadbeef"));
}

/// The field of the refusal of such arguments, whose sentence begins with it.
#[track_caller]
fn refused_field<O: Operation>(args: &Value) -> String {
    let args: O::Args = serde_json::from_str(&args.to_string()).unwrap();
    let error = O::validate(&args).unwrap_err();
    let field = error.details["field"].as_str().unwrap().to_owned();
    assert!(error.detail.starts_with(&format!("{field} ")), "{error:?}");
    field
}

#[test]
fn a_refused_value_in_a_list_or_an_object_is_named_by_the_whole_way_to_it() {
    let held = |more: Value| {
        let mut args = json!({ "execution_id": execution(1), "fence": fence() });
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        args
    };
    let step = |name: &str| json!({ "name": name });
    let entries = json!([{ "name": "a", "state": "completed" }, { "name": "", "state": "completed" }]);
    let record = held(json!({ "first_number": 1, "entries": entries }));
    assert_eq!(refused_field::<RecordSteps>(&record), "entries[1].name");
    assert_eq!(refused_field::<Complete>(&record), "entries[1].name");
    let undoes = json!([{ "name": "a", "state": "completed", "compensates": step("") }]);
    let record = held(json!({ "first_number": 1, "entries": undoes }));
    assert_eq!(refused_field::<RecordSteps>(&record), "entries[0].compensates.name");
    let run = held(json!({ "run": { "steps_not_visited": [step("a"), step("")] } }));
    assert_eq!(refused_field::<Complete>(&run), "run.steps_not_visited[1].name");
    let fail = |more: Value| {
        let mut args = held(json!({ "reason": "broke", "first_number": 1 }));
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        refused_field::<Fail>(&args)
    };
    assert_eq!(fail(json!({ "cause": step("") })), "cause.name");
    assert_eq!(fail(json!({ "undone": [step("a"), step("")] })), "undone[1].name");
    for (waits, field) in [
        (json!({ "sleeps": [{ "step": step("a") }] }), "sleeps[0].until"),
        (json!({ "sleeps": [{ "step": step(""), "sleep_ms": 1 }] }), "sleeps[0].step.name"),
        (json!({ "waitpoints": [{ "step": step("a"), "timeout_ms": -1 }] }), "waitpoints[0].timeout_ms"),
        (json!({ "children": [{ "step": step(""), "execution_id": execution(2) }] }), "children[0].step.name"),
        (json!({ "questions": [{ "step": step("a"), "reason": "signal" }] }), "questions[0].reason"),
    ] {
        let mut park = held(json!({ "first_number": 1 }));
        park.as_object_mut().unwrap().extend(waits.as_object().unwrap().clone());
        assert_eq!(refused_field::<Park>(&park), field);
    }
    let frames = json!([{ "type": "t" }, { "type": "" }]);
    let append = held(json!({ "first_sequence": 1, "frames": frames }));
    assert_eq!(refused_field::<AppendFrames>(&append), "frames[1].type");
    let leases = json!([held(json!({})), held(json!({ "lease_ttl_ms": 1 }))]);
    assert_eq!(refused_field::<RenewLeases>(&json!({ "leases": leases })), "leases[1].lease_ttl_ms");
    let exchange = json!({ "instance_id": "w", "renew": leases });
    assert_eq!(refused_field::<Exchange>(&exchange), "renew[1].lease_ttl_ms");
    let bulk = json!({ "action": "cancel", "filter": { "kind": ["a b"] } });
    assert_eq!(refused_field::<CreateBulk>(&bulk), "filter.kind");
    let fork = json!({ "execution_id": execution(1), "before_step": step("") });
    assert_eq!(refused_field::<ForkExecution>(&fork), "before_step.name");
    let replay = json!({ "execution_id": execution(1), "from_step": step("") });
    assert_eq!(refused_field::<ReplayExecution>(&replay), "from_step.name");
    for (more, field) in [
        (json!({ "concurrency": [{ "key": "a", "limit": 1 }, { "key": "", "limit": 1 }] }), "concurrency[1].key"),
        (json!({ "policy": { "fallback": [{ "provider": "", "model": "m" }] } }), "policy.fallback[0].provider"),
    ] {
        let mut submit = json!({ "kind": "k" });
        submit.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(refused_field::<CreateExecution>(&submit), field);
    }
    let tool = |kind: &str| json!({ "kind": kind, "description": "d", "input_schema": { "type": "object" } });
    let register = json!({
        "worker_id": "w", "instance_id": "w-1", "nonce": "n", "lanes": ["a"], "tools": [tool("sum"), tool("sum up")],
    });
    assert_eq!(refused_field::<RegisterWorker>(&register), "tools[1].kind");
    let target = json!({ "webhook": { "url": "https://example.com/hook" } });
    let subscription = json!({ "name": "s", "target": target, "retry": { "max_retries": 4_000_000 } });
    assert_eq!(refused_field::<CreateSubscription>(&subscription), "retry.max_retries");
    let node = |name: &str, more: Value| json!({ "name": name, "request": { "kind": "k" }, "join": more });
    let quorum = json!({ "quorum": { "k": 2 } });
    for (nodes, field) in [
        (json!([node("a", json!(null)), node("", json!(null))]), "nodes[1].name"),
        (json!([node("a", json!(null)), node("a", json!(null))]), "nodes[1].name"),
        (json!([node("a", json!(null)), node("b", quorum)]), "nodes[1].join"),
        (json!([{ "name": "a", "request": { "kind": "k", "node": "x" } }]), "nodes[0].request"),
    ] {
        assert_eq!(refused_field::<CreateFlow>(&json!({ "kind": "f", "nodes": nodes })), field);
    }
}

/// Adds a field that this version does not know to every object in an answer.
fn made_newer(answer: &mut Value) {
    match answer {
        Value::Object(fields) => {
            fields.values_mut().for_each(made_newer);
            fields.insert("of_a_newer_version".into(), json!({ "a": [1] }));
        }
        Value::Array(items) => items.iter_mut().for_each(made_newer),
        _ => {}
    }
}

#[test]
fn answers_of_a_newer_server_are_read_and_requests_of_a_newer_client_refused() {
    let budget = crate::budget::Budget {
        definition: serde_json::from_value(json!({ "dimensions": {} })).unwrap(),
        ..Default::default()
    };
    let mut status = serde_json::to_value(budget.status(1_000)).unwrap();
    status["definition"]["of_a_newer_version"] = json!(1);
    status["of_a_newer_version"] = json!(1);
    assert_eq!(GetBudget::read(status.to_string().as_bytes()).unwrap(), budget.status(1_000));
    assert!(serde_json::from_value::<crate::budget::BudgetStatus>(status).is_err(), "only answers are read so");
    let mut answer = json!({
        "execution_id": execution(1), "public_state": "waiting",
        "state": crate::state::StateVector::default(),
    });
    let known = GetState::read(answer.to_string().as_bytes()).unwrap();
    made_newer(&mut answer);
    assert_eq!(GetState::read(answer.to_string().as_bytes()).unwrap(), known);
    let mut cancelled = json!({ "outcome": "cancelled", "policy": "cancel_all", "members": [], "failed": [] });
    made_newer(&mut cancelled);
    assert!(CancelFlow::read(cancelled.to_string().as_bytes()).is_ok());
    assert!(!crate::encoding::is_answer());
    let args = json!({ "kind": "k", "policy": { "of_a_newer_version": 1 } });
    assert!(serde_json::from_value::<create_execution::Args>(args).is_err());
}

#[test]
fn a_refused_value_in_a_template_is_named_by_the_whole_way_to_it() {
    let retries = json!({ "kind": "a", "policy": { "retry": { "max_retries": 4_000_000 } } });
    let node = json!({ "name": "first", "request": retries });
    let quorum = json!({ "name": "first", "request": { "kind": "a" }, "join": { "quorum": { "k": 0 } } });
    let spec = json!({ "every_ms": 60_000 });
    for (template, whole) in [
        (json!({ "execution": retries }), "execution.policy.retry.max_retries"),
        (json!({ "execution": { "kind": "a b\n" } }), "execution.kind"),
        (json!({ "execution": { "kind": "a", "tags": { "A": "b" } } }), "execution.tags"),
        (
            json!({ "flow": { "nodes": [{ "name": "zero", "request": { "kind": "a" } }, node] } }),
            "flow.nodes[1].request.policy.retry.max_retries",
        ),
        (json!({ "flow": { "nodes": [quorum] } }), "flow.nodes[0].join.quorum.k"),
        (json!({ "flow": { "nodes": [] } }), "flow.nodes"),
    ] {
        let schedule = json!({ "name": "s", "spec": spec, "template": template });
        assert_eq!(refused_field::<CreateSchedule>(&schedule), format!("template.{whole}"));
        let hook = json!({ "name": "h", "target": template });
        assert_eq!(refused_field::<CreateHook>(&hook), format!("target.{whole}"));
        if template.get("execution").is_some() {
            let subscription = json!({ "name": "s", "target": template });
            assert_eq!(refused_field::<CreateSubscription>(&subscription), format!("target.{whole}"));
        }
    }
}
