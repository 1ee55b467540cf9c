//! THE error table: every code the system can answer with, its class, its HTTP status, whether repeating the same
//! call can help, and one sentence of advice. Nothing outside this file invents a code.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::encoding::is_answer;
use crate::newer::Word;

/// The class of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// The thing named does not exist (or not for this caller).
    NotFound,
    /// The request itself is wrong.
    Invalid,
    /// The request is fine, the present state forbids it.
    Conflict,
    /// The caller's lease or stream is no longer its own.
    Stale,
    /// A limit was reached.
    Limit,
    /// No or no valid credentials.
    Unauthenticated,
    /// Valid credentials that do not allow this.
    Forbidden,
    /// The system cannot answer now.
    Unavailable,
    /// A defect of ours.
    Internal,
}

impl Class {
    /// The exit code of the command line for this class.
    pub const fn exit_code(self) -> u8 {
        match self {
            Class::Invalid => 2,
            Class::NotFound => 3,
            Class::Conflict => 4,
            Class::Stale => 5,
            Class::Limit => 6,
            Class::Unauthenticated => 7,
            Class::Forbidden => 8,
            Class::Unavailable => 9,
            Class::Internal => 1,
        }
    }
}

macro_rules! error_table {
    ($( $variant:ident $code:literal $class:ident $status:literal $retryable:literal $advice:literal; )*) => {
        /// An error code; see the table in this module's source.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $( #[doc = $advice] $variant, )*
            /// A code of a newer server, in an answer that holds refusals. This version knows nothing about it.
            Unknown(Word),
        }

        impl Code {
            /// Every known code, in the order of the table.
            pub const ALL: &'static [Code] = &[ $( Code::$variant, )* ];

            /// The public name.
            pub fn as_str(self) -> &'static str {
                match self { $( Code::$variant => $code, )* Code::Unknown(word) => word.as_str() }
            }

            /// The class.
            pub const fn class(self) -> Class {
                match self { $( Code::$variant => Class::$class, )* Code::Unknown(_) => Class::Internal }
            }

            /// The HTTP status.
            pub const fn http_status(self) -> u16 {
                match self { $( Code::$variant => $status, )* Code::Unknown(_) => 500 }
            }

            /// Whether the same call may succeed later without any change by the caller.
            pub const fn retryable(self) -> bool {
                match self { $( Code::$variant => $retryable, )* Code::Unknown(_) => false }
            }

            /// Advice to the caller, in one sentence.
            pub const fn advice(self) -> &'static str {
                match self { $( Code::$variant => $advice, )* Code::Unknown(_) => "The server is newer than this program and has the code in its table." }
            }

            /// The code with this public name.
            pub fn parse(name: &str) -> Option<Code> {
                match name { $( $code => Some(Code::$variant), )* _ => None }
            }
        }
    };
}

