//! `ff steps`: what the function of an execution has done.

use std::collections::BTreeMap;

use ff_core::journal::{StepState, StepView};
use flowfabric::op::{ListSteps, list_steps};
use flowfabric::{ExecutionId, limits};
use serde_json::json;

use crate::failure::Result;
use crate::output::{Cell, Colour, Style, Table};
use crate::session::Session;
use crate::span;

/// The arguments of `ff steps`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff steps 0000-0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e
  ff steps ID --records                 how each step came to be what it is
  ff steps ID --generation 0            before it was replayed
  ff steps ID -o json | jq '.items[] | {name, state, result}'")]
pub(crate) struct Arguments {
    /// The execution
    #[arg(value_name = "ID")]
    execution_id: ExecutionId,
    /// Show every record of the journal, not only the last one of each step
    #[arg(long)]
    records: bool,
    /// Which run: 0 is the first, each replay begins another [default: the present one]
    #[arg(long, value_name = "NUMBER")]
    generation: Option<u32>,
}

/// Shows them.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let Arguments { execution_id, records, generation } = arguments;
    let (generation, mut items) = read(&session, execution_id, generation).await?;
    if !records {
        items = last_of_each(items);
    }
    session.out.answer(&json!({ "generation": generation, "items": items }), |style| text(&items, style))
}

/// Every record of a journal, and which generation it is.
pub(crate) async fn read(
    session: &Session,
    execution_id: ExecutionId,
    generation: Option<u32>,
) -> Result<(u32, Vec<StepView>)> {
    let mut args = list_steps::Args { execution_id, generation, after: None, limit: Some(limits::PAGE_MAX) };
    let mut items = Vec::new();
    loop {
        let page = session.client.call::<ListSteps>(args.clone()).await?;
        items.extend(page.items);
        match page.next_after {
            // A replay in between must not mix two journals.
            Some(after) => (args.after, args.generation) = (Some(after), Some(page.generation)),
            None => return Ok((page.generation, items)),
        }
    }
}

/// The last record of each entry, in the order in which the entries began.
pub(crate) fn last_of_each(records: Vec<StepView>) -> Vec<StepView> {
    let mut places = BTreeMap::new();
    let mut entries: Vec<StepView> = Vec::new();
    for record in records {
        let place = *places.entry(record.identity()).or_insert(entries.len());
        match entries.get_mut(place) {
            Some(entry) => *entry = record,
            None => entries.push(record),
        }
    }
    entries
}

fn text(items: &[StepView], style: Style) -> String {
    let mut table = Table::new(["NUMBER", "STEP", "KIND", "STATE", "ATTEMPT", "TOOK", "RECORDED"]);
    for step in items {
        table.row([
            Cell::of(step.number),
            Cell::of(step.identity().label()),
            Cell::of(step.kind),
            Cell::coloured(step.state, colour(step.state)),
            Cell::of(step.attempt),
            Cell::maybe(step.took_ms.map(span::show)),
            Cell::at(step.recorded_at),
        ]);
    }
    table.text(style, "It has recorded no steps.")
}

fn colour(state: StepState) -> Colour {
    match state {
        StepState::Begun => Colour::Blue,
        StepState::Retrying => Colour::Yellow,
        StepState::Completed => Colour::Green,
        StepState::Failed => Colour::Red,
        StepState::Unknown(_) => Colour::Dim,
    }
}
