//! The identity of a call, minted once before the first try, so that a repeat is the same call. Calls that are not
//! here are the same call by nature: they carry a fence, a number, or a name, and nothing undoes them.

use std::any::Any;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use ff_core::op::parts::LaneChange;
use ff_core::op::{
    ExchangeEnding, cancel_execution, cancel_flow, claim, create_execution, create_executions, create_flow,
    create_pending_waitpoint, create_token, decide_step, deliver_signal, exchange, fork_execution, hold_execution,
    release_execution, repin_build, replay_execution, report_budget_usage, report_usage, reset_budget,
    resume_execution, revoke_lease, signal_waitpoint, suspend,
};
use ff_core::{CommandId, ExecutionId, FlowId, LeaseId, Mint, PartitionConfig, Rising, SignalId, WaitpointId};
use uuid::Uuid;

/// What is submitted first has the smaller id.
static RISING: LazyLock<Rising> = LazyLock::new(Rising::default);

/// What minting an id takes: this process's clock and the operating system's entropy.
pub(crate) fn mint() -> Mint {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let bytes = Uuid::new_v4().into_bytes();
    // Bytes 6 and 8 of such a UUID are not all random.
    let mut random = [0; 10];
    random[..6].copy_from_slice(&bytes[..6]);
    random[6..].copy_from_slice(&bytes[9..13]);
    Mint { now_ms: i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX), random }
}

/// A text that nobody else has.
pub(crate) fn unique() -> String {
    mint().uuid().to_string()
}

/// Gives a call its identity, unless it has one.
pub(crate) fn identify(args: &mut dyn Any, partitions: &PartitionConfig) {
    if let Some(args) = args.downcast_mut::<create_execution::Args>() {
        submission(args, partitions);
    } else if let Some(args) = args.downcast_mut::<create_executions::Args>() {
        args.executions.iter_mut().for_each(|args| submission(args, partitions));
    } else if let Some(args) = args.downcast_mut::<create_flow::Args>() {
        if args.idempotency_key.is_none() {
            args.flow_id.get_or_insert_with(|| FlowId::mint(partitions, &mint()));
        }
    } else if let Some(args) = args.downcast_mut::<deliver_signal::Args>() {
        if args.idempotency_key.is_none() {
            args.signal_id.get_or_insert_with(|| SignalId::mint(&mint()));
        }
    } else if let Some(args) = args.downcast_mut::<signal_waitpoint::Args>() {
        if args.idempotency_key.is_none() {
            args.signal_id.get_or_insert_with(|| SignalId::mint(&mint()));
        }
    } else if let Some(args) = args.downcast_mut::<create_pending_waitpoint::Args>() {
        let partition = args.execution_id.partition();
        args.waitpoint_id.get_or_insert_with(|| WaitpointId::in_partition(partition, &mint()));
    } else if let Some(args) = args.downcast_mut::<suspend::Args>() {
        args.idempotency_key.get_or_insert_with(unique);
    } else if let Some(args) = args.downcast_mut::<report_usage::Args>() {
        args.dedup_key.get_or_insert_with(unique);
    } else if let Some(args) = args.downcast_mut::<report_budget_usage::Args>() {
        args.dedup_key.get_or_insert_with(unique);
    } else if let Some(args) = args.downcast_mut::<claim::Args>() {
        if args.lease_ids.is_empty() {
            args.lease_ids = lease_ids(args.max_tasks());
        }
    } else if let Some(args) = args.downcast_mut::<exchange::Args>() {
        for ending in &mut args.end {
            if let ExchangeEnding::Suspend(args) = ending {
                args.idempotency_key.get_or_insert_with(unique);
            }
        }
        if let Some(claim) = &mut args.claim
            && claim.lease_ids.is_empty()
        {
            claim.lease_ids = lease_ids(claim.max_tasks.unwrap_or(1));
        }
    } else {
        command(args);
    }
}

fn lease_ids(count: usize) -> Vec<LeaseId> {
    (0..count).map(|_| LeaseId::mint(&mint())).collect()
}

