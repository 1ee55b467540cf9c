//! `ff count`: how much there is, by state, and what waits, by lane and kind.

use flowfabric::op::{Count, get_counts};

use crate::failure::Result;
use crate::output::{Cell, Style, Table, public_state};
use crate::session::Session;
use crate::watch::{self, View, Watch};

/// The arguments of `ff count`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff count
  ff count --watch
  ff count -o json | jq '.states.failed.value'

A number with + is where counting stopped. A reading is shared by all who ask within two seconds.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    watch: Watch,
}

/// Counts.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let watch = arguments.watch;
    watch::show(session, watch, &arguments).await
}

impl View for Arguments {
    type Answer = get_counts::Outcome;

    async fn fetch(&self, session: &Session) -> Result<Self::Answer> {
        Ok(session.client.counts().await?)
    }

    fn text(&self, answer: &Self::Answer, style: Style) -> String {
        let mut states = Table::new(["STATE", "COUNT"]);
        for (state, count) in &answer.states {
            states.row([Cell::coloured(state, public_state(*state)), Cell::of(number(*count))]);
        }
        let mut waiting = Table::new(["LANE", "KIND", "WAITING", "SINCE"]);
        for queue in &answer.waiting {
            waiting.row([
                Cell::of(&queue.lane),
                Cell::maybe(queue.kind.as_ref()),
                Cell::of(number(queue.count)),
                Cell::maybe_at(queue.next_created_at),
            ]);
        }
        format!("{}\n\n{}", states.text(style, ""), waiting.text(style, "Nothing waits to be claimed."))
    }

    fn is_final(&self, _: &Self::Answer) -> bool {
        false
    }
}

/// A count that may be a lower bound.
pub(crate) fn number(count: Count) -> String {
    format!("{}{}", count.value, if count.more { "+" } else { "" })
}
