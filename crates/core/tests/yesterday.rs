//! Documents as an earlier version wrote them: each must be read as what it meant, and written back unchanged.
//! A line here is never edited; a document that changes gets a further line.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ff_core::*;
use uuid::Uuid;

fn check<D: Document + PartialEq + std::fmt::Debug>(meant: D, stored: &str) {
    let now = meant.encode();
    let stored = STANDARD.decode(stored).unwrap_or_default();
    let read = D::decode(&stored);
    assert!(read.is_ok(), "{meant:?} is written as {}", STANDARD.encode(&now));
    assert_eq!(read.unwrap(), meant);
    // The first byte is the schema, which a later version may raise without touching this document.
    assert_eq!(now[1..], stored[1..], "{meant:?}");
}

fn execution(number: u128) -> ExecutionId {
    ExecutionId { partition: 1, uuid: Uuid::from_u128(number) }
}

fn waitpoint() -> Waitpoint {
    let new = NewWaitpoint {
        id: WaitpointId { partition: 1, uuid: Uuid::from_u128(2) },
        execution: execution(1),
        namespace: "default".into(),
        waitpoint_key: "gate".into(),
    };
    Waitpoint::pending(new, Some(500), 1_000).unwrap()
}

fn signal() -> NewSignal {
    NewSignal {
        id: SignalId(Uuid::from_u128(3)),
        execution: execution(1),
        waitpoint: waitpoint().id,
        name: "approve".into(),
        category: "human".into(),
        source_type: "user".into(),
        source_identity: "eve".into(),
        correlation_id: "c-1".into(),
        content_type: "text/plain".into(),
        payload: Some(b"yes".to_vec().into()),
        created_at: Some(900),
        ..NewSignal::default()
    }
}

#[test]
fn a_waitpoint_with_a_buffered_signal() {
    let mut waitpoint = waitpoint();
    waitpoint.buffer(fact(), 3, 1_100).unwrap();
    check(
        waitpoint,
        "AYmhacQSAAEAAAAAAAAAAAAAAAAAAAACoXjEEgABAAAAAAAAAAAAAAAAAAAAAaFup2RlZmF1bHSha6RnYXRloXMBoWPNA+ihZc0F3KFmkYWhacQQAAAAAAAAAAAAAAAAAAAAA6Fup2FwcHJvdmWhc6o0OnVzZXI6ZXZloXfEEgABAAAAAAAAAAAAAAAAAAAAAqFhzQRMoWID",
    );
}

/// A fact as it was kept before it named the caller that delivered the signal.
fn fact() -> SignalFact {
    SignalFact { by: String::new(), ..signal().fact(1_100) }
}

#[test]
fn a_closed_waitpoint() {
    let mut waitpoint = waitpoint();
    waitpoint.activate(1_100).unwrap();
    waitpoint.close(CloseReason::Satisfied, 1_200);
    check(
        waitpoint,
        "AYmhacQSAAEAAAAAAAAAAAAAAAAAAAACoXjEEgABAAAAAAAAAAAAAAAAAAAAAaFup2RlZmF1bHSha6RnYXRloXMCoWPNA+ihYc0ETKF6zQSwoXkB",
    );
}

#[test]
fn a_signal_and_its_record() {
    let (signal, _) = AcceptedSignal::accept(signal(), SignalEffect::AppendedToWaitpoint, 1_100).unwrap();
    check(
        SignalRecord::new(&signal.waitpoint, "once", &signal).unwrap(),
        "AYSha8QQqUWght448Zftq6yx7AtYh6FpxBAAAAAAAAAAAAAAAAAAAAADoWUBoWHNBEw=",
    );
    check(
        signal,
        "AY6hacQQAAAAAAAAAAAAAAAAAAAAA6F4xBIAAQAAAAAAAAAAAAAAAAAAAAGhd8QSAAEAAAAAAAAAAAAAAAAAAAACoW6nYXBwcm92ZaFnpWh1bWFuonN0pHVzZXKic2mjZXZloXKjYy0xoXSqdGV4dC9wbGFpbqFwxAN5ZXOhegOhY80DhKFhzQRMoWUB",
    );
}

#[test]
fn waitpoint_secrets_after_two_rotations() {
    let mut secrets = WaitpointSecrets::default();
    secrets.install_first(Secret::from_random([1; 32]), true, 0);
    secrets.rotate("k2", &"22".repeat(32), 100, 1_000).unwrap();
    secrets.rotate("k3", &"33".repeat(32), 100, 1_100).unwrap();
    check(
        secrets,
        "AYOhY6JrM6FzkoSha6JrMqFzxCAiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIqFpzQPooWXNBLCDoWuiazOhc8QgMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzOhac0ETKFmkYKha6JrMaF1zwAAAAHPfFxM",
    );
}

