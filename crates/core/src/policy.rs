//! The policy of an execution: retries, timeouts, limits, routing. Unknown fields are refused, and absent ones have the
//! defaults declared here.

use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use crate::budget::Amounts;
use crate::capability::CapabilitySet;
use crate::document;
use crate::error::{Error, Result};
use crate::limits;
use crate::suspension::TimeoutBehavior;
use crate::text;
use crate::vocabulary;

/// By convention the category of failures that no retry would change. It is a category like any other: a submission
/// lists it as not retryable, see [`RetryPolicy::spare_permanent`].
pub const PERMANENT: &str = "permanent";

document! {
    /// Everything a submitter may ask for.
    pub api struct Policy {
        /// When a failed attempt is tried again.
        "r" retry: RetryPolicy,
        /// How long an attempt and the whole execution may take.
        "t" timeout: TimeoutPolicy,
        /// Leases that may be lost before the execution fails.
        "rc" max_reclaim_count: u32 = limits::RECLAIMS_DEFAULT,
        /// Times a finished execution may be run again.
        "rp" max_replay_count: u32 = limits::REPLAYS_DEFAULT,
        /// The defaults of a suspension.
        "s" suspension: SuspensionPolicy,
        /// Which workers may run it.
        "ro" routing: RoutingPolicy,
        /// How much its stream keeps.
        "st" stream: StreamPolicy,
        /// Signals the execution accepts in its life.
        "sg" max_signals_per_execution: u32 = limits::SIGNALS_PER_EXECUTION_DEFAULT,
        /// How long it is kept once it has ended; the deployment's default when absent.
        "rt" retention_ms: Option<i64>,
        /// Budgets it is charged to.
        "b" budget_ids: Vec<String>,
        /// The quota it runs under.
        "q" quota_policy_id: Option<String>,
        /// Which model to use at which retry.
        "f" fallback: Vec<FallbackTier>,
        /// After its first start, only workers of the same build run it.
        "pb" pin_build: bool,
        /// When its steps are taken for a loop; never when absent.
        "np" no_progress: Option<NoProgressPolicy>,
        /// The amounts, by dimension, that each claim holds in the execution's budgets before it starts: it starts only if they
        /// fit. Spending under that lease takes from them first, and the rest goes back when the lease ends.
        "es" estimate: Amounts,
    }
}

vocabulary! {
    /// What becomes of an execution whose steps are taken for a loop.
    #[derive(Default)]
    pub enum NoProgressAction {
        /// It is suspended until a person answers.
        #[default]
        Ask "ask",
        /// It fails with the category `loop_detected`.
        Fail "fail",
    }
}

document! {
    /// When steps are taken for a loop: the same name, input and result, so often within the last records of the journal.
    pub api struct NoProgressPolicy {
        /// How often the same is too often.
        "s" same: u32 = limits::NO_PROGRESS_SAME_DEFAULT,
        /// Within how many of the last records of the journal.
        "w" window: u32 = limits::NO_PROGRESS_WINDOW_DEFAULT,
        /// What becomes of an execution that is taken for a loop.
        "a" action: NoProgressAction,
    }
}

document! {
    /// When a failed attempt is tried again.
    pub api struct RetryPolicy {
        /// Retries after the first attempt; 0 is none.
        "m" max_retries: u32 = limits::RETRIES_DEFAULT,
        /// How long to wait before each.
        "b" backoff: Backoff,
        /// Only failures of these categories are retried; empty means all.
        "y" retryable_categories: Vec<String>,
        /// Failures of these categories are never retried.
        "n" non_retryable_categories: Vec<String>,
    }
}

