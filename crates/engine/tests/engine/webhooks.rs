//! Webhooks of subscriptions that are paused and go on.

use std::sync::{Arc, Mutex};

use ff_core::op::{CreateSubscription, PauseSubscription, ResumeSubscription, TestSubscription};
use ff_engine::env::BoxFuture;
use ff_engine::{Courier, Options, Undelivered, Webhook};
use serde_json::json;

use crate::support::Harness;

/// Remembers what it was asked to send.
#[derive(Debug, Clone, Default)]
struct Sent(Arc<Mutex<Vec<Webhook>>>);

impl Courier for Sent {
    fn send(&self, webhook: Webhook) -> BoxFuture<'static, Result<u16, Undelivered>> {
        self.0.lock().unwrap().push(webhook);
        Box::pin(std::future::ready(Ok(200)))
    }
}

#[tokio::test(start_paused = true)]
async fn deliveries_go_on_when_their_subscription_does() {
    let sent = Sent::default();
    let h = Harness::with(Options { courier: Some(Arc::new(sent.clone())), ..Options::default() }).await;
    let count = || sent.0.lock().unwrap().len();
    let target = json!({ "webhook": { "url": "https://example.com/hook" } });
    h.must::<CreateSubscription>(json!({ "name": "alarms", "target": target })).await;
    h.must::<PauseSubscription>(json!({ "name": "alarms" })).await;
    for _ in 0..3 {
        h.must::<TestSubscription>(json!({ "name": "alarms" })).await;
    }
    h.pass(3_000).await;
    assert_eq!(count(), 0, "it is paused");
    h.must::<ResumeSubscription>(json!({ "name": "alarms" })).await;
    h.pass(500).await;
    assert_eq!(count(), 3, "they do not wait for the next look");
    h.finish().await;
}
