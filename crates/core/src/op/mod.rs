//! The public operations as values. Each stands in the file of its noun with its arguments, its answer, its method and
//! its path; the one list at the end of this file is what the server, the client and the metrics are generated from.
//!
//! `declaration` says what an operation declares: adding one touches its noun's file, its line in the list, the handler
//! in the engine, and tests.
//!
//! An operation's path parameters are fields of its arguments. Code that speaks HTTP merges path, query and body into
//! one JSON object; it must merge texts, because a JSON value passes through as the very text it came in.

pub mod parts;
pub mod view;
pub mod wire;

mod approval;
mod budget;
mod bulk;
mod continuation;
mod decision;
mod declaration;
mod deployment;
mod ending;
mod event;
mod execution;
mod flow;
mod fork;
mod hook;
mod journal;
mod lane;
mod lease;
mod provider;
mod quota;
mod schedule;
mod spend;
mod stream;
mod subscription;
mod test_clock;
mod ticket;
mod token;
mod tool;
mod waitpoint;
mod worker;

pub use approval::*;
pub use budget::*;
pub use bulk::*;
pub use continuation::*;
pub use decision::*;
pub(crate) use declaration::operation;
pub use declaration::{
    Created, Described, Method, Minting, Operation, OperationInfo, Reply, ReplyKind, path_parameters,
};
pub use deployment::*;
pub use ending::*;
pub use event::*;
pub use execution::*;
pub use flow::*;
pub use fork::*;
pub use hook::*;
pub use journal::*;
pub use lane::*;
pub use lease::*;
pub use provider::*;
pub use quota::*;
pub use schedule::*;
pub(crate) use schedule::{check_flow_template, check_template};
pub use spend::*;
pub use stream::*;
pub use subscription::*;
pub use test_clock::*;
pub use ticket::*;
pub use token::*;
pub use tool::*;
pub use waitpoint::*;
pub use worker::*;

