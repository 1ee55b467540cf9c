//! The public operations as values. Each stands in the file of its noun with its arguments, its answer, its method and
//! its path; the one list at the end of this file is what the server, the client and the metrics are generated from.
//!
//! An operation's path parameters are fields of its arguments. Whoever speaks HTTP merges path, query and body into
//! one JSON object; it must merge texts, because a JSON value passes through as the very text it came in.

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api_token::Role;
use crate::error::{Code, Result};
use crate::limits;

pub mod parts;
pub mod view;
pub mod wire;

mod approval;
mod budget;
mod continuation;
mod decision;
mod deployment;
mod ending;
mod event;
mod execution;
mod flow;
mod fork;
mod journal;
mod lane;
mod lease;
mod quota;
mod stream;
mod test_clock;
mod ticket;
mod token;
mod waitpoint;
mod worker;

pub use approval::*;
pub use budget::*;
pub use continuation::*;
pub use decision::*;
pub use deployment::*;
pub use ending::*;
pub use event::*;
pub use execution::*;
pub use flow::*;
pub use fork::*;
pub use journal::*;
pub use lane::*;
pub use lease::*;
pub use quota::*;
pub use stream::*;
pub use test_clock::*;
pub use ticket::*;
pub use token::*;
pub use waitpoint::*;
pub use worker::*;

/// A public operation.
pub trait Operation: Send + Sync + 'static {
    /// The verb: the name of its span, its metric and its audit records.
    const NAME: &'static str;
    /// What it does, in a sentence or two.
    const SUMMARY: &'static str;
    /// The HTTP method.
    const METHOD: Method;
    /// The HTTP path, with the names of arguments in braces.
    const PATH: &'static str;
    /// The least role that may call it; see [`Operation::role`].
    const ROLE: Role;
    /// It leaves an audit record; see [`Operation::is_audited`].
    const ADMINISTRATIVE: bool = false;
    /// Some of its calls leave an audit record.
    const AUDITED: bool = Self::ADMINISTRATIVE;
    /// Callers of every role may call it, also those that may not read.
    const ANY_ROLE: bool = false;
    /// A submitter may call it for what it submitted itself.
    const OWN: bool = false;
    /// How arguments that cannot be read are refused.
    const UNREADABLE: Code = Code::Invalid;
    /// The largest HTTP body.
    const BODY_MAX_BYTES: usize = limits::BODY_MAX_BYTES;

    /// What the call says.
    type Args: Serialize + DeserializeOwned + JsonSchema + Clone + std::fmt::Debug + Send + Sync + 'static;
    /// The answer.
    type Outcome: Serialize + DeserializeOwned + JsonSchema + Clone + std::fmt::Debug + Send + Sync + 'static;

    /// The call as an HTTP request.
    fn write(args: &Self::Args) -> Result<wire::WireRequest>;

    /// Reads the JSON of an answer.
    fn read(answer: &[u8]) -> serde_json::Result<Self::Outcome>;

    /// Refuses arguments that are wrong whatever the state of the system.
    fn validate(_args: &Self::Args) -> Result<()> {
        Ok(())
    }

    /// Whether this very call leaves an audit record.
    fn is_audited(_args: &Self::Args) -> bool {
        Self::ADMINISTRATIVE
    }

    /// The least role for these very arguments: some prove a right of their own, such as a lease.
    fn role(_args: &Self::Args) -> Role {
        Self::ROLE
    }
}

/// An HTTP method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    /// Reads.
    Get,
    /// Acts.
    Post,
    /// Sets.
    Put,
    /// Removes.
    Delete,
}

impl Method {
    /// Its name in a request.
    pub const fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
        }
    }
}

/// What is known of an operation without its types.
#[derive(Debug, Clone, Copy)]
pub struct OperationInfo {
    /// See [`Operation::NAME`].
    pub name: &'static str,
    /// See [`Operation::SUMMARY`].
    pub summary: &'static str,
    /// See [`Operation::METHOD`].
    pub method: Method,
    /// See [`Operation::PATH`].
    pub path: &'static str,
    /// See [`Operation::ROLE`].
    pub role: Role,
    /// See [`Operation::ADMINISTRATIVE`].
    pub administrative: bool,
    /// See [`Operation::AUDITED`].
    pub audited: bool,
    /// See [`Operation::ANY_ROLE`].
    pub any_role: bool,
    /// See [`Operation::OWN`].
    pub own: bool,
    /// See [`Operation::BODY_MAX_BYTES`].
    pub body_max_bytes: usize,
    /// The JSON schema of the arguments.
    pub args_schema: fn(&mut schemars::SchemaGenerator) -> schemars::Schema,
    /// The JSON schema of the answer.
    pub outcome_schema: fn(&mut schemars::SchemaGenerator) -> schemars::Schema,
}