/// How long to wait before a retry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", rename_all = "snake_case", deny_unknown_fields)]
pub enum Backoff {
    /// Always the same time.
    Fixed {
        /// The time.
        delay_ms: i64,
    },
    /// Longer each time.
    Exponential(ExponentialBackoff),
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(Backoff);

impl Default for Backoff {
    fn default() -> Self {
        Backoff::Exponential(ExponentialBackoff::default())
    }
}

document! {
    /// A wait that grows by a factor up to a maximum.
    pub api struct ExponentialBackoff {
        /// Before the first retry.
        "i" initial_ms: i64 = 1_000,
        /// At the most.
        "x" max_ms: i64 = 60_000,
        /// The factor.
        "m" multiplier: f64 = 2.0,
        /// Spread the waits over the upper half, so that failures do not come back in step.
        "j" jitter: bool = true,
    }
}

document! {
    /// How long things may take.
    pub api struct TimeoutPolicy {
        /// Time under a lease that one attempt may take.
        "a" attempt_timeout_ms: Option<i64>,
        /// Time from creation (or replay) to the end.
        "d" execution_deadline_ms: Option<i64>,
    }
}

document! {
    /// Defaults of suspensions.
    pub api struct SuspensionPolicy {
        /// The timeout of a suspension that names none.
        "t" default_timeout_ms: Option<i64>,
        /// What happens when its time is up.
        "b" timeout_behavior: Option<TimeoutBehavior>,
    }
}

document! {
    /// Which workers may run it.
    pub api struct RoutingPolicy {
        /// The capabilities that a worker must have.
        "c" required_capabilities: CapabilitySet,
    }
}

document! {
    /// How much a stream keeps.
    pub api struct StreamPolicy {
        /// Frames kept for each attempt.
        "m" retention_maxlen: u64 = limits::STREAM_RETENTION_DEFAULT,
        /// How long frames are kept after the attempt ended; as long as the execution when absent.
        "t" retention_ttl_ms: Option<i64>,
    }
}

document! {
    /// A model to use from a certain retry on.
    pub api struct FallbackTier {
        /// The provider that serves it.
        "p" provider: String,
        /// Which model.
        "m" model: String,
        /// How long a call may take.
        "t" timeout_ms: Option<i64>,
    }
}

impl Policy {
    /// The built-in policy. All executions whose submissions say nothing share it.
    pub fn built_in() -> Arc<Self> {
        static BUILT_IN: LazyLock<Arc<Policy>> = LazyLock::new(Arc::default);
        Arc::clone(&BUILT_IN)
    }

    /// Refuses what no engine could keep.
    pub fn validate(&self) -> Result<()> {
        if self.estimate.len() > limits::BUDGET_DIMENSIONS_MAX {
            return Err(text::too_many("policy.estimate", self.estimate.len(), limits::BUDGET_DIMENSIONS_MAX));
        }
        for (dimension, amount) in &self.estimate {
            text::name("policy.estimate", dimension)?;
            text::within(&format!("policy.estimate.{dimension}"), *amount, 0..=limits::USAGE_MAX)?;
        }
        self.retry.validate().map_err(|error| error.inside("policy.retry"))?;
        self.routing.required_capabilities.check_field("policy.routing.required_capabilities")?;
        for (field, duration) in [
            ("policy.timeout.attempt_timeout_ms", self.timeout.attempt_timeout_ms),
            ("policy.timeout.execution_deadline_ms", self.timeout.execution_deadline_ms),
            ("policy.suspension.default_timeout_ms", self.suspension.default_timeout_ms),
            ("policy.retention_ms", self.retention_ms),
            ("policy.stream.retention_ttl_ms", self.stream.retention_ttl_ms),
        ] {
            if let Some(duration) = duration {
                text::within(field, duration, 1..=limits::DURATION_MAX_MS)?;
            }
        }
        let maxlen = self.stream.retention_maxlen;
        if maxlen == 0 || maxlen > 1_000_000 {
            return Err(Error::invalid("policy.stream.retention_maxlen", "must be between 1 and 1000000"));
        }
        if self.fallback.len() > limits::FALLBACK_TIERS_MAX {
            let max = limits::FALLBACK_TIERS_MAX;
            return Err(Error::invalid("policy.fallback", format!("has more than {max} tiers")));
        }
        for (place, tier) in self.fallback.iter().enumerate() {
            tier.validate().map_err(|error| error.inside(&format!("policy.fallback[{place}]")))?;
        }
        if self.budget_ids.len() > limits::BUDGETS_PER_EXECUTION_MAX {
            let max = limits::BUDGETS_PER_EXECUTION_MAX;
            return Err(Error::invalid("policy.budget_ids", format!("names more than {max} budgets")));
        }
        for budget in &self.budget_ids {
            text::budget_name("policy.budget_ids", budget)?;
        }
        if let Some(NoProgressPolicy { same, window, .. }) = &self.no_progress {
            text::within("policy.no_progress.window", *window, 2..=limits::NO_PROGRESS_WINDOW_MAX)?;
            text::within("policy.no_progress.same", *same, 2..=*window)?;
        }
        self.quota_policy_id.as_deref().map_or(Ok(()), |quota| text::name("policy.quota_policy_id", quota))
    }