error_table! {
    // not found
    ExecutionNotFound "execution_not_found" NotFound 404 false "Check the execution id and the namespace; terminal executions are removed after their retention.";
    FlowNotFound "flow_not_found" NotFound 404 false "Check the flow id and the namespace.";
    BudgetNotFound "budget_not_found" NotFound 404 false "Create the budget first, in the same namespace.";
    ReservationNotFound "reservation_not_found" NotFound 404 false "Reserve before settling, and name the same key under the same lease.";
    QuotaNotFound "quota_not_found" NotFound 404 false "Create the quota policy first, in the same namespace.";
    ProviderNotFound "provider_not_found" NotFound 404 false "Create the provider first, in the namespace of the execution.";
    BookingNotFound "booking_not_found" NotFound 404 false "Acquire the provider before settling, and name the same key under the same lease.";
    LaneNotFound "lane_not_found" NotFound 404 false "There is no such lane. Where a deployment has a closed list of lanes, use one of them or ask an operator to add this one.";
    ScheduleNotFound "schedule_not_found" NotFound 404 false "Check the schedule's name and namespace.";
    BulkNotFound "bulk_not_found" NotFound 404 false "Check the id of the bulk job; one that has ended is forgotten after the retention.";
    ToolNotFound "tool_not_found" NotFound 404 false "Check the tool's name and namespace; a worker defines it when it registers.";
    SubscriptionNotFound "subscription_not_found" NotFound 404 false "Check the subscription's name and namespace.";
    HookNotFound "hook_not_found" NotFound 404 false "Check the hook's name and namespace.";
    WaitpointNotFound "waitpoint_not_found" NotFound 404 false "Check the waitpoint id; closed waitpoints are removed with their execution.";
    WorkerNotFound "worker_not_found" NotFound 404 true "Register the worker again: its registration ran out or was removed.";
    AttemptNotFound "attempt_not_found" NotFound 404 false "The execution has no attempt with this number.";
    EdgeNotFound "edge_not_found" NotFound 404 false "Stage the dependency edge before applying it.";
    TokenNotFound "token_not_found" NotFound 404 false "Check the token's name; revoked tokens are gone.";
    NoInput "no_input" NotFound 404 false "The execution was submitted without an input.";
    ResultNotReady "result_not_ready" NotFound 404 true "The execution is not finished; wait for it.";
    NoResult "no_result" NotFound 404 false "The execution ended without a result; look at its last failure.";
    ResultTrimmed "result_trimmed" NotFound 404 false "The result was removed; raise the retention if you need results longer.";
    NoTestClock "no_test_clock" NotFound 404 false "Only a server whose clock a test moves has this: start one with `ff dev --memory --test-clock`.";
    RouteNotFound "route_not_found" NotFound 404 false "See /openapi.json for the routes.";
    // invalid
    Invalid "invalid" Invalid 400 false "Correct the field named in details.field.";
    InvalidFilter "invalid_filter" Invalid 400 false "Use one of the filters and values named in the details.";
    InvalidCapabilities "invalid_capabilities" Invalid 400 false "Capabilities are non-empty tokens without commas, white space or control characters, at most 256 of them and 4096 bytes together.";
    NoLanes "no_lanes" Invalid 400 false "Name at least one lane.";
    SelfReferencingEdge "self_referencing_edge" Invalid 400 false "An execution cannot depend on itself.";
    PartitionMismatch "partition_mismatch" Invalid 400 false "Mint the execution's id for its flow (ExecutionId::for_flow), so that both live in one partition.";
    UnsupportedMediaType "unsupported_media_type" Invalid 415 false "Send JSON with Content-Type: application/json.";
    MethodNotAllowed "method_not_allowed" Invalid 405 false "See /openapi.json for the methods of this route.";
    // conflict
    IdempotencyConflict "idempotency_conflict" Conflict 409 false "This key or id was used for a different request; use a new one.";
    DefinitionConflict "definition_conflict" Conflict 409 false "The name is taken by a different definition; choose another name or change the existing one.";
    ReservationEnded "reservation_ended" Conflict 409 false "This key was settled or released before; reserve under a new one.";
    ExecutionNotEligible "execution_not_eligible" Conflict 409 true "Something holds the execution back; explain says what.";
    ExecutionNotLeaseable "execution_not_leaseable" Conflict 409 false "The execution is leased, suspended or finished.";
    GrantAlreadyExists "grant_already_exists" Conflict 409 true "Another grant is outstanding; it lapses by itself.";
    InvalidClaimGrant "invalid_claim_grant" Conflict 409 false "The grant is used, unknown or another worker's; ask for a new one.";
    ClaimGrantExpired "claim_grant_expired" Conflict 409 false "The grant has lapsed; ask for a new one.";
    NotAResumedExecution "not_a_resumed_execution" Conflict 409 false "The execution has no interrupted or lost attempt; use claim_from_grant.";
    CapabilityMismatch "capability_mismatch" Conflict 409 false "The worker lacks the capabilities named in the details.";
    ExecutionNotTerminal "execution_not_terminal" Conflict 409 false "Only finished executions can be replayed or removed; cancel it first.";
    FlowNotTerminal "flow_not_terminal" Conflict 409 false "Only a flow that has ended can be removed; cancel it first.";
    InUse "in_use" Conflict 409 false "Something still uses it, as the details say; end that first, or repeat the call with force where it takes one.";
    ExecutionNotSuspended "execution_not_suspended" Conflict 409 false "The execution is not suspended now.";
    ExecutionTerminal "execution_terminal" Conflict 409 false "The execution is finished; replay it to run it again.";
    AlreadySuspended "already_suspended" Conflict 409 false "The execution is suspended already.";
    OperatorResumeNotAllowed "operator_resume_not_allowed" Conflict 409 false "The suspension does not allow an operator to resume it; send the signal it waits for.";
    WaitpointClosed "waitpoint_closed" Conflict 409 false "The waitpoint no longer takes signals.";
    WaitpointNotPending "waitpoint_not_pending" Conflict 409 false "The waitpoint is in use or closed; create a new one.";
    TargetNotSignalable "target_not_signalable" Conflict 409 false "The execution neither waits for signals nor has a waitpoint for them.";
    FlowAlreadyTerminal "flow_already_terminal" Conflict 409 false "The flow has ended; create a new one.";
    StaleGraphRevision "stale_graph_revision" Conflict 409 false "The graph has changed; read it again and repeat with its revision.";
    StaleRevision "stale_revision" Conflict 409 false "Another caller changed it meanwhile; read it again and repeat with its revision.";
    CycleDetected "cycle_detected" Conflict 409 false "The edge would close a cycle; the details name its path.";
    DependencyAlreadyExists "dependency_already_exists" Conflict 409 false "The two executions have an edge with different content.";
    ExecutionNotInFlow "execution_not_in_flow" Conflict 409 false "Add the execution to the flow first.";
    ExecutionInOtherFlow "execution_in_other_flow" Conflict 409 false "An execution can be in one flow only.";
    JoinPolicyConflict "join_policy_conflict" Conflict 409 false "The child has edges under another join policy, which is fixed by the first of them.";
    DependencyNotApplicable "dependency_not_applicable" Conflict 409 false "The child has started or ended; only a child that waits can get a new dependency.";
    DuplicateWorkerInstance "duplicate_worker_instance" Conflict 409 true "Another live process uses this instance id; stop it, wait for its registration to run out, or choose another id.";
    RotationConflict "rotation_conflict" Conflict 409 false "The kid is known with another secret; choose a new kid.";
    LaneDraining "lane_draining" Conflict 409 true "The lane finishes what it has and takes no submissions; resume it or use another one.";
    LaneDisabled "lane_disabled" Conflict 409 true "The lane takes no submissions now; resume it or use another one.";
    PartitionCountsDiffer "partition_counts_differ" Conflict 409 false "Partition counts are fixed at the first start; remove them from the configuration to adopt the stored ones.";
    StoreNewer "store_newer" Conflict 409 false "The store was written by a newer version; run that version or restore a backup.";
    QuestionNotOpen "question_not_open" Conflict 409 false "The execution does not ask about this step, or the budget asks nothing now; explain says what it waits for.";
    JournalConflict "journal_conflict" Conflict 409 false "The journal is elsewhere than the caller thinks; go on with the number in details.next, or read it again.";
    // stale
    StaleLease "stale_lease" Stale 409 false "Another lease holds the execution; stop working on it.";
    LeaseExpired "lease_expired" Stale 409 false "The lease ran out before this call; stop working on it.";
    LeaseRevoked "lease_revoked" Stale 409 false "The lease was taken away or the execution cancelled; stop working on it.";
    ExecutionNotActive "execution_not_active" Stale 409 false "The execution is not running under this lease; the details say what became of it.";
    StreamClosed "stream_closed" Stale 409 false "The attempt's stream has ended and takes no more frames.";
    // limit
    PayloadTooLarge "payload_too_large" Limit 413 false "Send less, or store the data elsewhere and send a reference.";
    UriTooLong "uri_too_long" Limit 414 false "Send less in the path and the query.";
    HeadersTooLarge "headers_too_large" Limit 431 false "Send fewer or shorter headers.";
    SignalLimitExceeded "signal_limit_exceeded" Limit 429 false "The waitpoint or execution has taken all the signals it may.";
    BudgetTreeFull "budget_tree_full" Limit 429 false "A root takes 100,000 budgets under it; use a further root.";
    FlowFull "flow_full" Limit 429 false "A flow takes 10,000 members; use a further flow.";
    WorkerAtCapacity "worker_at_capacity" Limit 429 true "The worker runs as many tasks as it may; finish one first.";
    ConcurrencyLimitExceeded "concurrency_limit_exceeded" Limit 429 true "Too many calls of this kind at once; the details name the pool.";
    MaxReplaysExhausted "max_replays_exhausted" Limit 429 false "The execution was replayed as often as its policy allows; submit it anew.";
    WaitpointLimitExceeded "waitpoint_limit_exceeded" Limit 429 false "The execution has as many open waitpoints as it may; close one first.";
    JournalFull "journal_full" Limit 429 false "The journal has as many entries or bytes as it may; continue as new, or do more in one step.";
    CommitTooLarge "commit_too_large" Limit 413 false "The request changes too much at once; split it.";
    // who
    Unauthenticated "unauthenticated" Unauthenticated 401 false "Send a valid API token as Authorization: Bearer.";
    InvalidToken "invalid_token" Unauthenticated 401 false "The waitpoint token does not belong to this waitpoint.";
    InvalidSignature "invalid_signature" Unauthenticated 401 false "Check the hook's name, its namespace and its secret, and the clock of the sender.";
    TokenExpired "token_expired" Unauthenticated 401 false "The token's secret was rotated out; fetch the waitpoint's token again.";
    Forbidden "forbidden" Forbidden 403 false "The token's role does not allow this.";
    HostNotAllowed "host_not_allowed" Forbidden 403 false "Add the host name to the allowed hosts.";
    // unavailable
    Unavailable "unavailable" Unavailable 503 true "The store cannot be reached; the call may be repeated with the same identity.";
    Contention "contention" Unavailable 503 true "Too many writers fought over the same document; repeat the call.";
    StoreFull "store_full" Unavailable 503 true "The store has no room left; free disk or memory, then repeat the call.";
    StoreReadOnly "store_read_only" Unavailable 503 true "The store refuses writes; check file permissions, or that this is the primary.";
    StoreLocked "store_locked" Unavailable 503 false "Another process has this database open; stop it or use another file.";
    StoreVersionTooLow "store_version_too_low" Unavailable 503 false "Upgrade the store to the version named in the details.";
    LibraryVersionMismatch "library_version_mismatch" Unavailable 503 false "The store carries a newer function library; upgrade this process.";
    ShuttingDown "shutting_down" Unavailable 503 true "The server is stopping; repeat the call at another one.";
    // ours
    CorruptDocument "corrupt_document" Internal 500 false "A stored document cannot be read; run the doctor and restore it from a backup.";
    Internal "internal" Internal 500 false "This is a defect; report it with the log lines around it.";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = <Cow<'de, str>>::deserialize(deserializer)?;
        match Code::parse(&name) {
            Some(known) => Ok(known),
            None if is_answer() => Ok(Code::Unknown(Word::new(&name))),
            None => Err(serde::de::Error::custom(format!("unknown error code {name:?}"))),
        }
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Code {
    fn schema_name() -> Cow<'static, str> {
        "Code".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let names: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        schemars::json_schema!({ "type": "string", "enum": names })
    }
}

