//! `ff tail`: follows the output of an execution while it runs.

use flowfabric::{ExecutionId, FrameId, JsonText, StreamEvent, StreamFrame};
use serde::Serialize;
use serde_json::json;

use crate::failure::Result;
use crate::output::{Colour, Style, one_line, public_state};
use crate::session::Session;
use crate::span;

/// The arguments of `ff tail`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff tail 0000-0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e
  ff tail ID --raw                      the payloads alone, as they come: tokens of a model become text
  ff tail ID --type log --type error
  ff tail ID --after 0-12               go on where an earlier tail ended
  ff tail ID -o json                    one object a line")]
pub(crate) struct Arguments {
    /// The execution
    #[arg(value_name = "ID")]
    execution_id: ExecutionId,
    /// Begin after this frame
    #[arg(long, value_name = "FRAME")]
    after: Option<FrameId>,
    /// Only frames of this type; may be repeated
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<String>,
    /// Print payloads alone, without names and line breaks
    #[arg(long, conflicts_with = "output")]
    raw: bool,
}

/// Follows it to its end.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let execution = session.client.execution(arguments.execution_id);
    // An execution that is not there is told at once, not waited for.
    execution.state().await?;
    let session = session.patient().await?;
    let execution = session.client.execution(arguments.execution_id);
    let mut tail = execution.tail_after(arguments.after.unwrap_or(FrameId::START));
    while let Some(event) = tail.next().await {
        show(&session, &arguments, &event?)?;
    }
    Ok(())
}

fn show(session: &Session, arguments: &Arguments, event: &StreamEvent) -> Result<()> {
    if let StreamEvent::Frame(frame) = event
        && !arguments.types.is_empty()
        && !arguments.types.contains(&frame.frame_type)
    {
        return Ok(());
    }
    if arguments.raw {
        return match event {
            StreamEvent::Frame(frame) => session.out.raw(&readable(frame)),
            StreamEvent::End { .. } if session.out.is_terminal() => session.out.text("\n"),
            _ => Ok(()),
        };
    }
    match event {
        StreamEvent::Frame(frame) => {
            let payload = serde_json::from_slice(&frame.payload.0).ok();
            session.out.line(&FrameLine { event: "frame", frame, payload }, |style| text(event, style))
        }
        other => session.out.line(&json(other), |style| text(event, style)),
    }
}

/// A JSON string is shown as its text, everything else as it was sent.
fn readable(frame: &StreamFrame) -> Vec<u8> {
    match serde_json::from_slice::<String>(&frame.payload.0) {
        Ok(text) if frame.content_type.starts_with("application/json") => text.into_bytes(),
        _ => frame.payload.0.to_vec(),
    }
}

/// A frame with its payload a second time, readable, if it is JSON. It keeps its very text.
#[derive(Debug, Serialize)]
struct FrameLine<'a> {
    event: &'static str,
    frame: &'a StreamFrame,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<JsonText>,
}

/// An event that is no frame, as JSON.
fn json(event: &StreamEvent) -> serde_json::Value {
    match event {
        StreamEvent::Attempt { attempt } => json!({ "event": "attempt", "attempt": attempt }),
        StreamEvent::Paused { attempt, reason, detail } => {
            json!({ "event": "paused", "attempt": attempt, "reason": reason, "detail": detail })
        }
        StreamEvent::End { public_state } => json!({ "event": "end", "public_state": public_state }),
        _ => json!({ "event": "unknown" }),
    }
}

fn text(event: &StreamEvent, style: Style) -> String {
    match event {
        StreamEvent::Frame(frame) => {
            let head = style.paint(Colour::Dim, &format!("{} {}", span::instant(frame.appended_at), frame.id));
            let name = style.paint(colour(&frame.frame_type), &one_line(&frame.frame_type));
            format!("{head} {name} {}", payload(frame))
        }
        StreamEvent::Attempt { attempt } => {
            style.paint(Colour::Yellow, &format!("-- attempt {attempt} begins; what came before it is void"))
        }
        StreamEvent::Paused { attempt, reason, detail } => {
            let detail = if detail.is_empty() { String::new() } else { format!(": {}", one_line(detail)) };
            style.paint(Colour::Magenta, &format!("-- attempt {attempt} pauses, {reason}{detail}"))
        }
        StreamEvent::End { public_state: state } => {
            format!("-- {}", style.paint(public_state(*state), state.as_str()))
        }
        _ => "-- something this version does not know".to_owned(),
    }
}

fn payload(frame: &StreamFrame) -> String {
    match String::from_utf8(readable(frame)) {
        Ok(text) => one_line(&text),
        Err(_) => format!("<{} bytes of {}>", frame.payload.len(), one_line(&frame.content_type)),
    }
}

/// A type has always the same colour; bad news is red.
fn colour(frame_type: &str) -> Colour {
    const OTHERS: [Colour; 4] = [Colour::Green, Colour::Blue, Colour::Magenta, Colour::Cyan];
    match frame_type {
        "error" | "stderr" => Colour::Red,
        "warning" | "warn" => Colour::Yellow,
        "token" | "stdout" => Colour::Green,
        other => OTHERS[other.bytes().map(usize::from).sum::<usize>() % OTHERS.len()],
    }
}
