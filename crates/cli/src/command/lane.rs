//! `ff lane`: opens and closes lanes.

use flowfabric::op::{
    ConfigureLane, DeleteLane, DisableLane, DrainLane, ListLanes, PauseLane, ResumeLane, configure_lane, delete_lane,
    list_lanes, pause_lane,
};
use flowfabric::{LaneView, limits};

use crate::command::pages;
use crate::failure::Result;
use crate::output::{Cell, Style, Table, lane_state};
use crate::session::Session;
use crate::span;

/// The arguments of `ff lane`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff lane ls
  ff lane pause gpu --reason 'driver update'
  ff lane resume gpu")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// List lanes
    #[command(
        after_help = "Examples:\n  ff lane ls\n  ff lane ls -o json | jq -r '.items[] | select(.state != \"active\") | .name'"
    )]
    Ls,
    /// Running work goes on, nothing new is claimed
    #[command(after_help = "Examples:\n  ff lane pause gpu --reason 'driver update'")]
    Pause(Change),
    /// Open it again
    #[command(after_help = "Examples:\n  ff lane resume gpu")]
    Resume(Change),
    /// Work in it is worked off, nothing new comes in
    #[command(after_help = "Examples:\n  ff lane drain gpu --reason 'moving to gpu-2'")]
    Drain(Change),
    /// Neither submissions nor claims
    #[command(after_help = "Examples:\n  ff lane disable gpu --reason 'sold the machine'")]
    Disable(Change),
    /// Let old work overtake work of a higher priority
    #[command(
        after_help = "Examples:\n  ff lane age batch 10m        ten minutes of age are worth one step of priority\n  ff lane age batch off        priority decides before age"
    )]
    Age {
        /// The lane
        lane: String,
        /// So much age is worth one step of priority, for work submitted from now on; or `off`
        #[arg(value_name = "SPAN", value_parser = aging)]
        span: i64,
    },
    /// Forget a lane and its state; a lane that is used again is active
    #[command(
        after_help = "Examples:\n  ff lane rm gpu\n  ff lane rm gpu --force        also while executions are in it"
    )]
    Rm {
        /// The lane
        lane: String,
        /// Also while executions that have not ended are in it
        #[arg(long)]
        force: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Change {
    /// The lane
    lane: String,
    /// Why
    #[arg(long)]
    reason: Option<String>,
}

/// Does what the verb says.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let client = &session.client;
    let lane = match arguments.verb {
        Verb::Ls => return ls(&session).await,
        Verb::Rm { lane, force } => {
            let args = delete_lane::Args { lane: lane.clone(), namespace: None, force };
            let answer = client.call::<DeleteLane>(args).await?;
            return session.out.answer(&answer, |_| format!("{lane} is forgotten"));
        }
        Verb::Age { lane, span } => {
            let args = configure_lane::Args { lane, namespace: None, state: None, reason: None, aging_ms: Some(span) };
            client.call::<ConfigureLane>(args).await?
        }
        Verb::Pause(change) => client.call::<PauseLane>(args(change)).await?,
        Verb::Resume(change) => client.call::<ResumeLane>(args(change)).await?,
        Verb::Drain(change) => client.call::<DrainLane>(args(change)).await?,
        Verb::Disable(change) => client.call::<DisableLane>(args(change)).await?,
    };
    session.out.answer(&lane, |style| text(std::slice::from_ref(&lane), style))
}

fn aging(text: &str) -> std::result::Result<i64, String> {
    if text == "off" { Ok(limits::AGING_DEFAULT_MS) } else { span::parse(text) }
}

fn args(change: Change) -> pause_lane::Args {
    pause_lane::Args { lane: change.lane, namespace: None, reason: change.reason }
}

async fn ls(session: &Session) -> Result<()> {
    let items = pages(async |cursor| {
        let page = session.client.call::<ListLanes>(list_lanes::Args { cursor, ..Default::default() }).await?;
        Ok((page.items, page.next_cursor))
    });
    let answer = list_lanes::Outcome { items: items.await?, next_cursor: None };
    session.out.answer(&answer, |style| text(&answer.items, style))
}

fn text(lanes: &[LaneView], style: Style) -> String {
    let mut table = Table::new(["LANE", "STATE", "AGING", "CHANGED", "BY", "REASON"]);
    for lane in lanes {
        table.row([
            Cell::of(&lane.name),
            Cell::coloured(lane.state, lane_state(lane.state)),
            Cell::maybe(lane.aging_ms.map(span::show)),
            Cell::maybe_at(lane.changed_at),
            Cell::maybe(lane.changed_by.as_ref()),
            Cell::maybe(lane.reason.as_ref()),
        ]);
    }
    table.text(style, "No lane was used yet.")
}
