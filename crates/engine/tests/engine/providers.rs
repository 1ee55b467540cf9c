//! Providers on the memory store: places in the line that lapse, calls that are never settled, and several engines.

use ff_core::op::{
    AcquireProvider, CreateProvider, DeleteProvider, ExplainExecution, GetProvider, ListProviders, Park, ReasonCode,
    SettleProvider, ThrottleProvider, UpdateProvider,
};
use ff_core::provider::{Acquired, ProviderStatus};
use ff_core::{Code, lease::LeaseFence};
use serde_json::{Value, json};

use crate::support::Harness;

async fn provider(h: &Harness, limits: Value) {
    let mut args = json!({ "name": "model" });
    args.as_object_mut().unwrap().extend(limits.as_object().unwrap().clone());
    h.must::<CreateProvider>(args).await;
}

async fn status(h: &Harness) -> ProviderStatus {
    h.must::<GetProvider>(json!({ "name": "model" })).await
}

/// An execution and the lease under which it calls.
struct Holder {
    id: ff_core::ExecutionId,
    fence: LeaseFence,
}

impl Holder {
    async fn of(h: &Harness) -> Self {
        let id = h.submit(json!({})).await;
        let task = h.claim_with(json!({ "lease_ttl_ms": 3_600_000 })).await.unwrap();
        Self { id, fence: task.fence }
    }

    fn call(&self, key: &str) -> Value {
        json!({ "execution_id": self.id, "fence": self.fence, "provider": "model", "key": key, "ttl_ms": 60_000 })
    }

    async fn acquires(&self, h: &Harness, key: &str) -> Acquired {
        h.must::<AcquireProvider>(self.call(key)).await
    }

    fn settlement(&self, key: &str, tokens: u64) -> Value {
        json!({ "execution_id": self.id, "fence": self.fence, "provider": "model", "key": key,
            "actual": { "tokens": tokens } })
    }
}

