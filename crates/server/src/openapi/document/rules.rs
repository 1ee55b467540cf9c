//! The rules that arguments must keep, added to the schemas of requests, so that a program can keep them without a try.
//!
//! A field means the same wherever it stands, so its rule is known by its name; where it means something else, the rule is
//! that of its owner: the operation, or the schema that has it. Limits in bytes are said in characters: JSON Schema
//! knows no bytes, and the two differ outside of ASCII only. How fields go together is said in their descriptions: a schema
//! could by `not`, which generators of clients do not understand.

use std::collections::BTreeSet;

use ff_core::api_token::{CONFIGURED_PREFIX, RESERVED_NAMES};
use ff_core::condition::TIMEOUT_SIGNAL;
use ff_core::{limits, op};
use serde_json::{Map, Value, json};

/// Characters that names must not have: those that cannot be seen or have other effects; see `ff_core::text`.
const HIDDEN: &str = r"\u007f-\u00a0\u00ad\u061c\u1680\u180e\u2000-\u200b\u200e\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff\ufff9-\ufffb";
/// Whole groups of four, and padding without stray bits.
const BASE64: &str = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$";
/// Base64 of 16 to 256 bytes, as a secret of Standard Webhooks has it.
const WEBHOOK_SECRET: &str = "^(?:whsec_)?(?:(?:[A-Za-z0-9+/]{4}){5,85}[A-Za-z0-9+/][AQgw]==|\
                              (?:[A-Za-z0-9+/]{4}){5,84}[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=|(?:[A-Za-z0-9+/]{4}){6,85})$";
const TAG_KEY: &str = r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*";

