//! FlowFabric's domain: documents, their transitions, and the vocabulary that all other crates share.
//!
//! This crate is pure. It performs no I/O, reads no clock and draws no randomness: time, ids and random bits come in
//! as arguments. A transition is a method on a document; it checks its preconditions and either returns a typed
//! refusal and changes nothing, or changes the document.

pub mod answer_schema;
pub mod api_token;
pub mod audit;
pub mod budget;
pub mod bulk;
pub mod capability;
pub mod concurrency;
pub mod condition;
pub mod deployment;
pub mod documents;
pub mod edge;
pub mod encoding;
pub mod error;
pub mod event;
pub mod execution;
pub mod flow;
pub mod gate;
pub mod graph;
pub mod hook;
pub mod id;
pub mod idempotency;
pub mod index;
pub mod join;
pub mod journal;
pub mod key;
pub mod lane;
pub mod lease;
pub mod limits;
mod log_limit;
pub mod newer;
pub mod op;
pub mod partition;
pub mod payload;
pub mod planted;
pub mod policy;
mod policy_request;
pub mod provider;
pub mod quota;
pub mod reservation;
pub mod schedule;
pub mod session;
pub mod sharing;
pub mod signal;
pub mod signature;
pub mod slot;
pub mod state;
pub mod stream;
pub mod subscription;
pub mod summary;
pub mod suspension;
pub mod text;
pub mod token;
pub mod tool;
pub mod usage;
pub mod waitpoint;
pub mod worker;

pub use api_token::{ApiSecret, ApiToken, ApiTokenInfo, NewApiToken, Role};
pub use audit::{AuditRecord, AuditView};
pub use budget::{Budget, BudgetDefinition, BudgetRefusal, BudgetStatus};
pub use bulk::{BulkAction, BulkState};
pub use capability::CapabilitySet;
pub use concurrency::{ConcurrencyKey, KeyRequest};
pub use condition::{Condition, ConditionMatcher, CountCondition, Distinct, Progress, SignalFact, TIMEOUT_SIGNAL};
pub use edge::{Edge, EdgeRole, EdgeState, NewEdge};
pub use encoding::{Blob, Document, JsonText};
pub use error::{Class, Code, Error, Result};
pub use flow::{
    CancelFailure, CancelFlowPolicy, CancelFlowResult, Flow, FlowCancellation, FlowEnd, FlowState, MemberCounts,
    NewFlow,
};
pub use gate::{Defined, Parked};
pub use graph::CycleSearch;
pub use hook::{Hook, HookScheme};
pub use id::*;
pub use index::Indexed;
pub use join::{AnyOf, ChildWait, Join, JoinDecision, JoinPolicy, JoinState, OnSatisfied, Quorum};
pub use key::{Entry, IndexName, Key};
pub use lane::{Lane, LaneState, LaneView};
pub use log_limit::{LOG_INTERVAL_MS, LogLimit};
pub use partition::{Family, Partition, PartitionConfig};
pub use policy_request::{PolicyRequest, RetryRequest, RoutingRequest, StreamRequest};
pub use quota::{QuotaDecision, QuotaDefinition, QuotaPolicy, QuotaRequest, QuotaStatus};
pub use schedule::{CatchUp, Overlap, Schedule, ScheduleSpec};
pub use sharing::{ConcurrencyLimit, KeyHolder, Sharing, SingleKey, SingleUse};
pub use signal::{AcceptedSignal, NewSignal, SignalEffect, SignalOutcome, SignalRecord};
pub use slot::{Slot, SlotFate};
pub use state::*;
pub use stream::{Frame, FrameBound, FrameId, FrameMode, StreamFrame, StreamFrames};
pub use subscription::{Subscription, SubscriptionCursor, SubscriptionState};
pub use summary::{Summary, merge_patch};
pub use suspension::{Ask, Delivery, NewSuspension, ResumeSignal, SuspendReason, Suspension, TimeoutBehavior};
pub use token::{Installation, RotateWaitpointSecretResult, Secret, TokenSubject, WaitpointSecrets, WaitpointToken};
pub use usage::ReportUsageResult;
pub use waitpoint::{CloseReason, NewWaitpoint, PendingWaitpointInfo, Waitpoint, WaitpointState};
pub use worker::{Registration, Server, Worker, WorkerView};
