//! Says why an execution is not running: what holds it in the order in which the holds count, then what would keep it
//! from being claimed. The first reason is the one to deal with first.

use ff_core::budget::{self, Budget, SpendRefusal};
use ff_core::edge::{Edge, EdgeRole, EdgeState};
use ff_core::execution::{Execution, Hold};
use ff_core::gate::Gate;
use ff_core::lane::Lane;
use ff_core::op::view::QuestionView;
use ff_core::op::{ExplainExecution, ExplainExecutionArgs, Explanation, Reason, ReasonCode};
use ff_core::provider::EffectiveLimits;
use ff_core::quota::QuotaPolicy;
use ff_core::worker::Worker;
use ff_core::{
    AttemptState, BlockingReason, ConcurrencyKey, ConcurrencyLimit, Document, LifecyclePhase, Partition, Result,
    Suspension, index, limits,
};
use ff_store::{Answer, Query, Scan};
use serde::Serialize;

use crate::caller::Caller;
use crate::op::Handle;
use crate::services::Services;

impl Handle<ExplainExecution> for Services {
    async fn handle(&self, caller: &Caller, args: ExplainExecutionArgs) -> Result<Explanation> {
        let (execution, lease_until) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        let reasons = match execution.state.lifecycle_phase {
            LifecyclePhase::Terminal => vec![ended(&execution)],
            LifecyclePhase::Active => vec![running(&execution, lease_until)],
            LifecyclePhase::Suspended if execution.asks_budget() => vec![self.budget_asking(&execution).await?],
            LifecyclePhase::Suspended => questions(&execution).chain(suspended(&execution)).collect(),
            LifecyclePhase::Runnable | LifecyclePhase::Unknown(_) => self.reasons_to_wait(&execution).await?,
        };
        let timer = execution.next_timer().filter(|_| !execution.is_terminal());
        let next_change_at = reasons.iter().filter_map(|reason| reason.until).chain(timer).min();
        Ok(Explanation { execution_id: execution.id, public_state: execution.public_state(), reasons, next_change_at })
    }
}

impl Services {
    async fn reasons_to_wait(&self, execution: &Execution) -> Result<Vec<Reason>> {
        let mut reasons = Vec::new();
        if execution.holds.has(Hold::Operator) {
            reasons.push(held(execution));
        }
        if let Some(fork) = execution.unfinished_fork() {
            let message = format!("its journal is being copied from {}", fork.origin);
            let copied = reason(ReasonCode::CopyingJournal, message).with("origin_id", fork.origin);
            reasons.push(copied.with("copied", fork.copied).with("entries", fork.below - 1));
        }
        if execution.holds.has(Hold::Dependencies) {
            reasons.extend(self.open_upstreams(execution).await?);
        }
        if execution.holds.has(Hold::Time) {
            reasons.push(waiting_for_time(execution));
            reasons.extend(self.providers_waited_for(execution).await?);
        }
        if let Some(grant) = &execution.grant {
            let message = format!("granted to {} until {}", grant.worker_id, moment(grant.expires_at));
            reasons
                .push(reason(ReasonCode::Granted, message).until(grant.expires_at).with("worker_id", &grant.worker_id));
        }
        if let Some(lane) = self.closed_lane(execution).await? {
            reasons.push(lane_closed(&lane));
        }
        // A granted execution was admitted, and the slot that fills its quota may be its own.
        if execution.grant.is_none() {
            for named in &execution.budgets {
                for name in budget::names_to(named) {
                    reasons.extend(self.budget_in_the_way(execution, name, name != named).await?);
                }
                reasons.extend(self.child_in_the_way(execution, named).await?);
            }
            for limit in execution.concurrency() {
                reasons.extend(self.key_in_the_way(execution, limit).await?);
            }
            if let Some(name) = &execution.quota {
                reasons.extend(self.quota_in_the_way(execution, name).await?);
            }
            reasons.extend(self.worker_missing(execution).await?);
        }
        if reasons.is_empty() {
            let message = format!("waits for its turn in lane {}", execution.lane);
            reasons.push(reason(ReasonCode::Queued, message).with("lane", &execution.lane));
        }
        Ok(reasons)
    }