fn command(args: &mut dyn Any) {
    let command_id = if let Some(args) = args.downcast_mut::<replay_execution::Args>() {
        &mut args.command_id
    } else if let Some(args) = args.downcast_mut::<repin_build::Args>() {
        &mut args.command_id
    } else if let Some(args) = args.downcast_mut::<decide_step::Args>() {
        &mut args.command_id
    } else if let Some(args) = args.downcast_mut::<fork_execution::Args>() {
        &mut args.command_id
    } else if let Some(args) = args.downcast_mut::<reset_budget::Args>() {
        &mut args.command_id
    } else if let Some(args) = args.downcast_mut::<resume_execution::Args>() {
        &mut args.command_id
    } else if let Some(args) = args.downcast_mut::<revoke_lease::Args>() {
        &mut args.command_id
    } else {
        return;
    };
    command_id.get_or_insert_with(|| CommandId::mint(&mint()));
}

/// The identity of a call that has no field for it, to be sent beside its arguments: a repeat of it must not undo what
/// somebody did meanwhile.
pub(crate) fn key(args: &dyn Any) -> Option<String> {
    let undone_by_others = args.is::<hold_execution::Args>()
        || args.is::<release_execution::Args>()
        || args.downcast_ref::<cancel_execution::Args>().is_some_and(|args| args.fence.is_none())
        || args.is::<cancel_flow::Args>()
        || args.is::<LaneChange>()
        || args.is::<create_token::Args>();
    undone_by_others.then(unique)
}

/// An id costs nothing; a key would leave a record.
fn submission(args: &mut create_execution::Args, partitions: &PartitionConfig) {
    let named_by_parent = args.parent.as_ref().is_some_and(|parent| parent.key.is_some());
    if args.execution_id.is_some() || args.idempotency_key.is_some() || named_by_parent {
        return;
    }
    let mint = RISING.next(mint());
    args.execution_id = Some(match (&args.flow_id, &args.parent) {
        (Some(flow), _) => ExecutionId::for_flow(flow, &mint),
        (None, Some(parent)) => ExecutionId::in_partition(parent.execution_id.partition(), &mint),
        (None, None) => ExecutionId::solo(partitions, &mint),
    });
}

/// Says of a call that it repeats one whose answer may have been lost. Only a claim needs to be told.
pub(crate) fn repeat(args: &mut dyn Any) {
    if let Some(args) = args.downcast_mut::<claim::Args>() {
        args.retry = true;
    } else if let Some(claim) = args.downcast_mut::<exchange::Args>().and_then(|args| args.claim.as_mut()) {
        claim.retry = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ff_core::op::{self, OPERATIONS};

    /// Every operation with a field for its identity gets one; a new one has to be added above.
    #[test]
    fn every_operation_with_an_identity_gets_one() {
        let identities = ["idempotency_key", "dedup_key", "command_id", "lease_ids"];
        let has_one = |info: &&op::OperationInfo| {
            let mut generator = schemars::SchemaGenerator::default();
            let _ = (info.args_schema)(&mut generator);
            let definitions = serde_json::to_value(generator.definitions()).unwrap();
            let own = definitions.as_object().unwrap().iter().find(|(name, _)| {
                name.strip_suffix("Args").is_some_and(|name| name.to_lowercase() == info.name.replace('_', ""))
            });
            own.is_some_and(|(_, schema)| identities.iter().any(|name| schema["properties"].get(name).is_some()))
        };
        let mut names: Vec<&str> = OPERATIONS.iter().filter(has_one).map(|info| info.name).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "claim",
                "create_execution",
                "create_flow",
                "decide_step",
                "deliver_signal",
                "fork_execution",
                "repin_build",
                "replay_execution",
                "report_budget_usage",
                "report_usage",
                "reset_budget",
                "resume_execution",
                "revoke_lease",
                "signal_waitpoint",
                "suspend",
            ]
        );
    }

    #[test]
    fn what_the_caller_chose_stays() {
        let mut keyed = create_execution::Args { idempotency_key: Some("k".into()), ..Default::default() };
        identify(&mut keyed, &PartitionConfig::SINGLE);
        assert_eq!(keyed.execution_id, None);
        let mut plain = create_execution::Args::default();
        identify(&mut plain, &PartitionConfig::SINGLE);
        let first = plain.execution_id;
        assert!(first.is_some());
        identify(&mut plain, &PartitionConfig::SINGLE);
        assert_eq!(plain.execution_id, first);
    }
}
