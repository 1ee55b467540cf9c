//! Decisions over HTTP: by people with a link and no account, by approvers, and by callers of other roles.

use ff_core::Role;
use ff_server::Settings;
use hyper::Method;
use serde_json::{Value, json};

use crate::support::{ADMIN, Client, Running, with_tokens};

async fn token(admin: &Client, name: &str, namespace: &str, role: Role) -> String {
    let body = json!({ "name": name, "namespace": namespace, "role": role });
    admin.post("/v1/admin/tokens", &body).await.ok()["secret"].as_str().unwrap().to_owned()
}

/// An execution that asks: its path, and the answer to its suspension.
async fn ask(admin: &Client, more: Value) -> (String, Value) {
    admin.post("/v1/executions", &json!({ "kind": "refund" })).await.ok();
    let claimed = admin.post("/v1/workers/w/claim", &json!({ "lanes": ["default"] })).await.ok();
    let task = &claimed["tasks"][0];
    let path = format!("/v1/executions/{}", task["execution_id"].as_str().unwrap());
    let mut body = json!({
        "fence": task["fence"], "reason": "approval", "question": "Refund?",
        "condition": { "count": { "n": 2, "distinct": "sources", "matchers": [{ "name": "approve" }] } },
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let suspended = admin.post(&format!("{path}/suspend"), &body).await.ok();
    (path, suspended)
}

#[tokio::test]
async fn s48_a_waitpoint_token_without_an_api_token_approves_and_does_nothing_else() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    let nobody = server.client();
    let (path, suspended) = ask(&admin, json!({})).await;
    let (waitpoint, secret) = (suspended["waitpoint_id"].as_str().unwrap(), suspended["token"].as_str().unwrap());
    let by_waitpoint = format!("/v1/signals/{waitpoint}");
    let asked = nobody.post(&format!("{by_waitpoint}/question"), &json!({ "token": secret })).await.ok();
    assert_eq!((&asked["open"], &asked["question"]), (&json!(true), &json!("Refund?")));
    assert_eq!(nobody.post(&format!("{by_waitpoint}/question"), &json!({})).await.status, 401);
    assert_eq!(nobody.post(&format!("{by_waitpoint}/question"), &json!({ "token": "k1:00" })).await.status, 401);
    let vote =
        |who: &str| json!({ "token": secret, "name": "approve", "source_type": "person", "source_identity": who });
    let counted = nobody.post(&by_waitpoint, &vote("ann")).await.ok();
    assert_eq!(counted["effect"], "appended_to_waitpoint");
    // For two people it does not count, whichever way it comes.
    assert_eq!(nobody.post(&by_waitpoint, &vote("bob")).await.ok()["effect"], "no_op");
    let mut by_execution = vote("carl");
    by_execution["waitpoint_id"] = json!(waitpoint);
    assert_eq!(nobody.post(&format!("{path}/signal"), &by_execution).await.ok()["effect"], "no_op");
    // Without the token, or with another, nothing.
    let bare = nobody.post(&by_waitpoint, &json!({ "name": "approve" })).await;
    assert_eq!((bare.status, bare.code().as_str()), (401, "unauthenticated"));
    for wrong in ["k1:00", "", &"0".repeat(80)] {
        let refused = nobody.post(&by_waitpoint, &json!({ "name": "approve", "token": wrong })).await;
        assert_eq!(refused.status, 401, "{wrong:?} {:?}", refused.body);
    }
    // It opens nothing else, in whichever place it is shown.
    let bearer = server.client_with(secret);
    for client in [&nobody, &bearer] {
        for read in [path.as_str(), "/v1/executions", "/v1/approvals", "/v1/counts", "/metrics"] {
            assert_eq!(client.get(&format!("{read}?token={secret}")).await.status, 401, "{read}");
        }
        let resumed = client.post(&format!("{path}/resume"), &json!({ "token": secret })).await;
        assert_eq!(resumed.status, 401);
    }
    assert_eq!(nobody.send(Method::GET, &by_waitpoint, "").await.status, 405, "looking at a link decides nothing");
    // The second person has an account.
    let lead = server.client_with(&token(&admin, "lead", "default", Role::Approver).await);
    let decided = lead.post(&format!("{path}/signal"), &json!({ "name": "approve" })).await.ok();
    assert_eq!(decided["outcome"], "triggered_resume");
    let signals = admin.get(&format!("{path}/resume-signals")).await.ok();
    let by: Vec<_> = signals["items"].as_array().unwrap().iter().map(|one| one["delivered_by"].clone()).collect();
    assert_eq!(by, [json!("waitpoint_token"), json!("lead")]);
    let audit = admin.get("/v1/admin/audit?limit=1000").await.ok();
    let whos: Vec<_> = audit["items"].as_array().unwrap().iter().filter(|one| one["detail"] == "approve").collect();
    assert!(whos.len() >= 2, "{audit}");
    server.stop().await;
}

#[tokio::test]
async fn whoever_may_decide_is_told_what_is_wrong_with_the_arguments() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    let (path, suspended) = ask(&admin, json!({})).await;
    let (waitpoint, secret) = (suspended["waitpoint_id"].as_str().unwrap(), suspended["token"].as_str().unwrap());
    let nobody = server.client();
    let lead = server.client_with(&token(&admin, "lead", "default", Role::Approver).await);
    let reader = server.client_with(&token(&admin, "reader", "default", Role::Reader).await);
    let submitter = server.client_with(&token(&admin, "submitter", "default", Role::Submitter).await);
    let signal = format!("{path}/signal");
    let wrong = |more: Value| {
        let mut body = json!({ "name": "approve" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let with_link = |more: Value| {
        let mut body = wrong(more);
        body["token"] = json!(secret);
        body
    };
    for (client, path, body, field) in [
        (&nobody, format!("/v1/signals/{waitpoint}"), with_link(json!({ "extra": 1 })), "extra"),
        (&nobody, format!("/v1/signals/{waitpoint}"), with_link(json!({ "name": 5 })), "name"),
        (&nobody, signal.clone(), with_link(json!({ "waitpoint_id": waitpoint, "extra": 1 })), "extra"),
        (&lead, signal.clone(), wrong(json!({ "extra": 1 })), "extra"),
        (&submitter, format!("{path}/cancel"), json!({ "extra": 1 }), "extra"),
    ] {
        let refused = client.post(&path, &body).await;
        assert_eq!((refused.status, refused.code().as_str()), (400, "invalid"), "{path} {body}");
        assert_eq!(refused.json()["details"]["field"], field, "{path} {body}");
    }
    // A caller that may not do it learns that and nothing else.
    for (client, status) in [(&nobody, 401), (&reader, 403)] {
        assert_eq!(client.post(&signal, &wrong(json!({ "extra": 1 }))).await.status, status);
    }
    server.stop().await;
}

#[tokio::test]
async fn configured_tokens_without_names_are_each_one_source() {
    let other = "canary-administrator-token-2";
    let settings = Settings { api_token: Some(format!("{ADMIN},{other}")), ..with_tokens() };
    let server = Running::start(settings).await;
    let (one, two) = (server.client_with(ADMIN), server.client_with(other));
    let (path, _) = ask(&one, json!({})).await;
    let signal = format!("{path}/signal");
    let vote = |who: &str| json!({ "name": "approve", "source_type": "person", "source_identity": who });
    assert_eq!(one.post(&signal, &vote("ann")).await.ok()["effect"], "appended_to_waitpoint");
    assert_eq!(one.post(&signal, &vote("bob")).await.ok()["effect"], "no_op", "the same caller");
    assert_eq!(two.post(&signal, &vote("ann")).await.ok()["outcome"], "triggered_resume", "another caller");
    server.stop().await;
}

#[tokio::test]
async fn an_approver_sees_what_waits_for_people_and_decides_it() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    let more = json!({
        "condition": { "any": [{ "name": "approve" }] }, "assignees": ["lead"], "timeout_ms": 60_000,
        "schema": { "type": "object", "required": ["amount"] },
    });
    let (path, _) = ask(&admin, more).await;
    let lead = server.client_with(&token(&admin, "lead", "default", Role::Approver).await);
    let stranger = server.client_with(&token(&admin, "other", "elsewhere", Role::Approver).await);
    let listed = lead.get("/v1/approvals").await.ok();
    let one = &listed["items"][0];
    assert_eq!(
        (&one["question"], &one["kind"], &one["assignees"]),
        (&json!("Refund?"), &json!("refund"), &json!(["lead"]))
    );
    assert!(one["since"].is_i64() && one["deadline"].is_i64() && one["signed"].is_array(), "{one}");
    assert_eq!(stranger.get("/v1/approvals").await.ok()["items"], json!([]));
    assert_eq!(stranger.get("/v1/approvals?namespace=default").await.status, 403);
    assert_eq!(stranger.post(&format!("{path}/signal"), &json!({ "name": "approve" })).await.status, 404);
    for read in [path.clone(), "/v1/executions".into(), "/v1/counts".into(), format!("{path}/stream")] {
        assert_eq!(lead.get(&read).await.status, 403, "{read}");
    }
    let wrong = lead.post(&format!("{path}/signal"), &json!({ "name": "approve", "payload": {} })).await;
    assert_eq!((wrong.status, wrong.json()["details"]["field"].clone()), (400, json!("payload.amount")));
    let decided = lead.post(&format!("{path}/signal"), &json!({ "name": "approve", "payload": { "amount": 1 } })).await;
    assert_eq!(decided.ok()["outcome"], "triggered_resume");
    server.stop().await;
}

#[tokio::test]
async fn reading_a_waitpoint_token_is_on_record() {
    let server = Running::start(with_tokens()).await;
    let admin = server.client_with(ADMIN);
    let (path, suspended) = ask(&admin, json!({})).await;
    let operator = server.client_with(&token(&admin, "ops", "default", Role::Operator).await);
    let read = operator.get(&format!("{path}/waitpoints/{}/token", suspended["waitpoint_id"].as_str().unwrap())).await;
    assert_eq!((read.status, &read.headers["cache-control"]), (200, &"no-store".parse().unwrap()));
    let audit = admin.get("/v1/admin/audit?what=get_waitpoint_token").await.ok();
    assert_eq!(audit["items"][0]["who"], "ops", "{audit}");
    server.stop().await;
}

#[tokio::test]
async fn somebody_who_tries_tokens_out_is_slowed_down() {
    let server = Running::start(with_tokens()).await;
    let nobody = server.client();
    let waitpoint = "/v1/signals/0000-0190a0a0-0000-7000-8000-000000000000";
    let mut limited = None;
    for _ in 0..200 {
        let refused = nobody.post(waitpoint, &json!({ "name": "approve", "token": "k1:00" })).await;
        if refused.status == 429 {
            limited = Some(refused);
            break;
        }
        assert_eq!(refused.code(), "invalid_token");
    }
    let limited = limited.expect("nobody may try without end");
    assert_eq!(limited.json()["details"]["pool"], "strangers");
    assert!(limited.headers.contains_key("retry-after"));
    assert_eq!(server.client_with(ADMIN).get("/v1/executions").await.status, 200, "others notice nothing");
    server.stop().await;
}
