//! Webhooks of subscriptions that are paused and go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ff_core::op::{CancelExecution, CreateSubscription, PauseSubscription, ResumeSubscription, TestSubscription};
use ff_core::{PublicState, signature};
use ff_engine::env::BoxFuture;
use ff_engine::{Courier, Options, Undelivered, Webhook};
use serde_json::json;

use crate::support::Harness;

/// Remembers what it was asked to send.
#[derive(Debug, Clone, Default)]
struct Sent {
    webhooks: Arc<Mutex<Vec<Webhook>>>,
    /// The receiver is away.
    away: Arc<AtomicBool>,
}

impl Sent {
    fn count(&self) -> usize {
        self.webhooks.lock().unwrap().len()
    }
}

impl Courier for Sent {
    fn send(&self, webhook: Webhook) -> BoxFuture<'static, Result<u16, Undelivered>> {
        let answer = match self.away.load(Ordering::SeqCst) {
            true => Err(Undelivered { reason: "away".into(), category: "unreachable", retry_after_ms: Some(1_000) }),
            false => {
                self.webhooks.lock().unwrap().push(webhook);
                Ok(200)
            }
        };
        Box::pin(std::future::ready(answer))
    }
}

async fn start() -> (Harness, Sent) {
    let sent = Sent::default();
    let h = Harness::with(Options { courier: Some(Arc::new(sent.clone())), ..Options::default() }).await;
    let target = json!({ "webhook": { "url": "https://example.com/hook" } });
    h.must::<CreateSubscription>(json!({ "name": "alarms", "target": target })).await;
    (h, sent)
}

#[tokio::test(start_paused = true)]
async fn deliveries_go_on_when_their_subscription_does() {
    let (h, sent) = start().await;
    sent.away.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        let id = h.submit(json!({})).await;
        h.must::<CancelExecution>(json!({ "execution_id": id })).await;
    }
    h.pass(500).await;
    h.must::<PauseSubscription>(json!({ "name": "alarms" })).await;
    sent.away.store(false, Ordering::SeqCst);
    h.pass(3_000).await;
    assert_eq!(sent.count(), 0, "it is paused");
    h.must::<ResumeSubscription>(json!({ "name": "alarms" })).await;
    h.pass(500).await;
    assert_eq!(sent.count(), 3, "they do not wait for the next look");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_test_of_a_paused_subscription_is_sent_and_nothing_else_is() {
    let (h, sent) = start().await;
    h.must::<PauseSubscription>(json!({ "name": "alarms" })).await;
    let id = h.submit(json!({})).await;
    h.must::<CancelExecution>(json!({ "execution_id": id })).await;
    let tested = h.must::<TestSubscription>(json!({ "name": "alarms" })).await.execution_id;
    h.pass(500).await;
    let ids = |sent: &Sent| {
        let webhooks = sent.webhooks.lock().unwrap();
        let ids = webhooks.iter().flat_map(|one| one.headers.iter().filter(|(name, _)| *name == signature::ID_HEADER));
        ids.map(|(_, id)| id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&sent), [tested.to_string()]);
    assert_eq!(h.state(&tested).await, PublicState::Completed);
    h.must::<ResumeSubscription>(json!({ "name": "alarms" })).await;
    h.pass(500).await;
    assert_eq!(sent.count(), 2, "what happened meanwhile is told now");
    h.finish().await;
}