#[tokio::test(start_paused = true)]
async fn places_in_the_line_lapse_and_calls_that_nobody_settles_end_by_themselves() {
    let h = Harness::start().await;
    provider(&h, json!({ "max_requests": 1, "window_ms": 10_000 })).await;
    let holder = Holder::of(&h).await;
    assert!(holder.acquires(&h, "made").await.granted);
    let mut dearer = holder.call("made");
    dearer["cost"] = json!({ "tokens": 11 });
    assert_eq!(
        h.refused::<AcquireProvider>(dearer).await,
        Code::IdempotencyConflict,
        "it was let through at another cost"
    );
    let booked = holder.acquires(&h, "forgotten").await;
    assert!(!booked.granted && booked.booked);
    let shown = status(&h).await;
    assert_eq!((shown.in_use, shown.booked, shown.booked_until), (1, 1, Some(booked.ready_at)));
    h.pass(u64::try_from(booked.wait_ms).unwrap() + 10_001).await;
    assert_eq!(status(&h).await.booked, 0, "nobody came for it");
    assert_eq!(status(&h).await.in_use, 1);
    h.pass(60_000).await;
    assert_eq!(status(&h).await.in_use, 0, "its time is up");
    assert!(holder.acquires(&h, "next").await.granted);
    // A worker that was late says what the call really cost all the same, and a settled call is known for an hour.
    h.must::<SettleProvider>(holder.settlement("made", 5)).await;
    h.must::<SettleProvider>(holder.settlement("next", 7)).await;
    assert_eq!(h.refused::<SettleProvider>(holder.settlement("other", 7)).await, Code::BookingNotFound);
    h.pass(3_600_001).await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_acquire_repeated_after_its_settle_answers_the_same_and_books_nothing() {
    let h = Harness::start().await;
    provider(&h, json!({ "max_requests": 5, "max_concurrent": 2 })).await;
    let holder = Holder::of(&h).await;
    let first = holder.acquires(&h, "made").await;
    h.must::<SettleProvider>(holder.settlement("made", 7)).await;
    let before = status(&h).await;
    h.pass(20).await;
    assert_eq!(holder.acquires(&h, "made").await, first);
    assert_eq!(status(&h).await, before);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_one_engine_hears_holds_at_the_other_at_once() {
    let h = Harness::start().await;
    provider(&h, json!({ "max_requests": 10 })).await;
    let (other, holder) = (h.second().await, Holder::of(&h).await);
    assert!(holder.acquires(&other, "first").await.granted);
    let throttle = json!({ "name": "model", "retry_after_ms": 20_000,
        "command_id": "0190a0a0-0000-7000-8000-00000000000b" });
    let first = h.must::<ThrottleProvider>(throttle.clone()).await;
    assert_eq!(h.must::<ThrottleProvider>(throttle).await, first, "a repeat of the call is the same refusal");
    let waits = holder.acquires(&other, "second").await;
    assert!(!waits.granted && waits.wait_ms >= 20_000, "{waits:?}");
    h.pass(u64::try_from(waits.wait_ms).unwrap()).await;
    assert!(holder.acquires(&h, "second").await.granted, "it opens by itself");
    let families = h.engine.metrics().families();
    let effective = families.iter().find(|family| family.name == "flowfabric_provider_effective_limit").unwrap();
    assert!(effective.samples.iter().any(|sample| sample.labels.contains(&("provider", "model".to_owned()))));
    other.engine.close().await;
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn many_at_once_share_commits_and_are_served_in_order() {
    let h = Harness::start().await;
    provider(&h, json!({ "max_requests": 20 })).await;
    let holder = Holder::of(&h).await;
    let keys: Vec<String> = (0..60).map(|number| format!("call {number}")).collect();
    let calls = keys.iter().map(|key| holder.acquires(&h, key));
    let answers = futures_util::future::join_all(calls).await;
    assert_eq!(answers.iter().filter(|answer| answer.granted).count(), 20);
    assert!(answers[..20].iter().all(|answer| answer.granted), "the first come first");
    let ready: Vec<i64> = answers.iter().map(|answer| answer.ready_at).collect();
    assert!(ready.windows(2).all(|pair| pair[0] <= pair[1]), "{ready:?}");
    assert_eq!(status(&h).await.booked, 40);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn explain_shows_the_provider_that_a_parked_execution_waits_for() {
    let h = Harness::start().await;
    provider(&h, json!({ "max_requests": 2 })).await;
    let holder = Holder::of(&h).await;
    h.must::<ThrottleProvider>(json!({ "name": "model", "retry_after_ms": 60_000 })).await;
    let waits = holder.acquires(&h, "call").await;
    let sleeps = json!([{ "step": { "name": "wait for model" }, "sleep_ms": waits.wait_ms, "provider": "model" }]);
    let park = json!({ "execution_id": holder.id, "fence": holder.fence, "first_number": 1, "sleeps": sleeps });
    h.must::<Park>(park).await;
    let explained = h.must::<ExplainExecution>(json!({ "execution_id": holder.id })).await;
    let busy = explained.reasons.iter().find(|reason| reason.code == ReasonCode::ProviderBusy).unwrap();
    assert_eq!((&busy.details["provider"], &busy.details["percent"]), (&json!("model"), &json!(50)));
    assert!(busy.message.contains("50 %") && busy.message.contains("closed until"), "{}", busy.message);
    h.pass(u64::try_from(waits.wait_ms).unwrap()).await;
    let again = h.claim().await.unwrap();
    let resumed = Holder { id: holder.id, fence: again.fence };
    assert!(resumed.acquires(&h, "call").await.granted, "the next lease finds its place in the line");
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn providers_are_changed_listed_and_deleted() {
    let h = Harness::start().await;
    provider(&h, json!({ "max_requests": 2 })).await;
    let other = json!({ "name": "model", "max_requests": 3 });
    assert_eq!(h.refused::<CreateProvider>(other).await, Code::DefinitionConflict);
    let holder = Holder::of(&h).await;
    assert!(holder.acquires(&h, "call").await.granted);
    let changed = h.must::<UpdateProvider>(json!({ "name": "model", "max_requests": 4, "window_ms": 5_000 })).await;
    assert_eq!((changed.definition.max_requests, changed.requests_in_window), (4, 1));
    assert_eq!(h.must::<ListProviders>(json!({})).await.items.len(), 1);
    assert_eq!(h.refused::<DeleteProvider>(json!({ "name": "model" })).await, Code::InUse);
    h.must::<DeleteProvider>(json!({ "name": "model", "force": true })).await;
    assert_eq!(h.refused::<AcquireProvider>(holder.call("next")).await, Code::ProviderNotFound);
    h.pass(60_001).await;
    assert_eq!(h.must::<ListProviders>(json!({})).await.items.len(), 0);
    h.finish().await;
}
