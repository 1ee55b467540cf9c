//! `ff audit`: what people and programs did to the deployment.

use flowfabric::op::{ListAudit, list_audit};

use crate::failure::Result;
use crate::output::{Cell, Colour, Style, Table};
use crate::session::Session;

/// The arguments of `ff audit`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff audit
  ff audit --what cancel_execution --who ci
  ff audit -o json | jq '.items[] | select(.outcome != \"ok\")'")]
pub(crate) struct Arguments {
    /// Only by this caller
    #[arg(long)]
    who: Option<String>,
    /// Only this operation
    #[arg(long, value_name = "OPERATION")]
    what: Option<String>,
    /// How many at the most
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// Where the last page ended
    #[arg(long)]
    cursor: Option<String>,
}

/// Lists, newest first.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let args = list_audit::Args {
        namespace: None,
        who: arguments.who,
        what: arguments.what,
        cursor: arguments.cursor,
        limit: Some(arguments.limit),
    };
    let answer = session.client.call::<ListAudit>(args).await?;
    session.out.answer(&answer, |style| text(&answer, style))
}

fn text(answer: &list_audit::Outcome, style: Style) -> String {
    let mut table = Table::new(["AT", "WHO", "WHAT", "TARGET", "OUTCOME", "DETAIL"]);
    for record in &answer.items {
        table.row([
            Cell::at(record.at),
            Cell::of(&record.who),
            Cell::of(&record.what),
            Cell::of(&record.target),
            Cell::coloured(&record.outcome, if record.outcome == "ok" { Colour::Green } else { Colour::Red }),
            Cell::of(&record.detail),
        ]);
    }
    let mut text = table.text(style, "There are no records.");
    if let Some(cursor) = &answer.next_cursor {
        text.push_str(&format!("\n\nThere are more: --cursor {cursor}."));
    }
    text
}
