//! The six dimensions of an execution's state, which vectors of them are legal, and what people see of them.

use crate::error::{Code, Error, Result};

/// Declares an enum of the public vocabulary: its name in JSON, a small number in the store. After the name may stand
/// other names that are read and never written: `Variant "name" | "other"`. A word that this version does not know is refused
/// in a request and kept in an answer, where a newer server may have written it. An enum that stands in no answer is `closed`.
#[macro_export]
macro_rules! vocabulary {
    ($(#[$meta:meta])* pub enum $name:ident { $( $(#[$vmeta:meta])* $variant:ident $text:literal $(| $alias:literal)* ),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $( $(#[$vmeta])* $variant, )+
            /// A word of a newer server, in an answer. It is never stored.
            Unknown($crate::newer::Word),
        }
        $crate::vocabulary!(@impls $name { $( $variant $text $(| $alias)* ),+ } [Unknown]);
    };
    ($(#[$meta:meta])* pub closed enum $name:ident { $( $(#[$vmeta:meta])* $variant:ident $text:literal $(| $alias:literal)* ),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $( $(#[$vmeta])* $variant, )+ }
        $crate::vocabulary!(@impls $name { $( $variant $text $(| $alias)* ),+ } []);
    };
    (@impls $name:ident { $( $variant:ident $text:literal $(| $alias:literal)* ),+ } [$($unknown:ident)?]) => {
        impl $name {
            /// Every known value, in the order of declaration, which is also the stored number.
            pub const ALL: &'static [$name] = &[ $( $name::$variant, )+ ];

            /// The public name.
            pub fn as_str(self) -> &'static str {
                match self {
                    $( $name::$variant => $text, )+
                    $( $name::$unknown(word) => word.as_str(), )?
                }
            }

            /// The value with this public name.
            pub fn parse(name: &str) -> Option<Self> {
                match name { $( $text $(| $alias)* => Some($name::$variant), )+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                enum Number { $( $variant, )+ }
                if serializer.is_human_readable() {
                    return serializer.serialize_str(self.as_str());
                }
                match self {
                    $( $name::$variant => serializer.serialize_u8(Number::$variant as u8), )+
                    $( $name::$unknown(word) => {
                        let name = stringify!($name);
                        Err(serde::ser::Error::custom(format!("{:?} cannot be stored as a {name}", word.as_str())))
                    } )?
                }
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() {
                    let name = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                    return match $name::parse(&name) {
                        Some(known) => Ok(known),
                        $( None if $crate::encoding::is_answer() => Ok($name::$unknown($crate::newer::Word::new(&name))), )?
                        None => Err(serde::de::Error::unknown_variant(&name, &[ $( $text, )+ ])),
                    };
                }
                let number = u8::deserialize(deserializer)?;
                $name::ALL
                    .get(usize::from(number))
                    .copied()
                    .ok_or_else(|| serde::de::Error::custom(format!("{} has no value {number}", stringify!($name))))
            }
        }

        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "enum": [ $( $text, )+ ] })
            }
        }
    };
}

vocabulary! {
    /// Where in its life an execution is.
    pub enum LifecyclePhase {
        /// It may run, now or when nothing holds it back.
        Runnable "runnable",
        /// A worker holds it under a lease.
        Active "active",
        /// It waits for signals, a timeout or an operator.
        Suspended "suspended",
        /// It has ended.
        Terminal "terminal",
    }
}

vocabulary! {
    /// Whether a worker holds it.
    pub enum OwnershipState {
        /// No worker holds it.
        Unowned "unowned",
        /// A live lease.
        Leased "leased",
        /// No worker holds it, because the last lease ran out.
        LeaseExpiredReclaimable "lease_expired_reclaimable",
        /// No worker holds it, because the last lease was taken away.
        LeaseRevoked "lease_revoked",
    }
}

vocabulary! {
    /// Whether it may be claimed.
    pub enum EligibilityState {
        /// Yes.
        EligibleNow "eligible_now",
        /// Not before an instant.
        NotEligibleUntilTime "not_eligible_until_time",
        /// Not before its upstreams have ended as its join policy wants.
        BlockedByDependencies "blocked_by_dependencies",
        /// A budget it is charged to is exhausted.
        BlockedByBudget "blocked_by_budget",
        /// Its quota is full.
        BlockedByQuota "blocked_by_quota",
        /// An operator holds it.
        BlockedByOperator "blocked_by_operator",
        /// It is active, suspended or terminal.
        NotApplicable "not_applicable",
        /// No live worker can run it. Shown, never stored.
        BlockedByRoute "blocked_by_route",
        /// Its lane is closed. Shown, never stored.
        BlockedByLaneState "blocked_by_lane_state",
    }
}

