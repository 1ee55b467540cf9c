//! `ff ls`: lists executions.

use flowfabric::op::{ListOrder, list_executions};
use flowfabric::{ExecutionSummary, FlowId, PublicState};

use crate::failure::Result;
use crate::input::one_of;
use crate::output::{Cell, Style, Table, public_state};
use crate::session::Session;
use crate::span;
use crate::watch::{self, View, Watch};

/// What the command takes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff ls                                 the newest
  ff ls --state failed --since 1h       what failed in the last hour
  ff ls --tag team=data --lane gpu
  ff ls --watch --state active
  ff ls --all -o json | jq -r '.items[].execution_id'")]
pub(crate) struct Arguments {
    /// Only in this state; may be repeated
    #[arg(long, value_parser = one_of!(PublicState))]
    state: Vec<PublicState>,
    /// Only in this lane; may be repeated
    #[arg(long)]
    lane: Vec<String>,
    /// Only of this kind; may be repeated
    #[arg(long)]
    kind: Vec<String>,
    /// Only in this flow
    #[arg(long, value_name = "ID")]
    flow: Option<FlowId>,
    /// Only with this tag; of several values of one key any will do
    #[arg(long, value_name = "KEY=VALUE")]
    tag: Vec<String>,
    /// Only those that failed with this category; may be repeated
    #[arg(long, value_name = "CATEGORY")]
    failure: Vec<String>,
    /// Only runs of this schedule
    #[arg(long, value_name = "NAME")]
    schedule: Option<String>,
    /// The oldest first
    #[arg(long)]
    oldest: bool,
    /// Only created since: a span before now or RFC 3339
    #[arg(long, value_name = "WHEN", value_parser = span::parse_past)]
    since: Option<i64>,
    /// Only created before: a span before now or RFC 3339
    #[arg(long, value_name = "WHEN", value_parser = span::parse_past)]
    until: Option<i64>,
    /// How many at the most
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// All of them, page by page
    #[arg(long, conflicts_with_all = ["limit", "cursor"])]
    all: bool,
    /// Where the last page ended
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    watch: Watch,
}

/// Lists.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let watch = arguments.watch;
    watch::show(session, watch, &arguments).await
}

impl View for Arguments {
    type Answer = list_executions::Outcome;

    async fn fetch(&self, session: &Session) -> Result<Self::Answer> {
        let mut filter = list_executions::Args {
            lane: self.lane.clone(),
            kind: self.kind.clone(),
            state: self.state.clone(),
            flow_id: self.flow,
            tag: self.tag.clone(),
            failure_category: self.failure.clone(),
            schedule: self.schedule.clone(),
            order: self.oldest.then_some(ListOrder::Oldest),
            created_from: self.since,
            created_to: self.until,
            cursor: self.cursor.clone(),
            limit: Some(self.limit),
            ..Default::default()
        };
        if self.all {
            filter.limit = Some(flowfabric::limits::PAGE_MAX);
            let items = session.client.list_all(filter).await?;
            return Ok(list_executions::Outcome { items, next_cursor: None });
        }
        Ok(session.client.list(filter).await?)
    }

    fn text(&self, answer: &Self::Answer, style: Style) -> String {
        let mut text = table(&answer.items, style);
        if let Some(cursor) = &answer.next_cursor {
            text.push_str(&format!("\n\nThere are more: --cursor {cursor}, or --all."));
        }
        text
    }

    fn is_final(&self, _: &Self::Answer) -> bool {
        false
    }
}

fn table(items: &[ExecutionSummary], style: Style) -> String {
    let mut table = Table::new(["EXECUTION", "STATE", "KIND", "LANE", "PRIORITY", "CREATED"]);
    for item in items {
        table.row([
            Cell::of(item.execution_id),
            Cell::coloured(item.public_state, public_state(item.public_state)),
            Cell::of(&item.kind),
            Cell::of(&item.lane),
            Cell::of(item.priority),
            Cell::at(item.created_at),
        ]);
    }
    table.text(style, "There are no such executions.")
}
