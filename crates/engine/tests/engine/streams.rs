//! Frames that an attempt writes while it runs, and their viewers.

use crate::support::Harness;
use ff_core::op::append_frames::Args as AppendArgs;
use ff_core::op::view::Task;
use ff_core::op::{AppendFrames, Claim, Complete, Delay, Fail, ReadStream, ReadSummary, TailStream};
use ff_core::{Code, ExecutionId};
use serde_json::{Value, json};

async fn running(h: &Harness) -> (ExecutionId, Task) {
    let id = h.submit(json!({})).await;
    (id, h.claim().await.unwrap())
}

fn frames(task: &Task, first: u64, texts: &[&str]) -> Value {
    let frames: Vec<_> = texts.iter().map(|text| json!({ "type": "token", "payload": text })).collect();
    json!({ "execution_id": task.execution_id, "fence": task.fence, "first_sequence": first, "frames": frames })
}

fn texts(answer: &ff_core::StreamFrames) -> Vec<String> {
    answer.frames.iter().map(|frame| String::from_utf8(frame.payload.to_vec()).unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_tail_wakes_at_the_next_frame_and_at_the_close_and_a_delay_leaves_the_stream_open() {
    let h = Harness::start().await;
    let (id, task) = running(&h).await;
    let written = h.must::<AppendFrames>(frames(&task, 1, &["a", "b", "c"])).await;
    assert_eq!((written.last_sequence, written.count), (3, 3));
    let read = h.must::<ReadStream>(json!({ "execution_id": id, "attempt": 0 })).await;
    assert_eq!(texts(&read), ["\"a\"", "\"b\"", "\"c\""]);
    assert_eq!((read.closed_at, read.frames[2].id.to_string().as_str()), (None, "0-3"));
    let part = json!({ "execution_id": id, "attempt": 0, "from": "0-2", "to": "0-2" });
    assert_eq!(texts(&h.must::<ReadStream>(part).await), ["\"b\""]);
    let tail = |after: &str| json!({ "execution_id": id, "attempt": 0, "after": after, "block_ms": 30_000 });
    let (woken, _) = tokio::join!(h.must::<TailStream>(tail("0-3")), async {
        h.pass(50).await;
        h.must::<AppendFrames>(frames(&task, 4, &["d"])).await
    });
    assert_eq!(texts(&woken), ["\"d\""]);
    h.must::<Delay>(json!({ "execution_id": id, "fence": task.fence, "delay_ms": 100 })).await;
    assert_eq!(h.must::<ReadStream>(json!({ "execution_id": id, "attempt": 0 })).await.closed_at, None);
    let resumed = h.claim().await.unwrap();
    assert_eq!(resumed.next_frame_sequence, 5);
    let began = tokio::time::Instant::now();
    let (closed, _) = tokio::join!(h.must::<TailStream>(tail("0-4")), async {
        h.pass(50).await;
        h.must::<Complete>(json!({ "execution_id": id, "fence": resumed.fence })).await
    });
    assert!(began.elapsed().as_millis() < 100, "the close wakes the tail at once");
    assert_eq!((closed.frames.len(), closed.closed_reason.as_deref()), (0, Some("success")));
    assert!(closed.closed_at.is_some());
    assert_eq!(h.refused::<AppendFrames>(frames(&resumed, 5, &["late"])).await, Code::StreamClosed);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_repeated_append_is_the_same_frames_and_other_content_under_their_numbers_is_refused() {
    let h = Harness::start().await;
    let (id, task) = running(&h).await;
    let call = frames(&task, 1, &["a", "b"]);
    let first = h.must::<AppendFrames>(call.clone()).await;
    assert_eq!(h.must::<AppendFrames>(call).await, first);
    assert_eq!(h.refused::<AppendFrames>(frames(&task, 2, &["x"])).await, Code::Invalid);
    assert_eq!(h.refused::<AppendFrames>(frames(&task, 4, &["d"])).await, Code::Invalid);
    let overlapping = h.must::<AppendFrames>(frames(&task, 2, &["b", "c"])).await;
    assert_eq!((overlapping.last_sequence, overlapping.count), (3, 3));
    let read = h.must::<ReadStream>(json!({ "execution_id": id, "attempt": 0 })).await;
    assert_eq!(texts(&read), ["\"a\"", "\"b\"", "\"c\""]);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_old_holder_appends_nothing() {
    let h = Harness::start().await;
    let id = h.submit(json!({})).await;
    let old = h.claim_with(json!({ "lease_ttl_ms": 1000 })).await.unwrap();
    h.must::<AppendFrames>(frames(&old, 1, &["a"])).await;
    h.pass(1_001).await;
    assert_eq!(h.refused::<AppendFrames>(frames(&old, 2, &["b"])).await, Code::LeaseExpired);
    let new = h.claim().await.unwrap();
    assert_eq!((new.fence.attempt.0, new.next_frame_sequence), (1, 1));
    assert_eq!(h.refused::<AppendFrames>(frames(&old, 2, &["b"])).await, Code::StaleLease);
    h.must::<AppendFrames>(frames(&new, 1, &["z"])).await;
    let past = h.must::<ReadStream>(json!({ "execution_id": id, "attempt": 0 })).await;
    assert_eq!((texts(&past), past.closed_reason.as_deref()), (vec!["\"a\"".into()], Some("interrupted_reclaimed")));
    let far = json!({ "execution_id": id, "attempt": 3 });
    assert_eq!(h.refused::<ReadStream>(far).await, Code::AttemptNotFound);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_closes_its_stream_although_the_execution_goes_on() {
    let h = Harness::start().await;
    let (id, task) = running(&h).await;
    let tail = json!({ "execution_id": id, "attempt": 0, "block_ms": 30_000 });
    let (closed, _) = tokio::join!(h.must::<TailStream>(tail), async {
        h.pass(10).await;
        h.must::<Fail>(json!({ "execution_id": id, "fence": task.fence, "reason": "broke" })).await
    });
    assert_eq!(closed.closed_reason.as_deref(), Some("failed"));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn summary_frames_add_up_and_best_effort_frames_fade() {
    let h = Harness::start().await;
    let (id, task) = running(&h).await;
    let at = json!({ "execution_id": id, "attempt": 0 });
    assert_eq!(h.must::<ReadSummary>(at.clone()).await.document.0, "{}");
    let call = json!({ "execution_id": id, "fence": task.fence, "first_sequence": 1, "frames": [
        { "type": "s", "mode": "summary", "payload": { "a": 1, "b": 2 } },
        { "type": "live", "mode": "best_effort", "payload": 1 },
        { "type": "s", "mode": "summary", "payload": { "b": null, "c": 3 } },
    ] });
    let call: AppendArgs = serde_json::from_str(&call.to_string()).unwrap();
    h.engine.call::<AppendFrames>(&h.caller, call.clone()).await.unwrap();
    h.engine.call::<AppendFrames>(&h.caller, call).await.unwrap();
    let summary = h.must::<ReadSummary>(at.clone()).await;
    assert_eq!((summary.document.0.as_str(), summary.last_sequence), (r#"{"a":1,"c":3}"#, 3));
    assert_eq!(h.must::<ReadStream>(at.clone()).await.frames.len(), 3);
    h.pass(61_000).await;
    let kept: Vec<u64> = h.must::<ReadStream>(at).await.frames.iter().map(|frame| frame.id.sequence).collect();
    assert_eq!(kept, [1, 3]);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_keeps_as_many_frames_as_its_policy_says() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "policy": { "stream": { "retention_maxlen": 5 } } })).await;
    let task = h.must::<Claim>(json!({ "instance_id": "w-1", "lanes": ["default"] })).await.tasks.remove(0);
    for n in 1..=100 {
        h.must::<AppendFrames>(frames(&task, n, &["x"])).await;
    }
    // Some stores remove what is over later than this one, which is told to keep it.
    let frame = ff_core::stream::Frame { frame_type: "token".into(), ..Default::default() };
    let mut batch = ff_store::Batch::new(ff_core::CommandId::default());
    batch.appends.push(ff_store::Append {
        log: ff_core::Key::new(b'f', &[id.uuid.as_bytes(), &0u32.to_be_bytes()]),
        records: vec![ff_core::Document::encode(&frame).into(); 100],
        expected: None,
        cap: 0,
        in_turn: false,
    });
    let store: &dyn ff_store::Store = h.store.as_ref();
    store.commit(id.partition(), [batch].into()).await.unwrap();
    let numbers = |read: ff_core::StreamFrames| read.frames.iter().map(|frame| frame.id.sequence).collect::<Vec<_>>();
    for count in [1, 5, 1_000] {
        let kept: Vec<u64> = (196..=200).take(count).collect();
        let read = h.must::<ReadStream>(json!({ "execution_id": id, "attempt": 0, "count": count })).await;
        assert_eq!(numbers(read), kept);
        let tail = h.must::<TailStream>(json!({ "execution_id": id, "attempt": 0, "count": count })).await;
        assert_eq!(numbers(tail), kept);
    }
    let removed = json!({ "execution_id": id, "attempt": 0, "from": "0-190", "to": "0-195" });
    assert_eq!(h.must::<ReadStream>(removed).await.frames.len(), 0);
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn frames_are_kept_for_as_long_after_the_end_of_their_attempt_as_the_policy_says() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "policy": { "stream": { "retention_ttl_ms": 5_000 } } })).await;
    let task = h.claim_with(json!({ "lease_ttl_ms": 60_000 })).await.unwrap();
    h.must::<AppendFrames>(frames(&task, 1, &["a"])).await;
    let summary = json!({ "execution_id": id, "fence": task.fence, "first_sequence": 2, "frames": [
        { "type": "s", "mode": "summary", "payload": { "a": 1 } } ] });
    h.must::<AppendFrames>(summary).await;
    h.pass(50_000).await;
    h.must::<AppendFrames>(frames(&task, 3, &["b"])).await;
    let shown = || h.must::<ReadStream>(json!({ "execution_id": id, "attempt": 0 }));
    assert_eq!(shown().await.frames.len(), 3, "a running attempt keeps its frames");
    h.must::<Complete>(json!({ "execution_id": id, "fence": task.fence })).await;
    h.pass(4_900).await;
    assert_eq!(shown().await.frames.len(), 3);
    h.pass(200).await;
    let ended = shown().await;
    assert_eq!((ended.frames.len(), ended.closed_reason.as_deref()), (0, Some("success")));
    h.finish().await;
}

#[tokio::test(start_paused = true)]
async fn frames_of_best_effort_are_kept_for_as_long_as_the_policy_says() {
    let h = Harness::start().await;
    let id = h.submit(json!({ "policy": { "stream": { "retention_ttl_ms": 5_000 } } })).await;
    let task = h.claim_with(json!({ "lease_ttl_ms": 60_000 })).await.unwrap();
    let frames = |task: &Task, first: u64, texts: &[&str]| {
        let mut call = frames(task, first, texts);
        let frames = call["frames"].as_array_mut().unwrap();
        frames.iter_mut().for_each(|frame| frame["mode"] = json!("best_effort"));
        call
    };
    h.must::<AppendFrames>(frames(&task, 1, &["a", "b"])).await;
    h.pass(3_000).await;
    h.must::<AppendFrames>(frames(&task, 3, &["c"])).await;
    let shown = || h.must::<ReadStream>(json!({ "execution_id": id, "attempt": 0 }));
    assert_eq!(texts(&shown().await), ["\"a\"", "\"b\"", "\"c\""]);
    h.pass(2_500).await;
    assert_eq!(texts(&shown().await), ["\"c\""], "what is too old is not shown");
    let written = h.must::<AppendFrames>(frames(&task, 4, &["d"])).await;
    assert_eq!(written.last_sequence, 4);
    let kept = h.store.inspect(|contents| {
        let log = ff_core::Key::new(b'f', &[id.uuid.as_bytes(), &0u32.to_be_bytes()]);
        let mut logs = contents.partition(id.partition()).unwrap().logs();
        logs.find(|(name, _)| **name == log).map(|(_, page)| page.next - page.first)
    });
    assert_eq!(kept, Some(2), "and is gone with the next frame");
    h.must::<AppendFrames>(frames(&task, 4, &["d"])).await;
    assert_eq!(texts(&shown().await), ["\"c\"", "\"d\""], "a repeat is the same frame");
    h.finish().await;
}
