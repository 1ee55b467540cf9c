//! Submits many executions; each is accepted or refused on its own. Those of one partition share a commit call.

use std::collections::BTreeMap;

use ff_core::op::CreateExecutions;
use ff_core::op::create_execution;
use ff_core::op::create_executions::{Args, CreateResult, Outcome};
use ff_core::partition::digest16;
use ff_core::{Code, Error, Partition, Result, limits};
use uuid::Uuid;

use super::create_execution::{CreateSolo, Solo, Submission};
use crate::engine::{Caller, Engine, Handle};
use crate::transaction::Prepared;

/// Members of flows, and executions that live apart from their keys, that are created at the same time.
const APART_AT_ONCE: usize = 16;

impl Handle<CreateExecutions> for Engine {
    async fn handle(&self, caller: &Caller, mut args: Args) -> Result<Outcome> {
        if let Some(key) = &caller.idempotency_key {
            name_items(&mut args.executions, &caller.name, key);
        }
        let mut results: Vec<Option<Result<create_execution::Outcome>>> = Vec::new();
        results.resize_with(args.executions.len(), || None);
        let mut solo: BTreeMap<Partition, Vec<(usize, Submission)>> = BTreeMap::new();
        let mut apart = Vec::new();
        for (place, one) in args.executions.iter().enumerate() {
            let checked = match one.validate() {
                Ok(()) => self.submission(caller, one).await,
                Err(error) => Err(error),
            };
            match checked {
                Ok(submission) if submission.joins_a_flow(one) || self.key_is_elsewhere(&submission) => {
                    apart.push((place, one, submission));
                }
                Ok(submission) => solo.entry(submission.request.id.partition()).or_default().push((place, submission)),
                Err(error) => results[place] = Some(Err(error)),
            }
        }
        let groups = solo.into_iter().map(|(partition, group)| self.create_group(partition, group));
        for (place, result) in futures_util::future::join_all(groups).await.into_iter().flatten() {
            results[place] = Some(result);
        }
        while !apart.is_empty() {
            let rest = apart.split_off(apart.len().min(APART_AT_ONCE));
            let creating = std::mem::replace(&mut apart, rest).into_iter();
            let creating = creating.map(|(place, one, submission)| async move {
                if submission.joins_a_flow(one) {
                    return (place, self.create_member(caller, one, submission).await);
                }
                (place, self.create_solo(submission).await)
            });
            for (place, result) in futures_util::future::join_all(creating).await {
                results[place] = Some(result);
            }
        }
        let results = results.into_iter().flatten().map(|result| match result {
            Ok(created) => CreateResult::Created(created),
            Err(error) => CreateResult::Refused { error },
        });
        Ok(Outcome { results: results.collect() })
    }
}

/// The items of a batch with a key are known by the key and their place in it, unless they bring an identity.
fn name_items(items: &mut [create_execution::Args], caller: &str, key: &str) {
    for (place, item) in items.iter_mut().enumerate() {
        if item.idempotency_key.is_none() && item.execution_id.is_none() {
            let digest = digest16(&[b"create_executions", caller.as_bytes(), key.as_bytes(), &place.to_be_bytes()]);
            item.idempotency_key = Some(Uuid::from_bytes(digest).simple().to_string());
        }
    }
}

type Placed = (usize, Result<create_execution::Outcome>);

impl Engine {
    /// Submissions to one partition, in as few commit calls as the store's limits allow.
    async fn create_group(&self, partition: Partition, group: Vec<(usize, Submission)>) -> Vec<Placed> {
        let mut results = Vec::with_capacity(group.len());
        let mut call = Call::default();
        for (place, submission) in group {
            match self.prepare(partition, self.fresh_command(), &CreateSolo { submission: &submission }).await {
                // The first try looks at nothing, so that it finds nothing elsewhere.
                Ok((Solo::Elsewhere(_), _)) => results.push((place, Err(Error::of(Code::Internal)))),
                Ok((Solo::Here(outcome), prepared)) => {
                    if !call.has_room_for(&prepared) {
                        self.send_group(partition, std::mem::take(&mut call), &mut results).await;
                    }
                    call.add(place, submission, outcome, prepared);
                }
                Err(error) => results.push((place, Err(error))),
            }
        }
        self.send_group(partition, call, &mut results).await;
        results
    }

    async fn send_group(&self, partition: Partition, call: Call, results: &mut Vec<Placed>) {
        if call.waiting.is_empty() {
            return;
        }
        match self.send_all(partition, call.prepared).await {
            Ok(conflicts) => {
                for ((place, submission, outcome), conflict) in call.waiting.into_iter().zip(conflicts) {
                    let result = match conflict {
                        None => Ok(outcome),
                        // Something is there under its id or key; the single way finds out what.
                        Some(_) => self.create_solo(submission).await,
                    };
                    results.push((place, result));
                }
            }
            Err(error) => {
                results.extend(call.waiting.into_iter().map(|(place, ..)| (place, Err(error.clone()))));
            }
        }
    }
}

/// One commit call in the making.
#[derive(Default)]
struct Call {
    waiting: Vec<(usize, Submission, create_execution::Outcome)>,
    prepared: Vec<Prepared>,
    operations: usize,
    bytes: usize,
}

impl Call {
    fn has_room_for(&self, prepared: &Prepared) -> bool {
        let (operations, bytes) = prepared.size();
        self.operations + operations <= limits::COMMIT_OPERATIONS_MAX && self.bytes + bytes <= limits::COMMIT_MAX_BYTES
    }

    fn add(&mut self, place: usize, submission: Submission, outcome: create_execution::Outcome, prepared: Prepared) {
        let (operations, bytes) = prepared.size();
        self.operations += operations;
        self.bytes += bytes;
        self.waiting.push((place, submission, outcome));
        self.prepared.push(prepared);
    }
}