    /// The providers whose turn it is parked for, with their limits as they are now.
    async fn providers_waited_for(&self, execution: &Execution) -> Result<Vec<Reason>> {
        let mut reasons = Vec::new();
        for wait in execution.waits.iter().filter(|wait| !wait.provider.is_empty()) {
            let name = &wait.provider;
            let Some(status) = self.provider_status(&execution.namespace, name).await? else { continue };
            let EffectiveLimits { requests, tokens, concurrent, percent } = status.effective;
            let closed = status.closed_until.map_or(String::new(), |until| format!(", closed until {}", moment(until)));
            let message = format!(
                "provider {name} has {percent} % of its rate{closed}; {} calls under way, {} booked",
                status.in_use, status.booked
            );
            let waited = reason(ReasonCode::ProviderBusy, message).with("provider", name).with("requests", requests);
            let mut waited = waited.with("tokens", tokens).with("concurrent", concurrent).with("percent", percent);
            waited.until = Some(wait.until).filter(|until| *until != 0);
            reasons.push(waited);
        }
        Ok(reasons)
    }

    /// The lane, if it gives out no work.
    pub(crate) async fn closed_lane(&self, execution: &Execution) -> Result<Option<Lane>> {
        let lane = self.shared.system.lane(&execution.namespace, &execution.lane).await?;
        Ok(lane.filter(|lane| !lane.admits_claims()))
    }

    async fn open_upstreams(&self, execution: &Execution) -> Result<Vec<Reason>> {
        let scan = Scan::first(index::edges_to(execution.id.uuid), limits::PAGE_DEFAULT).with_documents();
        let page = self.transactor.read(execution.id.partition(), vec![Query::Scan(scan)]).await?;
        let page = page.into_only(Answer::into_scan).map_err(ff_core::Error::from)?;
        let edges = page.entries.into_iter().filter_map(|entry| self.transactor.readable::<Edge>(&entry.document?));
        let open: Vec<Edge> = edges.filter(|edge| edge.state == EdgeState::Pending).collect();
        let upstreams = open.iter().map(|edge| Execution::key_of(&edge.upstream)).collect();
        let upstreams = self.transactor.store().documents(execution.id.partition(), upstreams).await?;
        let upstreams = upstreams.iter().map(|stored| self.transactor.readable::<Execution>(stored.as_ref()?));
        let mut reasons: Vec<Reason> =
            open.iter().zip(upstreams).map(|(edge, upstream)| open_edge(edge, upstream.as_ref())).collect();
        if reasons.is_empty() {
            let code =
                if execution.has_started() { ReasonCode::WaitingForChild } else { ReasonCode::WaitingForUpstream };
            reasons.push(reason(code, "waits for its dependencies".into()));
        }
        Ok(reasons)
    }

    /// The child of a budget that counts what this execution spends, because of one of its tags. One that was not made yet
    /// is judged by its template.
    async fn child_in_the_way(&self, execution: &Execution, name: &str) -> Result<Option<Reason>> {
        let Some(named) = self.budget_named(execution, name).await? else { return Ok(None) };
        let Some(child) = named.child_for(&execution.tags) else { return Ok(None) };
        let found = self.budget_named(execution, &child).await?;
        let child = found.or_else(|| named.make_child(&execution.tags, self.transactor.now()));
        Ok(child.and_then(|child| budget_refuses(execution, &child)))
    }

    async fn budget_named(&self, execution: &Execution, name: &str) -> Result<Option<Budget>> {
        let partition = self.transactor.partitions().budget_partition(&execution.namespace, name);
        self.transactor.find::<Budget>(partition, Budget::key_of(&execution.namespace, name)).await
    }

    async fn budget_in_the_way(&self, execution: &Execution, name: &str, above: bool) -> Result<Option<Reason>> {
        Ok(match self.budget_named(execution, name).await? {
            Some(budget) => budget_refuses(execution, &budget),
            None if above => None,
            None => Some(budget_missing(name)),
        })
    }

    /// The budget that asks people for more, for this execution and others. One that was removed asks nobody.
    async fn budget_asking(&self, execution: &Execution) -> Result<Reason> {
        let name = Gate::budget_of(&execution.parked_on).unwrap_or_default();
        if self.budget_named(execution, name).await?.is_none() {
            return Ok(budget_missing(name));
        }
        let message = format!("{}; a person is asked: grant, raise or no", execution.blocking_detail);
        Ok(reason(ReasonCode::DecisionNeeded, message).with("budget", name).with("answers", ["grant", "raise", "no"]))
    }

    async fn key_in_the_way(&self, execution: &Execution, limit: &ConcurrencyLimit) -> Result<Option<Reason>> {
        let (namespace, key) = (&execution.namespace, &limit.key);
        let partition = self.transactor.partitions().concurrency_partition(namespace, key);
        let document =
            self.transactor.find::<ConcurrencyKey>(partition, ConcurrencyKey::key_of(namespace, key)).await?;
        let Some(document) = document.filter(|document| document.room(limit.limit) == 0) else { return Ok(None) };
        let message = format!("concurrency key {key}: {}/{} running", document.in_use, limit.limit);
        let full = reason(ReasonCode::ConcurrencyKeyFull, message);
        Ok(Some(full.with("key", key).with("in_use", document.in_use).with("limit", limit.limit)))
    }

