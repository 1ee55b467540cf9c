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
    session.out.answer(&explanation, |style| text(&explanation, style, span::now_ms()))
}

fn text(explanation: &Explanation, style: Style, now: i64) -> String {
    let state = style.paint(public_state(explanation.public_state), explanation.public_state.as_str());
    let mut lines = vec![format!("{} is {state}", explanation.execution_id)];
    for (number, reason) in explanation.reasons.iter().enumerate() {
        let until = reason.until.map(span::instant).filter(|until| !reason.message.contains(until.as_str()));
        let until = until.map(|until| format!(", until {until}")).unwrap_or_default();
        let code = style.paint(Colour::Dim, &format!("[{}]", reason.code));
        lines.push(format!("  {}. {}{until} {code}", number + 1, crate::output::one_line(&reason.message)));
    }
    if let Some(next) = explanation.next_change_at {
        lines.push(format!("Something changes by itself at {}{}.", span::instant(next), how_soon(next, now)));
    }
    lines.join("\n")
}

/// How long it is until an instant, for a person who does not want to subtract times.
fn how_soon(at: i64, now: i64) -> String {
    if at > now { format!(", in {}", span::show(at - now)) } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_change_is_told_as_an_instant_and_as_a_span() {
        let explanation = serde_json::json!({
            "execution_id": "0000-0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e", "public_state": "delayed", "reasons": [],
            "next_change_at": 1_700_000_090_000i64,
        });
        let explanation: Explanation = serde_json::from_value(explanation).unwrap();
        let told = text(&explanation, Style::new(false), 1_700_000_000_000);
        assert!(told.ends_with("at 2023-11-14T22:14:50Z, in 1m30s."), "{told}");
        let late = text(&explanation, Style::new(false), 1_700_000_090_000);
        assert!(late.ends_with("at 2023-11-14T22:14:50Z."), "{late}");
    }
}