/// The form of a value.
enum Rule {
    /// A text of so many characters that fits a pattern.
    Text(usize, usize, String),
    /// A text with a secret, by a pattern.
    Secret(usize, usize, &'static str),
    /// A number in a range.
    Number(i64, i64),
    /// A list of so many, each by a rule.
    List(usize, usize, Option<Box<Rule>>),
    /// An object with so many names, which fit a rule, and values by another.
    Names(usize, usize, Box<Rule>, Option<Box<Rule>>),
}

fn pattern(least: usize, most: usize, pattern: impl Into<String>) -> Option<Rule> {
    Some(Rule::Text(least, most, pattern.into()))
}

fn number(least: i64, most: i64) -> Option<Rule> {
    Some(Rule::Number(least, most))
}

fn list(least: usize, most: usize, item: Option<Rule>) -> Option<Rule> {
    Some(Rule::List(least, most, item.map(Box::new)))
}

fn name() -> Option<Rule> {
    pattern(1, limits::NAME_MAX_BYTES, format!(r"^(?!\.{{1,2}}$)[^\u0000-\u0020{HIDDEN}]+$"))
}

/// A name that stands for no caller without a stored token.
fn token_name() -> Option<Rule> {
    let reserved = RESERVED_NAMES.map(|name| name.replace('*', r"\*")).join("|");
    let form = format!(r"^(?!\.{{1,2}}$)(?!(?:{reserved})$)(?!{CONFIGURED_PREFIX})[^\u0000-\u0020{HIDDEN}]+$");
    pattern(1, limits::NAME_MAX_BYTES, form)
}

fn budget_name() -> Option<Rule> {
    let part = format!(r"(?!\.{{1,2}}(?:/|$))[^/\u0000-\u0020{HIDDEN}]{{1,{}}}", limits::NAME_MAX_BYTES);
    let more = limits::BUDGET_LEVELS_MAX - 1;
    pattern(1, limits::BUDGET_PATH_MAX_BYTES, format!("^{part}(?:/{part}){{0,{more}}}$"))
}

fn kind() -> Option<Rule> {
    pattern(1, limits::KIND_MAX_BYTES, format!(r"^[^\u0000-\u0020{HIDDEN}]+$"))
}

fn label_of(least: usize, most: usize) -> Option<Rule> {
    pattern(least, most, format!(r"^[^\u0000-\u001f{HIDDEN}]*$"))
}

fn label() -> Option<Rule> {
    label_of(1, limits::LABEL_MAX_BYTES)
}

/// The name of a signal is not that of the one that stands for a timeout.
fn signal_name(least: usize) -> Option<Rule> {
    let form = format!(r"^(?!{TIMEOUT_SIGNAL}$)[^\u0000-\u001f{HIDDEN}]*$");
    pattern(least, limits::LABEL_MAX_BYTES, form)
}

fn text_of(most: usize) -> Option<Rule> {
    pattern(0, most, r"^[^\u0000]*$")
}

fn tag_filter() -> Option<Rule> {
    let (key, value) = (limits::TAG_KEY_MAX_BYTES, limits::TAG_VALUE_MAX_BYTES);
    let form = format!(r"^(?=[^=]{{1,{key}}}=){TAG_KEY}=[^\u0000]{{0,{value}}}$");
    pattern(2, key + 1 + value, form)
}

fn names(least: usize, most: usize, name: Option<Rule>, value: Option<Rule>) -> Option<Rule> {
    Some(Rule::Names(least, most, Box::new(name?), value.map(Box::new)))
}

fn amounts(least: usize) -> Option<Rule> {
    names(least, limits::BUDGET_DIMENSIONS_MAX, name(), number(0, limits::USAGE_MAX))
}

fn most(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// The rule of a field that means something else at its owner than elsewhere.
fn own_rule(owner: &str, field: &str) -> Option<Option<Rule>> {
    let duration = || number(0, limits::DURATION_MAX_MS);
    let amount = || number(0, i64::try_from(limits::PROVIDER_AMOUNT_MAX).unwrap_or(i64::MAX));
    Some(match (owner, field) {
        (budget, "name") if budget.contains("budget") || budget == "list_reservations" => budget_name(),
        ("ConditionMatcher", "name") => signal_name(0),
        ("StepEntry" | "StepIdentity", "name") => label_of(1, limits::STEP_NAME_MAX_BYTES),
        ("NodeRequest", "name") => label(),
        ("HookSignal" | "deliver_signal" | "signal_waitpoint", "name") => signal_name(1),
        ("GraphEdge", "from" | "to") => label(),
        ("list_executions" | "BulkFilter" | "list_approvals", "kind") => list(0, limits::FILTER_VALUES_MAX, kind()),
        ("list_executions" | "BulkFilter", "lane") => list(0, limits::FILTER_VALUES_MAX, name()),
        ("list_executions" | "BulkFilter", "tag") => list(0, limits::FILTER_VALUES_MAX, tag_filter()),
        ("HookSignal", "tag") => pattern(1, limits::TAG_KEY_MAX_BYTES, format!("^{TAG_KEY}$")),
        ("HookSignal", "correlation_id") => {
            pattern(1, limits::LABEL_MAX_BYTES, format!(r"^/[^\u0000-\u001f{HIDDEN}]*$"))
        }
        ("create_token", "name") => token_name(),
        ("create_token", "lanes") => list(0, limits::LANES_MAX, name()),
        ("EventFilter", "kinds") => list(0, limits::FILTER_VALUES_MAX, kind()),
        ("list_events", "kinds") | ("settle_provider", "actual") => None,
        ("BeginSession", _) => None,
        // As many digits as its numbers always hold.
        ("FrameId", "") => pattern(3, 29, "^[0-9]{1,9}-[0-9]{1,19}$"),
        ("stream_execution" | "tail_stream", "after") => pattern(3, 25, "^[0-9]{1,9}-[0-9]{1,15}$"),
        ("stream_execution", "Last-Event-ID") => pattern(0, 25, "^(?:[0-9]{1,9}-[0-9]{1,15})?$"),
        ("stream_execution", "steps") => {
            let most = limits::JOURNAL_ENTRIES_MAX + limits::JOURNAL_RESERVE_ENTRIES;
            number(0, i64::try_from(most).unwrap_or(i64::MAX))
        }
        ("list_audit", "what") => {
            // Not an enumeration, for which generators would make a type: what is audited grows with each version.
            let audited = op::OPERATIONS.iter().filter(|operation| operation.audited);
            let names: Vec<&str> = audited.map(|operation| operation.name).collect();
            pattern(1, limits::LABEL_MAX_BYTES, format!("^(?:{})$", names.join("|")))
        }
        ("deliver_signal" | "signal_waitpoint", "category" | "idempotency_key" | "correlation_id") => {
            label_of(0, limits::LABEL_MAX_BYTES)
        }
        ("FallbackTier", "provider") => label(),
        ("ConcurrencyLimit", "limit") => number(1, i64::from(limits::CONCURRENCY_LIMIT_MAX)),
        ("Debounce", "wait_ms" | "max_wait_ms") => number(1, limits::DEBOUNCE_WAIT_MAX_MS),
        ("ParkSignal", "timeout_ms") => duration(),
        ("wait_until_idle", "timeout_ms") => number(0, limits::WAIT_MAX_MS),
        ("throttle_provider", "status") => number(429, 529),
        ("throttle_provider", "retry_after_ms") => number(0, limits::PROVIDER_CLOSED_MAX_MS),
        ("create_provider" | "update_provider", "max_requests") => amount(),
        ("create_schedule" | "update_schedule", "jitter_ms") => number(0, limits::SCHEDULE_JITTER_MAX_MS),
        ("CatchUpAll", "max") => number(1, i64::from(limits::SCHEDULE_CATCH_UP_MAX)),
        ("record_steps", "entries") => list(1, limits::STEPS_PER_RECORD_MAX, None),
        ("backfill_schedule", "from" | "to") => number(0, limits::SCORE_MAX),
        ("read_stream", "from" | "to") => pattern(1, 26, r"^(?:-|\+|[0-9]{1,9}-[0-9]{1,15})$"),
        ("settle_spend", "actual") | ("decide_budget", "amounts") => amounts(0),
        ("update_budget", "dimensions") => names(0, limits::BUDGET_DIMENSIONS_MAX, name(), None),
        ("WebhookTarget", "secret") => Some(Rule::Secret(24, 350, WEBHOOK_SECRET)),
        ("ToolDefinition", "kind") => pattern(1, limits::KIND_MAX_BYTES, "^(?!flowfabric_)[A-Za-z0-9_.-]+$"),
        ("ToolDefinition", "description") => pattern(1, limits::TEXT_MAX_BYTES, r"^[^\u0000]+$"),
        ("rotate_waitpoint_secret", "new_kid") => {
            pattern(1, limits::KID_MAX_BYTES, format!(r"^[^:\u0000-\u001f{HIDDEN}]+$"))
        }
        ("rotate_waitpoint_secret", "new_secret_hex") => Some(Rule::Secret(64, 2048, "^(?:[0-9A-Fa-f]{2}){32,1024}$")),
        _ => return None,
    })
}

/// The rule of a field by its name.
fn rule(field: &str) -> Option<Rule> {
    text_rule(field).or_else(|| number_rule(field)).or_else(|| list_rule(field)).or_else(|| object_rule(field))
}

/// The rule of a field that is a text.
fn text_rule(field: &str) -> Option<Rule> {
    match field {
        "namespace" | "lane" | "instance_id" | "worker_id" | "quota_policy_id" | "worker" | "schedule" | "provider"
        | "name" | "build_id" => name(),
        "budget" => budget_name(),
        "kind" => kind(),
        "idempotency_key" | "key" | "waitpoint_key" | "creator" | "node" | "requested_by" | "nonce" | "version"
        | "fair_key" | "category" | "type" | "correlation_id" | "assignee" | "data_ref" | "title" | "model" | "who" => {
            label()
        }
        "dedup_key" | "scope_type" | "scope_id" | "source_type" | "source_identity" => {
            label_of(0, limits::LABEL_MAX_BYTES)
        }
        "input_hash" => label_of(1, limits::STEP_INPUT_HASH_MAX_BYTES),
        "reason" | "detail" | "message" | "note" | "question" => text_of(limits::TEXT_MAX_BYTES),
        "content_type" | "continuation_content_type" => {
            let token = "[!#$%&'*+.^_`|~0-9A-Za-z-]+";
            pattern(1, limits::CONTENT_TYPE_MAX_BYTES, format!("^{token}/{token} *(?:;[ -~]*)?$"))
        }
        "trace_context" | "traceparent" => pattern(0, limits::TRACE_CONTEXT_MAX_BYTES, "^[ -~]*$"),
        "Idempotency-Key" => pattern(0, limits::LABEL_MAX_BYTES, "^[ -~]*$"),
        "url" => pattern(1, limits::WEBHOOK_URL_MAX_BYTES, r#"^https?://[A-Za-z0-9.-]+(?:/[!"$-\[\]-~]*)?$"#),
        "tag" => tag_filter(),
        "cursor" => pattern(1, limits::TEXT_MAX_BYTES, "^[!-~]+$"),
        "per" => pattern(5, 4 + limits::TAG_KEY_MAX_BYTES, format!("^tag:{TAG_KEY}$")),
        _ => None,
    }
}

/// The rule of a field that is a number.
fn number_rule(field: &str) -> Option<Rule> {
    let instant = || number(0, limits::SCORE_MAX);
    let duration = || number(0, limits::DURATION_MAX_MS);
    let span = || number(1, limits::DURATION_MAX_MS);
    match field {
        "limit" => number(1, most(limits::PAGE_MAX)),
        "wait_ms" => number(0, limits::WAIT_MAX_MS),
        "lease_ttl_ms" => number(limits::LEASE_TTL_MIN_MS, limits::LEASE_TTL_MAX_MS),
        "grant_ttl_ms" => number(1, limits::GRANT_TTL_MAX_MS),
        "max_tasks" => number(1, most(limits::CLAIM_TASKS_MAX)),
        "capacity" => number(1, i64::from(limits::WORKER_CAPACITY_MAX)),
        "until" | "delay_until" | "deadline_at" | "created_at" | "created_from" | "created_to" | "ended_from"
        | "ended_to" | "starts_at" | "ends_at" | "timeout_at" | "next_at" | "after" => instant(),
        "delay_ms" | "retry_after_ms" | "dedup_window_ms" | "took_ms" | "sleep_ms" | "initial_ms" | "max_ms"
        | "advance_ms" | "grace_ms" => duration(),
        "timeout_ms"
        | "attempt_timeout_ms"
        | "execution_deadline_ms"
        | "default_timeout_ms"
        | "retention_ms"
        | "retention_ttl_ms"
        | "expires_in_ms" => span(),
        "every_ms" => number(limits::SCHEDULE_EVERY_MIN_MS, limits::DURATION_MAX_MS),
        // Zero is no window.
        "reset_interval_ms" | "rolling_ms" => duration(),
        "resume_delay_ms" => number(0, limits::RESUME_DELAY_MAX_MS),
        "ttl_ms" => number(limits::RESERVATION_TTL_MIN_MS, limits::RESERVATION_TTL_MAX_MS),
        "pct" => number(0, 100),
        "first_sequence" | "first_number" => number(1, limits::SCORE_MAX),
        "max_retries" => number(0, i64::from(limits::RETRIES_MAX)),
        "retention_maxlen" => number(1, 1_000_000),
        "multiplier" => number(1, 1_000),
        "aging_ms" => number(1, limits::AGING_DEFAULT_MS),
        "fair_weight" => number(1, i64::from(limits::FAIR_WEIGHT_MAX)),
        "max" => number(1, i64::try_from(limits::BULK_MAX).unwrap_or(i64::MAX)),
        "rate_per_second" => number(1, i64::from(limits::BULK_RATE_MAX)),
        "window_seconds" => number(1, i64::from(limits::QUOTA_WINDOW_MAX_SECONDS)),
        "max_requests" => number(0, i64::from(limits::QUOTA_REQUESTS_MAX)),
        "max_concurrent" => number(0, i64::from(limits::QUOTA_CONCURRENT_MAX)),
        "max_tokens" | "requests" | "tokens" => {
            number(0, i64::try_from(limits::PROVIDER_AMOUNT_MAX).unwrap_or(i64::MAX))
        }
        "window_ms" => number(limits::PROVIDER_WINDOW_MIN_MS, limits::PROVIDER_WINDOW_MAX_MS),
        "jitter_ms" => number(0, limits::QUOTA_JITTER_MAX_MS),
        "hard" | "soft" => number(0, limits::USAGE_MAX),
        "k" => number(1, i64::from(limits::FLOW_MEMBERS_MAX)),
        "n" => number(1, i64::from(limits::CONDITION_COUNT_MAX)),
        "same" | "window" => number(2, i64::from(limits::NO_PROGRESS_WINDOW_MAX)),
        _ => None,
    }
}

/// The rule of a field that is a list.
fn list_rule(field: &str) -> Option<Rule> {
    match field {
        "lanes" => list(1, limits::LANES_MAX, name()),
        "kinds" => list(0, limits::KINDS_MAX, kind()),
        "lease_ids" => list(0, limits::CLAIM_TASKS_MAX, None),
        "leases" | "renew" => list(0, limits::RENEWALS_MAX, None),
        "end" => list(0, limits::EXCHANGE_ENDINGS_MAX, None),
        "executions" => list(1, limits::BATCH_CREATE_MAX, None),
        "frames" => list(1, limits::FRAMES_PER_APPEND_MAX, None),
        "entries" => list(0, limits::STEPS_PER_RECORD_MAX, None),
        "nodes" => list(0, limits::GRAPH_NODES_MAX, None),
        "edges" | "dependencies" => list(0, limits::GRAPH_EDGES_MAX, None),
        "budget_ids" => list(0, limits::BUDGETS_PER_EXECUTION_MAX, budget_name()),
        "assignees" => list(0, limits::ASSIGNEES_MAX, label()),
        "concurrency" => list(0, limits::CONCURRENCY_KEYS_MAX, None),
        "waitpoint_ids" | "questions" | "waitpoints" => list(0, limits::WAITPOINTS_MAX, None),
        "tools" => list(0, limits::TOOLS_PER_WORKER_MAX, None),
        "fallback" => list(0, limits::FALLBACK_TIERS_MAX, None),
        "retryable_categories" | "non_retryable_categories" | "failure_category" => {
            list(0, limits::CATEGORIES_MAX, label())
        }
        "undone" | "steps_not_visited" | "steps_changed" => list(0, limits::STEPS_NAMED_MAX, None),
        "children" | "sleeps" => list(0, limits::WAITS_MAX, None),
        "capabilities" | "required_capabilities" => list(0, limits::CAPABILITIES_MAX_TOKENS, None),
        "at" => list(0, limits::SCHEDULE_INSTANTS_MAX, number(0, limits::SCORE_MAX)),
        "any" | "all" | "matchers" => list(0, limits::CONDITION_NODES_MAX, None),
        "any_of" | "all_of" => list(1, limits::CONDITION_NODES_MAX, None),
        "event_types" => list(0, limits::FILTER_VALUES_MAX, None),
        _ => None,
    }
}

/// The rule of a field that is an object with names of the caller's own.
fn object_rule(field: &str) -> Option<Rule> {
    match field {
        "tags" => {
            let key = pattern(1, limits::TAG_KEY_MAX_BYTES, format!("^{TAG_KEY}$"));
            names(0, limits::TAGS_MAX, key, text_of(limits::TAG_VALUE_MAX_BYTES))
        }
        "usage" | "amounts" | "actual" => amounts(1),
        "estimate" => names(0, limits::BUDGET_DIMENSIONS_MAX, name(), number(0, limits::USAGE_MAX)),
        "dimensions" => names(1, limits::BUDGET_DIMENSIONS_MAX, name(), None),
        _ => None,
    }
}

/// Fields that a request may leave out as far as its reader is concerned, and is refused without.
const NEEDED: [(&str, &str); 18] = [
    ("report_usage", "usage"),
    ("report_budget_usage", "usage"),
    ("create_budget", "dimensions"),
    ("set_budget_limits", "dimensions"),
    ("reserve_spend", "amounts"),
    ("append_frames", "frames"),
    ("record_steps", "entries"),
    ("create_executions", "executions"),
    ("claim", "lanes"),
    ("register_worker", "lanes"),
    ("ExchangeClaim", "lanes"),
    ("BudgetTemplate", "dimensions"),
    ("ConcurrencyLimit", "key"),
    ("ConcurrencyLimit", "limit"),
    ("CountCondition", "n"),
    ("FallbackTier", "provider"),
    ("FallbackTier", "model"),
    ("Quorum", "k"),
];

impl Rule {
    /// Adds the rule to the schema of a field of that type; another schema stays as it is.
    fn add_to(&self, schema: &mut Value) {
        let is = |wanted: &[&str]| match &schema["type"] {
            Value::String(one) => wanted.contains(&one.as_str()),
            Value::Array(several) => several.iter().filter_map(Value::as_str).any(|one| wanted.contains(&one)),
            _ => false,
        };
        match self {
            Rule::Text(least, most, pattern) if is(&["string"]) => {
                if *least > 0 {
                    schema["minLength"] = json!(least);
                }
                schema["maxLength"] = json!(most);
                schema["pattern"] = json!(pattern);
            }
            Rule::Secret(least, most, pattern) => {
                // Not every generator reads what stands beside a reference.
                let optional = schema["anyOf"].is_array();
                let kind = if optional { json!(["string", "null"]) } else { json!("string") };
                let said = schema.get("description").cloned();
                *schema = json!({ "type": kind, "minLength": least, "maxLength": most, "pattern": pattern });
                if let Some(said) = said {
                    schema["description"] = said;
                }
            }
            Rule::Number(least, most) if is(&["integer", "number"]) => {
                schema["minimum"] = json!(least);
                schema["maximum"] = json!(most);
            }
            Rule::List(least, most, item) if is(&["array"]) => {
                if *least > 0 {
                    schema["minItems"] = json!(least);
                }
                schema["maxItems"] = json!(most);
                if let Some(item) = item {
                    item.add_to(&mut schema["items"]);
                }
            }
            Rule::Names(least, most, name, value) if is(&["object"]) => {
                if *least > 0 {
                    schema["minProperties"] = json!(least);
                }
                schema["maxProperties"] = json!(most);
                let mut names = json!({ "type": "string" });
                name.add_to(&mut names);
                schema["propertyNames"] = names;
                if let Some(value) = value {
                    value.add_to(&mut schema["additionalProperties"]);
                }
            }
            _ => {}
        }
    }
}

fn add(owner: &str, field: &str, schema: &mut Value) {
    if let Some(rule) = own_rule(owner, field).unwrap_or_else(|| rule(field)) {
        rule.add_to(schema);
    }
}

/// Adds the rules to parameters and bodies, and to the schemas they refer to.
pub(super) fn add_all(paths: &mut Map<String, Value>, schemas: &mut Map<String, Value>) {
    let mut waiting = Vec::new();
    for operation in paths.values_mut().filter_map(Value::as_object_mut).flat_map(|methods| methods.values_mut()) {
        let owner = operation["operationId"].as_str().unwrap_or("").to_owned();
        for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
            let field = parameter["name"].as_str().unwrap_or("").to_owned();
            add(&owner, &field, &mut parameter["schema"]);
            add_within(&owner, &mut parameter["schema"]);
            super::references(&parameter["schema"], &mut waiting);
        }
        if let Some(body) = operation.pointer_mut("/requestBody/content/application~1json/schema") {
            require_needed(&owner, body);
            add_within(&owner, body);
            super::references(body, &mut waiting);
        }
        let needed = |required: &Value| required.as_array().is_some_and(|required| !required.is_empty());
        if operation.pointer("/requestBody/content/application~1json/schema/required").is_some_and(needed) {
            operation["requestBody"]["required"] = json!(true);
        }
    }
    let mut seen = BTreeSet::new();
    while let Some(name) = waiting.pop() {
        if let Some(schema) = schemas.get_mut(&name)
            && seen.insert(name.clone())
        {
            add(&name, "", schema);
            require_needed(&name, schema);
            add_within(&name, schema);
            super::references(schema, &mut waiting);
        }
    }
}

fn require_needed(owner: &str, schema: &mut Value) {
    NEEDED.iter().filter(|(needs, _)| *needs == owner).for_each(|(_, field)| require(schema, field));
}

fn require(schema: &mut Value, field: &str) {
    let required = &mut schema["required"];
    if required.is_null() {
        *required = json!([]);
    }
    if let Some(names) = required.as_array_mut()
        && !names.iter().any(|name| name == field)
    {
        names.push(json!(field));
    }
}

/// The range of a number that no rule bounds, and the alphabet of bytes.
fn add_form(schema: &mut Map<String, Value>) {
    let range = match schema.get("format").and_then(Value::as_str) {
        Some("uint32") => (json!(0), json!(u32::MAX)),
        Some("uint64" | "uint") => (json!(0), json!(u64::MAX)),
        Some("int64") => (json!(i64::MIN), json!(i64::MAX)),
        _ => {
            if schema.contains_key("contentEncoding") {
                schema.insert("pattern".into(), json!(BASE64));
            }
            return;
        }
    };
    schema.entry("minimum").or_insert(range.0);
    schema.entry("maximum").or_insert(range.1);
}

/// Adds the rules of an owner's fields, wherever in its schema they stand.
fn add_within(owner: &str, schema: &mut Value) {
    match schema {
        Value::Object(parts) => {
            // A value that stands twice in a set is merged with itself.
            parts.remove("uniqueItems");
            add_form(parts);
            if let Some(properties) = parts.get_mut("properties").and_then(Value::as_object_mut) {
                properties.iter_mut().for_each(|(field, schema)| add(owner, field, schema));
            }
            parts.iter_mut().filter(|(word, _)| *word != "default").for_each(|(_, part)| add_within(owner, part));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| add_within(owner, item)),
        _ => {}
    }
}
