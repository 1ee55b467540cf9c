//! `ff ls`: lists executions.

use flowfabric::ExecutionSummary;
use flowfabric::op::{ListOrder, list_executions};

use crate::failure::Result;
use crate::output::{Cell, Style, Table, public_state};
use crate::selection::Selection;
use crate::session::Session;
use crate::watch::{self, View, Watch};

/// The arguments of `ff ls`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff ls                                 the newest
  ff ls --state failed --since 1h       what failed in the last hour
  ff ls --tag team=data --lane gpu
  ff ls --open --oldest                 what has been under way for longest
  ff ls --watch --state active
  ff ls --all -o json | jq -r '.items[].execution_id'")]
pub(crate) struct Arguments {
    #[command(flatten)]
    selection: Selection,
    /// Only executions that have not ended
    #[arg(long, conflicts_with = "ended")]
    open: bool,
    /// Only executions that have ended
    #[arg(long)]
    ended: bool,
    /// The oldest first
    #[arg(long)]
    oldest: bool,
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
            terminal: match (self.open, self.ended) {
                (true, _) => Some(false),
                (_, true) => Some(true),
                _ => None,
            },
            order: self.oldest.then_some(ListOrder::Oldest),
            cursor: self.cursor.clone(),
            limit: Some(self.limit),
            ..self.selection.as_list()
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
