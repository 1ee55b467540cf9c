//! The thinnest slice: submit, claim, complete.

use std::sync::Arc;

use ff_core::op::{Claim, Complete, CreateExecution, GetExecution, GetResult};
use ff_core::{JsonText, PublicState};
use ff_engine::env::TokioEnv;
use ff_engine::{Caller, Engine, Options};
use ff_store::memory::MemoryStore;

#[tokio::test]
async fn submit_claim_complete() {
    let store = Arc::new(MemoryStore::new());
    let engine = Engine::start(store, Arc::new(TokioEnv::current()), Options::default()).await.unwrap();
    let caller = Caller::system();
    let args = serde_json::from_str(r#"{"kind":"hello","input":{"a":1}}"#).unwrap();
    let created = engine.call::<CreateExecution>(&caller, args).await.unwrap();
    assert_eq!(created.public_state, PublicState::Waiting);
    let args = serde_json::from_str(r#"{"instance_id":"w-1","lanes":["default"],"wait_ms":1000}"#).unwrap();
    let claimed = engine.call::<Claim>(&caller, args).await.unwrap();
    let task = &claimed.tasks[0];
    assert_eq!(&task.input.as_ref().unwrap().bytes[..], br#"{"a":1}"#);
    let done = engine
        .call::<Complete>(
            &caller,
            ff_core::op::complete::Args {
                execution_id: task.execution_id,
                fence: task.fence,
                result: Some(JsonText("42".into())),
                result_base64: None,
                content_type: None,
            },
        )
        .await
        .unwrap();
    assert_eq!(done.public_state, PublicState::Completed);
    let result = engine
        .call::<GetResult>(&caller, ff_core::op::get_result::Args { execution_id: task.execution_id })
        .await
        .unwrap();
    assert_eq!(&result.bytes[..], b"42");
    let view = engine
        .call::<GetExecution>(&caller, ff_core::op::get_execution::Args { execution_id: task.execution_id })
        .await
        .unwrap();
    assert_eq!(view.attempt.unwrap().0, 0);
    engine.close().await;
}