vocabulary! {
    /// The reason why an execution waits.
    pub enum BlockingReason {
        /// A worker.
        WaitingForWorker "waiting_for_worker",
        /// Nothing.
        None "none",
        /// The backoff before a retry.
        WaitingForRetryBackoff "waiting_for_retry_backoff",
        /// The delay its resuming signal asked for.
        WaitingForResumeDelay "waiting_for_resume_delay",
        /// The delay its submitter or worker asked for.
        WaitingForDelay "waiting_for_delay",
        /// A signal.
        WaitingForSignal "waiting_for_signal",
        /// A person's approval.
        WaitingForApproval "waiting_for_approval",
        /// A callback from outside.
        WaitingForCallback "waiting_for_callback",
        /// The result of a tool.
        WaitingForToolResult "waiting_for_tool_result",
        /// Upstreams, or children it spawned.
        WaitingForChildren "waiting_for_children",
        /// A budget.
        WaitingForBudget "waiting_for_budget",
        /// A quota.
        WaitingForQuota "waiting_for_quota",
        /// A worker with its capabilities. Shown, never stored.
        WaitingForCapableWorker "waiting_for_capable_worker",
        /// An operator.
        PausedByOperator "paused_by_operator",
        /// A policy.
        PausedByPolicy "paused_by_policy",
        /// Its flow is being cancelled.
        PausedByFlowCancel "paused_by_flow_cancel",
        /// A person's answer to a question that the engine or the program asks.
        WaitingForDecision "waiting_for_decision",
    }
}

vocabulary! {
    /// How it ended.
    pub enum TerminalOutcome {
        /// It has not.
        None "none",
        /// Completed.
        Success "success",
        /// Failed for good.
        Failed "failed",
        /// Cancelled.
        Cancelled "cancelled",
        /// Past its deadline or suspension timeout.
        Expired "expired",
        /// Its dependencies made it impossible.
        Skipped "skipped",
    }
}

vocabulary! {
    /// The state of an execution's current attempt.
    pub enum AttemptState {
        /// There was none yet.
        PendingFirstAttempt "pending_first_attempt",
        /// It runs.
        RunningAttempt "running_attempt",
        /// It was parted from, and continues at the next claim.
        AttemptInterrupted "attempt_interrupted",
        /// The next one is a retry.
        PendingRetryAttempt "pending_retry_attempt",
        /// The next one replaces a lost one.
        PendingReclaimAttempt "pending_reclaim_attempt",
        /// The next one is a replay.
        PendingReplayAttempt "pending_replay_attempt",
        /// It has ended.
        AttemptTerminal "attempt_terminal",
        /// There never was one, and there will be none.
        None "none",
    }
}

vocabulary! {
    /// The one word people see, a pure function of the six dimensions.
    pub enum PublicState {
        /// Ready, or held by an operator.
        Waiting "waiting",
        /// Not before an instant.
        Delayed "delayed",
        /// Held back by a budget or quota.
        RateLimited "rate_limited",
        /// Held back by its dependencies.
        WaitingChildren "waiting_children",
        /// Running.
        Active "active",
        /// Waiting for signals.
        Suspended "suspended",
        /// Ended well.
        Completed "completed",
        /// Ended in failure.
        Failed "failed",
        /// Cancelled.
        Cancelled "cancelled",
        /// Past its deadline.
        Expired "expired",
        /// Made impossible by its dependencies.
        Skipped "skipped",
    }
}

impl PublicState {
    /// Whether the execution has ended.
    pub const fn is_terminal(self) -> bool {
        matches!(
            self,
            PublicState::Completed
                | PublicState::Failed
                | PublicState::Cancelled
                | PublicState::Expired
                | PublicState::Skipped
        )
    }
}

macro_rules! default_first {
    ($($name:ident),*) => { $( impl Default for $name { fn default() -> Self { $name::ALL[0] } } )* };
}
// The first values together are a freshly created execution, so that the common case costs no bytes in the store.
default_first!(LifecyclePhase, OwnershipState, EligibilityState, BlockingReason, TerminalOutcome, AttemptState);

crate::document! {
    /// All six dimensions.
    pub api struct StateVector {
        /// Where in its life the execution is.
        "p" lifecycle_phase: LifecyclePhase,
        /// Whether a worker holds it.
        "o" ownership_state: OwnershipState,
        /// Whether it may be claimed.
        "e" eligibility_state: EligibilityState,
        /// The reason why it waits.
        "r" blocking_reason: BlockingReason,
        /// How it ended.
        "t" terminal_outcome: TerminalOutcome,
        /// The state of its current attempt.
        "a" attempt_state: AttemptState,
    }
}

