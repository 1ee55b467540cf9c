//! `ff get`: shows an execution.

use flowfabric::op::list_attempts;
use flowfabric::{AttemptView, ExecutionId, ExecutionView};

use crate::failure::Result;
use crate::output::{Cell, Colour, Fields, Style, Table, public_state};
use crate::session::Session;
use crate::span;
use crate::watch::{self, View, Watch};

/// The arguments of `ff get`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff get 0000-0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e
  ff get ID --attempts                  how often it was tried, and by whom
  ff get ID --watch                     until it has ended
  ff get ID -o json | jq .public_state")]
pub(crate) struct Arguments {
    /// The execution
    #[arg(value_name = "ID")]
    execution_id: ExecutionId,
    /// Show its attempts with their leases instead
    #[arg(long, conflicts_with = "watch")]
    attempts: bool,
    #[command(flatten)]
    watch: Watch,
}

/// Shows it.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    if arguments.attempts {
        let items = session.client.execution(arguments.execution_id).attempts().await?;
        let answer = list_attempts::Outcome { items };
        return session.out.answer(&answer, |style| attempts(&answer.items, style));
    }
    let watch = arguments.watch;
    watch::show(session, watch, &arguments).await
}

impl View for Arguments {
    type Answer = ExecutionView;

    async fn fetch(&self, session: &Session) -> Result<Self::Answer> {
        Ok(session.client.execution(self.execution_id).get().await?)
    }

    fn text(&self, answer: &Self::Answer, style: Style) -> String {
        text(answer, style)
    }

    fn is_final(&self, answer: &Self::Answer) -> bool {
        answer.public_state.is_terminal()
    }
}

/// An execution for people.
pub(crate) fn text(execution: &ExecutionView, style: Style) -> String {
    let mut fields = Fields::default();
    fields.add("execution", Cell::of(execution.execution_id));
    fields.add("state", Cell::coloured(execution.public_state, public_state(execution.public_state)));
    fields.add("because", Cell::maybe(execution.blocking_detail.as_ref()));
    fields.add("kind", Cell::of(&execution.kind));
    fields.add("lane", Cell::of(&execution.lane));
    fields.add("namespace", Cell::of(&execution.namespace));
    fields.add("priority", Cell::of(execution.priority));
    fields.add("creator", Cell::maybe(execution.creator.as_ref()));
    fields.add("tags", Cell::list(execution.tags.iter().map(|(key, value)| format!("{key}={value}"))));
    fields.add("requires", Cell::list(execution.required_capabilities.tokens()));
    fields.add("budgets", Cell::list(&execution.budget_ids));
    fields.add("quota", Cell::maybe(execution.quota_policy_id.as_ref()));
    fields.add("concurrency", Cell::list(execution.concurrency.iter().map(|one| format!("{}={}", one.key, one.limit))));
    fields.add("fair key", Cell::maybe(execution.fair_key.as_ref()));
    fields.add("singleton", Cell::maybe(execution.singleton_key.as_ref()));
    fields.add("debounce", Cell::maybe(execution.debounce_key.as_ref()));
    fields.add("flow", Cell::maybe(execution.flow_id));
    fields.add("node", Cell::maybe(execution.node.as_ref()));
    add_progress(&mut fields, execution);
    add_times(&mut fields, execution);
    add_end(&mut fields, execution);
    fields.text(style)
}

fn add_progress(fields: &mut Fields, execution: &ExecutionView) {
    fields.add("attempt", Cell::maybe(execution.attempt));
    let counts = [
        (execution.retry_count, "retries"),
        (execution.reclaim_count, "lost leases"),
        (execution.replay_count, "replays"),
    ];
    let counted = counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    fields.add("so far", Cell::list(counted));
    if let Some(progress) = &execution.progress {
        let pct = progress.pct.map(|pct| format!("{pct}%"));
        let words: Vec<String> = pct.into_iter().chain(progress.message.clone()).collect();
        fields.add("progress", Cell::of(words.join(" ")));
    }
    if let Some(lease) = &execution.lease {
        fields.add("worker", Cell::of(format!("{} ({})", lease.worker_id, lease.instance_id)));
        fields.add("lease until", Cell::maybe_at(lease.expires_at));
    }
    if let Some(suspension) = &execution.suspension {
        fields.add(
            "suspended",
            Cell::of(format!("for {} since {}", suspension.reason, span::instant(suspension.suspended_at))),
        );
        fields.add("gives up", Cell::maybe_at(suspension.timeout_at));
    }
}

fn add_times(fields: &mut Fields, execution: &ExecutionView) {
    fields.add("created", Cell::at(execution.created_at));
    fields.add("not before", Cell::maybe_at(execution.delay_until));
    fields.add("deadline", Cell::maybe_at(execution.deadline_at));
    fields.add("started", Cell::maybe_at(execution.started_at));
    fields.add("ended", Cell::maybe_at(execution.completed_at));
    if let (Some(started), Some(ended)) = (execution.started_at, execution.completed_at) {
        fields.add("took", Cell::of(span::show(ended.saturating_sub(started))));
    }
}

fn add_end(fields: &mut Fields, execution: &ExecutionView) {
    if let Some(failure) = &execution.last_failure {
        let category = failure.category.as_ref().map(|category| format!(" ({category})")).unwrap_or_default();
        fields.add("failure", Cell::coloured(format!("{}{category}", failure.reason), Colour::Red));
    }
    if let Some(cancellation) = &execution.cancellation {
        let reason = cancellation.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        fields.add("cancelled", Cell::of(format!("by {}{reason}", cancellation.source)));
    }
    if let Some(result) = &execution.result {
        fields.add("result", Cell::of(format!("{} bytes of {}", result.size, result.content_type)));
    }
}

fn attempts(attempts: &[AttemptView], style: Style) -> String {
    let mut table = Table::new(["ATTEMPT", "KIND", "WORKER", "STARTED", "ENDED", "LEASES", "OUTCOME", "FAILURE"]);
    for attempt in attempts {
        table.row([
            Cell::of(attempt.index),
            Cell::of(attempt.kind),
            Cell::maybe(attempt.worker_id.as_ref()),
            Cell::maybe_at(attempt.started_at),
            Cell::maybe_at(attempt.ended_at),
            Cell::of(attempt.leases.len()),
            Cell::maybe(attempt.outcome),
            Cell::maybe(attempt.failure_reason.as_ref()),
        ]);
    }
    table.text(style, "It was never tried.")
}