/// A refusal: a code, a sentence about this very case, and details that programs read.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Error {
    /// The code, from the table.
    pub code: Code,
    /// The particular circumstances, for people.
    pub detail: String,
    /// The circumstances for programs; `field` on invalid input.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub details: Map<String, Value>,
    /// When repeating makes sense.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<i64>,
}

impl Error {
    /// A refusal with its sentence.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), details: Map::new(), retry_after_ms: None }
    }

    /// A refusal that the code says everything about.
    pub fn of(code: Code) -> Self {
        Self::new(code, code.advice())
    }

    /// Invalid input in a field.
    pub fn invalid(field: &str, detail: impl fmt::Display) -> Self {
        Self::new(Code::Invalid, format!("{field} {detail}")).with("field", field)
    }

    /// Too many bytes in a field.
    pub fn too_large(field: &str, size: usize, max: usize) -> Self {
        Self::new(Code::PayloadTooLarge, format!("{field} has {size} bytes, the limit is {max}"))
            .with("field", field)
            .with("size", size)
            .with("max", max)
    }

    /// Adds a detail.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Serialize) -> Self {
        let value = serde_json::to_value(value).unwrap_or(Value::Null);
        self.details.insert(name.to_owned(), value);
        self
    }

    /// A refusal of a value that stands inside of another one: its field is named from there.
    #[must_use]
    pub fn inside(mut self, place: &str) -> Self {
        let Some(field) = self.details.get("field").and_then(Value::as_str).map(str::to_owned) else { return self };
        let whole = format!("{place}.{field}");
        if let Some(rest) = self.detail.strip_prefix(&field).filter(|rest| rest.starts_with(' ')) {
            self.detail = format!("{whole}{rest}");
        }
        self.with("field", whole)
    }

    /// Says when to try again.
    #[must_use]
    pub fn retry_after(mut self, retry_after_ms: i64) -> Self {
        self.retry_after_ms = Some(retry_after_ms);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)?;
        if !self.details.is_empty() {
            write!(f, " {}", Value::Object(self.details.clone()))?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// The result of everything that can be refused.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_consistent() {
        let mut names = std::collections::BTreeSet::new();
        for code in Code::ALL {
            assert!(names.insert(code.as_str()), "{code} stands twice");
            assert_eq!(Code::parse(code.as_str()), Some(*code));
            assert!(code.advice().ends_with('.'), "{code} has no sentence of advice");
            let expected: &[u16] = match code.class() {
                Class::NotFound => &[404],
                Class::Invalid => &[400, 405, 415],
                Class::Conflict | Class::Stale => &[409],
                Class::Limit => &[413, 414, 429, 431],
                Class::Unauthenticated => &[401],
                Class::Forbidden => &[403],
                Class::Unavailable => &[503],
                Class::Internal => &[500],
            };
            assert!(expected.contains(&code.http_status()), "{code} has status {}", code.http_status());
        }
    }

    #[test]
    fn an_error_survives_the_wire() {
        let error = Error::invalid("lane", "must not be empty").retry_after(5);
        let text = serde_json::to_string(&error).unwrap();
        assert_eq!(serde_json::from_str::<Error>(&text).unwrap(), error);
    }
}
