//! The options that say which executions: those of `ff ls` and of every bulk job.

use flowfabric::op::list_executions;
use flowfabric::{BulkFilter, ExecutionId, FlowId, PublicState};

use crate::input::one_of;
use crate::span;

/// Which executions.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Selection {
    /// Only executions in this state; may be repeated
    #[arg(long, value_parser = one_of!(PublicState))]
    state: Vec<PublicState>,
    /// Only executions in this lane; may be repeated
    #[arg(long)]
    lane: Vec<String>,
    /// Only executions of this kind; may be repeated
    #[arg(long)]
    kind: Vec<String>,
    /// Only executions in this flow
    #[arg(long, value_name = "ID")]
    flow: Option<FlowId>,
    /// Only with this tag; of several values of one key any will do
    #[arg(long, value_name = "KEY=VALUE")]
    tag: Vec<String>,
    /// Only executions that failed with this category; may be repeated
    #[arg(long, value_name = "CATEGORY")]
    failure: Vec<String>,
    /// Only runs of this schedule
    #[arg(long, value_name = "NAME")]
    schedule: Option<String>,
    /// Only executions that this worker process holds
    #[arg(long, value_name = "INSTANCE")]
    worker: Option<String>,
    /// Only executions that this execution spawned
    #[arg(long, value_name = "ID")]
    parent: Option<ExecutionId>,
    /// Only created since: a span before now or RFC 3339
    #[arg(long, value_name = "WHEN", value_parser = span::parse_past)]
    since: Option<i64>,
    /// Only created before: a span before now or RFC 3339
    #[arg(long, value_name = "WHEN", value_parser = span::parse_past)]
    until: Option<i64>,
    /// Only ended since: a span before now or RFC 3339
    #[arg(long, value_name = "WHEN", value_parser = span::parse_past)]
    ended_since: Option<i64>,
    /// Only ended before: a span before now or RFC 3339
    #[arg(long, value_name = "WHEN", value_parser = span::parse_past)]
    ended_until: Option<i64>,
}

impl Selection {
    /// As the filters of a list.
    pub(crate) fn as_list(&self) -> list_executions::Args {
        list_executions::Args { order: None, ..self.as_filter().as_list() }
    }

    /// As the filter of a bulk job.
    pub(crate) fn as_filter(&self) -> BulkFilter {
        BulkFilter {
            lane: self.lane.clone(),
            kind: self.kind.clone(),
            state: self.state.clone(),
            flow_id: self.flow,
            tag: self.tag.clone(),
            failure_category: self.failure.clone(),
            schedule: self.schedule.clone(),
            worker: self.worker.clone(),
            parent: self.parent,
            created_from: self.since,
            created_to: self.until,
            ended_from: self.ended_since,
            ended_to: self.ended_until,
        }
    }
}
