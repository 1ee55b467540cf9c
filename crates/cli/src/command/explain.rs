//! `ff explain`: why an execution is not running.

use flowfabric::ExecutionId;
use flowfabric::op::Explanation;

use crate::failure::Result;
use crate::output::{Colour, Style, public_state};
use crate::session::Session;
use crate::span;

/// The arguments of `ff explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff explain 0000-0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e
  ff explain ID -o json | jq -r '.reasons[0].code'")]
pub(crate) struct Arguments {
    /// The execution
    #[arg(value_name = "ID")]
    execution_id: ExecutionId,
}

/// Explains.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let explanation = session.client.execution(arguments.execution_id).explain().await?;
    session.out.answer(&explanation, |style| text(&explanation, style))
}

fn text(explanation: &Explanation, style: Style) -> String {
    let state = style.paint(public_state(explanation.public_state), explanation.public_state.as_str());
    let mut lines = vec![format!("{} is {state}", explanation.execution_id)];
    for (number, reason) in explanation.reasons.iter().enumerate() {
        let until = reason.until.map(span::instant).filter(|until| !reason.message.contains(until.as_str()));
        let until = until.map(|until| format!(", until {until}")).unwrap_or_default();
        let code = style.paint(Colour::Dim, &format!("[{}]", reason.code));
        lines.push(format!("  {}. {}{until} {code}", number + 1, crate::output::one_line(&reason.message)));
    }
    if let Some(next) = explanation.next_change_at {
        lines.push(format!("Something changes by itself at {}.", span::instant(next)));
    }
    lines.join("\n")
}
