//! FlowFabric for Rust programs.
//!
//! FlowFabric is a durable execution engine for long-running, interruptible, budget-governed work. A program submits
//! executions with a [`Client`]. One address decides where the engine is: in this process on a store (`sqlite://`,
//! `valkey://`, `postgres://`, `memory://`), or behind a server (`http://`, `https://`). Nothing else changes.
//!
//! ```
//! # async fn example() -> flowfabric::Result<()> {
//! let client = flowfabric::Client::connect("sqlite://./flowfabric.db").await?;
//! let execution = client.submit("summarize").input(&"a long text").send().await?;
//! let summary: String = execution.result().await?;
//! # Ok(())
//! # }
//! ```

mod administration;
mod bulk;
mod client;
mod connect;
mod durable;
mod error;
mod events;
mod execution;
mod flow;
mod hooks;
mod identity;
mod retry;
mod runtime;
mod schedules;
mod signal;
mod submit;
mod subscriptions;
mod tail;
mod task;
mod task_error;
pub mod testing;
mod transport;
mod typed;
mod worker;

pub use bulk::NewBulk;
pub use client::Client;
pub use connect::ClientBuilder;
pub use durable::{Acquire, ChildCall, Metered, OnChange, OnDoubt, Permit, Race, Retry, SignalWait, Step, Waitpoint};
pub use error::{Result, SdkError, UnknownRefusal};
pub use events::{Events, Happening};
pub use execution::Execution;
pub use flow::{CreatedFlow, FlowBuilder};
pub use retry::RetryPolicy;
pub use runtime::{RunningWorker, TaskContext, WorkerRuntime};
pub use schedules::NewSchedule;
pub use signal::{Signal, Signaling};
pub use submit::Submission;
pub use subscriptions::NewSubscription;
pub use tail::Tail;
pub use task::{
    CancelOutcome, ClaimedTask, CompleteOutcome, DelayOutcome, Frame, FrameWriter, Spent, SuspendOutcome,
    SuspendRequest, WaitChildrenOutcome,
};
pub use task_error::{TaskError, category};
pub use transport::StreamEvent;
#[cfg(feature = "schema")]
pub use typed::tool;
pub use typed::{Submit, Task, TaskExecution, TaskSubmission};
pub use worker::{FlowFabricWorker, Tasks, WorkerConfig};

pub use ff_macros::task;

pub use ff_core::budget::{BudgetAnswer, BudgetQuestionView, HardAction, Limits};
pub use ff_core::bulk::{BulkAction, BulkState};
pub use ff_core::event::{Breach, BreachLevel, Event, EventKind, EventType};
pub use ff_core::execution::FailOutcome;
pub use ff_core::hook::HookScheme;
pub use ff_core::lease::{ClaimGrant, ClaimKind, LeaseFence};
pub use ff_core::newer;
pub use ff_core::op;
pub use ff_core::op::append_frames::Outcome as AppendFrameOutcome;
pub use ff_core::op::get_deployment::Outcome as Deployment;
pub use ff_core::op::parts::{Content, LeaseLoss, Secret};
pub use ff_core::op::view::{
    AttemptView, DeliveryView, EventView, ExecutionSummary, ExecutionView, FlowView, GraphView, ScheduleRunView,
    ScheduleSummary, ScheduleView, SubscriptionSummary, SubscriptionView, UpstreamView,
};
pub use ff_core::op::{BulkFilter, BulkProgress, BulkRefusalView, BulkView, FrameRequest, ScheduleTemplate};
pub use ff_core::policy;
pub use ff_core::policy::FallbackTier;
pub use ff_core::policy::Policy;
pub use ff_core::schedule;
pub use ff_core::schedule::{CatchUp, Overlap, ScheduleSpec, ScheduleState};
pub use ff_core::stream::FrameBound;
pub use ff_core::subscription;
pub use ff_core::subscription::SubscriptionState;
pub use ff_core::text::Tags;
pub use ff_core::tool::{TaskSupport, ToolDefinition, ToolView};
pub use ff_core::{
    AnyOf, AttemptIndex, BlockingReason, BudgetStatus, BulkId, CancelFlowPolicy, CancelFlowResult, CapabilitySet,
    Class, Code, ConcurrencyLimit, Condition, ConditionMatcher, CountCondition, Distinct, Error, ExecutionId, FlowId,
    FrameId, FrameMode, JoinPolicy, JsonText, LaneState, LaneView, LeaseEpoch, LeaseId, OnSatisfied, PartitionConfig,
    PolicyRequest, PublicState, Quorum, QuotaStatus, ReportUsageResult, ResumeSignal, RetryRequest, Role, SignalEffect,
    SignalId, SignalOutcome, StreamFrame, StreamFrames, SuspendReason, TimeoutBehavior, WaitpointId, WorkerView,
    limits,
};
pub use ff_engine::{Engine, Options as EngineOptions, Serves};
pub use tokio_util::sync::CancellationToken;
