//! The common arguments of submissions: `ff submit` and `ff task child`.

use flowfabric::op::create_execution::Args;
use flowfabric::{CapabilitySet, ConcurrencyLimit, PolicyRequest, SdkError};

use crate::failure::Result;
use crate::input::{self, Payload, SOURCE, Source};
use crate::span;

/// The work, and what is asked of the engine.
#[derive(Debug, clap::Args)]
pub(crate) struct Work {
    /// The kind of work
    kind: String,
    /// The input for the worker: JSON, @FILE, or - for standard input
    #[arg(value_name = SOURCE)]
    pub(crate) input: Option<Source>,
    #[command(flatten)]
    terms: Terms,
}

/// The terms of an execution, whatever the work is.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Terms {
    /// The input is bytes of this type, not JSON
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// The lane [default: default]
    #[arg(long)]
    lane: Option<String>,
    /// Higher goes first
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i64>,
    /// A tag for filters; may be repeated
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = input::pair)]
    tags: Vec<(String, String)>,
    /// A capability that a worker must have; may be repeated
    #[arg(long = "require", value_name = "CAPABILITY")]
    capabilities: Vec<String>,
    /// A budget it is charged to; may be repeated
    #[arg(long = "budget", value_name = "NAME")]
    budgets: Vec<String>,
    /// What it may spend of its budgets: it starts only while that fits; may be repeated
    #[arg(long = "estimate", value_name = "DIMENSION=AMOUNT", value_parser = input::amount)]
    estimate: Vec<(String, i64)>,
    /// The quota it runs under
    #[arg(long, value_name = "NAME")]
    quota: Option<String>,
    /// Runs only while fewer than LIMIT others with this key do; may be repeated
    #[arg(long, value_name = "KEY=LIMIT", value_parser = limit)]
    concurrency: Vec<ConcurrencyLimit>,
    /// Work of different keys takes turns in its lane
    #[arg(long, value_name = "KEY")]
    fair_key: Option<String>,
    /// Turns of its fair key for each turn of another
    #[arg(long, value_name = "COUNT", requires = "fair_key")]
    fair_weight: Option<u32>,
    /// Retries after a failure; over what --policy says
    #[arg(long, value_name = "COUNT")]
    retries: Option<u32>,
    /// How long one attempt may run; over what --policy says
    #[arg(long, visible_alias = "timeout", value_name = "SPAN", value_parser = span::parse)]
    attempt_timeout: Option<i64>,
    /// Retries, timeouts and the rest
    #[arg(long, value_name = SOURCE)]
    policy: Option<Source>,
}

impl Work {
    /// The request with its input.
    pub(crate) fn request(&self) -> Result<Args> {
        self.terms.request(&self.kind, self.input.as_ref())
    }

    /// The request without its input.
    pub(crate) fn request_without_input(&self) -> Result<Args> {
        self.terms.request_without_input(&self.kind)
    }
}

impl Terms {
    /// Whether any term is named.
    pub(crate) fn are_given(&self) -> Result<bool> {
        Ok(self.content_type.is_some()
            || self.request_without_input("")? != Self::default().request_without_input("")?)
    }

    /// The request for work of a kind with its input.
    pub(crate) fn request(&self, kind: &str, input: Option<&Source>) -> Result<Args> {
        let payload = Payload::read(input, self.content_type.clone())?;
        Ok(Args {
            input: payload.json,
            input_base64: payload.bytes,
            content_type: payload.content_type,
            ..self.request_without_input(kind)?
        })
    }

    fn request_without_input(&self, kind: &str) -> Result<Args> {
        let mut policy = match &self.policy {
            Some(source) => policy(source)?,
            None => PolicyRequest::default(),
        };
        let retry = policy.retry.get_or_insert_default();
        retry.max_retries = self.retries.or(retry.max_retries);
        // So that a program run by `ff worker` can say that no retry would help.
        retry.spare_permanent.get_or_insert(true);
        if self.attempt_timeout.is_some() {
            policy.timeout.get_or_insert_default().attempt_timeout_ms = self.attempt_timeout;
        }
        if !self.estimate.is_empty() {
            policy.estimate = Some(self.estimate.iter().cloned().collect());
        }
        let capabilities = CapabilitySet::new(self.capabilities.iter().cloned()).map_err(SdkError::from)?;
        Ok(Args {
            kind: kind.to_owned(),
            lane: self.lane.clone(),
            priority: self.priority,
            tags: self.tags.iter().cloned().collect(),
            required_capabilities: capabilities,
            budget_ids: self.budgets.clone(),
            quota_policy_id: self.quota.clone(),
            concurrency: self.concurrency.clone(),
            fair_key: self.fair_key.clone(),
            fair_weight: self.fair_weight,
            policy: Some(policy),
            ..Args::default()
        })
    }
}

/// A concurrency key and its limit, which is what follows the last `=`.
fn limit(text: &str) -> std::result::Result<ConcurrencyLimit, String> {
    let (key, limit) = text.rsplit_once('=').ok_or("expected KEY=LIMIT")?;
    let limit = limit.parse().map_err(|_| format!("{limit:?} is not a number"))?;
    Ok(ConcurrencyLimit { key: key.to_owned(), limit, ..Default::default() })
}

fn policy(source: &Source) -> Result<PolicyRequest> {
    let text = source.read_text()?;
    serde_json::from_str(&text).map_err(|error| {
        input::malformed(&format!("policy {}", source.name()), error.line(), error.column(), &error)
            .advice("/openapi.json of the server describes policies: {\"retry\": {\"max_retries\": 1}}.")
    })
}
