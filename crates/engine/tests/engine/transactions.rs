//! Effects of a command that has to run more than once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use crate::support::Harness;
use ff_core::op::{ChangePriority, GetExecution};
use ff_store::memory::{Call, Fault, Plan};
use serde_json::json;

#[tokio::test(start_paused = true)]
async fn a_version_names_one_content_although_its_command_ran_twice() {
    let (h, trouble) = Harness::with_trouble(ff_engine::Options::default()).await;
    let other = h.second().await;
    let id = h.submit(json!({})).await;
    let key = ff_core::execution::Execution::key_of(&id);
    let written: Arc<Mutex<BTreeMap<ff_core::CommandId, BTreeSet<Vec<u8>>>>> = Arc::default();
    let (seen, mut lost) = (written.clone(), false);
    trouble.begin(move |call| {
        let Call::Commit { batches, .. } = call else { return Plan::default() };
        let mut plan = Plan::default();
        for batch in batches {
            for put in batch.puts.iter().filter(|put| put.key == key) {
                seen.lock().unwrap().entry(batch.command).or_default().insert(put.body.to_vec());
                if !std::mem::replace(&mut lost, true) {
                    plan.fault = Some(Fault::LostReply);
                }
            }
        }
        plan
    });
    // The first is applied unseen, the second overwrites it, and the first has to be done again.
    let first = h.must::<ChangePriority>(json!({ "execution_id": id, "priority": 5 }));
    let second = async {
        h.pass(1).await;
        other.must::<ChangePriority>(json!({ "execution_id": id, "priority": 7 })).await
    };
    tokio::join!(first, second);
    trouble.end();
    assert_eq!(h.must::<GetExecution>(json!({ "execution_id": id })).await.priority, 5);
    let written = std::mem::take(&mut *written.lock().unwrap());
    assert_eq!(written.len(), 3, "each try that writes something else has a version of its own");
    assert!(written.values().all(|bodies| bodies.len() == 1), "a version names two contents");
    other.engine.close().await;
    h.finish().await;
}