    async fn quota_in_the_way(&self, execution: &Execution, name: &str) -> Result<Option<Reason>> {
        let partition = self.transactor.partitions().quota_partition(&execution.namespace, name);
        let quota =
            self.transactor.find::<QuotaPolicy>(partition, QuotaPolicy::key_of(&execution.namespace, name)).await?;
        let Some(quota) = quota else {
            let message = format!("the quota {name} does not exist");
            return Ok(Some(reason(ReasonCode::QuotaNotFound, message).with("quota", name)));
        };
        let now = self.transactor.now_in(partition);
        if quota.release_count(now) > 0 {
            return Ok(None);
        }
        let status = quota.status(now);
        let full = reason(ReasonCode::QuotaFull, String::new())
            .with("quota", name)
            .with("in_use", status.in_use)
            .with("max_concurrent", status.definition.max_concurrent)
            .with("started_in_window", status.started_in_window)
            .with("max_requests", status.definition.max_requests);
        let message = match status.opens_at {
            Some(at) => format!("quota {name} is full until {}", moment(at)),
            None => format!("quota {name}: {}/{} running", status.in_use, status.definition.max_concurrent),
        };
        Ok(Some(Reason { message, until: status.opens_at, ..full }))
    }

    /// That no live worker serves its lane, or its kind there, or that none of those has the capabilities it requires.
    pub(crate) async fn worker_missing(&self, execution: &Execution) -> Result<Option<Reason>> {
        if self.scheduler.ready().is_awaited(execution) {
            return Ok(None);
        }
        let mut workers = self.live_workers_in_lane(execution).await?;
        let in_lane = workers.len();
        workers.retain(|worker| worker.serves(&execution.kind));
        if workers.is_empty() && in_lane > 0 {
            let (lane, kind) = (&execution.lane, &execution.kind);
            let message = format!("no live worker in lane {lane} serves kind {kind}");
            return Ok(Some(reason(ReasonCode::KindNotServed, message).with("kind", kind).with("lane", lane)));
        }
        let required = &execution.capabilities;
        if workers.iter().any(|worker| worker.capabilities.contains_all(required)) {
            return Ok(None);
        }
        let build = execution.pinned_build.as_str();
        let others = execution.required_capabilities();
        if !build.is_empty() && (workers.is_empty() || workers.iter().any(|one| one.capabilities.contains_all(&others)))
        {
            let message = format!(
                "pinned to build {build}, which no live worker in lane {} runs; repin it to let another build take it",
                execution.lane
            );
            return Ok(Some(reason(ReasonCode::PinnedToBuild, message).with("build_id", build)));
        }
        Ok(Some(not_capable(execution, &workers)))
    }

    /// The workers of an execution's lane whose registration has not run out.
    async fn live_workers_in_lane(&self, execution: &Execution) -> Result<Vec<Worker>> {
        let scan = Scan::first(index::listing(Worker::KIND, &execution.namespace), limits::PAGE_MAX).with_documents();
        let answers = self.transactor.read(Partition::SYSTEM, vec![Query::Scan(scan)]).await?;
        let now = answers.at;
        let page = answers.into_only(Answer::into_scan).map_err(ff_core::Error::from)?;
        let live =
            page.entries.into_iter().filter_map(|entry| entry.document).filter(|stored| stored.lease_until > now);
        Ok(live
            .filter_map(|stored| self.transactor.readable::<Worker>(&stored))
            .filter(|worker| worker.lanes.contains(&execution.lane))
            .collect())
    }
}

/// That none of these workers has the capabilities that an execution requires, or that there is no worker.
fn not_capable(execution: &Execution, workers: &[Worker]) -> Reason {
    let (lane, required) = (&execution.lane, &execution.capabilities);
    let nearest = workers
        .iter()
        .map(|worker| (required.missing(&worker.capabilities), worker))
        .min_by_key(|(missing, _)| missing.len());
    match nearest {
        Some((missing, worker)) => {
            let lacks: Vec<&str> = missing.tokens().collect();
            let message = format!(
                "no live worker has {}; the nearest, {}, lacks {}",
                required.route(),
                worker.instance_id,
                lacks.join(",")
            );
            reason(ReasonCode::NoCapableWorker, message)
                .with("required", required)
                .with("nearest", &worker.instance_id)
                .with("missing", &missing)
        }
        None if required.is_empty() => {
            reason(ReasonCode::NoWorker, format!("no live worker serves lane {lane}")).with("lane", lane)
        }
        None => {
            let message = format!("no live worker in lane {lane} has {}", required.route());
            reason(ReasonCode::NoCapableWorker, message).with("required", required).with("lane", lane)
        }
    }
}

