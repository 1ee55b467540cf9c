//! `ff diff`: what two executions did differently, step by step.

use std::collections::BTreeMap;

use ff_core::journal::{StepIdentity, StepView};
use flowfabric::ExecutionId;
use serde::Serialize;
use serde_json::json;

use crate::command::steps;
use crate::failure::Result;
use crate::output::{Cell, Colour, Style, Table};
use crate::session::Session;

/// The arguments of `ff diff`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff diff 0000-0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e FORK
  ff diff ID FORK --all                 also what is the same
  ff diff ID FORK -o json | jq '.items[] | select(.difference == \"result\")'")]
pub(crate) struct Arguments {
    /// One execution
    #[arg(value_name = "ID")]
    one: ExecutionId,
    /// The other
    #[arg(value_name = "ID")]
    other: ExecutionId,
    /// Show steps that are the same, too
    #[arg(long)]
    all: bool,
}

/// The difference between two runs of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Difference {
    Same,
    OnlyInOne,
    OnlyInOther,
    State,
    Input,
    Result,
}

#[derive(Debug, Serialize)]
struct Compared {
    step: StepIdentity,
    difference: Difference,
    #[serde(skip_serializing_if = "Option::is_none")]
    one: Option<StepView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    other: Option<StepView>,
}

/// Compares them.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let (_, one) = steps::read(&session, arguments.one, None).await?;
    let (_, other) = steps::read(&session, arguments.other, None).await?;
    let mut items = compare(steps::last_of_each(one), steps::last_of_each(other));
    if !arguments.all {
        items.retain(|compared| compared.difference != Difference::Same);
    }
    let answer = json!({ "one": arguments.one, "other": arguments.other, "items": items });
    session.out.answer(&answer, |style| text(&items, style))
}

/// The steps of one in its order, then those that only the other has.
fn compare(one: Vec<StepView>, other: Vec<StepView>) -> Vec<Compared> {
    let mut rest: BTreeMap<StepIdentity, StepView> = other.into_iter().map(|entry| (entry.identity(), entry)).collect();
    let mut items = Vec::new();
    for entry in one {
        let step = entry.identity();
        let matching = rest.remove(&step);
        let difference = matching.as_ref().map_or(Difference::OnlyInOne, |matching| between(&entry, matching));
        items.push(Compared { step, difference, one: Some(entry), other: matching });
    }
    let mut rest: Vec<StepView> = rest.into_values().collect();
    rest.sort_by_key(|entry| entry.number);
    items.extend(rest.into_iter().map(|entry| Compared {
        step: entry.identity(),
        difference: Difference::OnlyInOther,
        one: None,
        other: Some(entry),
    }));
    items
}

fn between(one: &StepView, other: &StepView) -> Difference {
    if one.state != other.state || one.category != other.category {
        Difference::State
    } else if one.input_hash != other.input_hash {
        Difference::Input
    } else if one.result != other.result {
        Difference::Result
    } else {
        Difference::Same
    }
}

fn text(items: &[Compared], style: Style) -> String {
    let mut table = Table::new(["STEP", "DIFFERENCE", "ONE", "OTHER"]);
    for compared in items {
        let shown = |entry: &Option<StepView>| Cell::maybe(entry.as_ref().map(in_short));
        let (word, colour) = match compared.difference {
            Difference::Same => ("same", Colour::Green),
            Difference::OnlyInOne => ("only in the first", Colour::Yellow),
            Difference::OnlyInOther => ("only in the second", Colour::Yellow),
            Difference::State => ("state", Colour::Red),
            Difference::Input => ("input", Colour::Red),
            Difference::Result => ("result", Colour::Red),
        };
        table.row([
            Cell::of(compared.step.label()),
            Cell::coloured(word, colour),
            shown(&compared.one),
            shown(&compared.other),
        ]);
    }
    table.text(style, "They did the same.")
}

/// Letters of a result that a line has room for.
const RESULT_SHOWN_CHARS: usize = 40;

/// A step in a few words: how it ended, and the beginning of what it produced.
fn in_short(entry: &StepView) -> String {
    let result = entry.result.as_ref().map(|content| match std::str::from_utf8(&content.bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("{} bytes", content.bytes.len()),
    });
    let words = result.or_else(|| entry.message.clone()).unwrap_or_default();
    let mut short: String = words.chars().take(RESULT_SHOWN_CHARS).collect();
    if short.len() < words.len() {
        short.push('\u{2026}');
    }
    if short.is_empty() { entry.state.to_string() } else { format!("{} {short}", entry.state) }
}