impl StateVector {
    /// The one word people see.
    pub fn public_state(&self) -> PublicState {
        match self.lifecycle_phase {
            LifecyclePhase::Terminal => match self.terminal_outcome {
                TerminalOutcome::Success => PublicState::Completed,
                TerminalOutcome::Cancelled => PublicState::Cancelled,
                TerminalOutcome::Expired => PublicState::Expired,
                TerminalOutcome::Skipped => PublicState::Skipped,
                TerminalOutcome::Failed | TerminalOutcome::None => PublicState::Failed,
                TerminalOutcome::Unknown(word) => PublicState::Unknown(word),
            },
            LifecyclePhase::Suspended => PublicState::Suspended,
            LifecyclePhase::Active => PublicState::Active,
            LifecyclePhase::Unknown(word) => PublicState::Unknown(word),
            LifecyclePhase::Runnable => match self.eligibility_state {
                EligibilityState::NotEligibleUntilTime => PublicState::Delayed,
                EligibilityState::BlockedByDependencies => PublicState::WaitingChildren,
                EligibilityState::BlockedByBudget | EligibilityState::BlockedByQuota => PublicState::RateLimited,
                _ => PublicState::Waiting,
            },
        }
    }

    /// Whether the vector is one that the rules allow; anything else is a defect.
    pub fn check(&self) -> Result<()> {
        use AttemptState as A;
        use BlockingReason as R;
        use EligibilityState as E;
        use LifecyclePhase as P;
        use OwnershipState as O;
        use TerminalOutcome as T;
        let kept_owner = self.ownership_state != O::Leased;
        let pending = !matches!(self.attempt_state, A::RunningAttempt | A::AttemptTerminal | A::None);
        let legal = match self.lifecycle_phase {
            P::Active => {
                self.ownership_state == O::Leased
                    && self.eligibility_state == E::NotApplicable
                    && self.blocking_reason == R::None
                    && self.terminal_outcome == T::None
                    && self.attempt_state == A::RunningAttempt
            }
            P::Suspended => {
                self.ownership_state == O::Unowned
                    && self.eligibility_state == E::NotApplicable
                    && matches!(
                        self.blocking_reason,
                        R::WaitingForSignal
                            | R::WaitingForApproval
                            | R::WaitingForCallback
                            | R::WaitingForToolResult
                            | R::WaitingForDecision
                            | R::PausedByOperator
                            | R::PausedByPolicy
                    )
                    && self.terminal_outcome == T::None
                    && (self.attempt_state == A::AttemptInterrupted
                        || (pending && self.blocking_reason == R::WaitingForDecision))
            }
            P::Terminal => {
                self.ownership_state == O::Unowned
                    && self.eligibility_state == E::NotApplicable
                    && self.blocking_reason == R::None
                    && self.terminal_outcome != T::None
                    && matches!(self.attempt_state, A::AttemptTerminal | A::None)
            }
            P::Runnable => {
                let reason = match self.eligibility_state {
                    E::EligibleNow => self.blocking_reason == R::WaitingForWorker,
                    E::NotEligibleUntilTime => matches!(
                        self.blocking_reason,
                        R::WaitingForDelay | R::WaitingForResumeDelay | R::WaitingForRetryBackoff
                    ),
                    E::BlockedByDependencies => self.blocking_reason == R::WaitingForChildren,
                    E::BlockedByBudget => matches!(self.blocking_reason, R::WaitingForBudget | R::PausedByPolicy),
                    E::BlockedByQuota => self.blocking_reason == R::WaitingForQuota,
                    E::BlockedByOperator => {
                        matches!(self.blocking_reason, R::PausedByOperator | R::PausedByFlowCancel)
                    }
                    E::NotApplicable | E::BlockedByRoute | E::BlockedByLaneState | E::Unknown(_) => false,
                };
                reason && kept_owner && pending && self.terminal_outcome == T::None
            }
            P::Unknown(_) => false,
        };
        if legal { Ok(()) } else { Err(Error::new(Code::Internal, format!("{self:?} is not a legal state"))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_execution_waits_for_a_worker_and_costs_no_bytes() {
        let state = StateVector::default();
        state.check().unwrap();
        assert_eq!(state.public_state(), PublicState::Waiting);
        assert_eq!(rmp_serde::to_vec(&state).unwrap(), [0x80]);
    }

    #[test]
    fn shown_but_never_stored_values_are_illegal() {
        for eligibility_state in [EligibilityState::BlockedByRoute, EligibilityState::BlockedByLaneState] {
            assert!(StateVector { eligibility_state, ..Default::default() }.check().is_err());
        }
    }

    #[test]
    fn json_speaks_in_names() {
        let json = serde_json::to_value(StateVector::default()).unwrap();
        assert_eq!(json["eligibility_state"], "eligible_now");
        let error = serde_json::from_str::<PublicState>("\"runing\"").unwrap_err().to_string();
        assert!(error.contains("waiting_children"), "{error}");
    }
}