    /// The tier of an attempt after this many retries: the last one serves all further retries.
    pub fn fallback_tier(&self, retries: u32) -> Option<&FallbackTier> {
        let last = self.fallback.len().checked_sub(1)?;
        self.fallback.get(usize::try_from(retries).unwrap_or(last).min(last))
    }
}

impl FallbackTier {
    fn validate(&self) -> Result<()> {
        text::label("provider", &self.provider)?;
        text::label("model", &self.model)?;
        self.timeout_ms.map_or(Ok(()), |timeout_ms| text::within("timeout_ms", timeout_ms, 1..=limits::DURATION_MAX_MS))
    }
}

impl RetryPolicy {
    /// Refuses what no engine could keep. Fields are named from here.
    pub(crate) fn validate(&self) -> Result<()> {
        if self.max_retries > limits::RETRIES_MAX {
            let max = limits::RETRIES_MAX;
            return Err(Error::invalid("max_retries", format!("must be at most {max}")));
        }
        for (field, categories) in [
            ("retryable_categories", &self.retryable_categories),
            ("non_retryable_categories", &self.non_retryable_categories),
        ] {
            if categories.len() > limits::CATEGORIES_MAX {
                return Err(Error::invalid(field, format!("has more than {} categories", limits::CATEGORIES_MAX)));
            }
            for category in categories {
                text::label(field, category)?;
            }
        }
        match &self.backoff {
            Backoff::Fixed { delay_ms } => {
                text::within("backoff.fixed.delay_ms", *delay_ms, 0..=limits::DURATION_MAX_MS)
            }
            Backoff::Exponential(backoff) => {
                text::within("backoff.exponential.initial_ms", backoff.initial_ms, 0..=limits::DURATION_MAX_MS)?;
                text::within("backoff.exponential.max_ms", backoff.max_ms, 0..=limits::DURATION_MAX_MS)?;
                if !backoff.multiplier.is_finite() || !(1.0..=1_000.0).contains(&backoff.multiplier) {
                    return Err(Error::invalid("backoff.exponential.multiplier", "must be between 1 and 1000"));
                }
                Ok(())
            }
            Backoff::Unknown(variant) => Err(variant.refused("backoff")),
        }
    }

    /// Whether a failure of this category is tried again after so many retries.
    pub fn allows(&self, retries: u32, category: &str) -> bool {
        let listed = |list: &[String]| list.iter().any(|entry| entry == category);
        let retryable = self.retryable_categories.is_empty() || listed(&self.retryable_categories);
        retries < self.max_retries && retryable && !listed(&self.non_retryable_categories)
    }

    /// Leaves [`PERMANENT`] failures as they are, unless categories were chosen already.
    pub fn spare_permanent(&mut self) {
        if self.retryable_categories.is_empty() && self.non_retryable_categories.is_empty() {
            self.non_retryable_categories.push(PERMANENT.into());
        }
    }