impl OperationInfo {
    /// What is known of this operation.
    pub const fn of<O: Operation>() -> Self {
        Self {
            name: O::NAME,
            summary: O::SUMMARY,
            method: O::METHOD,
            path: O::PATH,
            role: O::ROLE,
            administrative: O::ADMINISTRATIVE,
            audited: O::AUDITED,
            any_role: O::ANY_ROLE,
            own: O::OWN,
            body_max_bytes: O::BODY_MAX_BYTES,
            args_schema: schemars::SchemaGenerator::subschema_for::<O::Args>,
            outcome_schema: schemars::SchemaGenerator::subschema_for::<O::Outcome>,
        }
    }

    /// The names in braces in the path.
    pub fn path_parameters(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }
}

/// Declares an operation beside its arguments and its answer: `Type(Args) -> Outcome, "verb" Method "path" Role`, then
/// what is special: `administrative`, `filtered` (unreadable arguments are `invalid_filter`), `validated` (the arguments
/// have a method `validate`), `with_roles` (they have a method `role`), `audited` (they have a method `is_audited`), `any_role`,
/// `own`, `body(bytes)`.
macro_rules! operation {
    ($(#[doc = $doc:literal])* $name:ident($args:ident) -> $outcome:ident, $verb:literal $method:ident $path:literal $role:ident $($special:ident $(($value:expr))?)*) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name;

        impl $crate::op::Operation for $name {
            const NAME: &'static str = $verb;
            const SUMMARY: &'static str = concat!($($doc),*).trim_ascii();
            const METHOD: $crate::op::Method = $crate::op::Method::$method;
            const PATH: &'static str = $path;
            const ROLE: $crate::api_token::Role = $crate::api_token::Role::$role;
            $( $crate::op::operation!(@ $special $(($value))?); )*
            type Args = $args;
            type Outcome = $outcome;

            // Here and not as defaults of the trait, so that they are compiled once and not by every caller.
            fn write(args: &$args) -> $crate::error::Result<$crate::op::wire::WireRequest> {
                $crate::op::wire::write(&$crate::op::OperationInfo::of::<Self>(), args)
            }

            fn read(answer: &[u8]) -> ::serde_json::Result<$outcome> {
                ::serde_json::from_slice(answer)
            }
        }
    };
    (@ any_role) => { const ANY_ROLE: bool = true; };
    (@ own) => { const OWN: bool = true; };
    (@ audited) => {
        const AUDITED: bool = true;
        fn is_audited(args: &Self::Args) -> bool {
            args.is_audited()
        }
    };
    (@ administrative) => { const ADMINISTRATIVE: bool = true; };
    (@ filtered) => { const UNREADABLE: $crate::error::Code = $crate::error::Code::InvalidFilter; };
    (@ validated) => {
        fn validate(args: &Self::Args) -> $crate::error::Result<()> {
            args.validate()
        }
    };
    (@ with_roles) => {
        fn role(args: &Self::Args) -> $crate::api_token::Role {
            args.role()
        }
    };
    (@ body ($value:expr)) => { const BODY_MAX_BYTES: usize = $value; };
}
pub(crate) use operation;

/// Hands the whole list of operations to a macro as `verb Type;` lines. What comes before the comma is passed on in
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
            renew_leases RenewLeases;
            suspend Suspend;
            create_pending_waitpoint CreatePendingWaitpoint;
            deliver_signal DeliverSignal;
            list_pending_waitpoints ListPendingWaitpoints;
            get_waitpoint_token GetWaitpointToken;
            signal_waitpoint SignalWaitpoint;
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
            create_budget CreateBudget;
            get_budget GetBudget;
            list_budgets ListBudgets;
            set_budget_limits SetBudgetLimits;
            report_budget_usage ReportBudgetUsage;
            reset_budget ResetBudget;
            create_quota CreateQuota;
            get_quota GetQuota;
            list_quotas ListQuotas;
            list_lanes ListLanes;
            configure_lane ConfigureLane;
            pause_lane PauseLane;
            resume_lane ResumeLane;
            drain_lane DrainLane;
            disable_lane DisableLane;
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
                /// What the call says.
                pub type Args = <super::$name as super::Operation>::Args;
                /// What the call answers.
                pub type Outcome = <super::$name as super::Operation>::Outcome;
            }
        )*

        /// Every operation, in the order of the list.
        pub const OPERATIONS: &[OperationInfo] = &[ $( OperationInfo::of::<$name>(), )* ];
    };
}
crate::operations!(table);

#[cfg(test)]
mod tests;