/// Hands the whole list of operations to a macro as `verb Type;` lines. The tokens before the comma are passed on in
/// front of the list, so that one callback can serve several places.
#[macro_export]
macro_rules! operations {
    ($($callback:ident)::+ $(, $($before:tt)*)?) => {
        $($callback)::+! {
            $($($before)*)?
            create_execution CreateExecution;
            create_executions CreateExecutions;
            get_execution GetExecution;
            get_state GetState;
            get_input GetInput;
            get_result GetResult;
            list_executions ListExecutions;
            get_counts GetCounts;
            list_namespaces ListNamespaces;
            wait_execution WaitExecution;
            explain_execution ExplainExecution;
            list_attempts ListAttempts;
            list_execution_events ListExecutionEvents;
            list_upstreams ListUpstreams;
            change_priority ChangePriority;
            set_tags SetTags;
            hold_execution HoldExecution;
            release_execution ReleaseExecution;
            cancel_execution CancelExecution;
            replay_execution ReplayExecution;
            remove_execution RemoveExecution;
            repin_build RepinBuild;
            revoke_lease RevokeLease;
            resume_execution ResumeExecution;
            complete Complete;
            fail Fail;
            delay Delay;
            wait_children WaitChildren;
            progress Progress;
            append_frames AppendFrames;
            record_steps RecordSteps;
            list_steps ListSteps;
            park Park;
            decide_step DecideStep;
            fork_execution ForkExecution;
            list_forks ListForks;
            continue_as_new ContinueAsNew;
            report_usage ReportUsage;
            reserve_spend ReserveSpend;
            settle_spend SettleSpend;
            release_spend ReleaseSpend;
            acquire_provider AcquireProvider;
            settle_provider SettleProvider;
            renew_leases RenewLeases;
            suspend Suspend;
            create_pending_waitpoint CreatePendingWaitpoint;
            deliver_signal DeliverSignal;
            list_pending_waitpoints ListPendingWaitpoints;
            get_waitpoint_token GetWaitpointToken;
            signal_waitpoint SignalWaitpoint;
            read_question ReadQuestion;
            list_approvals ListApprovals;
            close_waitpoint CloseWaitpoint;
            list_resume_signals ListResumeSignals;
            read_stream ReadStream;
            tail_stream TailStream;
            read_summary ReadSummary;
            register_worker RegisterWorker;
            heartbeat_worker HeartbeatWorker;
            deregister_worker DeregisterWorker;
            list_workers ListWorkers;
            list_tools ListTools;
            delete_tool DeleteTool;
            claim Claim;
            exchange Exchange;
            claim_from_grant ClaimFromGrant;
            claim_from_reclaim_grant ClaimFromReclaimGrant;
            return_grant ReturnGrant;
            create_flow CreateFlow;
            get_flow GetFlow;
            list_flows ListFlows;
            get_flow_graph GetFlowGraph;
            add_execution_to_flow AddExecutionToFlow;
            stage_dependency_edge StageDependencyEdge;
            apply_dependency_to_child ApplyDependencyToChild;
            cancel_flow CancelFlow;
            remove_flow RemoveFlow;
            close_flow CloseFlow;
            create_budget CreateBudget;
            get_budget GetBudget;
            get_budget_tree GetBudgetTree;
            list_budgets ListBudgets;
            set_budget_limits SetBudgetLimits;
            update_budget UpdateBudget;
            delete_budget DeleteBudget;
            report_budget_usage ReportBudgetUsage;
            reset_budget ResetBudget;
            list_reservations ListReservations;
            decide_budget DecideBudget;
            create_quota CreateQuota;
            get_quota GetQuota;
            list_quotas ListQuotas;
            update_quota UpdateQuota;
            delete_quota DeleteQuota;
            create_provider CreateProvider;
            get_provider GetProvider;
            list_providers ListProviders;
            update_provider UpdateProvider;
            delete_provider DeleteProvider;
            throttle_provider ThrottleProvider;
            create_schedule CreateSchedule;
            get_schedule GetSchedule;
            list_schedules ListSchedules;
            update_schedule UpdateSchedule;
            pause_schedule PauseSchedule;
            resume_schedule ResumeSchedule;
            trigger_schedule TriggerSchedule;
            backfill_schedule BackfillSchedule;
            delete_schedule DeleteSchedule;
            create_bulk CreateBulk;
            list_bulk ListBulk;
            get_bulk GetBulk;
            cancel_bulk CancelBulk;
            create_subscription CreateSubscription;
            get_subscription GetSubscription;
            list_subscriptions ListSubscriptions;
            pause_subscription PauseSubscription;
            resume_subscription ResumeSubscription;
            test_subscription TestSubscription;
            delete_subscription DeleteSubscription;
            create_hook CreateHook;
            get_hook GetHook;
            list_hooks ListHooks;
            delete_hook DeleteHook;
            list_lanes ListLanes;
            configure_lane ConfigureLane;
            pause_lane PauseLane;
            resume_lane ResumeLane;
            drain_lane DrainLane;
            disable_lane DisableLane;
            delete_lane DeleteLane;
            create_stream_ticket CreateStreamTicket;
            list_events ListEvents;
            get_deployment GetDeployment;
            rotate_waitpoint_secret RotateWaitpointSecret;
            list_audit ListAudit;
            create_token CreateToken;
            list_tokens ListTokens;
            revoke_token RevokeToken;
            get_test_clock GetTestClock;
            advance_test_clock AdvanceTestClock;
            wait_until_idle WaitUntilIdle;
        }
    };
}

macro_rules! table {
    ($($module:ident $name:ident;)*) => {
        $(
            /// The arguments and the answer of one operation.
            pub mod $module {
                /// The arguments of ``.
                pub type Args = <super::$name as super::Operation>::Args;
                /// The answer of the operation.
                pub type Outcome = <super::$name as super::Operation>::Outcome;
            }
        )*

        /// Every operation, in the order of the list.
        pub const OPERATIONS: &[OperationInfo] = &[ $( OperationInfo::of::<$name>(), )* ];
    };
}
crate::operations!(table);

#[cfg(test)]
mod newer_tests;
#[cfg(test)]
mod tests;
