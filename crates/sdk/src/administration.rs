//! Calls of a client beside single executions: lists, flows, budgets, quotas, lanes, workers, tokens.

use std::collections::BTreeMap;
use std::time::Duration;

use ff_core::budget::{BudgetAnswer, Limits};
use ff_core::op::CreateResult;
use ff_core::op::parts::NamedRemoval;
use ff_core::op::view::{ExecutionSummary, FlowView, GraphView};
use ff_core::op::{
    CancelFlow, CloseFlow, ConfigureLane, CreateBudget, CreateExecutions, CreateFlow, CreateQuota, CreateToken,
    DecideBudget, DeleteBudget, DeleteLane, DeleteQuota, GetBudget, GetCounts, GetFlow, GetFlowGraph, GetQuota,
    ListApprovals, ListExecutions, ListFlows, ListLanes, ListNamespaces, ListTokens, ListWorkers, RemoveFlow,
    ReportBudgetUsage, ResetBudget, RevokeToken, SetBudgetLimits, UpdateBudget, UpdateQuota, cancel_flow, close_flow,
    configure_lane, create_budget, create_execution, create_executions, create_flow, create_quota, create_token,
    decide_budget, delete_lane, get_budget, get_counts, get_flow, get_flow_graph, get_quota, list_approvals,
    list_executions, list_flows, list_lanes, list_namespaces, list_tokens, list_workers, remove_flow,
    report_budget_usage, reset_budget, revoke_token, set_budget_limits, update_budget, update_quota,
};
use ff_core::{
    ApiTokenInfo, BudgetStatus, CancelFlowPolicy, CancelFlowResult, FlowId, LaneState, LaneView, QuotaStatus,
    ReportUsageResult, WorkerView,
};

use crate::client::Client;
use crate::error::Result;

/// Executions in bulk, and flows.
impl Client {
    /// Submits up to 1,000 executions at once; each has a result of its own. See
    /// [`Submission::into_args`](crate::Submission::into_args).
    pub async fn submit_all(&self, executions: Vec<create_execution::Args>) -> Result<Vec<CreateResult>> {
        Ok(self.call::<CreateExecutions>(create_executions::Args { executions }).await?.results)
    }

    /// One page of executions, newest first.
    pub async fn list(&self, filter: list_executions::Args) -> Result<list_executions::Outcome> {
        self.call::<ListExecutions>(filter).await
    }

    /// All executions that fit, page by page.
    pub async fn list_all(&self, mut filter: list_executions::Args) -> Result<Vec<ExecutionSummary>> {
        let mut executions = Vec::new();
        loop {
            let page = self.list(filter.clone()).await?;
            executions.extend(page.items);
            match page.next_cursor {
                Some(cursor) => filter.cursor = Some(cursor),
                None => return Ok(executions),
            }
        }
    }

    /// How many executions there are by state, and how many wait by lane and kind; all callers within two seconds share
    /// one reading.
    pub async fn counts(&self) -> Result<get_counts::Outcome> {
        self.call::<GetCounts>(get_counts::Args::default()).await
    }

    /// One page of namespaces.
    pub async fn list_namespaces(&self, page: list_namespaces::Args) -> Result<list_namespaces::Outcome> {
        self.call::<ListNamespaces>(page).await
    }

    /// One page of what waits for people, what has waited longest first.
    pub async fn approvals(&self, filter: list_approvals::Args) -> Result<list_approvals::Outcome> {
        self.call::<ListApprovals>(filter).await
    }

    /// Creates a flow, with its whole graph if it is known; see [`FlowBuilder`](crate::FlowBuilder).
    pub async fn create_flow(&self, flow: create_flow::Args) -> Result<create_flow::Outcome> {
        self.call::<CreateFlow>(flow).await
    }

    /// A flow with its counts.
    pub async fn flow(&self, flow_id: FlowId) -> Result<FlowView> {
        self.call::<GetFlow>(get_flow::Args { flow_id }).await
    }

    /// A flow with its nodes and edges.
    pub async fn flow_graph(&self, flow_id: FlowId) -> Result<GraphView> {
        self.call::<GetFlowGraph>(get_flow_graph::Args { flow_id }).await
    }

    /// One page of flows.
    pub async fn list_flows(&self, filter: list_flows::Args) -> Result<list_flows::Outcome> {
        self.call::<ListFlows>(filter).await
    }

    /// Cancels a flow; with `wait`, answers when its members have followed.
    pub async fn cancel_flow(
        &self,
        flow_id: FlowId,
        policy: CancelFlowPolicy,
        reason: impl Into<String>,
        wait: bool,
    ) -> Result<CancelFlowResult> {
        let args = cancel_flow::Args { flow_id, policy: Some(policy), reason: Some(reason.into()), wait, cursor: None };
        self.call::<CancelFlow>(args).await
    }

    /// Says that a flow which is made step by step is complete: it ends with its last member.
    pub async fn close_flow(&self, flow_id: FlowId) -> Result<close_flow::Outcome> {
        self.call::<CloseFlow>(close_flow::Args { flow_id }).await
    }

    /// Removes a flow that has ended, with its members.
    pub async fn remove_flow(&self, flow_id: FlowId) -> Result<()> {
        self.call::<RemoveFlow>(remove_flow::Args { flow_id }).await.map(drop)
    }
}

/// Budgets and quotas.
impl Client {
    /// Creates a budget; the same definition again is no error.
    pub async fn create_budget(&self, budget: create_budget::Args) -> Result<create_budget::Outcome> {
        self.call::<CreateBudget>(budget).await
    }

