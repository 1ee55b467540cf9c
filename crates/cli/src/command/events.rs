//! `ff events`: what happens in the deployment.

use flowfabric::op::{ListEvents, ListExecutionEvents, list_events, list_execution_events};
use flowfabric::{EventKind, EventType, EventView, ExecutionId, FlowId, limits};
use serde_json::json;

use crate::failure::Result;
use crate::input::one_of;
use crate::output::{Colour, Style, one_line};
use crate::session::Session;
use crate::span;

/// The arguments of `ff events`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff events                             what the log still has
  ff events --follow                    and whatever comes
  ff events --kind completion --tag team=data --follow
  ff events --execution ID
  ff events --follow -o json            one object a line, with the cursor to go on from")]
pub(crate) struct Arguments {
    /// Go on with what comes
    #[arg(long, short)]
    follow: bool,
    /// Only events of this kind; may be repeated
    #[arg(long = "kind", value_parser = one_of!(EventKind))]
    kinds: Vec<EventKind>,
    /// Only events of this flow
    #[arg(long, value_name = "ID")]
    flow: Option<FlowId>,
    /// Only with this tag
    #[arg(long, value_name = "KEY=VALUE")]
    tag: Option<String>,
    /// Go on where an earlier look ended
    #[arg(long)]
    cursor: Option<String>,
    /// Only events of this execution
    #[arg(long, value_name = "ID", conflicts_with_all = ["follow", "kinds", "flow", "tag"])]
    execution: Option<ExecutionId>,
}

/// Lists, and follows.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    if let Some(execution_id) = arguments.execution {
        return of_execution(&session, execution_id, arguments.cursor).await;
    }
    let session = if arguments.follow { session.patient().await? } else { session };
    let mut args = list_events::Args {
        kinds: arguments.kinds,
        flow_id: arguments.flow,
        tag: arguments.tag,
        cursor: arguments.cursor,
        limit: Some(limits::PAGE_MAX),
        wait_ms: arguments.follow.then_some(limits::WAIT_MAX_MS),
        ..Default::default()
    };
    loop {
        let page = session.client.call::<ListEvents>(args.clone()).await?;
        if page.gap {
            session.out.line(&json!({ "gap": true }), gap)?;
        }
        let over = page.items.is_empty() && !arguments.follow;
        for event in &page.items {
            show(&session, event, Some(&page.next_cursor))?;
        }
        if over {
            return Ok(());
        }
        args.cursor = Some(page.next_cursor);
    }
}

async fn of_execution(session: &Session, execution_id: ExecutionId, cursor: Option<String>) -> Result<()> {
    let mut args = list_execution_events::Args { execution_id, cursor, limit: None };
    loop {
        let page = session.client.call::<ListExecutionEvents>(args.clone()).await?;
        for event in &page.items {
            show(session, event, page.next_cursor.as_deref())?;
        }
        match page.next_cursor {
            Some(cursor) => args.cursor = Some(cursor),
            None => return Ok(()),
        }
    }
}

fn show(session: &Session, event: &EventView, cursor: Option<&str>) -> Result<()> {
    session.out.line(&json!({ "event": event, "cursor": cursor }), |style| text(event, style))
}

fn gap(style: Style) -> String {
    style.paint(Colour::Yellow, "-- events are missing here: the log no longer reaches back")
}

fn text(view: &EventView, style: Style) -> String {
    let event = &view.event;
    let at = style.paint(Colour::Dim, &span::instant(view.happened_at));
    let name = style.paint(colour(event.event_type), &format!("{:15}", event.event_type.as_str()));
    let subject = match (event.execution_id, &event.breach) {
        (Some(id), _) => format!("{id} {} attempt {}", one_line(&event.execution_kind), event.attempt),
        (None, Some(breach)) => format!("budget {}", one_line(&breach.budget)),
        (None, None) => String::new(),
    };
    let mut text = format!("{at} {name} {subject}");
    for (word, value) in [("by", &event.worker_id), ("-", &event.detail)] {
        // A lease that has just begun has no end to tell.
        if !value.is_empty() && value != "none" {
            text.push_str(&format!(" {word} {}", one_line(value)));
        }
    }
    text
}

fn colour(event: EventType) -> Colour {
    match event {
        EventType::Completed => Colour::Green,
        EventType::Failed | EventType::Expired | EventType::LeaseExpired | EventType::LeaseRevoked => Colour::Red,
        EventType::Cancelled | EventType::Skipped => Colour::Dim,
        EventType::LeaseAcquired | EventType::LeaseReleased => Colour::Blue,
        EventType::LeaseReclaimed | EventType::Breached => Colour::Yellow,
        EventType::SignalAccepted | EventType::Suspended | EventType::Resumed => Colour::Magenta,
        EventType::Created | EventType::Unknown(_) => Colour::Dim,
    }
}
