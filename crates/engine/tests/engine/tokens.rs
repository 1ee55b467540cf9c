//! API tokens, the secrets behind waitpoint tokens, and the audit log.

use std::sync::Arc;

use crate::support::Harness;
use ff_core::op::{
    CancelExecution, CreateToken, DeregisterWorker, GetDeployment, GetState, ListAudit, ListTokens, RegisterWorker,
    ResumeExecution, RevokeToken, RotateWaitpointSecret,
};
use ff_core::{Code, Document, Indexed, Partition, Role, WaitpointSecrets};
use ff_engine::env::TokioEnv;
use ff_engine::{Caller, Engine, Options};
use ff_store::{Batch, Fence, Guard, Outcome, Put, Store};
use serde_json::{Value, json};

async fn create(h: &Harness, args: Value) -> String {
    h.must::<CreateToken>(args).await.secret.0
}

#[tokio::test(start_paused = true)]
async fn a_token_stands_for_its_name_namespace_and_role() {
    let h = Harness::start().await;
    let secret = create(&h, json!({ "name": "ci", "role": "submitter", "namespace": "team-a" })).await;
    let caller = h.engine.authenticate(&secret).await.unwrap();
    let expected = Caller::new("ci", Some("team-a".into()), Role::Submitter);
    let token_created_at = caller.token_created_at;
    let expected = Caller { standing: ff_engine::Standing::Token, token_created_at, ..expected };
    assert_eq!(caller, expected);
    let deployment = h.engine.call::<GetDeployment>(&caller, Default::default()).await.unwrap();
    let shown = serde_json::to_value(deployment.caller).unwrap();
    assert_eq!(shown, json!({ "name": "ci", "namespace": "team-a", "role": "submitter" }));
    let everywhere = create(&h, json!({ "name": "ops", "role": "operator", "namespace": "*" })).await;
    assert_eq!(h.engine.authenticate(&everywhere).await.unwrap().namespace, None);
    let again = json!({ "name": "ci", "role": "submitter", "namespace": "team-a" });
    assert_eq!(h.refused::<CreateToken>(again).await, Code::DefinitionConflict, "a secret is shown once");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn wrong_foreign_expired_and_revoked_tokens_read_the_same() {
    let h = Harness::start().await;
    let short = create(&h, json!({ "name": "short", "role": "reader", "expires_in_ms": 1_000 })).await;
    let revoked = create(&h, json!({ "name": "revoked", "role": "reader" })).await;
    let flipped = format!("{}{}", &short[..short.len() - 1], if short.ends_with('0') { "1" } else { "0" });
    let mixed = format!("{}{}", &short[..36], &revoked[36..]);
    let unknown = format!("ff_{}_{}", "0".repeat(32), "0".repeat(64));
    let mut errors = Vec::new();
    for wrong in ["", "Bearer", &flipped, &mixed, &unknown] {
        errors.push(h.engine.authenticate(wrong).await.unwrap_err());
    }
    h.engine.authenticate(&short).await.unwrap();
    h.engine.authenticate(&revoked).await.unwrap();
    assert!(h.must::<RevokeToken>(json!({ "name": "revoked" })).await.changed);
    assert!(!h.must::<RevokeToken>(json!({ "name": "revoked" })).await.changed);
    errors.push(h.engine.authenticate(&revoked).await.unwrap_err());
    h.pass(1_000).await;
    errors.push(h.engine.authenticate(&short).await.unwrap_err());
    assert!(errors.iter().all(|error| *error == errors[0] && error.code == Code::Unauthenticated), "{errors:?}");
    assert_eq!(h.refused::<RevokeToken>(json!({ "name": "nobody" })).await, Code::TokenNotFound);
    let fresh = create(&h, json!({ "name": "short", "role": "reader" })).await;
    h.engine.authenticate(&fresh).await.unwrap();
    assert!(h.engine.authenticate(&short).await.is_err(), "the name is free again, the old secret is not good again");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_revocation_holds_at_another_engine_within_a_second() {
    let h = Harness::start().await;
    let other = Engine::start(h.store.clone(), Arc::new(TokioEnv::current()), Options::default()).await.unwrap();
    let secret = create(&h, json!({ "name": "ci", "role": "reader" })).await;
    other.authenticate(&secret).await.unwrap();
    h.must::<RevokeToken>(json!({ "name": "ci" })).await;
    h.pass(1_000).await;
    assert_eq!(other.authenticate(&secret).await.unwrap_err().code, Code::Unauthenticated);
    other.close().await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn tokens_are_listed_by_name_page_by_page_within_the_callers_namespace() {
    let mut h = Harness::start().await;
    for (name, namespace) in [("c", "one"), ("a", "two"), ("b", "one"), ("d", "*")] {
        create(&h, json!({ "name": name, "role": "reader", "namespace": namespace })).await;
    }
    let mut names = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let page = h.must::<ListTokens>(json!({ "limit": 2, "cursor": cursor })).await;
        names.extend(page.items.into_iter().map(|item| item.name));
        let Some(next) = page.next_cursor else { break };
        cursor = next.into();
    }
    assert_eq!(names, ["a", "b", "c", "d"]);
    h.caller = Caller::new("one", Some("one".into()), Role::Admin);
    let own = h.must::<ListTokens>(json!({})).await;
    assert_eq!(own.items.iter().map(|item| item.name.as_str()).collect::<Vec<_>>(), ["b", "c"]);
    assert_eq!(h.refused::<RevokeToken>(json!({ "name": "a" })).await, Code::TokenNotFound);
    let wider = json!({ "name": "e", "role": "admin", "namespace": "*" });
    assert_eq!(h.refused::<CreateToken>(wider).await, Code::Forbidden);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn administrative_acts_leave_one_record_each_without_secrets() {
    let mut h = Harness::start().await;
    let id = h.submit(json!({ "namespace": "team" })).await;
    let secret = create(&h, json!({ "name": "ci", "role": "reader", "namespace": "team" })).await;
    let hex = "ab".repeat(32);
    h.must::<RotateWaitpointSecret>(json!({ "new_kid": "k2", "new_secret_hex": hex })).await;
    h.must::<GetState>(json!({ "execution_id": id })).await;
    h.refused::<ResumeExecution>(json!({ "execution_id": id })).await;
    h.caller = Caller::new("mallory", Some("team".into()), Role::Reader);
    assert_eq!(h.refused::<RevokeToken>(json!({ "name": "ci" })).await, Code::Forbidden);
    assert_eq!(h.refused::<ListAudit>(json!({})).await, Code::Forbidden);
    h.caller = Caller::system();
    let all = h.must::<ListAudit>(json!({})).await;
    let seen: Vec<_> = all
        .items
        .iter()
        .map(|item| (item.who.as_str(), item.what.as_str(), item.target.clone(), item.outcome.as_str()))
        .collect();
    let expected = [
        ("mallory", "revoke_token", "ci".to_owned(), "forbidden"),
        ("system", "resume_execution", id.to_string(), "execution_not_suspended"),
        ("system", "rotate_waitpoint_secret", "k2".to_owned(), "ok"),
        ("system", "create_token", "ci".to_owned(), "ok"),
    ];
    assert_eq!(seen, expected);
    let text = serde_json::to_string(&all).unwrap();
    assert!(!text.contains(&hex) && !text.contains(&secret[36..]), "{text}");
    let page = h.must::<ListAudit>(json!({ "limit": 3 })).await;
    let rest = h.must::<ListAudit>(json!({ "limit": 3, "cursor": page.next_cursor })).await;
    assert_eq!((page.items.len(), rest.items.len(), rest.next_cursor), (3, 1, None));
    let refusals = h.must::<ListAudit>(json!({ "who": "mallory", "what": "revoke_token" })).await;
    assert_eq!(refusals.items.len(), 1);
    assert_eq!(h.refused::<ListAudit>(json!({ "what": "get_state" })).await, Code::InvalidFilter);
    assert_eq!(h.refused::<ListAudit>(json!({ "cursor": "x" })).await, Code::InvalidFilter);
    h.caller = Caller::new("lead", Some("team".into()), Role::Admin);
    let own = h.must::<ListAudit>(json!({})).await;
    assert!(own.items.iter().all(|item| item.namespace == "team"));
    let seen: Vec<_> = own.items.iter().map(|item| item.what.as_str()).collect();
    assert_eq!(seen, ["revoke_token", "resume_execution", "create_token"], "what was done to its execution, too");
    // One namespace's admin does not decide for the others: the secret signs the tokens of all.
    let rotation = json!({ "new_kid": "k9", "new_secret_hex": "9".repeat(64) });
    assert_eq!(h.refused::<RotateWaitpointSecret>(rotation).await, Code::Forbidden);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_cancels_and_a_worker_that_leaves_are_on_no_record() {
    let h = Harness::start().await;
    let register = json!({ "instance_id": "w-2", "worker_id": "w", "lanes": ["default"], "nonce": "n" });
    for (cancelled_by, removed_by) in [("holder", json!("n")), ("operator", Value::Null)] {
        let id = h.submit(json!({})).await;
        let fence = h.claim().await.unwrap().fence;
        let fence = (cancelled_by == "holder").then_some(fence);
        h.must::<CancelExecution>(json!({ "execution_id": id, "fence": fence })).await;
        h.must::<RegisterWorker>(register.clone()).await;
        h.must::<DeregisterWorker>(json!({ "instance_id": "w-2", "nonce": removed_by })).await;
        let records = h.must::<ListAudit>(json!({})).await.items;
        let what: Vec<&str> = records.iter().map(|record| record.what.as_str()).collect();
        let expected: &[&str] = if fence.is_some() { &[] } else { &["deregister_worker", "cancel_execution"] };
        assert_eq!(what, expected, "{cancelled_by}");
    }
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn refusals_push_no_record_of_what_was_done_out_of_the_audit() {
    let mut h = Harness::start().await;
    create(&h, json!({ "name": "ci", "role": "reader" })).await;
    h.caller = Caller::new("mallory", Some("default".into()), Role::Reader);
    for _ in 0..25 {
        assert_eq!(h.refused::<RevokeToken>(json!({ "name": "ci" })).await, Code::Forbidden);
        h.pass(1).await;
    }
    h.caller = Caller::system();
    create(&h, json!({ "name": "cd", "role": "reader" })).await;
    let written = h.store.inspect(|contents| {
        let system = contents.partition(Partition::SYSTEM).unwrap();
        system.logs().map(|(_, log)| log.records.len()).collect::<Vec<_>>()
    });
    assert_eq!(written, [2, 25], "each log has its own limit");
    let (mut cursor, mut seen) = (Value::Null, Vec::new());
    loop {
        let page = h.must::<ListAudit>(json!({ "limit": 10, "cursor": cursor })).await;
        seen.extend(page.items.into_iter().map(|item| (std::cmp::Reverse(item.at), item.what)));
        let Some(next) = page.next_cursor else { break };
        cursor = next.into();
    }
    assert!(seen.is_sorted_by_key(|(at, _)| *at) && seen.len() == 27, "the latest comes first: {seen:?}");
    assert_eq!((seen[0].1.as_str(), seen[26].1.as_str()), ("create_token", "create_token"));
    h.finish().await;
}

async fn stored_secrets(h: &Harness) -> WaitpointSecrets {
    let store: &dyn Store = h.store.as_ref();
    let found = store.documents(Partition::SYSTEM, vec![WaitpointSecrets::key_of()]).await.unwrap();
    WaitpointSecrets::decode(&found[0].as_ref().unwrap().body).unwrap()
}

async fn restarted(h: &Harness, secret: Option<&str>) -> ff_core::Result<()> {
    let options = Options { waitpoint_secret: secret.map(str::to_owned), ..Options::default() };
    let engine = Engine::start(h.store.clone(), Arc::new(TokioEnv::current()), options).await?;
    engine.close().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_first_start_installs_a_secret_and_later_ones_leave_it() {
    let h = Harness::with(Options { waitpoint_secret: Some("1".repeat(64)), ..Options::default() }).await;
    let first = stored_secrets(&h).await;
    assert_eq!((first.current.as_str(), first.secrets.len()), ("k1", 1));
    for secret in [Some("1".repeat(64)), Some("2".repeat(64)), None] {
        restarted(&h, secret.as_deref()).await.unwrap();
        assert_eq!(stored_secrets(&h).await, first, "{secret:?}");
    }
    assert_eq!(restarted(&h, Some("12")).await.unwrap_err().code, Code::Invalid);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn generated_secrets_differ_from_deployment_to_deployment() {
    let (one, two) = (Harness::start().await, Harness::start().await);
    assert_ne!(stored_secrets(&one).await.secrets[0].secret, stored_secrets(&two).await.secrets[0].secret);
    one.finish().await;
    two.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_half_installed_secret_is_repaired() {
    let h = Harness::start().await;
    let key = WaitpointSecrets::key_of();
    let store: &dyn Store = h.store.as_ref();
    let before = store.documents(Partition::SYSTEM, vec![key.clone()]).await.unwrap().remove(0).unwrap();
    let mut half = WaitpointSecrets::decode(&before.body).unwrap();
    half.secrets.clear();
    let mut batch = Batch::new(ff_core::CommandId::default());
    batch.guards.push(Guard::Version(key, before.version));
    batch.puts.push(Put { key: half.key(), body: half.encode().into(), fence: Fence::default(), expires_at: None });
    let outcomes = store.commit(Partition::SYSTEM, [batch].into()).await.unwrap();
    assert!(matches!(outcomes[..], [Outcome::Applied(_)]), "{outcomes:?}");
    restarted(&h, None).await.unwrap();
    let repaired = stored_secrets(&h).await;
    assert_eq!((repaired.current.as_str(), repaired.secrets.len()), ("k1", 1));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_engine_learns_of_a_kid_that_is_younger_than_its_copy() {
    let h = Harness::start().await;
    let other = Engine::start(h.store.clone(), Arc::new(TokioEnv::current()), Options::default()).await.unwrap();
    let id = h.submit(json!({})).await;
    let task = h.claim().await.unwrap();
    let open = json!({ "execution_id": id, "fence": task.fence });
    let waitpoint = h.must::<ff_core::op::CreatePendingWaitpoint>(open).await;
    let signal = |token: &Value| {
        let args = json!({ "execution_id": id, "waitpoint_id": waitpoint.waitpoint_id, "token": token, "name": "x" });
        serde_json::from_str(&args.to_string()).unwrap()
    };
    let first = serde_json::to_value(&waitpoint.token).unwrap();
    other.call::<ff_core::op::DeliverSignal>(&Caller::system(), signal(&first)).await.unwrap();
    h.must::<RotateWaitpointSecret>(json!({ "new_kid": "k2", "new_secret_hex": "2".repeat(64) })).await;
    let token = json!({ "execution_id": id, "waitpoint_id": waitpoint.waitpoint_id });
    let token = serde_json::to_value(h.must::<ff_core::op::GetWaitpointToken>(token).await.token).unwrap();
    other.call::<ff_core::op::DeliverSignal>(&Caller::system(), signal(&token)).await.unwrap();
    other.close().await;
    h.finish().await;
}