    /// The usage of a budget, and its limits.
    pub async fn budget(&self, name: &str) -> Result<BudgetStatus> {
        self.call::<GetBudget>(get_budget::Args { name: name.to_owned(), namespace: None }).await
    }

    /// Answers a budget's question: grants more in this window, raises the hard limits, or says no.
    pub async fn decide_budget<'a>(
        &self,
        name: &str,
        answer: BudgetAnswer,
        amounts: impl IntoIterator<Item = (&'a str, i64)>,
    ) -> Result<BudgetStatus> {
        let amounts = amounts.into_iter().map(|(dimension, amount)| (dimension.to_owned(), amount)).collect();
        let args = decide_budget::Args { name: name.to_owned(), namespace: None, answer, amounts, command_id: None };
        self.call::<DecideBudget>(args).await
    }

    /// Changes the limits of a budget; what it blocked runs again where they were raised.
    pub async fn set_budget_limits(&self, name: &str, dimensions: BTreeMap<String, Limits>) -> Result<BudgetStatus> {
        let args = set_budget_limits::Args { name: name.to_owned(), namespace: None, dimensions };
        self.call::<SetBudgetLimits>(args).await
    }

    /// Changes how a budget acts; what is absent stays.
    pub async fn update_budget(&self, change: update_budget::Args) -> Result<BudgetStatus> {
        self.call::<UpdateBudget>(change).await
    }

    /// Deletes a budget; `in_use` while executions that have not ended are charged to it, unless forced.
    pub async fn delete_budget(&self, name: &str, force: bool) -> Result<()> {
        self.call::<DeleteBudget>(NamedRemoval { name: name.to_owned(), namespace: None, force }).await.map(drop)
    }

    /// Charges a budget directly, as an operator.
    pub async fn report_budget_usage(&self, name: &str, usage: BTreeMap<String, i64>) -> Result<ReportUsageResult> {
        let args = report_budget_usage::Args {
            name: name.to_owned(),
            namespace: None,
            usage,
            dedup_key: None,
            execution_id: None,
            fence: None,
        };
        self.call::<ReportBudgetUsage>(args).await
    }

    /// Sets the usage of a budget to nothing.
    pub async fn reset_budget(&self, name: &str) -> Result<reset_budget::Outcome> {
        let args = reset_budget::Args { name: name.to_owned(), namespace: None, command_id: None };
        self.call::<ResetBudget>(args).await
    }

    /// Creates a quota; the same definition again is no error.
    pub async fn create_quota(&self, quota: create_quota::Args) -> Result<create_quota::Outcome> {
        self.call::<CreateQuota>(quota).await
    }

    /// Changes a quota; what is absent stays.
    pub async fn update_quota(&self, change: update_quota::Args) -> Result<QuotaStatus> {
        self.call::<UpdateQuota>(change).await
    }

    /// Deletes a quota; `in_use` while executions that have not ended run under it, unless forced.
    pub async fn delete_quota(&self, name: &str, force: bool) -> Result<()> {
        self.call::<DeleteQuota>(NamedRemoval { name: name.to_owned(), namespace: None, force }).await.map(drop)
    }

    /// How full a quota is.
    pub async fn quota(&self, name: &str) -> Result<QuotaStatus> {
        self.call::<GetQuota>(get_quota::Args { name: name.to_owned(), namespace: None }).await
    }
}

/// Lanes, workers and tokens.
impl Client {
    /// The lanes there are; one page.
    pub async fn lanes(&self) -> Result<Vec<LaneView>> {
        Ok(self.call::<ListLanes>(list_lanes::Args::default()).await?.items)
    }

    /// Sets what a lane does: give out work, hold it back, drain, or take no submissions.
    pub async fn set_lane(&self, lane: &str, state: LaneState, reason: impl Into<String>) -> Result<LaneView> {
        let args = configure_lane::Args {
            lane: lane.to_owned(),
            namespace: None,
            state: Some(state),
            reason: Some(reason.into()),
            aging_ms: None,
        };
        self.call::<ConfigureLane>(args).await
    }

    /// So much age is worth one step of priority, for work that is submitted to the lane from now on.
    pub async fn set_lane_aging(&self, lane: &str, aging: Duration) -> Result<LaneView> {
        let aging_ms = Some(i64::try_from(aging.as_millis()).unwrap_or(i64::MAX));
        let args = configure_lane::Args { lane: lane.to_owned(), namespace: None, state: None, reason: None, aging_ms };
        self.call::<ConfigureLane>(args).await
    }

    /// Forgets a lane; `in_use` while executions that have not ended are in it, unless forced.
    pub async fn delete_lane(&self, lane: &str, force: bool) -> Result<()> {
        let args = delete_lane::Args { lane: lane.to_owned(), namespace: None, force };
        self.call::<DeleteLane>(args).await.map(drop)
    }

    /// The live workers; one page.
    pub async fn workers(&self) -> Result<Vec<WorkerView>> {
        Ok(self.call::<ListWorkers>(list_workers::Args::default()).await?.items)
    }

    /// Creates an API token; its secret is shown this once.
    pub async fn create_token(&self, token: create_token::Args) -> Result<create_token::Outcome> {
        self.call::<CreateToken>(token).await
    }

    /// The API tokens, without their secrets; one page.
    pub async fn tokens(&self) -> Result<Vec<ApiTokenInfo>> {
        Ok(self.call::<ListTokens>(list_tokens::Args::default()).await?.items)
    }

    /// Revokes an API token; answers whether there was one.
    pub async fn revoke_token(&self, name: &str) -> Result<bool> {
        Ok(self.call::<RevokeToken>(revoke_token::Args { name: name.to_owned() }).await?.changed)
    }
}