#[test]
fn an_api_token() {
    let new = NewApiToken {
        name: "ci".into(),
        namespace: "*".into(),
        role: Role::Operator,
        expires_in_ms: Some(1_000),
        created_by: "root".into(),
        ..NewApiToken::default()
    };
    let (mut token, _) = ApiToken::create(new, [7; 32], 1_000).unwrap();
    token.revoke(1_500);
    check(token, "AYihbaJjaaFuoSqhcgOhaMQgS7Bvjk46dxXSAdVz0KpCN2LlXavWGiwCJ4+lbMbSlOChY80D6KFipHJvb3ShZc0H0KF2zQXc");
}

#[test]
fn an_edge_that_became_impossible() {
    let new = NewEdge {
        flow: FlowId { partition: 1, uuid: Uuid::from_u128(9) },
        upstream: execution(1),
        downstream: execution(2),
        role: EdgeRole::Child,
        kind: "review".into(),
        data_ref: Some("draft".into()),
    };
    let mut edge = Edge::stage(new, 1_000).unwrap();
    edge.apply(1_100);
    edge.resolve(TerminalOutcome::Failed, 1_200);
    check(
        edge,
        "AYyhacQQqlPqV9D6Tv+cdt2WZEcWEqFmxBIAAQAAAAAAAAAAAAAAAAAAAAmhdcQSAAEAAAAAAAAAAAAAAAAAAAABoWTEEgABAAAAAAAAAAAAAAAAAAAAAqFvAaFrpnJldmlld6FypWRyYWZ0oXMDoXQCoWPNA+ihYc0ETKF6zQSw",
    );
}

#[test]
fn a_cancelled_flow() {
    let new = NewFlow {
        id: FlowId { partition: 1, uuid: Uuid::from_u128(9) },
        namespace: "default".into(),
        kind: "pipeline".into(),
        tags: [("team".to_owned(), "a".to_owned())].into(),
        request_hash: vec![1, 2, 3].into(),
        schedule: None,
    };
    let mut flow = Flow::new(new, 1_000).unwrap();
    flow.add_member().unwrap();
    flow.cancel(CancelFlowPolicy::CancelPending, "enough", 1_100).unwrap();
    flow.end(&[(PublicState::Cancelled, 1)].into_iter().collect(), Some(500), 1_200);
    check(
        flow,
        "AYqhacQSAAEAAAAAAAAAAAAAAAAAAAAJoW6nZGVmYXVsdKFrqHBpcGVsaW5loXSBpHRlYW2hYaFjzQPooWcBoW0BoWjEAwECA6F4hKFwAaFypmVub3VnaKFhzQRMoW/DoWWDoXMFoWHNBLChdc0GpA==",
    );
}

/// A part of the execution, wrapped so that it can be stored here.
#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Inside<T>(T);

impl<T: serde::Serialize + serde::de::DeserializeOwned> Document for Inside<T> {
    const KIND: u8 = 0;
}

#[test]
fn what_an_execution_carries_inside() {
    let nested = r#"{"all_of":[{"all":[{"name":"approve"},{"name":""}]},
        {"any_of":[{"count":{"n":2,"distinct":"sources","matchers":[{"name":"vote"}]}},"operator_only"]},{"any":[]}]}"#;
    let mut suspension = Suspension::new(
        NewSuspension {
            id: SuspensionId(Uuid::from_u128(4)),
            waitpoints: vec![waitpoint().id],
            condition: serde_json::from_str(nested).unwrap(),
            timeout_ms: Some(500),
            behavior: TimeoutBehavior::Escalate,
            reason: SuspendReason::Approval,
            requested_by: "agent".into(),
            allow_operator_resume: false,
            idempotency_key: "s-1".into(),
            ask: ff_core::Ask::default(),
        },
        1_000,
    )
    .unwrap();
    assert_eq!(suspension.deliver(fact()), Delivery::Appended);
    suspension.escalate();
    check(
        Inside(suspension),
        "AYyhacQQAAAAAAAAAAAAAAAAAAAABKF3kcQSAAEAAAAAAAAAAAAAAAAAAAACoWOBpmFsbF9vZpOBo2FsbJKBoW6nYXBwcm92ZYCBpmFueV9vZpKBpWNvdW50g6FuAqFkAaFtkYGhbqR2b3RlrW9wZXJhdG9yX29ubHmBo2FueZChZpGFoWnEEAAAAAAAAAAAAAAAAAAAAAOhbqdhcHByb3ZloXOqNDp1c2VyOmV2ZaF3xBIAAQAAAAAAAAAAAAAAAAAAAAKhYc0ETKF0zQXcoWIEoXIBoXGlYWdlbnShb8KhYc0D6KFlw6Fro3MtMQ==",
    );

    let mut join = Join::default();
    let policy: JoinPolicy = serde_json::from_str(r#"{"quorum":{"k":2,"on_satisfied":"let_run"}}"#).unwrap();
    for _ in 0..3 {
        join.add_edge(Some(&policy)).unwrap();
    }
    join.resolve(true).unwrap();
    join.resolve(false).unwrap();
    check(Inside(join), "AYShcIGmcXVvcnVtgqFrAqFvAaF0A6FzAaFmAQ==");

    let mut children = ChildWait::default();
    children.spawn();
    children.spawn();
    children.resolve().unwrap();
    check(Inside(children), "AYKhdAKhbwE=");
}