    /// How long to wait before the retry after so many others. `random` decides the jitter.
    pub fn delay_ms(&self, retries: u32, random: u32) -> i64 {
        match &self.backoff {
            Backoff::Fixed { delay_ms } => *delay_ms,
            Backoff::Unknown(_) => ExponentialBackoff::default().initial_ms,
            Backoff::Exponential(backoff) => {
                let mut delay = backoff.initial_ms.min(backoff.max_ms);
                for _ in 0..retries {
                    if delay >= backoff.max_ms || delay == 0 {
                        break;
                    }
                    delay = backoff.times_multiplier(delay);
                }
                if backoff.jitter { delay - share(delay / 2, random) } else { delay }
            }
        }
    }
}

/// The part of a duration that 32 random bits stand for. The product of the two does not fit 64 bits.
fn share(ms: i64, random: u32) -> i64 {
    let part = i128::from(ms) * i128::from(random) / i128::from(u32::MAX);
    i64::try_from(part).unwrap_or(ms)
}

impl ExponentialBackoff {
    /// The delay of the next retry: one step longer, at most the maximum.
    #[expect(clippy::cast_possible_truncation, reason = "the product is compared with the maximum before the cast")]
    fn times_multiplier(&self, delay_ms: i64) -> i64 {
        // Durations are at most ten years, far below the 2^53 where a double stops being exact.
        let product = delay_ms as f64 * self.multiplier;
        if product >= self.max_ms as f64 { self.max_ms } else { product as i64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exponential(jitter: bool) -> RetryPolicy {
        let backoff = Backoff::Exponential(ExponentialBackoff { jitter, ..Default::default() });
        RetryPolicy { backoff, ..Default::default() }
    }

    #[test]
    fn an_exponential_backoff_doubles_up_to_its_maximum() {
        let delays: Vec<i64> = (0..8).map(|retries| exponential(false).delay_ms(retries, 0)).collect();
        assert_eq!(delays, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
    }

    #[test]
    fn jitter_stays_in_the_upper_half() {
        for random in [0, 1, u32::MAX / 2, u32::MAX] {
            let delay = exponential(true).delay_ms(2, random);
            assert!((2_000..=4_000).contains(&delay), "{delay}");
        }
    }

    #[test]
    fn the_jitter_of_the_longest_delay_does_not_overflow() {
        let ten_years = 10 * 365 * 86_400_000;
        let backoff = ExponentialBackoff { initial_ms: ten_years, max_ms: ten_years, ..Default::default() };
        let policy = RetryPolicy { backoff: Backoff::Exponential(backoff), ..Default::default() };
        assert_eq!(policy.delay_ms(0, 0), ten_years);
        assert_eq!(policy.delay_ms(0, u32::MAX), ten_years / 2);
    }

    #[test]
    fn categories_decide_what_is_retried() {
        let policy = RetryPolicy {
            max_retries: 1,
            retryable_categories: vec!["network".into()],
            non_retryable_categories: vec!["auth".into()],
            ..Default::default()
        };
        assert!(policy.allows(0, "network"));
        assert!(!policy.allows(1, "network"), "the retries are used up");
        assert!(!policy.allows(0, "auth"));
        assert!(!policy.allows(0, "other"));
        assert!(RetryPolicy::default().allows(2, "anything"));
        let mut spared = RetryPolicy::default();
        assert!(spared.allows(0, PERMANENT), "a name alone decides nothing");
        spared.spare_permanent();
        assert!(!spared.allows(0, PERMANENT) && spared.allows(0, "anything"));
        let mut chosen = RetryPolicy { retryable_categories: vec![PERMANENT.into()], ..Default::default() };
        chosen.spare_permanent();
        assert!(chosen.allows(0, PERMANENT));
    }

    #[test]
    fn the_last_fallback_tier_serves_all_further_retries() {
        let tier = |model: &str| FallbackTier { model: model.into(), ..Default::default() };
        let policy = Policy { fallback: vec![tier("large"), tier("small")], ..Default::default() };
        let models: Vec<_> = (0..4).map(|n| policy.fallback_tier(n).unwrap().model.as_str()).collect();
        assert_eq!(models, ["large", "small", "small", "small"]);
        assert_eq!(Policy::default().fallback_tier(0), None);
    }

    #[test]
    fn limits_hold_at_the_limit_and_one_past_it() {
        let retries =
            |max_retries| Policy { retry: RetryPolicy { max_retries, ..Default::default() }, ..Default::default() };
        assert!(retries(limits::RETRIES_MAX).validate().is_ok());
        assert!(retries(limits::RETRIES_MAX + 1).validate().is_err());
        let tiers = |n| {
            let tier = FallbackTier { provider: "p".into(), model: "m".into(), ..Default::default() };
            Policy { fallback: vec![tier; n], ..Default::default() }
        };
        assert!(tiers(limits::FALLBACK_TIERS_MAX).validate().is_ok());
        assert!(tiers(limits::FALLBACK_TIERS_MAX + 1).validate().is_err());
        let budgets = |n| Policy { budget_ids: vec!["b".into(); n], ..Default::default() };
        assert!(budgets(limits::BUDGETS_PER_EXECUTION_MAX).validate().is_ok());
        assert!(budgets(limits::BUDGETS_PER_EXECUTION_MAX + 1).validate().is_err());
        let timeout = |ms| Policy {
            timeout: TimeoutPolicy { attempt_timeout_ms: Some(ms), ..Default::default() },
            ..Default::default()
        };
        assert!(timeout(1).validate().is_ok() && timeout(limits::DURATION_MAX_MS).validate().is_ok());
        assert!(timeout(0).validate().is_err() && timeout(limits::DURATION_MAX_MS + 1).validate().is_err());
    }

    #[test]
    fn json_says_only_what_differs_and_refuses_what_is_unknown() {
        let policy: Policy =
            serde_json::from_str(r#"{"retry":{"max_retries":1,"backoff":{"fixed":{"delay_ms":100}}}}"#).unwrap();
        assert_eq!(policy.retry.delay_ms(0, 7), 100);
        assert_eq!(policy.max_reclaim_count, 100);
        assert!(serde_json::from_str::<Policy>(r#"{"retries":1}"#).is_err());
        assert!(serde_json::from_str::<Policy>(r#"{"retry":{"backoff":{"fixed":{"delay":1}}}}"#).is_err());
        let back: Policy = rmp_serde::from_slice(&rmp_serde::to_vec(&policy).unwrap()).unwrap();
        assert_eq!(back, policy);
    }
}