/// An edge that is not resolved. That its upstream has ended does not resolve it, if the child was skipped for it and
/// replayed since.
fn open_edge(edge: &Edge, upstream: Option<&Execution>) -> Reason {
    let code = match edge.role {
        EdgeRole::Dependency | EdgeRole::Unknown(_) => ReasonCode::WaitingForUpstream,
        EdgeRole::Child => ReasonCode::WaitingForChild,
    };
    let id = edge.upstream;
    let Some(ended) = upstream.filter(|upstream| upstream.is_terminal()) else {
        return reason(code, format!("{id} has not ended")).with("execution_id", id);
    };
    let state = ended.public_state();
    let then = match (ended.owes_resolution, edge.role) {
        (true, _) | (_, EdgeRole::Child) => "its downstreams are being told",
        (false, _) => "it must be replayed and succeed",
    };
    reason(code, format!("{id} ended {state}; {then}")).with("execution_id", id).with("public_state", state)
}

fn ended(execution: &Execution) -> Reason {
    let state = execution.public_state();
    let why = match (&execution.cancellation, &execution.failure) {
        (Some(cancellation), _) if !cancellation.reason.is_empty() => format!(": {}", cancellation.reason),
        (None, Some(failure)) => format!(": {}", failure.reason),
        _ => String::new(),
    };
    let terminal = reason(ReasonCode::Terminal, format!("{state}{why}"));
    let terminal = terminal.with("public_state", state).with("ended_at", execution.ended_at);
    match execution.last_words() {
        [] => terminal,
        words => terminal.with("last_words", words),
    }
}

fn running(execution: &Execution, lease_until: i64) -> Reason {
    let (worker, instance) =
        execution.lease.as_ref().map_or(("", ""), |lease| (lease.worker_id.as_str(), lease.instance_id.as_str()));
    let message = format!("running under a lease of {instance} until {}", moment(lease_until));
    reason(ReasonCode::Running, message).until(lease_until).with("worker_id", worker).with("instance_id", instance)
}

/// The questions for a person about its journal, with everything that helps to answer.
fn questions(execution: &Execution) -> impl Iterator<Item = Reason> {
    QuestionView::of(execution).into_iter().map(|question| {
        let what = question.detail.clone().unwrap_or_else(|| format!("step {}", question.step.label()));
        let answers: Vec<&str> = question.answers.iter().map(|answer| answer.as_str()).collect();
        let message = format!("{}: {what}; answer {}", question.reason, answers.join(", "));
        reason(ReasonCode::DecisionNeeded, message)
            .with("step", &question.step)
            .with("reason", question.reason)
            .with("answers", &question.answers)
            .with("evidence", &question.evidence)
    })
}

/// That a budget is used up, or has no room for the estimate of an execution.
fn budget_refuses(execution: &Execution, budget: &Budget) -> Option<Reason> {
    let name = &budget.name;
    let Err(refusal) = budget.admit() else {
        let refusal = budget.refuses_estimate(execution.estimate()?).ok()??;
        return Some(estimate_in_the_way(&refusal));
    };
    let (dimension, current, limit) = (&refusal.dimension, refusal.current, refusal.limit);
    let resets = refusal.next_reset_at.map_or(String::new(), |at| format!(", resets at {}", moment(at)));
    let message = format!("budget {name}: {dimension} {current}/{limit}{resets}");
    let mut reason = reason(ReasonCode::BudgetExhausted, message)
        .with("budget", name)
        .with("dimension", dimension)
        .with("current", current)
        .with("limit", limit);
    reason.until = refusal.next_reset_at;
    Some(reason)
}

fn estimate_in_the_way(refusal: &SpendRefusal) -> Reason {
    let SpendRefusal { budget, dimension, requested, left, limit, next_reset_at } = refusal;
    let resets = next_reset_at.map_or(String::new(), |at| format!(", resets at {}", moment(at)));
    let never = if requested > limit { ": it fits only under a higher limit" } else { "" };
    let message =
        format!("budget {budget}: {left} of {limit} {dimension} left{resets}, its estimate is {requested}{never}");
    let mut reason = reason(ReasonCode::EstimateTooLarge, message)
        .with("budget", budget)
        .with("dimension", dimension)
        .with("estimate", requested)
        .with("left", left)
        .with("limit", limit);
    reason.until = next_reset_at.filter(|_| requested <= limit);
    reason
}

fn budget_missing(name: &str) -> Reason {
    reason(ReasonCode::BudgetNotFound, format!("the budget {name} does not exist")).with("budget", name)
}

/// The rest of what it is suspended on; nothing where it waits for answers alone.
fn suspended(execution: &Execution) -> Option<Reason> {
    let Some(suspension) = &execution.suspension else {
        return Some(reason(ReasonCode::Suspended, "suspended".into()));
    };
    let asked = execution.waits.iter().any(|wait| wait.question.is_some());
    if asked && suspension.waitpoints.is_empty() {
        return None;
    }
    let waits = execution.state.blocking_reason;
    let mut reason = reason(ReasonCode::Suspended, format!("suspended: {waits}{}", awaited(execution, suspension)))
        .with("blocking_reason", waits)
        .with("condition", &suspension.condition)
        .with("waitpoint_ids", &suspension.waitpoints)
        .with("signals_counted", suspension.facts.len());
    reason.until = suspension.next_timer();
    Some(reason)
}

/// The question that people are asked, and the names of the signals that count.
fn awaited(execution: &Execution, suspension: &Suspension) -> String {
    let parked = execution.waits.iter().filter(|wait| wait.waitpoint.is_some()).map(|wait| wait.name.clone());
    let names: Vec<String> = parked.chain(suspension.condition.required_names()).collect();
    let names = match names.is_empty() {
        true => String::new(),
        false => format!("; a signal {} is awaited", names.join(" or ")),
    };
    match suspension.question.as_str() {
        "" => names,
        question => format!(" ({question}){names}"),
    }
}

fn held(execution: &Execution) -> Reason {
    let (code, what) = match execution.state.blocking_reason {
        BlockingReason::PausedByFlowCancel => (ReasonCode::FlowCancelled, "its flow is cancelled"),
        _ => (ReasonCode::HeldByOperator, "held by an operator"),
    };
    let why = match execution.blocking_detail.as_str() {
        "" => String::new(),
        detail => format!(": {detail}"),
    };
    reason(code, format!("{what}{why}"))
}

fn waiting_for_time(execution: &Execution) -> Reason {
    if execution.state.attempt_state == AttemptState::PendingReclaimAttempt && execution.idle_reclaims() > 0 {
        let (lost, until) = (execution.idle_reclaims(), execution.not_before);
        let message =
            format!("backoff until {}: {lost} leases in a row were lost without a sign of work", moment(until));
        return reason(ReasonCode::RetryBackoff, message)
            .until(until)
            .with("idle_reclaims", lost)
            .with("last_words", execution.last_words());
    }
    let (code, what) = match execution.time_reason {
        BlockingReason::WaitingForRetryBackoff => (ReasonCode::RetryBackoff, "backoff"),
        BlockingReason::WaitingForResumeDelay => (ReasonCode::ResumeDelay, "resume delay"),
        _ => (ReasonCode::Delay, "delay"),
    };
    reason(code, format!("{what} until {}", moment(execution.not_before))).until(execution.not_before)
}

fn lane_closed(lane: &Lane) -> Reason {
    let who = if lane.changed_by.is_empty() { String::new() } else { format!(" by {}", lane.changed_by) };
    let why = if lane.reason.is_empty() { String::new() } else { format!(": {}", lane.reason) };
    reason(ReasonCode::LaneNotActive, format!("lane {} is {}{who}{why}", lane.name, lane.state))
        .with("lane", &lane.name)
        .with("state", lane.state)
        .with("changed_by", &lane.changed_by)
}

/// An instant for people; programs read it in its field.
fn moment(at_ms: i64) -> String {
    let at = jiff::Timestamp::from_millisecond(at_ms);
    at.map_or_else(|_| format!("{at_ms} ms"), |at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

fn reason(code: ReasonCode, message: String) -> Reason {
    Reason { code, message, until: None, details: serde_json::Map::new() }
}

trait Detailed {
    fn with(self, name: &str, value: impl Serialize) -> Self;
    fn until(self, at: i64) -> Self;
}

impl Detailed for Reason {
    fn with(mut self, name: &str, value: impl Serialize) -> Self {
        // Names and numbers can always be written as JSON; a detail that cannot is left out.
        if let Ok(value) = serde_json::to_value(value) {
            self.details.insert(name.to_owned(), value);
        }
        self
    }

    fn until(mut self, at: i64) -> Self {
        self.until = Some(at);
        self
    }
}
